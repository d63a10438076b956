"""The directory a build writes to: locked, not finished yet, and left as it was found when nothing came of it.

Behind a URL there is no rename and no lock: the build goes on in a staging directory here, whose journal and lock are
its own, and what is whole is uploaded, the manifest last (docs/storage.md argues why that is enough).
"""

from __future__ import annotations

import shutil
import warnings
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenriver.errors import IntegrityError
from tokenriver.files import PART_SUFFIX, fsync_directory
from tokenriver.resuming.lock import locked
from tokenriver.shards.index import INDEX_SUFFIX
from tokenriver.shards.layouts import (
    BUILD_RECORD,
    CORPUS_RECORD,
    JOURNAL,
    MANIFEST,
    OVERWRITE,
    SEGMENTS,
    Layout,
    parse_shard_name,
)
from tokenriver.shards.layouts import record_prefix as prefix_of
from tokenriver.storage.directory import RemoteDirectory, staging_directory
from tokenriver.storage.failures import StorageWarning
from tokenriver.storage.paths import is_remote, to_path
from tokenriver.storage.uploading import abort_uploads

if TYPE_CHECKING:
    import os
    from contextlib import AbstractContextManager
    from pathlib import Path

__all__ = ["Target"]

_CLEARED = "_CLEARED"
"""Stands in the folder of a new data set once the old one is removed: from then on what lies there is the new one's."""


@dataclass(slots=True)
class Target:
    """Where one data set goes: its directory, and the names of the records beside its shards.

    With `remote` the data set is there, and `directory` is the staging directory. With `replaced` it is what stands
    there until the new one is whole, and `directory` a folder in it.
    """

    directory: Path
    layout: Layout
    dataset: str
    remote: RemoteDirectory | None = None
    replaced: Path | None = None

    @classmethod
    def at(
        cls, directory: Path, layout: Layout, dataset: str, *, staging: str | os.PathLike[str] | None = None
    ) -> Target:
        """The target of a directory, or of one behind a URL with its staging directory below `staging`."""
        if not is_remote(directory):
            return cls(directory, layout, dataset)
        remote = RemoteDirectory.for_writing(str(directory))
        return cls(staging_directory(remote.url, staging), layout, dataset, remote)

    @property
    def where(self) -> Path:
        """Where users find the data set: a `UPath` behind a URL."""
        if self.remote is not None:
            return to_path(self.remote.url)
        return self.directory if self.replaced is None else self.replaced

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

    def locked(self) -> AbstractContextManager[None]:
        """Create the directory and hold its lock; a second build there is a ResumeError, at once."""
        return locked(self.record("_LOCK"), where=self.where, staging=self.remote is not None)

    def shards(self) -> list[Path]:
        """Every shard, index and part of either of this data set that is on this disk now, by name."""
        return sorted(path for path in self.directory.iterdir() if self._is_ours(path.name))

    def _is_ours(self, name: str) -> bool:
        found = parse_shard_name(name.removesuffix(PART_SUFFIX).removesuffix(INDEX_SUFFIX))
        return found is not None and found.dataset == prefix_of(self.layout, self.dataset)

    def refuse_finished(self) -> None:
        """IntegrityError when a finished data set, or shards that no journal speaks of, are there already.

        A finished one with its journal is a build that was killed at its very end: it may go on, and end.
        """
        if self.journal.exists() and not self._finished_elsewhere():
            return
        if self._is_finished():
            raise IntegrityError(
                f"{self.where}: holds a finished data set already ({self.final_record.name}); --overwrite replaces "
                "it, another --out, --dataset or --tokenizer-id stands beside it"
            )
        there = [path.name for path in self.shards()] if self.remote is None else self._uploaded(self.remote)
        whole = [name for name in there if not name.endswith((PART_SUFFIX, INDEX_SUFFIX))]
        if whole:
            known = "no journal" if self.remote is None else f"no journal in {self.directory} on this machine"
            raise IntegrityError(
                f"{self.where}: holds {len(whole)} shards ({whole[0]} first) but {known} and no record, so "
                "nothing tells what they are; --overwrite replaces them"
            )

    def _is_finished(self) -> bool:
        if self.remote is None:
            return self.final_record.exists()
        return self.remote.holds(self.final_record.name)

    def _finished_elsewhere(self) -> bool:
        """Whether another machine has finished the data set of which there is an unfinished build here."""
        if self.remote is None:
            return False
        there = self.remote.read(self.final_record.name)
        return there is not None and not (self.final_record.exists() and self.final_record.read_bytes() == there)

    def _uploaded(self, remote: RemoteDirectory) -> list[str]:
        return [name for name in remote.list() if self._is_ours(name)]

    def clear(self, *, unfinished_only: bool = False) -> None:
        """Remove everything of this data set, what names the shards first, so that no record outlives them.

        With `unfinished_only` a finished data set stays.
        """
        if unfinished_only and self._is_finished():
            return
        records = (self.final_record, self.record(BUILD_RECORD), self.record(CORPUS_RECORD))
        if self.remote is not None:
            self.remote.remove(path.name for path in records)
            self.remote.remove(self._uploaded(self.remote))
        for path in (*records, self.journal):
            path.unlink(missing_ok=True)
        fsync_directory(self.directory)
        self.remove_segments()
        for path in self.shards():
            path.unlink()

    def begin_anew(self, *, overwrite: bool) -> None:
        """Make room for a build from the start: `--overwrite` or `--restart`.

        A finished data set on this disk stays until `swap`, so that a bad record in the new input does not lose both.
        """
        if not overwrite or self.remote is not None or not self._is_finished():
            self.clear(unfinished_only=not overwrite)
            return
        folder = self._anew
        self.drop_anew()
        folder.mkdir(exist_ok=True)
        self.replaced, self.directory = self.directory, folder

    @property
    def _anew(self) -> Path:
        return self.record(OVERWRITE)

    def drop_anew(self) -> None:
        """Remove what an overwriting build has made so far."""
        if self.replaced is not None:
            self.directory, self.replaced = self.replaced, None
        if self.remote is None and self._anew.exists():
            shutil.rmtree(self._anew, ignore_errors=True)  # as in remove_segments

    def swap(self) -> None:
        """Put the new data set in the old one's place: the old records go first, the new manifest comes last."""
        if self.replaced is not None:
            self.directory, self.replaced = self.replaced, None
            self._swap()

    def end_swap(self) -> None:
        """Go on with a swap that was interrupted: the old data set may be gone, the new one is whole."""
        if (self._anew / self.final_record.name).exists():
            self._swap()
        elif (self._anew / _CLEARED).exists():
            self.drop_anew()

    def _swap(self) -> None:
        cleared, journal = self._anew / _CLEARED, self._anew / self.journal.name
        journal.unlink(missing_ok=True)
        if not cleared.exists():
            self.clear()
            cleared.touch()
            fsync_directory(self._anew)
        whole = [path for path in self._anew.iterdir() if path != cleared]
        for path in sorted(whole, key=lambda path: path.name == self.final_record.name):
            if path.name == self.final_record.name:
                fsync_directory(self.directory)
            path.replace(self.directory / path.name)
        fsync_directory(self.directory)
        self.drop_anew()

    def abort_uploads(self) -> None:
        """Abort what a killed build of this data set left under way in the store."""
        if self.remote is None:
            return
        try:
            abort_uploads(self.remote.url, names=self._is_ours)
        except OSError as error:  # not every store lets us list them, and nothing of ours depends on it
            warnings.warn(
                f"{self.remote}: uploads that a killed build left could not be looked for ({error.strerror})",
                StorageWarning,
                stacklevel=2,
            )

    def publish_records(self) -> Path:
        """Upload the records, what names the shards last, and return where that is."""
        if self.remote is None:
            return self.where / self.final_record.name
        records = dict.fromkeys((self.record(CORPUS_RECORD), self.record(BUILD_RECORD), self.final_record))
        for path in records:
            if path.exists():
                self.remote.put(path)
        return to_path(self.remote.url_of(self.final_record.name))

    def forget_staging(self) -> None:
        """Remove the local copies of the records, once they are in the store and the journal is gone."""
        if self.remote is not None:
            for path in (self.final_record, self.record(BUILD_RECORD), self.record(CORPUS_RECORD)):
                path.unlink(missing_ok=True)

    def remove_segments(self) -> None:
        """Remove what a cluster works on. A task of a node that was given up may still write there for a moment."""
        shutil.rmtree(self.segments, ignore_errors=True)
