"""One shard from the store into the cache: from where an earlier try stopped, verified before it has its name."""

from __future__ import annotations

import errno
import hashlib
import logging
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from filelock import Timeout

from tokenriver.cache.folder import CacheFolder, out_of_room
from tokenriver.cache.marks import mark_verified, unharmed, whole_stat
from tokenriver.cache.objects import Objects, StoppedError
from tokenriver.errors import IntegrityError
from tokenriver.files import PART_SUFFIX, fsync_directory, human_bytes, naming, write_all
from tokenriver.storage import shown

if TYPE_CHECKING:
    import threading
    from collections.abc import Callable, Collection
    from pathlib import Path

    from tokenriver.cache.settings import CacheSettings

__all__ = ["CachedSet", "CachedShard", "fetch"]

_CHUNK = 4 << 20
_AT_ONCE = 4
"""Ranges of a shard asked for at the same time: one connection alone rarely fills a link."""

_LOG = logging.getLogger("tokenriver.cache")


@dataclass(frozen=True, slots=True)
class CachedSet:
    """A data set behind a URL and its folder in the cache, `key`. `manifest` is the object that vouches for it.

    `manifest_facts` is what the store said of that object when it was read, `manifest_sha256` what was in it.
    """

    objects: Objects
    settings: CacheSettings
    key: str
    manifest: str | None = None
    manifest_sha256: str | None = None
    manifest_facts: str = ""
    listed: dict[str, int] = field(default_factory=dict, compare=False, repr=False)

    @property
    def folder(self) -> CacheFolder:
        """The whole cache."""
        return CacheFolder(self.settings)

    def source_facts(self) -> dict[str, str | None]:
        """What is recorded in the folder, for people and `tokenriver cache`."""
        return {"url": shown(self.objects.url), "manifest": self.manifest, "manifest_sha256": self.manifest_sha256}

    def check_manifest(self, *, stopped: threading.Event | None = None) -> None:
        """Raise IntegrityError, naming it, when the manifest on the store is another than the one that was read."""
        if self.manifest is None:
            return
        now = self.objects.facts(self.manifest, stopped=stopped)
        if now != self.manifest_facts:
            raw = self.objects.whole(self.manifest, stopped=stopped)
            if hashlib.sha256(raw).hexdigest() != self.manifest_sha256:
                raise IntegrityError(
                    f"{self.objects.url_of(self.manifest)}: changed on the store since the loader opened; what it "
                    "names now is other data, so open it anew"
                )


@dataclass(frozen=True, slots=True)
class CachedShard:
    """A shard of a data set behind a URL; its SHA-256 where a manifest or record says it."""

    data_set: CachedSet
    name: str
    size: int
    sha256: str | None

    @property
    def url(self) -> str:
        """Where the shard lies."""
        return self.data_set.objects.url_of(self.name)

    @property
    def path(self) -> Path:
        """Where it is in the cache when it is whole."""
        return self.data_set.settings.root / self.data_set.key / self.name

    @property
    def part(self) -> Path:
        """Where it is while it is not."""
        return self.path.with_name(f"{self.name}.{self.size}{PART_SUFFIX}")

    def is_whole(self) -> bool:
        """Whether the cache has it, unharmed as far as its size and time of modification tell."""
        return whole_stat(self.path, self.size, self.sha256)

    def is_unharmed(self, descriptor: int) -> bool:
        """The same of a file of the cache that is open, whatever has its name by now."""
        return unharmed(os.fstat(descriptor), self.size, self.sha256)

    def bytes_here(self) -> int:
        """How much of it has been fetched."""
        for path in (self.path, self.part):
            try:
                return path.stat().st_size
            except FileNotFoundError:
                continue
        return 0


def fetch(
    shard: CachedShard,
    *,
    stopped: threading.Event,
    keep: Collection[Path] = (),
    take_turn: Callable[[], None] = lambda: None,
) -> bool:
    """Bring a shard into the cache; False when another process (or thread) is at it, or it was removed meanwhile.

    `take_turn` is called before every few ranges, and may wait.

    Raises IntegrityError when what the store has is not what the manifest says, twice, or when the manifest changed;
    CacheFullError and OSError as CacheFolder.reserve; what Objects.ranges raises.
    """
    if shard.is_whole():
        return True
    folder = shard.data_set.folder
    try:
        with folder.lock("shard", shard.data_set.key, shard.name, timeout=0):
            if shard.is_whole():
                return True
            shard.path.unlink(missing_ok=True)  # of another size, or written to: not what was verified
            shard.data_set.check_manifest(stopped=stopped)
            source = shard.data_set.source_facts()
            folder.reserve(shard.part, shard.size, shard_name=shard.name, source=source, keep=keep)
            found = _fill(shard, stopped, take_turn)
            if shard.sha256 not in (None, found):
                _LOG.warning("%s: SHA-256 is not the manifest's; fetching it once more", shard.url)
                os.truncate(shard.part, 0)
                found = _fill(shard, stopped, take_turn)
            if shard.sha256 not in (None, found):
                shard.part.unlink()
                shard.data_set.check_manifest(stopped=stopped)
                raise IntegrityError(
                    f"{shard.url}: fetched twice, and its SHA-256 is {found}, not {shard.sha256} as "
                    "the manifest says; upload it again, or verify it there"
                )
            mark_verified(shard.part, found)
            with folder.lock("room"):  # who counts would miss a file that changes its name meanwhile
                shard.part.replace(shard.path)
            fsync_directory(shard.path.parent)
    except Timeout:
        return False
    except FileNotFoundError as error:
        if folder.is_about(error):
            _LOG.warning("%s: removed while it was fetched; fetching it again", error.filename)
            return False
        shard.data_set.check_manifest(stopped=stopped)
        raise
    return True


def _fill(shard: CachedShard, stopped: threading.Event, take_turn: Callable[[], None]) -> str:
    """Append to the part until it is whole; the SHA-256 of all of it."""
    objects, digest = shard.data_set.objects, hashlib.sha256()
    with naming(shard.part), open(shard.part, "r+b", buffering=0) as file:
        have = os.fstat(file.fileno()).st_size
        if have > shard.size:
            file.truncate(0)
            have = 0
        if have:
            _LOG.info("%s: going on from %s of %s", shard.url, human_bytes(have), human_bytes(shard.size))
        left = have
        while left:
            chunk = file.read(min(left, 1 << 20))
            if not chunk:
                raise OSError(errno.EIO, "cut short while it was read", str(shard.part))
            digest.update(chunk)
            left -= len(chunk)
        while have < shard.size:
            take_turn()
            if stopped.is_set():
                raise StoppedError
            stops = range(have, shard.size, _CHUNK)[:_AT_ONCE]
            wanted = [(shard.name, start, min(start + _CHUNK, shard.size)) for start in stops]
            for chunk in objects.ranges(wanted, stopped=stopped, any_version=shard.sha256 is not None):
                _write(file.fileno(), chunk, shard.part)
                digest.update(chunk)
                have += len(chunk)
        os.fsync(file.fileno())
    return digest.hexdigest()


def _write(descriptor: int, chunk: bytes, path: Path) -> None:
    try:
        write_all(descriptor, chunk)
    except OSError as error:
        error.filename = str(path)
        raise out_of_room(error) from None
