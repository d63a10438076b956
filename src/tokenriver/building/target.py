"""The directory a build writes to: locked, not finished yet, and left as it was found when nothing came of it.

Behind a URL there is no rename and no lock: the build goes on in a staging directory here, whose journal and lock are
its own, and what is whole is uploaded, the manifest last (docs/storage.md argues why that is enough).
"""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tokenriver.errors import IntegrityError, ResumeError
from tokenriver.files import PART_SUFFIX, fsync_directory
from tokenriver.resuming.folder_swap import FolderSwap
from tokenriver.resuming.journal import RedoLog, refuse_changes, refuse_engine
from tokenriver.resuming.lock import locked
from tokenriver.resuming.names import JOURNAL, LOCK, OVERWRITE, SEGMENTS
from tokenriver.resuming.swap import Swap
from tokenriver.shards.index import INDEX_SUFFIX
from tokenriver.shards.layouts import (
    BUILD_RECORD,
    CORPUS_RECORD,
    MANIFEST,
    Layout,
    parse_shard_name,
)
from tokenriver.shards.layouts import record_prefix as prefix_of
from tokenriver.storage.directory import RemoteDirectory, staging_directory
from tokenriver.storage.paths import is_remote, to_folder, to_path
from tokenriver.storage.uploading import abort_left_over

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable
    from contextlib import AbstractContextManager
    from pathlib import Path

__all__ = ["Target"]


@dataclass(slots=True)
class Target:
    """Where one data set goes: its directory, and the names of the records beside its shards.

    With `remote` the data set is there, and `directory` is the staging directory. With `replaced` it is what stands
    there until the new one is whole, and `directory` a folder in it. `replacing`: this run makes a new data set below
    a prefix of `remote`, or goes on with one (resuming/swap.py).
    """

    directory: Path
    layout: Layout
    dataset: str
    remote: RemoteDirectory | None = None
    replaced: Path | None = None
    replacing: bool = False

    @classmethod
    def at(
        cls, directory: Path, layout: Layout, dataset: str, *, staging: str | os.PathLike[str] | None = None
    ) -> Target:
        """The target of a directory, or of one behind a URL with its staging directory below `staging`."""
        if not is_remote(directory):
            return cls(to_folder(directory, option="--out"), layout, dataset)
        remote = RemoteDirectory.for_writing(str(directory))
        return cls(staging_directory(remote.url, staging), layout, dataset, remote)

    @property
    def where(self) -> Path:
        """Where users find the data set: a `UPath` behind a URL."""
        if self.remote is not None:
            return to_path(self.remote.url)
        return self.directory if self.replaced is None else self.replaced

    @property
    def store(self) -> RemoteDirectory | None:
        """Where shards go as they are made: the URL, or the prefix for those that will replace others there."""
        return self._swap_there.anew if self._swap_there is not None and self._swap_there.under_way else self.remote

    @property
    def _swap_there(self) -> Swap | None:
        return None if self.remote is None else Swap(self.remote, self._anew)

    @property
    def _swap_here(self) -> FolderSwap:
        return FolderSwap(self._anew, self.final_record.name)

    @property
    def _anew(self) -> Path:
        return self.record(OVERWRITE)

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
        return locked(self.record(LOCK), where=self.where, removable=[] if self.remote is None else [self.directory])

    def shards(self) -> list[Path]:
        """Every shard, index and part of either of this data set that is on this disk now, by name."""
        return sorted(path for path in self.directory.iterdir() if self._is_ours(path.name))

    def _is_ours(self, name: str) -> bool:
        found = parse_shard_name(name.removesuffix(PART_SUFFIX).removesuffix(INDEX_SUFFIX))
        return found is not None and found.dataset == prefix_of(self.layout, self.dataset)

    def _is_ours_or_record(self, name: str) -> bool:
        return self._is_ours(name) or name in [path.name for path in self._all_records()]

    def refuse_finished(self) -> None:
        """IntegrityError when a finished data set, or shards that no journal speaks of, are there already.

        A finished one with its journal is a build that was killed at its very end: it may go on, and end.
        """
        if self.replacing or (self.journal.exists() and not self._finished_elsewhere()):
            return
        if self._is_finished():
            raise IntegrityError(
                f"{self.where}: holds a finished data set already ({self.final_record.name})",
                advice=("--overwrite replaces it", "another --out, --dataset or --tokenizer-id stands beside it"),
            )
        self.refuse_shards("no journal" if self.remote is None else f"no journal in {self.directory} on this machine")

    def refuse_shards(self, known: str) -> None:
        """IntegrityError for whole shards, of which there is only what is `known`."""
        there = [path.name for path in self.shards()] if self.remote is None else self._uploaded(self.remote)
        whole = [name for name in there if not name.endswith((PART_SUFFIX, INDEX_SUFFIX))]
        if whole:
            raise IntegrityError(
                f"{self.where}: holds {len(whole)} shards ({whole[0]} first) but {known} and no record, so "
                "nothing tells what they are",
                advice=("--overwrite replaces them",),
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
        if self.remote is not None and self._swap_there is not None:
            self.remote.remove(path.name for path in self._all_records())
            self.remote.remove(self._uploaded(self.remote))
            self._swap_there.drop()
        self._clear_here()

    def _all_records(self) -> tuple[Path, ...]:
        """Every record that there may be, what names the shards first."""
        return self.final_record, self.record(BUILD_RECORD), self.record(CORPUS_RECORD)

    def _clear_here(self) -> None:
        for path in (*self._all_records(), self.journal):
            path.unlink(missing_ok=True)
        fsync_directory(self.directory)
        self.remove_segments()
        for path in self.shards():
            path.unlink()

    def begin_anew(self, heading: Callable[[], dict[str, Any]], *, overwrite: bool, restart: bool) -> None:
        """Make room for a build from the start: `--overwrite` or `--restart`.

        A finished data set stays until the new one is whole, so that a bad record in the new input does not lose both:
        on this disk until `swap`, behind a URL until `publish_records`. A build of just this `heading` that was killed
        is gone on with when it is to overwrite, unless `restart`.
        """
        if not self._is_finished() or not overwrite:
            if not overwrite or restart or not self._is_journal_of(heading()):
                self.clear(unfinished_only=not overwrite)
            return
        if self._swap_there is not None:
            ended = not self._swap_there.under_way and not self._finished_elsewhere()
            self.replacing = not ended
            goes_on = (ended or self._swap_there.under_way) and not restart and self._is_journal_of(heading())
            if not goes_on:
                self.replacing = True
                self._clear_here()
                self._swap_there.prepare()
            return
        swap = self._swap_here
        self.replaced, self.directory = self.directory, self._anew
        if restart or not self._is_journal_of(heading()):
            swap.prepare()

    def _is_journal_of(self, heading: dict[str, Any]) -> bool:
        """Whether the journal here is of just this build, by this engine."""
        log = RedoLog(self.journal)
        try:
            entries = log.reopen_lines()
            if entries:
                refuse_engine(self.journal, entries, heading["engine"])
                refuse_changes(msgspec.to_builtins(heading), {"engine": "local", **entries[0]}, self.where)
        except ResumeError:  # other options or inputs, or damaged: what it speaks of makes room
            return False
        finally:
            log.close()
        return bool(entries)

    def drop_anew(self) -> None:
        """Remove what an overwriting build has made so far, unless its journal is kept to go on with."""
        if self.replaced is not None:
            self.directory, self.replaced = self.replaced, None
        if self._swap_there is not None:
            if self._swap_there.under_way and not self.journal.exists():
                with suppress(OSError):  # what stopped the build is what the user must hear
                    self._swap_there.drop()
        elif not (self._anew / self.journal.name).exists():
            self._swap_here.drop()

    def swap(self) -> None:
        """Put the new data set in the old one's place: the old records go first, the new manifest comes last."""
        if self.replaced is not None:
            self.directory, self.replaced = self.replaced, None
            self._swap()

    def end_swap(self) -> None:
        """Go on with a swap that was interrupted: the old data set may be gone, the new one is whole."""
        if self._swap_there is not None:
            if self._swap_there.begun:
                self._swap_there.end(self._records(), ours=self._is_ours_or_record)
        elif self._swap_here.whole:
            self._swap()
        elif self._swap_here.cleared:
            self._swap_here.drop()

    def _swap(self) -> None:
        (self._anew / self.journal.name).unlink(missing_ok=True)
        self._swap_here.end(self.clear)

    def abort_uploads(self) -> None:
        """Abort what a killed build of this data set left under way in the store."""
        if self.remote is not None and self._swap_there is not None:
            abort_left_over(self.remote.url, names=self._is_ours)
            if self._swap_there.under_way:
                abort_left_over(self._swap_there.anew.url, names=self._is_ours)

    def publish_records(self, shards: Iterable[str]) -> Path:
        """Upload the records, what names the shards last, and return where that is; `shards` are all that are there,
        and their indexes. What they replace, if anything, goes before.
        """
        if self.remote is None or self._swap_there is None:
            return self.where / self.final_record.name
        if self._swap_there.under_way:
            self._swap_there.begin(shards)
            self._swap_there.end(self._records(), ours=self._is_ours_or_record)
        else:
            for path in self._records():
                self.remote.put(path)
        return to_path(self.remote.url_of(self.final_record.name))

    def _records(self) -> list[Path]:
        """The records that are here, what names the shards last."""
        return [path for path in dict.fromkeys(reversed(self._all_records())) if path.exists()]

    def forget_staging(self) -> None:
        """Remove the local copies of the records, once they are in the store and the journal is gone."""
        if self.remote is not None:
            for path in self._all_records():
                path.unlink(missing_ok=True)

    def remove_segments(self) -> None:
        """Remove what a cluster works on. A task of a node that was given up may still write there for a moment."""
        shutil.rmtree(self.segments, ignore_errors=True)
