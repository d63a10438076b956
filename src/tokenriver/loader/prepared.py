"""Packed rows made ready for reading, many steps at a time: what NumPy would take 200 µs for, step by step.

Only what depends on the ids themselves is left to each step: reading, checking, converting.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.loader.segments import Segments
    from tokenriver.loader.stream import TokenReader

__all__ = ["Prepared", "prepare"]


@dataclass(frozen=True, slots=True, eq=False)
class Prepared:
    """One rank's rows of a step, as places in a flat buffer [B · (T + 1)] and in its B · T inputs.

    Piece k is read from byte `offsets[k]` of shard `shards[k]` into ids [places[k], stops[k]) (or, where `crosses`,
    from token `starts[k]` on over shards). `empty` are (row, first slot without a token), `first_ids` the places that
    a separator must have, `starts` the tokens they come from. `unmasked` is None when every target counts, else the
    number of leading targets of each row that is short, and `border_targets` those inside that do not count.
    `borders` are where documents begin in the inputs, None where they are not asked for.
    """

    n_rows: int
    shards: list[int]
    offsets: list[int]
    places: list[int]
    stops: list[int]
    starts: NDArray[np.int64]
    crosses: bool
    empty: list[tuple[int, int]]
    first_ids: NDArray[np.int64]
    first_tokens: NDArray[np.int64]
    short: list[tuple[int, int]]
    border_targets: NDArray[np.int64]
    borders: NDArray[np.int64] | None
    patches: NDArray[np.int64]

    def mask(self, n_rows: int, seq_len: int) -> NDArray[np.bool_] | None:
        """Which targets count, bool [n_rows, T]; None when all do."""
        if not self.short and not len(self.border_targets):
            return None
        mask = np.ones((n_rows, seq_len), np.bool_)
        for row, n in self.short:
            mask[row, n:] = False
        mask.reshape(-1)[self.border_targets] = False
        return mask


def prepare(
    rows: Segments,
    bounds: list[int],
    *,
    reader: TokenReader,
    batch_size: int,
    seq_len: int,
    shared_slots: bool,
    marks: bool,
    join: bool,
) -> list[Prepared]:
    """Rows [bounds[k], bounds[k + 1]) for every k, at most `batch_size` each, as the rows of one step.

    `shared_slots` says that rows have T + 1 slots, so the last token of one has no target; `join` reads pieces as
    one that lie end to end both in the stream and in the buffer.
    """
    b, t, width = batch_size, seq_len, seq_len + 1
    n_steps = len(bounds) - 1
    edges = np.searchsorted(rows.row, bounds)
    step = np.repeat(np.arange(n_steps), np.diff(edges))
    row = rows.row - np.array(bounds)[step]
    all_rows = step * b + row
    places = row * width + rows.slot
    filled, used = np.zeros(n_steps * b, np.int64), np.zeros(n_steps * b, np.int64)
    ends = rows.slot + rows.size
    np.maximum.at(filled, all_rows, ends)
    np.maximum.at(used, all_rows, rows.slot + rows.inputs)
    counted = np.maximum(filled - 1, 0) if shared_slots else used
    empty = _by_step(filled, width, n_steps, b)
    short = _by_step(counted, t, n_steps, b)
    begins = np.flatnonzero(rows.begins)
    begin_edges = np.searchsorted(begins, edges)
    last_target = rows.slot + rows.inputs - 1
    border = np.flatnonzero(rows.border & (rows.inputs > 0) & (last_target < t))
    border_edges = np.searchsorted(border, edges)
    border_targets = row[border] * t + last_target[border]
    borders, document_edges = None, np.zeros(0, np.int64)
    if marks:
        inside = rows.inputs > 0
        padding = np.flatnonzero(used < t)
        borders = np.unique(np.concatenate([all_rows[inside] * t + rows.slot[inside], padding * t + used[padding]]))
        document_edges = np.searchsorted(borders, np.arange(n_steps + 1) * (b * t))
        borders -= np.repeat(np.arange(n_steps) * (b * t), np.diff(document_edges))
    starts, sizes, read_places = rows.start, rows.size, places
    read_edges = edges
    if join and len(starts):
        follows = (starts[1:] == starts[:-1] + sizes[:-1]) & (places[1:] == places[:-1] + sizes[:-1])
        first = np.flatnonzero(np.concatenate([[True], ~follows | (step[1:] != step[:-1])]))
        sizes = np.add.reduceat(sizes, first)
        starts, read_places = starts[first], places[first]
        read_edges = np.searchsorted(first, edges)
    shards, offsets, crosses = reader.locate(starts, sizes)
    patch_edges = np.searchsorted(rows.patches[:, 0], bounds)
    lists = [values.tolist() for values in (shards, offsets, read_places, read_places + sizes)]
    found = []
    for k in range(n_steps):
        a, z = int(read_edges[k]), int(read_edges[k + 1])
        own = begins[begin_edges[k] : begin_edges[k + 1]]
        found.append(
            Prepared(
                n_rows=bounds[k + 1] - bounds[k],
                shards=lists[0][a:z],
                offsets=lists[1][a:z],
                places=lists[2][a:z],
                stops=lists[3][a:z],
                starts=starts[a:z],
                crosses=bool(crosses[a:z].any()),
                empty=empty[k],
                first_ids=places[own],
                first_tokens=rows.start[own],
                short=short[k],
                border_targets=border_targets[border_edges[k] : border_edges[k + 1]],
                borders=None if borders is None else borders[document_edges[k] : document_edges[k + 1]],
                patches=rows.patches[patch_edges[k] : patch_edges[k + 1]] - (bounds[k], 0, 0),
            )
        )
    return found


def _by_step(values: NDArray[np.int64], limit: int, n_steps: int, batch_size: int) -> list[list[tuple[int, int]]]:
    """(row, value) of each step's rows whose value is below the limit."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(n_steps)]
    below = np.flatnonzero(values < limit)
    for at, value in zip(below.tolist(), values[below].tolist(), strict=True):
        found[at // batch_size].append((at % batch_size, value))
    return found
