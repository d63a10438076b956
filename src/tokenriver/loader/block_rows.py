"""Rows of a block-shuffled order from memory: every block is read whole, once, ahead of its rows, and held until they
are used."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.cache.crew import Crew
from tokenriver.loader.rows import Located

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

    from numpy.typing import NDArray

    from tokenriver.loader.assembly import Item
    from tokenriver.loader.block_order import BlockOrder
    from tokenriver.loader.rows import Rows
    from tokenriver.loader.stream import TokenReader

__all__ = ["BlockRows", "InBlocks"]

_AHEAD_BYTES = 32 << 20
_AHEAD_FAR, _AHEAD_HERE = 64, 8
"""Blocks on their way, from a store (32 MB are 200 MB/s for 0.15 s) and from a disk."""

_GROUP = 8
"""Blocks that a store is asked for together: a thread's turn for each alone took as long as the rest of the work."""

_AHEAD_ITEMS = 4096

_NOWHERE = np.zeros(0, np.int64)


@dataclass(slots=True, eq=False)
class InBlocks:
    """A batch's rows as blocks and places in them, `blocks` [rows] and `within` int64 [rows]; `held` has the blocks."""

    held: BlockRows
    blocks: list[int]
    within: NDArray[np.int64]
    number: int = 0

    def fill(self, rows: Rows) -> None:
        """Fill the first of `rows` with the T + 1 ids of each."""
        self.held.fill(self, rows)


class BlockRows:
    """Blocks held for one iteration of one rank, for the thread that makes its batches.

    With `threaded` another thread reads them, else they are read when they are needed. A block goes when all its rows
    were used; where another rank uses some of them, or an iteration began inside it, it goes when its room is needed
    and no batch that is planned needs it.
    """

    def __init__(self, order: BlockOrder, reader: TokenReader, *, batch_size: int, threaded: bool) -> None:
        self._order, self._reader = order, reader
        self._row = order.seq_len + 1
        n_bytes = order.block_rows * self._row * reader.dtype.itemsize
        self._depth = min(_AHEAD_FAR if reader.far else _AHEAD_HERE, max(1, _AHEAD_BYTES // n_bytes))
        n_blocks = order.blocks_held(batch_size) + self._depth + _GROUP + batch_size
        n_blocks = min(n_blocks, -(-order.n_rows // order.block_rows))
        self._memory = np.empty((n_blocks * order.block_rows, self._row), reader.dtype)
        self._ids = np.empty(order.block_rows * order.seq_len + 1, reader.dtype)
        self._places: dict[int, int] = {}
        self._blocks: list[int | None] = [None] * n_blocks
        self._free = list(range(n_blocks))
        self._left = np.ones(n_blocks, np.int64)
        self._used: list[NDArray[np.int64]] = []
        self._needed: dict[int, int] = {}
        self._done = 0
        self._coming: dict[int, Future[None] | Callable[[], None]] = {}
        self._asked: dict[int, Any] = {}
        self._crew = Crew(1, "tokenriver-blocks") if threaded else None

    @property
    def n_bytes(self) -> int:
        """Bytes that the blocks may take."""
        return self._memory.nbytes

    def locate(self, steps: Sequence[NDArray[np.int64]]) -> list[Located]:
        """The rows of several steps, by their first tokens, to be taken from here."""
        if not steps:
            return []
        blocks, within = np.divmod(np.concatenate(steps) // self._order.seq_len, self._order.block_rows)
        names, found, begin = blocks.tolist(), [], 0
        for starts in steps:
            part = slice(begin, begin + len(starts))
            held = InBlocks(self, names[part], within[part])
            found.append(Located(starts, self._row, _NOWHERE, _NOWHERE, inside=False, held=held))
            begin = part.stop
        return found

    def ahead(self, items: Iterator[Item]) -> Iterator[Item]:
        """The items, which take their rows from here, each given when its blocks, and some more, are being read."""
        waiting: deque[Item] = deque()
        new: dict[int, int] = {}  # blocks to be read, and the first item that needs them
        count = 0
        try:
            for item in items:
                where = item[2]
                assert isinstance(where, Located)
                if where.held is None:
                    item = (item[0], item[1], where._replace(held=self.locate([where.starts])[0].held))
                held = item[2].held  # type: ignore[union-attr]
                assert held is not None
                count += 1
                held.number = count
                waiting.append(item)
                for block in dict.fromkeys(held.blocks):
                    self._needed[block] = count
                    if block not in self._places:
                        new.setdefault(block, count)
                if len(new) >= _GROUP or not self._reader.far:
                    self._begin(new)
                while waiting and (len(self._coming) + len(new) >= self._depth or len(waiting) > _AHEAD_ITEMS):
                    if new and next(iter(new.values())) <= count - len(waiting) + 1:
                        self._begin(new)
                    yield waiting.popleft()
            while waiting:
                self._begin(new)
                yield waiting.popleft()
        finally:
            self._end()

    def _end(self) -> None:
        """Read no more."""
        for read in self._coming.values():
            if not callable(read):
                read.cancel()
        if self._crew is not None:
            self._crew.close()
        for asked in self._asked.values():
            self._reader.forget(asked)

    def fill(self, wanted: InBlocks, rows: Rows) -> None:
        """Fill row k of `rows` with the ids of row within[k] of blocks[k]."""
        coming = self._coming
        if coming:
            for block in wanted.blocks:
                if block in coming:
                    self._await(block)
        places = np.array([self._places[block] for block in wanted.blocks], np.int64)
        self._used.append(places)
        self._done = wanted.number
        # With mode="raise" NumPy would copy through a buffer of its own.
        whole = places * self._order.block_rows + wanted.within
        np.take(self._memory, whole, axis=0, out=rows.array[: len(places)], mode="clip")

    def _await(self, block: int) -> None:
        """Until a block is here; raises what its reading raised."""
        read = self._coming[block]
        if callable(read):
            read()
        else:
            if not read.done():
                self._reader.give_way()
            read.result()
        del self._coming[block]
        self._asked.pop(block, None)

    def _begin(self, blocks: dict[int, int]) -> None:
        """Have blocks read, in the order given, each into a place of its own, as many as there is room for."""
        if not blocks:
            return
        if self._used:
            self._left -= np.bincount(np.concatenate(self._used), minlength=len(self._left))
            self._used.clear()
            for place in np.flatnonzero(self._left <= 0).tolist():
                if self._is_idle(place):
                    self._let_go(place)
        begun: list[tuple[int, int]] = []
        for block in blocks:
            if not self._free:
                idle = next(filter(self._is_idle, self._places.values()), None)
                if idle is None:
                    break
                self._let_go(idle)
            place = self._free.pop()
            self._places[block], self._blocks[place] = place, block
            begun.append((block, place))
        size, t = self._order.block_rows, self._order.seq_len
        names = np.array([block for block, _ in begun], np.int64)
        counts = np.minimum(size, self._order.n_rows - names * size)
        if self._reader.far and begun:
            self._asked |= dict.fromkeys(names.tolist(), self._reader.ask(names * size * t, counts * t + 1))
        for (block, place), count in zip(begun, counts.tolist(), strict=True):
            del blocks[block]
            self._left[place] = count
            read = partial(self._read, block, place, count)
            self._coming[block] = read if self._crew is None else self._crew.submit(read)

    def _read(self, block: int, place: int, count: int) -> None:
        """Read a block's rows, each with the first id of the next."""
        size, t = self._order.block_rows, self._order.seq_len
        ids = self._ids[: count * t + 1]
        self._reader.read(block * size * t, ids)
        rows = self._memory[place * size :][:count]
        rows[:, :-1] = ids[:-1].reshape(count, t)
        rows[:, -1] = ids[t::t]

    def _is_idle(self, place: int) -> bool:
        """Whether no batch that is planned needs what a place holds."""
        block = self._blocks[place]
        return block is not None and block not in self._coming and self._needed[block] <= self._done

    def _let_go(self, place: int) -> None:
        """Make a place free again."""
        block = self._blocks[place]
        assert block is not None
        del self._places[block], self._needed[block]
        self._blocks[place], self._left[place] = None, 1
        self._free.append(place)
