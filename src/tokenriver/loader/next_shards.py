"""Which shards a reader needs next, and whether the cache can hold them: pure but for one look at the disk."""

from __future__ import annotations

from collections import OrderedDict
from itertools import pairwise
from typing import TYPE_CHECKING

from tokenriver.loader.stream import SHARDS_AHEAD

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokenriver.cache.fetch import CachedShard

__all__ = ["NextShards"]

_WORKING_SET = 64
"""Batches of packed documents over which the shards that are read in turn are counted."""


class NextShards:
    """What follows the shards at hand, in order, for each of several sources with `parts` shards.

    `repeats`: after a source's last shard its first.
    """

    def __init__(self, cached: Sequence[CachedShard | None], *, parts: Sequence[int], repeats: bool) -> None:
        self._cached, self._repeats = cached, repeats
        ends = [sum(parts[:k]) for k in range(len(parts) + 1)] if parts else [0, len(cached)]
        self._parts = list(pairwise(ends))
        self._recent: OrderedDict[int, int] = OrderedDict()
        self._count = 0
        self._capacity: int | None = None

    def working_set(self, touched: list[int], *, packed: bool) -> list[int]:
        """The shards that batches now read, and those that follow in order; none if the cache cannot hold them."""
        self._count += 1
        for index in touched:
            self._recent[index] = self._count
            self._recent.move_to_end(index)
        parts = self._parts
        fronts = [max((i for i in self._recent if a <= i < b), default=-1) for a, b in parts]
        oldest = self._count - (_WORKING_SET if packed else 0)
        for index in [i for i, count in self._recent.items() if count < oldest and i not in fronts]:
            del self._recent[index]
        follow = [
            a + (front + k - a) % (b - a)
            for k in range(1, SHARDS_AHEAD)
            for (a, b), front in zip(parts, fronts, strict=True)
            if front >= 0 and (front + k < b or self._repeats)
        ]
        at_hand = list(self._recent) if packed else [front for front in fronts if front >= 0]
        needed = list(dict.fromkeys([*at_hand, *follow[: len(at_hand)]]))
        if len(self.fitting(needed)) < len(needed):
            return []
        return self.fitting(dict.fromkeys([*touched, *self._recent, *follow]))

    def fitting(self, wanted: Iterable[int], *, share: float = 1.0) -> list[int]:
        """The first of the wanted shards that the cache can hold at the same time."""
        if self._capacity is None:
            settings = next(c for c in self._cached if c is not None).data_set
            self._capacity = settings.folder.capacity()
        fitting, left = [], self._capacity * share
        for index in wanted:
            shard = self._cached[index]
            left -= 0 if shard is None else shard.size
            if left < 0:
                break
            fitting.append(index)
        return fitting
