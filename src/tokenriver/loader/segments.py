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
    found = np.empty(len(borders) + 1, np.int32)
    found[:-1] = borders
    found[-1] = total
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
