"""Rows of raw ids before they are a batch: the buffer that they are read into, and where in the shards they are."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.loader.block_rows import InBlocks
    from tokenriver.loader.prepared import PreparedSteps
    from tokenriver.loader.shard_file import ShardFile

__all__ = ["Located", "Pieces", "Reads", "RowGroup", "Rows", "Span", "Steps"]

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
    its bytes, `bytes` those of each row, `address` where it is."""

    def __init__(self, n_rows: int, length: int, dtype: np.dtype[Any], *, memory: NDArray[Any] | None = None) -> None:
        self._memory = self.array = np.zeros((n_rows, length), dtype) if memory is None else memory
        self.flat = self.array.reshape(-1)
        self.view = self.flat.data.cast("B")
        self.parts: dict[bool, tuple[NDArray[Any], NDArray[Any]]] = {}
        self.bytes = [[row.data.cast("B")] for row in self.array]
        self.address = np.uint64(self.flat.ctypes.data)
        self._addresses = self.address + np.arange(n_rows, dtype=np.uint64) * np.uint64(length * dtype.itemsize)

    def addresses(self, n: int) -> NDArray[np.uint64]:
        """Where the first n rows are, the same object each time for all of them."""
        return self._addresses if n == len(self._addresses) else self._addresses[:n]

    def hold(self, content: bytes | None) -> None:
        """Let `array` be these bytes, as they are, instead of the buffer's own memory; None: the memory again."""
        if content is not None:
            self.array = np.ndarray(self._memory.shape, self._memory.dtype, content)
        elif self.array is self._memory:
            return
        else:
            self.array = self._memory
        self.parts.clear()


class RowGroup:
    """Buffers for several steps, one behind the other in the same memory: `steps`, and `whole`, all their rows."""

    def __init__(self, n_steps: int, n_rows: int, length: int, dtype: np.dtype[Any]) -> None:
        self.whole = Rows(n_steps * n_rows, length, dtype)
        parts = self.whole.array.reshape(n_steps, n_rows, length)
        self.steps = [Rows(n_rows, length, dtype, memory=part) for part in parts]
        self._addresses = np.array([rows.address for rows in self.steps], np.uint64)

    def addresses(self, n: int) -> NDArray[np.uint64]:
        """Where the first n steps' buffers begin."""
        return self._addresses if n == len(self._addresses) else self._addresses[:n]


class Located(NamedTuple):
    """Where a batch's rows of T + 1 ids are: `starts` int64 [rows], their first tokens in the stream.

    They are read as ranges of `length` ids each, range k from byte `offsets[k]` of shard `shards[k]`: the rows, or all
    of them at once where they lie end to end. `inside`: no range needs two shards, or widening. `held`: where they are
    taken from instead, in a block-shuffled order.
    """

    starts: NDArray[np.int64]
    length: int
    shards: NDArray[np.int64]
    offsets: NDArray[np.int64]
    inside: bool
    held: InBlocks | None = None

    def part(self, k: int, n_rows: int) -> Located:
        """The k-th `n_rows` rows of several steps'."""
        rows = slice(k * n_rows, (k + 1) * n_rows)
        ranges = rows if len(self.shards) == len(self.starts) else slice(k, k + 1)
        return Located(self.starts[rows], self.length, self.shards[ranges], self.offsets[ranges], self.inside)


class Pieces(NamedTuple):
    """Steps [first, stop) of some that are prepared, to be read together."""

    of: PreparedSteps
    first: int
    stop: int


class Steps(NamedTuple):
    """`n` steps from (epoch, step) on that are read together: all their rows, or each one's pieces."""

    epoch: int
    step: int
    n: int
    rows: Located | Pieces
