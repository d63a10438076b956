"""The pieces of documents that make up one rank's rows, and what follows from them: masks, borders, positions."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Segments", "cumulative_lengths", "merge_segments", "positions"]


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """What to read into a buffer [B, T + 1], piece by piece, in order of row and slot; arrays are [n_pieces].

    Piece k is tokens [start, start + size) of the stream, put into row `row` from `slot` on; a later piece may
    overwrite the last slot of the one before. `inputs` is how many input slots belong to it, `begins` whether it
    starts at its document's first token, `border` that its last token's target is not the document's own and not a
    separator. `patches` [m, 3] are (row, input slot, token) of targets that lie elsewhere in the stream.
    """

    n_rows: int
    row: NDArray[np.int64]
    slot: NDArray[np.int64]
    start: NDArray[np.int64]
    size: NDArray[np.int64]
    inputs: NDArray[np.int64]
    begins: NDArray[np.bool_]
    border: NDArray[np.bool_]
    patches: NDArray[np.int64]

    def split(self, bounds: list[int]) -> list[Segments]:
        """Rows [bounds[k], bounds[k + 1]) for every k, each numbered from 0."""
        if len(bounds) == 2:
            return [self]
        edges = np.searchsorted(self.row, bounds).tolist()
        patch_edges = np.searchsorted(self.patches[:, 0], bounds).tolist()
        found = []
        for k, first in enumerate(bounds[:-1]):
            own = slice(edges[k], edges[k + 1])
            patches = self.patches[patch_edges[k] : patch_edges[k + 1]] - (first, 0, 0)
            found.append(
                Segments(
                    bounds[k + 1] - first,
                    self.row[own] - first,
                    self.slot[own],
                    self.start[own],
                    self.size[own],
                    self.inputs[own],
                    self.begins[own],
                    self.border[own],
                    patches,
                )
            )
        return found

    def used_inputs(self, n_rows: int) -> NDArray[np.int64]:
        """Input slots of each row that hold a token, int64 [n_rows]."""
        return np.bincount(self.row, weights=self.inputs, minlength=n_rows).astype(np.int64)

    def filled(self, n_rows: int) -> NDArray[np.int64]:
        """Slots of each row that are read into, int64 [n_rows]."""
        ends = np.zeros(n_rows, np.int64)
        np.maximum.at(ends, self.row, self.slot + self.size)
        return ends

    def mask(self, n_rows: int, seq_len: int, *, shared_slots: bool) -> NDArray[np.bool_] | None:
        """Which targets count, bool [n_rows, T]; None when all do.

        With `shared_slots` (rows of T + 1 slots) the last token of a row has no target.
        """
        used = np.maximum(self.filled(n_rows) - 1, 0) if shared_slots else self.used_inputs(n_rows)
        unmarked = np.flatnonzero(self.border)
        short = np.flatnonzero(used < seq_len)
        if not len(unmarked) and not len(short):
            return None
        mask = np.ones((n_rows, seq_len), np.bool_)
        for row, n in zip(short.tolist(), used[short].tolist(), strict=True):
            mask[row, n:] = False
        at = self.slot[unmarked] + self.inputs[unmarked] - 1
        inside = (self.inputs[unmarked] > 0) & (at < seq_len)
        mask[self.row[unmarked][inside], at[inside]] = False
        return mask

    def borders(self, n_rows: int, seq_len: int) -> NDArray[np.int64]:
        """Where documents (and a row's padding) begin in the inputs laid end to end, ascending, int64."""
        inside = self.inputs > 0
        starts = self.row[inside] * seq_len + self.slot[inside]
        used = self.used_inputs(n_rows)
        short = np.flatnonzero(used < seq_len)
        return np.union1d(starts, short * seq_len + used[short]) if len(short) else starts


def merge_segments(parts: Sequence[tuple[Segments, NDArray[np.int64]]], n_rows: int) -> Segments:
    """Rows of several sources in one batch: `parts` are (segments, the batch's row for each of their rows)."""
    row = np.concatenate([rows[s.row] for s, rows in parts])
    order = np.argsort(row, kind="stable")
    patches = []
    for s, rows in parts:
        patch = s.patches.copy()
        patch[:, 0] = rows[patch[:, 0]]
        patches.append(patch)

    def joined(name: str) -> NDArray[np.int64]:
        values: NDArray[np.int64] = np.concatenate([getattr(s, name) for s, _ in parts])[order]
        return values

    return Segments(
        n_rows,
        row[order],
        joined("slot"),
        joined("start"),
        joined("size"),
        joined("inputs"),
        joined("begins").astype(np.bool_),
        joined("border").astype(np.bool_),
        np.concatenate(patches),
    )


def cumulative_lengths(borders: NDArray[np.int64], total: int, *, length: int | None) -> NDArray[np.int32]:
    """Borders of documents in `total` inputs laid end to end as int32 [documents + 1], from 0 to `total`.

    With `length`, of that many numbers: the rest repeat `total`. Raises UsageError when they do not fit.
    """
    found = np.append(borders, total).astype(np.int32)
    if length is None:
        return found
    if len(found) > length:
        raise UsageError(
            f"a batch has {len(found) - 1:,} documents, but cu_seqlens={length} holds {length - 1:,}; make it larger, "
            "or True for as many numbers as each batch needs"
        )
    fixed = np.full(length, total, np.int32)
    fixed[: len(found)] = found
    return fixed


def positions(borders: NDArray[np.int64], n_rows: int, seq_len: int) -> NDArray[np.int32]:
    """Position of each input in its document's piece, int32 [n_rows, T]: 0 at every border."""
    total = n_rows * seq_len
    if len(borders) * _FEW < total:  # copying runs costs 30 µs for 100 documents, a sum over all slots 200
        flat = np.empty(total, np.int32)
        run = np.arange(seq_len, dtype=np.int32)
        bounds = [*borders.tolist(), total]
        for a, b in pairwise(bounds):
            flat[a:b] = run[: b - a]
    else:
        flat = np.ones(total, np.int32)
        flat[borders] = np.diff(borders, prepend=borders[0]) * -1 + 1
        flat[0] = 0
        np.cumsum(flat, out=flat)
    return flat.reshape(n_rows, seq_len)


_FEW = 128
"""Slots a document from which positions are copied run by run."""
