"""The journal of a corpus that is being written: which shards are finished, and where reading goes on.

Lines after the heading: {"file": …} for each shard that is whole and on disk (behind a URL: in the store), with the
`Checkpoint` to go on from (local engine) or the shard's documents of val (cluster, which reads the inputs once more to
plan the shards); and, when all shards are there, {"complete": …}: from then on they only have to be put in place.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec

from tokenriver.corpus.manifest import CorpusFile, CorpusManifest
from tokenriver.errors import IntegrityError, ResumeError
from tokenriver.resuming.journal import RedoLog, refuse_changes, refuse_engine

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Checkpoint", "Complete", "CorpusLog"]


class Checkpoint(msgspec.Struct, frozen=True, kw_only=True):
    """Where the writing stands right after a shard was closed.

    `position` is (source, offset) of the block that holds the cut, `skip` its documents that are in shards already.
    The other fields are totals up to the block's start; `of_source` counts the documents of the source it begins in.
    """

    position: tuple[int, int] = (0, 0)
    skip: int = 0
    of_source: int = 0
    documents: tuple[int, int] = (0, 0)
    text_bytes: int = 0
    skipped: dict[str, int] = {}


class Complete(msgspec.Struct, frozen=True):
    """What is left to say of a corpus once its shards are there: the manifest, and what the summary tells."""

    manifest: CorpusManifest
    text_bytes: int
    skipped: dict[str, int]


class CorpusLog:
    """An open journal and what it says: `files` that are finished by name, `n_val` of those that a cluster made."""

    def __init__(self, path: Path, *, anew: bool = False) -> None:
        """Read the journal of an unfinished corpus, if there is one; with `anew` what it says does not count.

        Raises ResumeError for a damaged one, IntegrityError for that of a data set.
        """
        self._log = RedoLog(path)
        try:
            self._entries = self._log.reopen_lines()
        except ResumeError:
            if not anew:
                raise
            self._entries = []
        if self._entries and "corpus" not in self._entries[0]:
            raise IntegrityError(f"{path.parent}: an unfinished build of a data set is there; choose another --out")
        if anew:
            self._entries = []
        self.files: dict[str, CorpusFile] = {}
        self.n_val: dict[str, int] = {}
        self.checkpoint = Checkpoint()
        self.complete: Complete | None = None
        try:
            for entry in self._entries[1:]:
                self._take(entry)
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise self._log.damaged(error) from error

    def _take(self, entry: dict[str, Any]) -> None:
        if "complete" in entry:
            self.complete = msgspec.convert(entry["complete"], Complete)
            return
        file = msgspec.convert(entry["file"], CorpusFile)
        self.files[file.name] = file
        if "n_val" in entry:
            self.n_val[file.name] = entry["n_val"]
        else:
            self.checkpoint = msgspec.convert(entry["checkpoint"], Checkpoint)

    @property
    def holds_work(self) -> bool:
        """Whether something is finished by it."""
        return len(self._entries) > 1

    def is_of(self, heading: dict[str, Any]) -> bool:
        """Whether it is the journal of just this corpus, made by the same engine."""
        return bool(self._entries) and self._entries[0] == msgspec.to_builtins(heading)

    def refuse_others(self, heading: dict[str, Any], where: object) -> None:
        """ResumeError naming the engine, the option or the input that is not what the journal was begun with."""
        refuse_engine(self._log.path, self._entries, heading["engine"])
        refuse_changes(msgspec.to_builtins(heading), self._entries[0], where)

    def begin(self, heading: dict[str, Any]) -> None:
        """Start the journal of a new corpus, whatever there was."""
        self.remove()
        self.files, self.n_val, self.checkpoint, self.complete = {}, {}, Checkpoint(), None
        self._log.begin(heading)

    def shard(self, file: CorpusFile, *, checkpoint: Checkpoint | None = None, n_val: int | None = None) -> None:
        """A shard is whole and where it has to be; durable when this returns."""
        self.files[file.name] = file
        told = {"checkpoint": checkpoint} if n_val is None else {"n_val": n_val}
        if n_val is not None:
            self.n_val[file.name] = n_val
        self._log.append({"file": file, **told})

    def finish(self, complete: Complete) -> None:
        """All shards are there."""
        self.complete = complete
        self._log.append({"complete": complete})

    def close(self) -> None:
        """Stop writing; the file stays."""
        self._log.close()

    def remove(self) -> None:
        """Delete the journal: the corpus has its manifest, or has left nothing."""
        self._log.remove()
        self._entries = []
