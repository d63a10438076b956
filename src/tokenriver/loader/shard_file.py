"""A shard as it was when a loader opened: its header, what tells it from another, and a sample of its content."""

from __future__ import annotations

import hashlib
import os
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from stat import S_ISREG
from typing import TYPE_CHECKING

from tokenriver.cpus import available_cpus
from tokenriver.errors import FormatError
from tokenriver.files import sha256_file
from tokenriver.shards.header import HEADER_BYTES, ShardHeader, parse_header
from tokenriver.storage import to_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenriver.cache.fetch import CachedSet

__all__ = ["OPEN_FLAGS", "SAMPLE_BYTES", "ShardFile", "hash_shards", "named", "read_shard_file", "read_shard_files"]

SAMPLE_BYTES = 256
_THREADS = 16
_TRIED, _SLOW = 64, 0.0002
"""After so many files, how many seconds a file may have taken for no threads to be used (in memory: 30 to 50 µs)."""

OPEN_FLAGS = os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0)
"""A named pipe in a shard's place is refused, not waited for."""


@dataclass(frozen=True, slots=True)
class ShardFile:
    """A shard as it was when the loader opened: header, size, inode, time of modification, and a sample's digest."""

    file: str
    header: ShardHeader
    inode: int
    modified_ns: int
    sample: bytes
    sha256: str | None = None
    origin: CachedSet | None = None
    """Where it is fetched from, for a shard behind a URL: `path` is then the URL's."""

    @property
    def path(self) -> Path:
        """The file; made when it is asked for, since 10,000 of them take 0.1 s."""
        return Path(self.file) if self.origin is None else to_path(self.file)

    @property
    def n_tokens(self) -> int:
        """How many ids the shard holds."""
        return self.header.n_tokens


def read_shard_files(paths: list[str], hashes: Sequence[str | None]) -> list[ShardFile]:
    """Headers and samples of all shards. Where files answer slowly, many threads wait for them; where they are at hand
    already, threads would only take turns at the interpreter's lock, and 10,000 files take twice as long."""
    begin, found = time.perf_counter(), []
    for path, sha256 in zip(paths, hashes, strict=True):
        found.append(read_shard_file(path, sha256=sha256))
        if len(found) % _TRIED == 0 and time.perf_counter() - begin > len(found) * _SLOW:
            break
    n = len(found)
    with ThreadPoolExecutor(_THREADS) as pool:  # starts its threads only when there is something left
        rest = pool.map(lambda k: read_shard_file(paths[k], sha256=hashes[k]), range(n, len(paths)), chunksize=1)
        return found + list(rest)


def read_shard_file(path: str, *, sha256: str | None = None) -> ShardFile:
    """Header, identity and a sample (start, middle and end of the ids) of one shard."""
    # Descriptors, not file objects: with 10,000 shards the objects are a third of the time.
    descriptor = os.open(path, OPEN_FLAGS)
    try:
        stat = os.fstat(descriptor)
        if not S_ISREG(stat.st_mode):
            raise FormatError(f"{path}: not a regular file, but a shard is one")
        start = os.read(descriptor, HEADER_BYTES + SAMPLE_BYTES)
        header = parse_header(start[:HEADER_BYTES], stat.st_size, path)
        digest = hashlib.sha256(start)
        for offset in (stat.st_size // 2, stat.st_size - SAMPLE_BYTES):
            if offset > len(start):
                os.lseek(descriptor, offset, os.SEEK_SET)
                digest.update(os.read(descriptor, SAMPLE_BYTES))
    except OSError as error:
        raise named(error, path) from None
    finally:
        os.close(descriptor)
    # Opened again later, when the process may have moved to another directory.
    file = path if os.path.isabs(path) else os.path.join(os.getcwd(), path)  # noqa: PTH117, PTH118, PTH109
    return ShardFile(file, header, stat.st_ino, stat.st_mtime_ns, digest.digest(), sha256)


def named(error: OSError, path: Path | str) -> OSError:
    """An error of a call that was given a descriptor, with the file's name: a disk that fails, a server's file that is
    no more (ESTALE)."""
    return error if error.filename is not None else OSError(error.errno, error.strerror, str(path))


def hash_shards(shards: Sequence[ShardFile]) -> list[str]:
    """SHA-256 of each whole file in hex, several at a time; what is in no cache is streamed."""

    def hash_one(shard: ShardFile) -> str:
        if shard.origin is None:
            try:
                return sha256_file(shard.path)
            except OSError as error:
                raise named(error, shard.path) from None
        from tokenriver.loader.remote import hash_remote

        return hash_remote(shard)

    with ThreadPoolExecutor(min(8, available_cpus())) as pool:
        return list(pool.map(hash_one, shards))
