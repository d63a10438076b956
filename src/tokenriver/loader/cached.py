"""A reader of shards that lie behind URLs: whole from the cache where the order goes on, by ranges where it jumps.

In order, the shards at hand and the next ones are fetched whole, and waited for, as long as the cache holds all that
are read at the same time. A shuffled order reads ranges into memory, batches ahead, while the cache is filled with as
many whole shards as fit. A read asks, shard by shard: is it here, is it waited for, else by range.
"""

from __future__ import annotations

import logging
import os
from collections import deque
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tokenriver.errors import IntegrityError
from tokenriver.files import human_bytes
from tokenriver.loader.cached_file import LostError
from tokenriver.loader.cached_shards import CachedShards
from tokenriver.loader.next_shards import NextShards
from tokenriver.loader.prepared import Prepared
from tokenriver.loader.ranges import RangeReads
from tokenriver.loader.shard_parts import parts_of_range, shards_touched
from tokenriver.loader.stream import MAX_OPEN
from tokenriver.shards.header import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tokenriver.loader.order import Order
    from tokenriver.loader.ranges import Range
    from tokenriver.loader.rows import Located, Reads, Rows
    from tokenriver.loader.shard_file import ShardFile

__all__ = ["CachedReader"]

Item = TypeVar("Item")

_LOG = logging.getLogger("tokenriver.cache")

_AHEAD_BYTES = 64 << 20
_AHEAD_ITEMS = 16
"""Batches whose ranges are asked for ahead: as many as make so many bytes, from 2 to this."""

_TRIES = 5
"""How often a read begins anew because a file went from the cache under it."""

_FILL = 0.95
"""How much of the cache a shuffled order fills, so that other data sets' files need not go for its last shard."""


class CachedReader(CachedShards):
    """Reads ids of consecutive shards, some of which are fetched from a store; the same ids as from local files."""

    far = True

    def __init__(
        self,
        shards: Sequence[ShardFile],
        *,
        max_open: int = MAX_OPEN,
        order: Order = "sequential",
        repeats: bool = True,
        parts: Sequence[int] = (),
    ) -> None:
        self._order: dict[str, Any] = {"order": order, "repeats": repeats, "parts": tuple(parts)}
        self._told = False
        self._sequential, self._blocks = order == "sequential", order == "block-shuffled"
        super().__init__(shards, max_open=max_open)

    def __getstate__(self) -> dict[str, Any]:
        return {**super().__getstate__(), **self._order}

    def __setstate__(self, state: dict[str, Any]) -> None:
        shards = state.pop("shards")
        self.__init__(shards, **state)  # type: ignore[misc]

    def _renew(self) -> None:
        super()._renew()
        come = (lambda: False) if self._blocks else self.keeper.is_fetching  # beside blocks, shards give way
        self._ranges = RangeReads(self._cached, stopped=self.keeper.stopped, shards_come=come)
        self._next = NextShards(self._cached, parts=self._order["parts"], repeats=self._order["repeats"])

    def close(self) -> None:
        """Close all descriptors and end the threads; the next read begins anew."""
        super().close()
        self._end()
        self._renew()

    def __del__(self) -> None:
        if hasattr(self, "keeper") and self._pid == os.getpid():
            self._end()

    def _end(self) -> None:
        self.keeper.close()
        self._ranges.close()

    def read(self, start: int, out: NDArray[Any]) -> None:
        """As TokenReader."""
        self._serve(lambda: super(CachedReader, self).read(start, out), np.array([start]), np.array([len(out)]), [out])

    def read_located(self, where: Located, rows: Rows) -> None:
        """As TokenReader."""
        end_to_end = where.length != rows.array.shape[1]
        starts = where.starts[: len(where.shards)]
        outs = [rows.flat[: where.length]] if end_to_end else rows.array[: len(starts)]
        sizes = np.full(len(starts), where.length)
        self._serve(lambda: super(CachedReader, self).read_located(where, rows), starts, sizes, outs)

    def read_prepared(self, pieces: Prepared, rows: Rows) -> None:
        """As TokenReader."""
        places, sizes = (n_bytes // self.dtype.itemsize for n_bytes in (pieces.places, pieces.sizes))
        rows.hold(None)
        rows.flat[:] = 0
        outs = [rows.flat[a : a + n] for a, n in zip(places.tolist(), sizes.tolist(), strict=True)]
        self._serve(lambda: super(CachedReader, self).read_prepared(pieces, rows), pieces.starts, sizes, outs)

    def ask(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> Any:
        """As TokenReader."""
        if self._pid != os.getpid():
            self._renew()
        return self._announce(starts, sizes, packed=False)

    def forget(self, asked: Any) -> None:
        """As TokenReader."""
        self._ranges.forget(asked)

    def give_way(self) -> None:
        """As TokenReader: shards that nobody waits for are not brought into the cache for a moment."""
        self.keeper.give_way()

    def expect(self, shards: Iterable[int]) -> None:
        """Say which shards are read next, in this order; they are fetched whole, and waited for, if the cache holds
        the first two."""
        if self._pid != os.getpid():
            self._renew()
        wanted = list(dict.fromkeys(shards))
        fitting = self._next.fitting(wanted)
        self._want(fitting if len(fitting) >= min(2, len(wanted)) else [])

    def ahead(self, items: Iterator[Item], reads: Callable[[Item], Reads]) -> Iterator[Item]:
        """The same items, each given only when what it reads is on its way, and that of some batches more."""
        if self._pid != os.getpid():
            self._renew()
        waiting: deque[tuple[Item, list[Any]]] = deque()
        depth = 1
        try:
            for item in items:
                if not waiting and self._announced is not None and self.keeper.here.all():
                    if self.keeper.touch():
                        self._close_gone()
                    yield item
                    continue
                starts, sizes = reads(item)
                asked = self._announce(starts, sizes, packed=isinstance(item[2], Prepared))  # type: ignore[index]
                waiting.append((item, asked))
                n_bytes = int(sizes.sum()) * self.dtype.itemsize
                depth = max(2, min(_AHEAD_ITEMS, _AHEAD_BYTES // max(1, n_bytes))) if asked else min(depth, 2)
                while len(waiting) > depth:
                    yield waiting.popleft()[0]
            while waiting:
                yield waiting.popleft()[0]
        finally:
            for _, asked in waiting:
                self._ranges.forget(asked)

    def _serve(self, local: Callable[[], None], starts: NDArray[np.int64], sizes: NDArray[np.int64], outs: Any) -> None:
        """Read ranges of the stream: through files when all their shards are here, else some from the store."""
        if self._pid != os.getpid():
            self._renew()
        if self.keeper.here.all():
            try:
                local()
            except (LostError, IntegrityError):
                pass  # found again, and told, below
            else:
                return
        touched = shards_touched(self.bounds, starts, sizes)
        for _ in range(_TRIES):
            for index in touched:
                self._bring(index)
            try:
                if self.keeper.here[touched].all():
                    local()
                else:
                    self._read_mixed(starts.tolist(), outs)
            except LostError as lost:
                self._let_go(lost.index)
            except IntegrityError:
                if not self._drop_damaged(touched):
                    raise
            else:
                return
        raise IntegrityError(
            f"{self.shards[touched[0]].path}: vanished from the cache, or was changed there, {_TRIES} times while it "
            "was read; give this job a cache_dir of its own"
        )

    def _bring(self, index: int) -> None:
        """Wait for a shard that is to be here; raise what its fetch found wrong with it."""
        keeper = self.keeper
        if keeper.here[index]:
            return
        if keeper.must(index):
            self._close_gone()  # a disk has room again only when what went from the cache is closed
            keeper.wait(index)
        else:
            error = keeper.error(index)
            if error is not None:
                raise error
            keeper.found(index)

    def _read_mixed(self, starts: list[int], outs: Any) -> None:
        """Range by range: from files that are here, the others from the store, all of these at the same time."""
        here = self.keeper.here
        wanted: list[Range] = []
        targets: list[NDArray[Any]] = []
        for start, out in zip(starts, outs, strict=True):
            for index, inside, first, stop in parts_of_range(self._ends, start, len(out)):
                target = out[first:stop]
                if here[index]:
                    with self._lock:
                        self._read_shard(index, inside, target)
                else:
                    wanted.append(self._bytes_of(index, inside, stop - first))
                    targets.append(target)
        for (index, _, _), target, raw in zip(wanted, targets, self._ranges.take(wanted), strict=True):
            target[:] = np.frombuffer(raw, self.shards[index].header.dtype)

    def _announce(self, starts: NDArray[np.int64], sizes: NDArray[np.int64], *, packed: bool) -> list[Any]:
        """Have fetched what a batch needs; gives the ranges that were asked for."""
        touched = shards_touched(self.bounds, starts, sizes)
        if self._sequential:
            self._want(self._next.working_set(touched, packed=packed))
        elif self._announced is None:
            known = sorted(range(len(self.shards)), key=lambda i: not self.keeper.found(i))
            # Blocks are read once an epoch: shards in the cache are for the epochs that follow.
            pays = self._order["repeats"] or not self._blocks
            fitting = self._next.fitting(known, share=_FILL) if pays else []
            if not self._blocks and len(fitting) < len(known):
                self._say_slow(len(fitting))
            self._want(fitting, must=False)
        elif self.keeper.touch():
            self._close_gone()
        left = [i for i in touched if not self.keeper.here[i] and not self.keeper.must(i) and not self.keeper.found(i)]
        if not left:
            return []
        missing, ranges = set(left), zip(starts.tolist(), sizes.tolist(), strict=True)
        parts = (part for start, size in ranges for part in parts_of_range(self._ends, start, size))
        return self._ranges.ask([self._bytes_of(i, at, stop - first) for i, at, first, stop in parts if i in missing])

    def _say_slow(self, n_fitting: int) -> None:
        """Tell who streams in a shuffled order what makes it slow, once."""
        if self._told:
            return
        self._told = True
        n_bytes = sum(shard.size for shard in self._cached if shard is not None)
        _LOG.warning(
            "the cache has room for %d of %d shards (%s in all): rows of the others are read one by one, some 2,000 a "
            "second; give cache_limit more, or take order='block-shuffled' (one data set, not packed)",
            n_fitting,
            len(self.shards),
            human_bytes(n_bytes),
        )

    def _bytes_of(self, index: int, start: int, n_tokens: int) -> Range:
        """The range of a shard's bytes that tokens of it are."""
        width = self.shards[index].header.dtype.itemsize
        return index, HEADER_BYTES + start * width, n_tokens * width
