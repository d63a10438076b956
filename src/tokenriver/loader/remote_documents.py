"""Where documents begin in shards behind URLs: from their indexes, kept in the cache, else from the separators.

Without an index every shard is read once, whole: into the cache where all of them fit, else as a stream.
"""

from __future__ import annotations

import hashlib
import logging
import threading
from typing import TYPE_CHECKING, Literal

import numpy as np

from tokenriver.cache.fetch import fetch
from tokenriver.cache.folder import CacheFullError
from tokenriver.cache.marks import mark_verified, sound
from tokenriver.files import atomic_write
from tokenriver.loader.cached_file import cached_shard
from tokenriver.shards.header import HEADER_BYTES
from tokenriver.shards.index import INDEX_SUFFIX, ends_of, find_ends, parse_index

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.loader.shard_file import ShardFile

__all__ = ["has_index", "remote_ends"]

_PIECE = 8 << 20

_LOG = logging.getLogger("tokenriver.cache")


def has_index(shard: ShardFile) -> bool:
    """Whether the index of a shard lies beside it on the store, by its listing."""
    return shard.origin is not None and shard.path.name + INDEX_SUFFIX in shard.origin.listed


def remote_ends(
    shard: ShardFile, *, separator_id: int | None, position: Literal["before", "after"]
) -> tuple[NDArray[np.int64], int | None, int | None]:
    """Ends of the documents in one shard, and its first and last id (None without any)."""
    origin = shard.origin
    assert origin is not None
    if has_index(shard):
        name = shard.path.name + INDEX_SUFFIX
        ends = parse_index(_small(shard, name), origin.objects.url_of(name), shard.n_tokens)
    else:
        assert separator_id is not None, "DocumentFinder made sure"
        ends = _find(shard, separator_id, position)
    if not shard.n_tokens or separator_id is None:
        return ends, None, None
    width, size = shard.header.dtype.itemsize, shard.header.file_bytes
    places = [(HEADER_BYTES, HEADER_BYTES + width), (size - width, size)]
    raws = origin.objects.ranges([(shard.path.name, *place) for place in places])
    first, last = (int(np.frombuffer(raw, shard.header.dtype)[0]) for raw in raws)
    return ends, first, last


def _small(shard: ShardFile, name: str) -> bytes:
    """An index, from the cache or into it; which bytes it has there is recorded as for shards."""
    origin = shard.origin
    assert origin is not None
    path, size, limit = origin.settings.root / origin.key / name, origin.listed[name], origin.settings.limit
    if raw := sound(path, size):
        return raw
    if limit is not None and size >= limit // 100:
        return origin.objects.whole(name)
    raw = None
    try:
        with origin.folder.lock("index", origin.key, name):
            raw = sound(path, size)
            if raw is None:
                raw = origin.objects.whole(name)
                with origin.folder.lock("room"):  # nobody prunes the folder meanwhile
                    origin.folder.record_source(origin.key, origin.source_facts())
                    with atomic_write(path) as file:
                        file.write(raw)
                    mark_verified(path, hashlib.sha256(raw).hexdigest())
            return raw
    except OSError as error:  # a disk that is full, a folder that cannot be written to
        if not origin.folder.is_about(error):
            raise
        _LOG.warning("%s: not cached: %s", origin.objects.url_of(name), error)
    return origin.objects.whole(name) if raw is None else raw


def _find(shard: ShardFile, separator_id: int, position: Literal["before", "after"]) -> NDArray[np.int64]:
    """The ends by the separators; rules as shards.index.find_ends."""
    origin = shard.origin
    assert origin is not None
    cached = cached_shard(shard)
    if cached.is_whole() or sum(origin.listed.values()) <= origin.folder.capacity():
        never = threading.Event()
        try:
            while not fetch(cached, stopped=never):
                never.wait(0.05)  # another process fetches it
            return find_ends(cached.path, separator_id=separator_id, position=position, threads=1)
        except CacheFullError:
            pass  # no room: it is streamed
        except OSError as error:  # gone again, no room, or no folder that can be written to: the same
            if not origin.folder.is_about(error):
                raise
    found, dtype = [np.zeros(0, np.int64)], shard.header.dtype
    for start in range(HEADER_BYTES, cached.size, _PIECE):
        (raw,) = origin.objects.ranges([(cached.name, start, min(start + _PIECE, cached.size))])
        found.append(
            np.flatnonzero(np.frombuffer(raw, dtype) == separator_id) + (start - HEADER_BYTES) // dtype.itemsize
        )
    return ends_of(np.concatenate(found), shard.n_tokens, position)
