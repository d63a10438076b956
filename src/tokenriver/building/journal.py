"""What a build has finished, on disk, so that the next run goes on from there: a redo log of closed shards.

One JSON object a line. The first says what is being built (inputs, options, tokenizer); each later one is written
when a shard is sealed but still has its part name, and holds the shard's facts and everything needed to go on
after it. Order of durable steps: part bytes, journal line, rename (docs/determinism.md argues why).
"""

from __future__ import annotations

import os
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from tokenriver.corpus.inputs import InputFacts, InputMark
from tokenriver.errors import ResumeError
from tokenriver.files import fsync_directory, naming

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Checkpoint", "Journal", "JournalContent", "refuse_engine"]


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """Where a build stands right after a shard was closed.

    `position` is (source, offset) of the block that holds the cut; `skip` the tokens of the stream from there that
    are already in files; `plan` the PlanState at that block's start with the open files as they are now; `counts`
    the totals up to the block's start; `parts` the tokens of each open part by file name.
    """

    position: tuple[int, int]
    skip: int
    plan: dict[str, Any]
    counts: dict[str, Any]
    parts: dict[str, int]


@dataclass(slots=True)
class JournalContent:
    """A journal as read: what is being built, the closed files in order (with "" for a SHA-256 that it does not know),
    the last checkpoint, documents by source.

    `inputs` are the facts of sources that were read to their end, by index; `mark` one of the source that was not.
    """

    heading: dict[str, Any]
    files: list[dict[str, Any]] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    source_documents: dict[str, int] = field(default_factory=dict)
    inputs: dict[int, InputFacts] = field(default_factory=dict)
    mark: InputMark | None = None


class Journal:
    """The open journal of one build; every `record` is on disk when it returns. `begun`: this run started it.

    The heading's "engine" is who writes it, "local" where it names none; engines share the file, not what is in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begun = False
        self._file: int | None = None
        self._appending = threading.Lock()

    def begin(self, heading: dict[str, Any]) -> None:
        """Start a new journal, replacing any old one."""
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self.begun = True
        self.append(heading)
        fsync_directory(self.path.parent)

    def reopen_lines(self) -> list[dict[str, Any]]:
        """The entries of an existing journal, heading first, to go on after; [] when there is none, or no whole line.

        A last line that was cut by a crash is dropped (and truncated away): the shard it spoke of was not yet
        renamed, so it is simply written again. Damage anywhere else is a ResumeError.
        """
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return []
        whole = raw[: raw.rfind(b"\n") + 1]
        try:
            entries = [msgspec.json.decode(line, type=dict[str, Any]) for line in whole.splitlines()]
        except msgspec.MsgspecError as error:
            raise self.damaged(error) from error
        if entries:
            self._file = os.open(self.path, os.O_RDWR)
            os.ftruncate(self._file, len(whole))
            os.lseek(self._file, 0, os.SEEK_END)
        return entries

    def damaged(self, error: Exception) -> ResumeError:
        """The error for a journal whose lines are not what they should be."""
        return ResumeError(f"{self.path}: damaged ({error}); build with --restart to begin anew")

    def reopen(self) -> JournalContent | None:
        """What the local engine's journal says; None when there is none. Raises as `reopen_lines`, and ResumeError
        for the journal of another engine.
        """
        entries = self.reopen_lines()
        if not entries:
            return None
        refuse_engine(self.path, entries, "local")
        try:
            content, hashes = JournalContent(entries[0]), {}
            for entry in entries[1:]:
                if "sha256" in entry:
                    hashes[entry["name"]] = entry["sha256"]
                    continue
                content.files.append(entry["file"])
                content.checkpoint = msgspec.convert(entry["checkpoint"], Checkpoint)
                content.source_documents.update(entry["sources"])
                content.inputs.update(msgspec.convert(entry["inputs"], dict[int, InputFacts], strict=False))
                content.mark = msgspec.convert(entry["mark"], InputMark | None) or content.mark
            for file in content.files:
                file["sha256"] = file["sha256"] or hashes.get(file["name"], "")
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise self.damaged(error) from error
        return content

    def record(
        self,
        file: dict[str, Any],
        checkpoint: Checkpoint,
        source_documents: dict[str, int],
        inputs: tuple[dict[int, InputFacts], InputMark | None],
    ) -> None:
        """Add a sealed shard, the point to go on from, and what is new since the last one about the sources:

        the documents counted in each, and the state of their hashes there (InputHasher.state).
        """
        entry = {"file": file, "checkpoint": checkpoint, "sources": source_documents}
        self.append({**entry, "inputs": inputs[0], "mark": inputs[1]})

    def record_sha256(self, name: str, sha256: str) -> None:
        """Add the SHA-256 in hex of a shard that was recorded before it was known."""
        self.append({"name": name, "sha256": sha256})

    def close(self) -> None:
        """Stop writing; the file stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remove(self) -> None:
        """Delete the journal: the build is complete, or has left nothing."""
        self.close()
        self.path.unlink(missing_ok=True)

    def append(self, entry: dict[str, Any], *, sync: bool = True) -> None:
        """Add a line; with `sync` it is on disk, and all before it, when this returns. From any thread."""
        assert self._file is not None, "begin or reopen first"
        view = memoryview(msgspec.json.encode(entry) + b"\n")
        with self._appending, naming(self.path):
            while view:
                view = view[os.write(self._file, view) :]
            if sync:
                os.fsync(self._file)


def refuse_engine(path: Path, entries: list[dict[str, Any]], engine: str) -> None:
    """ResumeError when another engine has finished something by this journal: what is half done is kept otherwise."""
    found = entries[0].get("engine", "local")
    if found != engine and len(entries) > 1:
        raise ResumeError(
            f"{path.parent}: the unfinished build there was begun with --engine {found}, and only that can go on with "
            f"it; give --engine {found}, or --restart to begin anew with {engine}"
        )
