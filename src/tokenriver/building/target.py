"""The directory a build writes to: locked, not finished yet, and left as it was found when nothing came of it."""

from __future__ import annotations

import shutil
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import filelock

from tokenriver.errors import IntegrityError, ResumeError
from tokenriver.files import PART_SUFFIX, fsync_directory
from tokenriver.shards.index import INDEX_SUFFIX
from tokenriver.shards.layouts import BUILD_RECORD, CORPUS_RECORD, JOURNAL, MANIFEST, SEGMENTS, Layout, parse_shard_name
from tokenriver.shards.layouts import record_prefix as prefix_of

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Target"]


@dataclass(slots=True)
class Target:
    """Where one data set goes: its directory, and the names of the records beside its shards."""

    directory: Path
    layout: Layout
    dataset: str
    _created: list[Path] = field(default_factory=list)

    def record(self, name: str) -> Path:
        """Path of a record, with the data set's name before it where several share a folder."""
        return self.directory / (prefix_of(self.layout, self.dataset) + name)

    @property
    def final_record(self) -> Path:
        """The file that is written last; while it is missing the data set is unfinished."""
        return self.record(MANIFEST if self.layout == "tokens" else BUILD_RECORD)

    @property
    def journal(self) -> Path:
        """The journal of an unfinished build."""
        return self.record(JOURNAL)

    @property
    def segments(self) -> Path:
        """The folder in which a cluster works on an unfinished build."""
        return self.record(SEGMENTS)

    @contextmanager
    def locked(self) -> Iterator[None]:
        """Create the directory and hold its lock; a second build there is a ResumeError, at once."""
        missing = [d for d in (self.directory, *self.directory.parents) if not d.exists()]
        self.directory.mkdir(parents=True, exist_ok=True)
        self._created = missing
        lock_file = self.record("_LOCK")
        lock = filelock.FileLock(lock_file, timeout=0)
        try:
            lock.acquire()
        except filelock.Timeout:
            raise ResumeError(
                f"{self.directory}: another build is writing here (it holds {lock_file.name}); wait for it, or give "
                "another --out"
            ) from None
        try:
            yield
        finally:
            lock_file.unlink(missing_ok=True)
            lock.release()
            self._remove_created_if_empty()

    def shards(self) -> list[Path]:
        """Every shard, index and part of either of this data set that is there now, by name."""
        found = []
        for path in self.directory.iterdir():
            name = parse_shard_name(path.name.removesuffix(PART_SUFFIX).removesuffix(INDEX_SUFFIX))
            if name is not None and name.dataset == prefix_of(self.layout, self.dataset):
                found.append(path)
        return sorted(found)

    def refuse_finished(self) -> None:
        """IntegrityError when a finished data set, or shards that no journal speaks of, are there already.

        A finished one with its journal is a build that was killed at its very end: it may go on, and end.
        """
        if self.journal.exists():
            return
        if self.final_record.exists():
            raise IntegrityError(
                f"{self.directory}: holds a finished data set already ({self.final_record.name}); --overwrite replaces "
                "it, another --out, --dataset or --tokenizer-id stands beside it"
            )
        whole = [p for p in self.shards() if p.suffix not in (PART_SUFFIX, INDEX_SUFFIX)]
        if whole:
            raise IntegrityError(
                f"{self.directory}: holds {len(whole)} shards ({whole[0].name} first) but no journal and no record, so "
                "nothing tells what they are; --overwrite replaces them"
            )

    def clear(self, *, unfinished_only: bool = False) -> None:
        """Remove everything of this data set, what names the shards first, so that no record outlives them.

        With `unfinished_only` a finished data set stays.
        """
        if unfinished_only and self.final_record.exists():
            return
        for path in (self.final_record, self.record(BUILD_RECORD), self.record(CORPUS_RECORD), self.journal):
            path.unlink(missing_ok=True)
        fsync_directory(self.directory)
        self.remove_segments()
        for path in self.shards():
            path.unlink()

    def remove_segments(self) -> None:
        """Remove what a cluster works on. A task of a node that was given up may still write there for a moment."""
        shutil.rmtree(self.segments, ignore_errors=True)

    def _remove_created_if_empty(self) -> None:
        for directory in self._created:
            if not directory.exists() or any(directory.iterdir()):
                return
            directory.rmdir()
