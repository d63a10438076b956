"""Rows of raw ids before they are a batch: the buffer that they are read into, and where in the shards they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.loader.block_rows import InBlocks
    from tokenriver.loader.source import ShardFile

__all__ = ["Located", "Reads", "Rows", "Span"]

Reads = tuple["NDArray[np.int64]", "NDArray[np.int64]"]
"""First tokens and numbers of tokens of the ranges of the stream that a batch is read from."""


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, stop) of one shard, counted from the shard's first id."""

    shard: ShardFile
    start: int
    stop: int


class Rows:
    """A buffer for rows of raw ids: `array` [n_rows, length], `flat` [n_rows · length], both the same memory, `view`
    its bytes, and `bytes` those of each row."""

    def __init__(self, n_rows: int, length: int, dtype: np.dtype[Any], *, memory: NDArray[Any] | None = None) -> None:
        self._memory = self.array = np.zeros((n_rows, length), dtype) if memory is None else memory
        self.flat = self.array.reshape(-1)
        self.view = self.flat.data.cast("B")
        self.parts: dict[bool, tuple[NDArray[Any], NDArray[Any]]] = {}
        self.bytes = [[row.data.cast("B")] for row in self.array]

    def hold(self, content: bytes | None) -> None:
        """Let `array` be these bytes, as they are, instead of the buffer's own memory; None: the memory again."""
        if content is not None:
            self.array = np.ndarray(self._memory.shape, self._memory.dtype, content)
        elif self.array is not self._memory:
            self.array = self._memory
        self.parts.clear()


@dataclass(frozen=True, slots=True, eq=False)
class Located:
    """Where a batch's rows of T + 1 ids are: `starts` int64 [rows], their first tokens in the stream.

    They are read as ranges of `length` ids each, range k from byte `offsets[k]` of shard `shards[k]`: the rows, or all
    of them at once where they lie end to end. `inside`: no range needs two shards, or widening. `held`: where they are
    taken from instead, in a block-shuffled order.
    """

    starts: NDArray[np.int64]
    length: int
    shards: list[int]
    offsets: list[int]
    inside: bool
    held: InBlocks | None = None
