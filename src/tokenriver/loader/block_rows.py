"""Rows of a block-shuffled order from memory: every block is read whole, once, and held until its rows are used."""

from __future__ import annotations

from collections import deque
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.loader.stream import Located

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tokenriver.loader.assembly import Item
    from tokenriver.loader.block_order import BlockOrder
    from tokenriver.loader.stream import Rows, TokenReader

__all__ = ["BlockRows"]

_AHEAD_BYTES = 32 << 20
"""Blocks on their way from a store: 200 MB/s for 0.15 s."""

_AHEAD_BLOCKS = 64
_GROUP = 8
"""Blocks that are asked for together: a thread's turn for each alone took as long as the rest of the work."""

_AHEAD_ITEMS = 4096


class BlockRows:
    """Blocks held for one iteration of one rank, in the thread that makes its batches.

    A block goes when all its rows were used; where another rank uses some of them, or an iteration began inside it, it
    goes when its room is needed. A row whose block went is read with its block again.
    """

    def __init__(self, order: BlockOrder, reader: TokenReader, batch_size: int) -> None:
        self._order, self._reader = order, reader
        self._row = order.seq_len + 1
        n_bytes = order.block_rows * self._row * reader.dtype.itemsize
        self._depth = min(_AHEAD_BLOCKS, max(1, _AHEAD_BYTES // n_bytes)) if reader.far else 0
        n_blocks = order.blocks_held(batch_size) + max(self._depth, batch_size)
        n_blocks = min(n_blocks, -(-order.n_rows // order.block_rows))
        self._memory = np.empty((n_blocks * order.block_rows, self._row), reader.dtype)
        self._places: dict[int, int] = {}
        self._blocks: list[int | None] = [None] * n_blocks
        self._free = list(range(n_blocks))
        self._left = np.ones(n_blocks, np.int64)
        self._used: list[NDArray[np.int64]] = []
        self._parts: dict[int, list[memoryview]] = {}
        self._asked: dict[int, Any] = {}

    @property
    def n_bytes(self) -> int:
        """Bytes that the blocks may take."""
        return self._memory.nbytes

    def ahead(self, items: Iterator[Item]) -> Iterator[Item]:
        """The items, which take their rows from here; blocks of a store are asked for before they are needed."""
        waiting: deque[Item] = deque()
        new: dict[int, int] = {}  # blocks to ask for, in groups, and which item needs them first
        count = 0
        try:
            for item in items:
                assert isinstance(item[2], Located)
                waiting.append((item[0], item[1], replace(item[2], held=self)))
                count += 1
                if self._depth:
                    for block in self._unknown(item[2].starts):
                        new.setdefault(block, count)
                    if len(new) >= _GROUP:
                        self._ask(new)
                while waiting and (len(self._asked) + len(new) >= self._depth or len(waiting) > _AHEAD_ITEMS):
                    if new and next(iter(new.values())) <= count - len(waiting) + 1:
                        self._ask(new)
                    yield waiting.popleft()
            self._ask(new)
            while waiting:
                yield waiting.popleft()
        finally:
            for asked in self._asked.values():
                self._reader.forget(asked)

    def fill(self, starts: NDArray[np.int64], rows: Rows) -> None:
        """Fill row k of `rows` with the T + 1 ids of the sequence that begins at token starts[k]."""
        size = self._order.block_rows
        blocks, within = np.divmod(starts // self._order.seq_len, size)
        names = blocks.tolist()
        if None in (found := list(map(self._places.get, names))):
            self._read_missing(names)
            found = list(map(self._places.get, names))
        places = np.array(found, np.int64)
        self._used.append(places)
        within += places * size
        # With mode="raise" NumPy would copy through a buffer of its own.
        np.take(self._memory, within, axis=0, out=rows.array[: len(starts)], mode="clip")

    def _read_missing(self, wanted: list[int]) -> None:
        """Read those of the wanted blocks that are not held, after letting go of what is used up."""
        if self._used:
            self._left -= np.bincount(np.concatenate(self._used), minlength=len(self._left))
            self._used.clear()
        for place in np.flatnonzero(self._left <= 0).tolist():
            self._let_go(place)
        for block in dict.fromkeys(wanted):
            if block not in self._places:
                self._read(block, wanted)

    def _read(self, block: int, wanted: list[int]) -> None:
        """Read a block into a free place, or over the oldest one whose rows are not wanted now."""
        if not self._free:
            self._let_go(next(place for b, place in self._places.items() if b not in wanted))
        place, count = self._free.pop(), self._count(block)
        rows = self._memory[place * self._order.block_rows :][:count]
        self._reader.read_block(block * self._order.block_rows * self._order.seq_len, rows, self._parts_of(place, rows))
        self._asked.pop(block, None)
        self._places[block], self._blocks[place], self._left[place] = place, block, count

    def _let_go(self, place: int) -> None:
        """Make a place free again."""
        block = self._blocks[place]
        assert block is not None
        del self._places[block]
        self._blocks[place], self._left[place] = None, 1
        self._free.append(place)

    def _parts_of(self, place: int, rows: NDArray[Any]) -> list[memoryview]:
        """The bytes of a place's rows, as reads take them; made once, they take as long as reading into them."""
        parts = self._parts.get(place)
        if parts is None or len(parts) != len(rows):
            *most, last = rows
            parts = self._parts[place] = [row[:-1].data.cast("B") for row in most] + [last.data.cast("B")]
        return parts

    def _count(self, block: int) -> int:
        """Rows of a block: fewer in the last one."""
        return min(self._order.block_rows, self._order.n_rows - block * self._order.block_rows)

    def _unknown(self, starts: NDArray[np.int64]) -> list[int]:
        """The blocks of rows that are neither held nor on their way."""
        blocks = dict.fromkeys((starts // (self._order.block_rows * self._order.seq_len)).tolist())
        return [block for block in blocks if block not in self._places and block not in self._asked]

    def _ask(self, blocks: dict[int, int]) -> None:
        """Have blocks fetched."""
        if blocks:
            names = np.array(list(blocks), np.int64)
            sizes = np.minimum(self._order.block_rows, self._order.n_rows - names * self._order.block_rows)
            starts, t = names * self._order.block_rows * self._order.seq_len, self._order.seq_len
            self._asked |= dict.fromkeys(blocks, self._reader.ask(starts, sizes * t + 1))
            blocks.clear()
