"""The pieces of documents that make up one rank's rows, and what follows from them: masks, borders, positions."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Segments", "cumulative_lengths", "join_segments", "merge_segments", "positions"]


@dataclass(frozen=True, slots=True, eq=False)
class Segments:
    """What to read into a buffer [B, T + 1], piece by piece, in order of row and slot; arrays are [n_pieces].

    Piece k is tokens [start, start + size) of the stream, put into row `row` from `slot` on; a later piece may
    overwrite the last slot of the one before. `inputs` is how many input slots belong to it, `begins` whether it
    starts at its document's first token, `border` that its last token's target is not the document's own and not a
    separator. `patches` [m, 3] are (row, input slot, token) of targets that lie elsewhere in the stream, row by row.
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


_COLUMNS = [column.name for column in fields(Segments) if column.name != "n_rows"]
_NONE, _NO = np.zeros(0, np.int64), np.zeros(0, np.bool_)
_EMPTY = Segments(0, _NONE, _NONE, _NONE, _NONE, _NONE, _NO, _NO, np.zeros((0, 3), np.int64))


def join_segments(parts: Sequence[Segments], n_rows: int) -> Segments:
    """The pieces of all parts, one after the other, whose rows are numbered together already."""
    columns = ([getattr(part, name) for part in (_EMPTY, *parts)] for name in _COLUMNS)
    return Segments(n_rows, *map(np.concatenate, columns))


def merge_segments(parts: Sequence[tuple[Segments, NDArray[np.int64]]], n_rows: int) -> Segments:
    """Rows of several sources as one: `parts` are (segments, the row that each of their rows becomes)."""
    renumbered = []
    for s, rows in parts:
        patches = s.patches.copy()
        patches[:, 0] = rows[patches[:, 0]]
        renumbered.append(replace(s, row=rows[s.row], patches=patches))
    joined = join_segments(renumbered, n_rows)
    order = np.argsort(joined.row, kind="stable")
    patches = joined.patches[np.argsort(joined.patches[:, 0], kind="stable")]
    columns = {name: getattr(joined, name)[order] for name in _COLUMNS if name != "patches"}
    return replace(joined, **columns, patches=patches)


def cumulative_lengths(borders: NDArray[np.int32], *, length: int | None) -> NDArray[np.int32]:
    """Borders of documents, with the end of the last, int32 [documents + 1], in memory of their own.

    With `length`, of that many numbers: the rest repeat the last. Raises UsageError when they do not fit.
    """
    if length is None:
        return borders.copy()
    if len(borders) > length:
        raise UsageError(
            f"a batch has {len(borders) - 1:,} documents, but cu_seqlens={length} holds {length - 1:,}; make it "
            "larger, or True for as many numbers as each batch needs"
        )
    fixed = np.full(length, borders[-1], np.int32)
    fixed[: len(borders)] = borders
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
