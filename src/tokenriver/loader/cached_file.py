"""A shard of the cache as an open file: found by its name, held to what was verified whatever has the name later."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tokenriver.cache.fetch import CachedShard
from tokenriver.errors import IntegrityError
from tokenriver.shards.header import HEADER_BYTES, parse_header

if TYPE_CHECKING:
    from tokenriver.loader.shard_file import ShardFile

__all__ = ["LostError", "cached_shard", "open_cached"]


class LostError(Exception):
    """A shard that was in the cache is there no more, or not as it was verified."""

    def __init__(self, index: int) -> None:
        super().__init__(index)
        self.index = index


def cached_shard(shard: ShardFile) -> CachedShard:
    """The file that a shard of a store has, or will have, in the cache."""
    assert shard.origin is not None, "it lies in a store"
    return CachedShard(shard.origin, shard.path.name, shard.header.file_bytes, shard.sha256)


def open_cached(index: int, shard: ShardFile, cached: CachedShard, *, check_header: bool) -> int:
    """A descriptor of shard `index`; LostError where the cache has none that is sound.

    With `check_header` IntegrityError when its header is not the one that the manifest made expect.
    """
    try:
        descriptor = os.open(cached.path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
    except FileNotFoundError:
        raise LostError(index) from None
    try:
        if not cached.is_unharmed(descriptor):
            raise LostError(index)
        if check_header:
            header = parse_header(os.read(descriptor, HEADER_BYTES), os.fstat(descriptor).st_size, shard.path)
            if header != shard.header:
                raise IntegrityError(
                    f"{shard.path}: its header says {header}, but by the manifest and the other shards it is "
                    f"{shard.header}"
                )
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor
