"""Where documents begin in shards behind URLs: from their indexes, kept in the cache, else from the separators.

Without an index every shard is read once, whole: into the cache where all of them fit, else as a stream.
"""

from __future__ import annotations

import hashlib
import threading
from typing import TYPE_CHECKING, Literal

import numpy as np

from tokenriver.cache.fetch import CachedShard, fetch
from tokenriver.cache.folder import CacheFullError, mark_verified, sound
from tokenriver.files import atomic_write
from tokenriver.shards.header import HEADER_BYTES
from tokenriver.shards.index import INDEX_SUFFIX, find_ends, parse_index

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.loader.shard_file import ShardFile

__all__ = ["has_index", "remote_ends"]

_PIECE = 8 << 20


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
    path = origin.settings.root / origin.key / name
    if raw := sound(path, origin.listed[name]):
        return raw
    with origin.folder.lock("index", origin.key, name):
        if raw := sound(path, origin.listed[name]):
            return raw
        raw = origin.objects.whole(name)
        limit = origin.settings.limit
        if limit is None or len(raw) < limit // 100:
            with origin.folder.lock("room"):  # nobody prunes the folder meanwhile
                origin.folder.record_source(origin.key, origin.source_facts())
                with atomic_write(path) as file:
                    file.write(raw)
            mark_verified(path, hashlib.sha256(raw).hexdigest())
    return raw


def _find(shard: ShardFile, separator_id: int, position: Literal["before", "after"]) -> NDArray[np.int64]:
    """The ends by the separators; rules as shards.index.find_ends."""
    origin = shard.origin
    assert origin is not None
    cached = CachedShard(origin, shard.path.name, shard.header.file_bytes, shard.sha256)
    if cached.is_whole() or sum(origin.listed.values()) <= origin.folder.capacity():
        never = threading.Event()
        try:
            while not fetch(cached, stopped=never):
                never.wait(0.05)  # another process fetches it
            return find_ends(cached.path, separator_id=separator_id, position=position, threads=1)
        except (CacheFullError, FileNotFoundError):
            pass  # no room, or gone again: it is streamed
    found, dtype = [np.zeros(0, np.int64)], shard.header.dtype
    for start in range(HEADER_BYTES, cached.size, _PIECE):
        (raw,) = origin.objects.ranges([(cached.name, start, min(start + _PIECE, cached.size))])
        found.append(
            np.flatnonzero(np.frombuffer(raw, dtype) == separator_id) + (start - HEADER_BYTES) // dtype.itemsize
        )
    places = np.concatenate(found)
    ends = places[places > 0] if position == "before" else places + 1
    if shard.n_tokens and (not len(ends) or ends[-1] != shard.n_tokens):
        ends = np.append(ends, shard.n_tokens)
    return ends
