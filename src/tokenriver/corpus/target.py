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
from tokenriver.errors import FormatError, ResumeError, UsageError
from tokenriver.files import PART_SUFFIX, file_exists, fsync_directory
from tokenriver.resuming.lock import locked
from tokenriver.storage.directory import RemoteDirectory, staging_directory
from tokenriver.storage.paths import is_remote, last_name, shown, to_path

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tokenriver.corpus.manifest import CorpusFile, CorpusManifest

__all__ = ["CorpusTarget"]

_JOURNAL = "_JOURNAL"
_LOCK = "_LOCK"
_WORK = "_SEGMENTS"


@dataclass(frozen=True, slots=True)
class CorpusTarget:
    """`where` users find the corpus; `folder` is that, or behind a URL the staging directory, and `remote` the place.

    Finished shards are parts in `folder` until `publish`, or in the store under their names.
    """

    where: Path
    folder: Path
    remote: RemoteDirectory | None

    @classmethod
    def at(cls, out: str | os.PathLike[str], *, staging: str | os.PathLike[str] | None = None) -> CorpusTarget:
        """The target of `--out`. UsageError for what nothing can be written to."""
        where = to_path(out)
        if is_remote(where):
            remote = RemoteDirectory.for_writing(str(where))
            return cls(where, staging_directory(remote.url, staging), remote)
        if where.exists() and not where.is_dir():
            raise UsageError(f"{where}: not a directory; name one with --out")
        return cls(where, where, None)

    @property
    def name(self) -> str:
        """What the corpus is called by default."""
        return self.where.resolve().name if self.remote is None else last_name(self.remote.url)

    @property
    def journal(self) -> Path:
        """The journal of an unfinished corpus."""
        return self.folder / _JOURNAL

    @property
    def work(self) -> Path:
        """The folder in which a cluster works, while it does."""
        return self.folder / _WORK

    def locked(self) -> AbstractContextManager[None]:
        """Create the folder and hold its lock; a second corpus there is a ResumeError, at once."""
        return locked(self.folder / _LOCK, where=self.where, staging=self.remote is not None)

    def part(self, name: str) -> Path:
        """Where a shard is made."""
        return self.folder / (name + PART_SUFFIX)

    def is_finished(self, *, overwrite: bool) -> bool:
        """Whether a corpus is there. UsageError for one that is not to be overwritten, and for any other data set."""
        if not file_exists(self.where / CORPUS_MANIFEST):
            return False
        try:
            ours = is_corpus(self.where)
        except FormatError:
            ours = overwrite
        if not ours:
            raise UsageError(
                f"{self.where}: holds another data set ({CORPUS_MANIFEST} is no corpus manifest); choose another --out"
            )
        if not overwrite:
            raise UsageError(f"{self.where}: holds a finished corpus; give --overwrite to replace it, or another --out")
        return True

    def clear(self) -> None:
        """Remove what an unfinished corpus has left in the folder; what is finished there stays."""
        shutil.rmtree(self.work, ignore_errors=True)
        for path in corpus_shard_files(self.folder):
            if self.remote is not None or path.name.endswith(PART_SUFFIX):
                path.unlink()

    def keep_only(self, files: Mapping[str, CorpusFile]) -> None:
        """Remove what the journal does not speak of, and what has got to the store."""
        for path in corpus_shard_files(self.folder):
            name = path.name.removesuffix(PART_SUFFIX)
            if path.name.endswith(PART_SUFFIX) and (self.remote is not None or name not in files):
                path.unlink()

    def finished_elsewhere(self, manifest: CorpusManifest) -> bool:
        """Whether another machine has finished another corpus at the URL for which there is this one's journal here."""
        there = None if self.remote is None else self.remote.read(CORPUS_MANIFEST)
        return there is not None and there != render_corpus_manifest(manifest)

    def begin(self) -> None:
        """Make room for a new corpus."""
        self.clear()
        if self.remote is not None:  # from the first new shard on the old corpus, if there is one, is not whole
            self.remote.remove([CORPUS_MANIFEST])

    def discard(self, files: Iterable[CorpusFile]) -> None:
        """Remove what was made so far."""
        self.clear()
        if self.remote is not None:
            with suppress(OSError):  # what stopped the corpus is what the user must hear; no manifest names these
                self.remote.remove(file.name for file in files)

    def require_whole(self, files: Iterable[CorpusFile], *, placed: bool = False) -> None:
        """ResumeError unless every finished shard is there with its size; `placed`: it may have its name by now."""
        there = self._sizes(placed=placed)
        for file in files:
            found = there.get(file.name)
            if found != file.n_bytes:
                what = "it is not there" if found is None else f"it has {found:,} bytes, not {file.n_bytes:,}"
                where = self.part(file.name) if self.remote is None else shown(self.remote.url_of(file.name))
                raise ResumeError(f"{where}: the journal names it, but {what}; give --restart to begin anew")

    def _sizes(self, *, placed: bool) -> dict[str, int | None]:
        if self.remote is not None:
            return {name: file.n_bytes for name, file in self.remote.list().items()}
        found: dict[str, int | None] = {}
        for path in corpus_shard_files(self.folder):  # a part comes after the shard of its name, and counts
            if placed or path.name.endswith(PART_SUFFIX):
                found[path.name.removesuffix(PART_SUFFIX)] = path.stat().st_size
        return found

    def publish(self, manifest: CorpusManifest) -> None:
        """Put the finished shards in the place of what was there, the manifest last; again after a kill in between."""
        self.require_whole(manifest.files, placed=True)
        fresh = {file.name for file in manifest.files}
        if self.remote is not None:
            self.remote.remove(one for one in self.remote.list() if SHARD_NAME.fullmatch(one) and one not in fresh)
            write_corpus_manifest(to_path(self.remote.url_of(CORPUS_MANIFEST)), manifest)
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
