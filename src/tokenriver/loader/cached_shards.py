"""Shards of which some lie in the cache, as a reader's open files: brought there by a keeper, gone at any time."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tokenriver.cache.keeper import Keeper
from tokenriver.loader.cached_file import LostError, cached_shard, open_cached
from tokenriver.loader.stream import TokenReader

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenriver.loader.shard_file import ShardFile

__all__ = ["CachedShards"]


class CachedShards(TokenReader):
    """A TokenReader of the shards that are here, as far as the keeper knows; LostError where one is here no more."""

    def __init__(self, shards: Sequence[ShardFile], *, max_open: int) -> None:
        self._cached = [None if shard.origin is None else cached_shard(shard) for shard in shards]
        super().__init__(shards, max_open=max_open)

    def _renew(self) -> None:
        super()._renew()
        self.keeper = Keeper(self._cached)
        self._announced: list[int] | None = None
        self._checked: set[int] = set()

    def _want(self, wanted: list[int], *, must: bool = True) -> None:
        """Tell the keeper, when it is something new."""
        if wanted != self._announced:
            self._announced = wanted
            self.keeper.want(wanted, must=must)
            self._close_gone()
        elif self.keeper.touch():
            self._close_gone()

    def _close_gone(self) -> None:
        """Close files that are not needed, or were removed from the cache: an open file still takes its room."""
        wanted = set(self._announced or ())
        everything = self.keeper.here.all()
        with self._lock:
            self._now, n_open = None, len(self._open)
            for index in [i for i in self._open if self._cached[i] is not None]:
                if not os.fstat(self._open[index].descriptor).st_nlink:
                    self.keeper.lost(index)
                if not self.keeper.here[index] or (index not in wanted and not everything):
                    del self._open[index]
            closed = len(self._open) < n_open
        if closed:
            self._forget_files()

    def _reopen(self, index: int) -> int:
        """Open a shard's file in the cache, and compare its header with the one that the manifest made expect."""
        shard, cached = self.shards[index], self._cached[index]
        if cached is None:
            return super()._reopen(index)
        descriptor = open_cached(index, shard, cached, check_header=index not in self._checked)
        self._checked.add(index)
        return descriptor

    def _look_again(self, index: int, opened: Any, now: float) -> None:
        """A file of the cache may lose its name while it is read, to another too, but not change."""
        cached = self._cached[index]
        if cached is None:
            super()._look_again(index, opened, now)
            return
        if not cached.is_unharmed(opened.descriptor):
            raise LostError(index)
        opened.checked = now

    def _drop_damaged(self, touched: list[int]) -> bool:
        """Let go of the files of the cache that are not what was verified; whether there were any."""
        damaged = []
        with self._lock:
            for index in touched:
                cached, opened = self._cached[index], self._open.get(index)
                if cached is not None and opened is not None and not cached.is_unharmed(opened.descriptor):
                    damaged.append(index)
        for index in damaged:
            self._let_go(index)
        return bool(damaged)

    def _let_go(self, index: int) -> None:
        """Close a shard's file and forget that it was in the cache."""
        with self._lock:
            self._now = None
            self._open.pop(index, None)
        self._forget_files()
        self.keeper.lost(index)
