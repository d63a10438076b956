"""The block-shuffled order: blocks of neighbouring rows in shuffled order, and rows shuffled within a window of blocks.

Every byte of the data is read once an epoch, in pieces of half a megabyte, whatever the number of ranks: what a store,
a network file system or a cold disk is good at. docs/loader.md has the rule as a specification; tests pin it with
golden digests, and like loader.order it never changes under the same name.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.loader.order import permute

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BlockOrder"]

_BLOCK_TOKENS = 1 << 18
_BLOCK_ROWS = 1024
_BLOCKS = 1024
"""Data of fewer blocks than this are cut into smaller ones, so that small data are shuffled as well as large."""

_WINDOW_BLOCKS = 256
_LANES = 64

_BLOCK_KEY = b"tokenriver blocks 1"
_ROW_KEY = b"tokenriver rows 1"


class BlockOrder:
    """A permutation of `n_rows` rows of `seq_len` targets an epoch, for global batches of `global_batch_size` rows.

    Each global batch is dealt to `n_lanes` lanes, which have blocks of their own: ranks that share no lane share no
    block. A lane goes through its blocks in windows, in each of which rows come in shuffled order. All of it follows
    from (n_rows, seq_len, global_batch_size, seed, epoch); nothing is kept but the windows at hand.
    """

    def __init__(self, n_rows: int, seq_len: int, global_batch_size: int, seed: int) -> None:
        self.n_rows, self.seq_len, self.global_batch_size, self.seed = n_rows, seq_len, global_batch_size, seed
        self.block_rows = max(1, min(_BLOCK_ROWS, _BLOCK_TOKENS // seq_len, n_rows // _BLOCKS))
        self.n_lanes = max(d for d in range(1, _LANES + 1) if global_batch_size % d == 0)
        self._width = global_batch_size // self.n_lanes  # rows of a lane in each global batch
        self.window_rows = max(1, _WINDOW_BLOCKS * self.block_rows // self.n_lanes)
        """Rows of a lane's window."""
        self._lane_rows = n_rows // global_batch_size * self._width
        self._kept = 4 * self.n_lanes
        self._windows: dict[tuple[int, int, int], NDArray[np.int64]] = {}
        self._lock = threading.Lock()

    def __reduce__(self) -> tuple[Any, ...]:
        return BlockOrder, (self.n_rows, self.seq_len, self.global_batch_size, self.seed)

    def blocks_held(self, batch_size: int) -> int:
        """Blocks of which a rank with so many rows of each global batch uses some rows, but not all, at any time."""
        lanes = min(self.n_lanes, -(-batch_size // self._width) + (batch_size % self._width > 0))
        return lanes * (-(-self.window_rows // self.block_rows) + 1)

    def rows(self, positions: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """The rows at ascending positions of an epoch, int64 of the same shape [k]."""
        dealt = int(np.searchsorted(positions, self._lane_rows * self.n_lanes))
        out = np.empty_like(positions)
        if dealt < len(positions):  # of the last, partial batch
            out[dealt:] = self._in_blocks(positions[dealt:], epoch)
        step, slot = np.divmod(positions[:dealt], self.global_batch_size)
        lanes, inside = np.divmod(slot, self._width)
        windows, within = np.divmod(step * self._width + inside + self._shift(lanes), self.window_rows)
        if dealt:
            # Lanes and the few windows at hand make a small dense table, so no position is looked up by a search.
            first, count = int(windows.min()), int(np.ptp(windows)) + 1
            cells = lanes * count + (windows - first)
            needed = np.flatnonzero(np.bincount(cells))
            known = self._known(epoch, [(c // count, first + c % count) for c in needed.tolist()])
            place = np.zeros(needed[-1] + 1, np.int64)
            place[needed] = np.arange(len(needed))
            out[:dealt] = known[place[cells], within]
        return out

    def _shift(self, lane: Any) -> Any:
        """Rows by which a lane's first window is shorter, so that the lanes' windows do not all begin at once."""
        return lane * self.window_rows // self.n_lanes

    def _known(self, epoch: int, names: list[tuple[int, int]]) -> NDArray[np.int64]:
        """Windows (lane, number) of an epoch, int64 [len(names), window_rows], made where they are not at hand."""
        with self._lock:
            found = {name: self._windows.get((epoch, *name)) for name in names}
        missing = [name for name, rows in found.items() if rows is None]
        if missing:
            made = self._make(epoch, np.array(missing, np.int64))
            with self._lock:
                for name, rows in zip(missing, made, strict=True):
                    found[name] = self._windows[(epoch, *name)] = rows.copy()  # a view would hold all that was made
                for old in list(self._windows)[: -self._kept]:
                    del self._windows[old]
        return np.stack(list(found.values()))  # type: ignore[arg-type]

    def _make(self, epoch: int, names: NDArray[np.int64]) -> NDArray[np.int64]:
        """The rows of windows (lane, number) [k, 2] in the order in which they come, int64 [k, window_rows].

        A lane's first window is short of `_shift` rows at its beginning, its last one of others at its end.
        """
        lane, number = names[:, :1], names[:, 1:]
        places = number * self.window_rows - self._shift(lane) + np.arange(self.window_rows)
        there = (places >= 0) & (places < self._lane_rows)
        rows, keys = np.zeros_like(places), np.full_like(places, self.n_rows)
        keys[places < 0] = -1
        rows[there] = self._in_blocks((places + lane * self._lane_rows)[there], epoch)
        keys[there] = permute(rows[there], n=self.n_rows, seed=self.seed, epoch=epoch, key=_ROW_KEY)
        return np.take_along_axis(rows, np.argsort(keys, axis=1), axis=1)

    def _in_blocks(self, places: NDArray[np.int64], epoch: int) -> NDArray[np.int64]:
        """The rows at places of the shuffled blocks laid end to end, the rest that makes no block between two."""
        n_blocks, rest = divmod(self.n_rows, self.block_rows)
        shape: dict[str, Any] = {"seed": self.seed, "epoch": epoch, "key": _BLOCK_KEY}
        rest_at = int(permute(np.zeros(1, np.int64), n=n_blocks + 1, **shape)[0]) * self.block_rows
        in_rest = (places >= rest_at) & (places < rest_at + rest)
        blocks, within = np.divmod(places - rest * (places >= rest_at + rest), self.block_rows)
        blocks[in_rest] = 0
        # Neighbours are mostly of one block, whose place is looked up once.
        firsts = np.flatnonzero(np.diff(blocks, prepend=-1))
        places_of = permute(blocks[firsts], n=n_blocks, **shape) * self.block_rows
        out = np.repeat(places_of, np.diff(firsts, append=len(blocks))) + within
        out[in_rest] = places[in_rest] - rest_at + n_blocks * self.block_rows
        return out
