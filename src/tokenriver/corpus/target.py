"""Where a corpus goes: a folder, or a URL with its staging directory; what is in the way there, and the last steps."""

from __future__ import annotations

import shutil
from contextlib import suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenriver.corpus.manifest import (
    CORPUS_MANIFEST,
    SHARD_NAME,
    corpus_shard_files,
    is_corpus,
    render_corpus_manifest,
    write_corpus_manifest,
)
from tokenriver.errors import FormatError, IntegrityError, ResumeError
from tokenriver.files import PART_SUFFIX, file_exists, fsync_directory
from tokenriver.resuming.lock import locked
from tokenriver.resuming.names import JOURNAL, LOCK, OVERWRITE, SEGMENTS
from tokenriver.resuming.swap import Swap
from tokenriver.storage.directory import RemoteDirectory, staging_directory
from tokenriver.storage.paths import is_remote, last_name, shown, to_folder
from tokenriver.storage.uploading import abort_left_over

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tokenriver.corpus.manifest import CorpusFile, CorpusManifest

__all__ = ["CorpusTarget"]


@dataclass(frozen=True, slots=True)
class CorpusTarget:
    """`where` users find the corpus; `folder` is that, or behind a URL the staging directory, and `remote` the place.

    Finished shards are parts in `folder` until `publish`, or in `store` under their names. `swap` puts those in the
    place of a corpus that is there already.
    """

    where: Path
    folder: Path
    remote: RemoteDirectory | None

    @classmethod
    def at(cls, out: str | os.PathLike[str], *, staging: str | os.PathLike[str] | None = None) -> CorpusTarget:
        """The target of `--out`. UsageError for what nothing can be written to."""
        where = to_folder(out, option="--out")
        if is_remote(where):
            remote = RemoteDirectory.for_writing(str(where))
            return cls(where, staging_directory(remote.url, staging), remote)
        return cls(where, where, None)

    @property
    def name(self) -> str:
        """What the corpus is called by default."""
        return self.where.resolve().name if self.remote is None else last_name(self.remote.url)

    @property
    def swap(self) -> Swap | None:
        """What replaces a finished corpus behind a URL."""
        return None if self.remote is None else Swap(self.remote, self.folder / OVERWRITE)

    @property
    def replacing(self) -> bool:
        """Whether the unfinished corpus here is to take the place of one behind the URL."""
        return self.swap is not None and self.swap.under_way

    @property
    def store(self) -> RemoteDirectory | None:
        """Where shards go as they are made: the URL, or the prefix for those that will replace others there."""
        return self.swap.anew if self.swap is not None and self.swap.under_way else self.remote

    @property
    def journal(self) -> Path:
        """The journal of an unfinished corpus."""
        return self.folder / JOURNAL

    @property
    def work(self) -> Path:
        """The folder in which a cluster works, while it does."""
        return self.folder / SEGMENTS

    def locked(self) -> AbstractContextManager[None]:
        """Create the folder and hold its lock; a second corpus there is a ResumeError, at once."""
        return locked(self.folder / LOCK, where=self.where, removable=[] if self.remote is None else [self.folder])

    def part(self, name: str) -> Path:
        """Where a shard is made."""
        return self.folder / (name + PART_SUFFIX)

    def is_finished(self, *, overwrite: bool) -> bool:
        """Whether a corpus is there. IntegrityError for one that is not to be overwritten, and any other data set."""
        if not file_exists(self.where / CORPUS_MANIFEST):
            return False
        try:
            ours = is_corpus(self.where)
        except FormatError:
            ours = overwrite
        if not ours:
            raise IntegrityError(
                f"{self.where}: holds another data set ({CORPUS_MANIFEST} is no corpus manifest); choose another --out"
            )
        if not overwrite:
            raise IntegrityError(
                f"{self.where}: holds a finished corpus already ({CORPUS_MANIFEST})",
                advice=("--overwrite replaces it", "another --out stands beside it"),
            )
        return True

    def clear(self) -> None:
        """Remove what an unfinished corpus has left in the folder; what is finished there stays."""
        shutil.rmtree(self.work, ignore_errors=True)
        for path in corpus_shard_files(self.folder):
            if self.remote is not None or path.name.endswith(PART_SUFFIX):
                path.unlink()
        self._forget_manifest()

    def _forget_manifest(self) -> None:
        """Remove the manifest that is made ready in the staging directory."""
        if self.remote is not None:
            (self.folder / CORPUS_MANIFEST).unlink(missing_ok=True)

    def keep_only(self, files: Mapping[str, CorpusFile]) -> None:
        """Remove what the journal does not speak of, and what has got to the store."""
        for path in corpus_shard_files(self.folder):
            name = path.name.removesuffix(PART_SUFFIX)
            if path.name.endswith(PART_SUFFIX) and (self.remote is not None or name not in files):
                path.unlink()

    def finished_elsewhere(self, manifest: CorpusManifest) -> bool:
        """Whether another machine has finished another corpus at the URL for which there is this one's journal here."""
        if self.remote is None or self.replacing:
            return False
        there = self.remote.read(CORPUS_MANIFEST)
        return there is not None and there != render_corpus_manifest(manifest)

    def begin(self, *, finished: bool) -> None:
        """Make room for a new corpus; one that is `finished` stays until `publish`."""
        self.clear()
        if self.swap is not None:
            self.abort_uploads()
            if finished:
                self.swap.prepare()
            else:
                self.swap.drop()

    def abort_uploads(self) -> None:
        """Abort what a killed run left under way in the store."""
        for url in dict.fromkeys(one.url for one in (self.remote, self.store) if one is not None):
            abort_left_over(url, names=SHARD_NAME.fullmatch)

    def discard(self, files: Iterable[CorpusFile]) -> None:
        """Remove what was made so far."""
        self.clear()
        if self.swap is None or self.remote is None:
            return
        with suppress(OSError):  # what stopped the corpus is what the user must hear; no manifest names these
            if self.swap.under_way:
                self.swap.drop()
            else:
                self.remote.remove(file.name for file in files)

    def require_whole(self, files: Iterable[CorpusFile], *, placed: bool = False) -> None:
        """ResumeError unless every finished shard is there with its size; `placed`: it may have its name by now."""
        there = self._sizes(placed=placed)
        for file in files:
            found = there.get(file.name)
            if found != file.n_bytes:
                what = "it is not there" if found is None else f"it has {found:,} bytes, not {file.n_bytes:,}"
                where = self.part(file.name) if self.store is None else shown(self.store.url_of(file.name))
                raise ResumeError(
                    f"{where}: the journal names it, but {what}", advice=("give --restart to begin anew",)
                )

    def _sizes(self, *, placed: bool) -> dict[str, int | None]:
        if self.store is not None:
            return {name: file.n_bytes for name, file in self.store.list().items()}
        found: dict[str, int | None] = {}
        for path in corpus_shard_files(self.folder):  # a part comes after the shard of its name, and counts
            if placed or path.name.endswith(PART_SUFFIX):
                found[path.name.removesuffix(PART_SUFFIX)] = path.stat().st_size
        return found

    def publish(self, manifest: CorpusManifest) -> None:
        """Put the finished shards in the place of what was there, the manifest last; again after a kill in between."""
        fresh = {file.name for file in manifest.files}
        if self.swap is not None and self.swap.begun:
            self._end_swap(self.swap, manifest)
            return
        self.require_whole(manifest.files, placed=True)
        if self.swap is not None and self.swap.under_way:
            self.swap.begin(fresh)
            self._end_swap(self.swap, manifest)
            return
        if self.remote is not None:
            self.remote.remove(one for one in self.remote.list() if SHARD_NAME.fullmatch(one) and one not in fresh)
            write_corpus_manifest(self.where / CORPUS_MANIFEST, manifest)
            self._forget_manifest()
            return
        (self.folder / CORPUS_MANIFEST).unlink(missing_ok=True)
        for path in corpus_shard_files(self.folder):
            if path.name.removesuffix(PART_SUFFIX) not in fresh:
                path.unlink()
        for file in manifest.files:
            if self.part(file.name).exists():
                self.part(file.name).replace(self.folder / file.name)
        fsync_directory(self.folder)
        write_corpus_manifest(self.folder / CORPUS_MANIFEST, manifest)

    def _end_swap(self, swap: Swap, manifest: CorpusManifest) -> None:
        record = self.folder / CORPUS_MANIFEST
        write_corpus_manifest(record, manifest)
        swap.end([record], ours=SHARD_NAME.fullmatch)
        self._forget_manifest()
