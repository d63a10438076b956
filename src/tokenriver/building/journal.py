"""What a build has finished, on disk, so that the next run goes on from there: a redo log of closed shards.

One JSON object a line. The first says what is being built (inputs, options, tokenizer); each later one is written
when a shard is sealed but still has its part name, and holds the shard's facts and everything needed to go on
after it. Order of durable steps: part bytes, journal line, rename (docs/determinism.md argues why).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import msgspec

from tokenriver.corpus.inputs import InputFacts, InputMark
from tokenriver.resuming.journal import RedoLog, refuse_engine

__all__ = ["Checkpoint", "Journal", "JournalContent"]


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

    `inputs` are the facts of sources that were read to their end, by index; `mark` one of the source that was not;
    `indexes` the SHA-256 of the shards' document indexes, by the shards' names.
    """

    heading: dict[str, Any]
    files: list[dict[str, Any]] = field(default_factory=list)
    checkpoint: Checkpoint | None = None
    source_documents: dict[str, int] = field(default_factory=dict)
    inputs: dict[int, InputFacts] = field(default_factory=dict)
    mark: InputMark | None = None
    indexes: dict[str, str] = field(default_factory=dict)


class Journal(RedoLog):
    """The journal of one build on this machine."""

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
                if entry.get("index"):
                    content.indexes[entry["file"]["name"]] = entry["index"]
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
        *,
        index_sha256: str,
    ) -> None:
        """Add a sealed shard, its index ("": none), the point to go on from, and what is new since the last one about
        the sources: the documents counted in each, and the state of their hashes there (InputHasher.state).
        """
        entry = {"file": file, "index": index_sha256, "checkpoint": checkpoint, "sources": source_documents}
        self.append({**entry, "inputs": inputs[0], "mark": inputs[1]})

    def record_sha256(self, name: str, sha256: str) -> None:
        """Add the SHA-256 in hex of a shard that was recorded before it was known."""
        self.append({"name": name, "sha256": sha256})
