"""The cache on disk: what is there, who needed it last, and room for more.

    ROOT/KEY/_SOURCE.json               where the data set lies; KEY is its name and a digest of its manifest.
                                        A folder without it is somebody else's, and left alone
    ROOT/KEY/train-00000.bin            whole and verified; its time of modification says as which SHA-256
    ROOT/KEY/train-00001.bin.SIZE.part  the first bytes of a shard that is being fetched, or was
    ROOT/.locks/                        one process fetches a shard, one makes room

The time of last access is set on purpose, to when a file was last needed, so that all processes share one order of
eviction whatever the file system does by itself. A file that is removed while it is read stays readable.
"""

from __future__ import annotations

import errno
import json
import logging
import os
import re
import shutil
import zlib
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from filelock import FileLock, Timeout

from tokenriver.cache.marks import verified_ns
from tokenriver.files import PART_SUFFIX, atomic_write, human_bytes, sha256_file

if TYPE_CHECKING:
    from collections.abc import Collection, Iterator

    from tokenriver.cache.settings import CacheSettings

__all__ = [
    "SOURCE",
    "CacheEntry",
    "CacheFolder",
    "CacheFullError",
    "is_own_name",
    "out_of_room",
]

SOURCE = "_SOURCE.json"
_SOURCES = (SOURCE, SOURCE + PART_SUFFIX)
_LOCKS = ".locks"
_PART = re.compile(r"(?P<name>.+)\.(?P<size>\d+)" + re.escape(PART_SUFFIX))
_STRIPES = 256
"""Lock files; two shards that share one are fetched one after the other, which is all that happens."""

_FREE_SHARE = 0.05
"""Without a limit so much of the disk stays free."""

_LOG = logging.getLogger("tokenriver.cache")


class CacheFullError(Exception):
    """There is no room now, since other processes are fetching what fills it."""


@dataclass(frozen=True, slots=True)
class CacheEntry:
    """A file of the cache: its data set's folder, its shard, the bytes that it has or will have, when it was needed."""

    path: Path
    key: str
    name: str
    bytes: int
    needed: float
    part: bool


class CacheFolder:
    """The cache's folder with its limit; any number of processes and threads use one at the same time."""

    def __init__(self, settings: CacheSettings) -> None:
        self.root, self.limit = settings.root, settings.limit

    def is_about(self, error: OSError) -> bool:
        """Whether an error is of a file of the cache, not of one on the store."""
        return error.filename is not None and Path(os.fsdecode(error.filename)).is_relative_to(self.root)

    def entries(self) -> list[CacheEntry]:
        """All shards and parts of shards, those needed the longest time ago first."""
        found = []
        for key in self._keys():
            try:
                files = list(os.scandir(self.root / key))
            except FileNotFoundError:
                continue
            for file in files:
                try:
                    stat = file.stat()
                except FileNotFoundError:
                    continue
                if file.name in _SOURCES or not file.is_file():
                    continue
                match = _PART.fullmatch(file.name)
                name, size = (match["name"], int(match["size"])) if match else (file.name, stat.st_size)
                found.append(CacheEntry(self.root / key / file.name, key, name, size, stat.st_atime, match is not None))
        return sorted(found, key=lambda entry: (entry.needed, str(entry.path)))

    def _keys(self) -> list[str]:
        """The folders of data sets. The cache may have been given a folder that holds other things as well."""
        try:
            names = [entry.name for entry in os.scandir(self.root) if entry.is_dir() and not entry.name.startswith(".")]
        except FileNotFoundError:
            return []
        return [name for name in names if "url" in self.source_of(name)]

    def source_of(self, key: str) -> dict[str, Any]:
        """What is recorded of a data set; empty when nothing is."""
        try:
            facts = json.loads((self.root / key / SOURCE).read_bytes())
        except (OSError, ValueError, RecursionError):
            return {}
        return facts if isinstance(facts, dict) else {}

    def record_source(self, key: str, facts: dict[str, Any]) -> None:
        """Make a data set's folder, and say where it comes from."""
        folder = self.root / key
        folder.mkdir(parents=True, exist_ok=True)
        if self.source_of(key) != facts:
            with self.lock("source", key), atomic_write(folder / SOURCE) as file:
                file.write(json.dumps(facts, indent=2).encode() + b"\n")

    @contextmanager
    def lock(self, *words: str, timeout: float = -1) -> Iterator[None]:
        """Held by one thread of one process; filelock's Timeout after `timeout` seconds (negative: never)."""
        folder = self.root / _LOCKS
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / f"{words[0]}-{_stripe(words):03d}.lock", timeout=timeout, poll_interval=0.01):
            yield

    def capacity(self) -> int:
        """Bytes that all shards together may take: the limit, or what is there and what the disk can still give."""
        if self.limit is not None:
            return self.limit
        self.root.mkdir(parents=True, exist_ok=True)
        disk = shutil.disk_usage(self.root)
        return max(0, sum(e.bytes for e in self.entries()) + disk.free - int(disk.total * _FREE_SHARE))

    def reserve(
        self, part: Path, size: int, *, shard_name: str, source: dict[str, Any], keep: Collection[Path] = ()
    ) -> None:
        """Make room for a shard of `size` bytes and create its part, which counts in full from now on.

        `source` is what is recorded of its data set (`record_source`). The caller holds the shard's lock. What was
        needed the longest time ago goes first; never `keep`, nor a part that somebody is fetching. Raises
        CacheFullError while others fetch what fills the cache, OSError (ENOSPC) when nothing is left to remove.
        """
        with self.lock("room"):
            entries = self.entries()
            used = sum(entry.bytes for entry in entries if entry.path != part)
            already = part.stat().st_blocks * 512 if part.exists() else 0
            coming = sum(_still_coming(entry) for entry in entries if entry.path != part)
            busy = False
            for entry in [*entries, None]:
                short = self._short_of(used, size - already + coming, size)
                if short is None:
                    break
                if entry is None:
                    if busy:
                        raise CacheFullError(short)
                    raise OSError(errno.ENOSPC, f"{short}; {_ADVICE}", str(part))
                if entry.path == part or entry.path in keep:
                    busy = busy or entry.path != part
                    continue
                still = _still_coming(entry)
                if self._remove(entry, held=("shard", part.parent.name, shard_name)):
                    used, coming = used - entry.bytes, coming - still
                    _LOG.info("%s: removed, %s", entry.path, human_bytes(entry.bytes))
                else:
                    busy = True
            self.record_source(part.parent.name, source)
            part.touch()

    def _short_of(self, used: int, to_write: int, size: int) -> str | None:
        """What stands in the way of `size` more bytes, where others and these have so many to write; None: nothing."""
        if self.limit is not None and used + size > self.limit:
            return f"the cache's limit of {human_bytes(self.limit)} has no room for {human_bytes(size)}"
        disk = shutil.disk_usage(self.root)
        spare = int(disk.total * _FREE_SHARE) if self.limit is None else 0
        if disk.free - spare < to_write:
            kept = f" and {human_bytes(spare)} are kept free" if spare else ""
            return f"the disk has {human_bytes(disk.free)} left{kept}, {human_bytes(size)} are needed"
        return None

    def _remove(self, entry: CacheEntry, *, held: tuple[str, ...] = ()) -> bool:
        """Remove a file unless somebody is fetching it; whether it is gone. `held` is a lock that the caller has."""
        words = ("shard", entry.key, entry.name)
        if not entry.part or (held and _stripe(words) == _stripe(held)):
            entry.path.unlink(missing_ok=True)
            return True
        try:
            with self.lock(*words, timeout=0):
                entry.path.unlink(missing_ok=True)
        except Timeout:
            return False
        return True

    def prune(self, *, limit: int = 0) -> tuple[int, int]:
        """Remove what was needed the longest time ago until at most `limit` bytes are left: (files, bytes) removed."""
        files = size = 0
        with self.lock("room"):
            entries = self.entries()
            used = sum(entry.bytes for entry in entries)
            for entry in entries:
                if used <= limit:
                    break
                if self._remove(entry):
                    used, files, size = used - entry.bytes, files + 1, size + entry.bytes
            self._remove_empty()
        return files, size

    def _remove_empty(self) -> None:
        """Folders of data sets that hold nothing but the record of their source."""
        kept = {entry.key for entry in self.entries()}
        for key in self._keys():
            folder = self.root / key
            if key not in kept:
                (folder / SOURCE).unlink(missing_ok=True)
                if not any(folder.iterdir()):
                    folder.rmdir()

    def damaged(self) -> list[CacheEntry]:
        """Whole files, read again, whose bytes are not those that were verified."""
        found = []
        for entry in self.entries():
            if entry.part:
                continue
            try:
                if entry.path.stat().st_mtime_ns != verified_ns(sha256_file(entry.path)):
                    found.append(entry)
            except FileNotFoundError:
                continue  # removed meanwhile, by whoever needed the room
        return found


_ADVICE = "make room there, prune the cache (tokenriver cache --prune), or give another cache_dir or cache_limit"


def _still_coming(entry: CacheEntry) -> int:
    """Bytes that the disk has to give for a part that is being fetched, or may be gone on with."""
    if not entry.part:
        return 0
    try:
        return max(0, entry.bytes - entry.path.stat().st_blocks * 512)
    except FileNotFoundError:
        return 0


def is_own_name(name: str) -> bool:
    """Whether a shard may not be called so, since the cache calls its own files that."""
    return name == SOURCE or name.endswith(PART_SUFFIX)


def _stripe(words: tuple[str, ...]) -> int:
    return zlib.crc32("\0".join(words).encode()) % _STRIPES


def out_of_room(error: OSError) -> OSError:
    """The same error with what to do, where a disk or a quota was full."""
    if error.errno not in (errno.ENOSPC, errno.EDQUOT):
        return error
    return OSError(error.errno, f"{os.strerror(error.errno)}; {_ADVICE}", error.filename)
