"""Packed rows made ready for reading, many steps at a time: what NumPy would take 200 µs for, step by step.

Only what depends on the ids themselves is left to each step: reading, checking, converting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.loader.segments import Segments
    from tokenriver.loader.stream import TokenReader

__all__ = ["Prepared", "prepare"]


class Prepared(NamedTuple):
    """One rank's rows of a step, as places in a flat buffer [B · (T + 1)] and in its B · T inputs.

    Piece k is `sizes[k]` bytes from byte `offsets[k]` of shard `shards[k]` on (or, where `crosses`, ids from token
    `starts[k]` on over shards, put to `places[k]`). Pieces end to end fill the buffer, with zeros of gaps[k] =
    (pieces before, bytes) between. `first_ids` are the places that a separator must have, `first_tokens` the tokens
    they come from. `short` are (row, leading targets that count) where not all do, `border_targets` those inside that
    do not. `borders` are where documents begin in the inputs, None where they are not asked for.
    """

    n_rows: int
    shards: list[int]
    offsets: list[int]
    sizes: list[int]
    gaps: list[tuple[int, int]]
    starts: NDArray[np.int64]
    places: NDArray[np.int64]
    crosses: bool
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
    all_rows = rows.row + (np.arange(n_steps) * b - bounds[:-1])[step]  # counted as if every step had B rows
    places = all_rows * width + rows.slot
    # Pieces are in order of row and slot, so a row's last piece says how far it is filled.
    last = np.flatnonzero(np.append(all_rows[1:] != all_rows[:-1], True))[: len(all_rows)]
    filled, used = np.zeros(n_steps * b, np.int64), np.zeros(n_steps * b, np.int64)
    filled[all_rows[last]] = rows.slot[last] + rows.size[last]
    used[all_rows[last]] = rows.slot[last] + rows.inputs[last]
    short = _by_step(np.maximum(filled - 1, 0) if shared_slots else used, t, n_steps, b)
    begins = np.flatnonzero(rows.begins)
    begin_edges = np.searchsorted(begins, edges)
    border_targets, border_edges = _border_targets(rows, step, bounds, edges, t)
    borders, document_edges = _borders(rows, all_rows, used, n_steps, b, t) if marks else (None, np.zeros(0, np.int64))
    starts, sizes, read_places, read_edges = rows.start, rows.size, places, edges
    if join and len(starts):
        starts, sizes, read_places, read_edges = _joined(starts, sizes, places, step, edges)
    shards, offsets, crosses = reader.locate(starts, sizes)
    crossing = np.diff(np.searchsorted(np.flatnonzero(crosses), read_edges)) > 0
    gaps = _gaps(filled, read_places, read_edges, width, b, reader.dtype.itemsize)
    patches, patch_edges = _patches(rows, bounds)
    read_places = read_places - np.repeat(np.arange(n_steps) * (b * width), np.diff(read_edges))
    lists = [values.tolist() for values in (shards, offsets, sizes * reader.dtype.itemsize)]
    first_places, first_tokens = places[begins], rows.start[begins]
    first_places -= step[begins] * (b * width)
    found = []
    for k in range(n_steps):
        a, z = int(read_edges[k]), int(read_edges[k + 1])
        own = slice(begin_edges[k], begin_edges[k + 1])
        found.append(
            Prepared(
                bounds[k + 1] - bounds[k],
                lists[0][a:z],
                lists[1][a:z],
                lists[2][a:z],
                gaps[k],
                starts[a:z],
                read_places[a:z],
                bool(crossing[k]),
                first_places[own],
                first_tokens[own],
                short[k],
                border_targets[border_edges[k] : border_edges[k + 1]],
                None if borders is None else borders[document_edges[k] : document_edges[k + 1]],
                patches[patch_edges[k] : patch_edges[k + 1]],
            )
        )
    return found


def _border_targets(
    rows: Segments, step: NDArray[np.int64], bounds: list[int], edges: NDArray[np.int64], seq_len: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The targets inside rows that do not count, as places in their step, and where each step's begin."""
    target = rows.slot + rows.inputs - 1
    border = np.flatnonzero(rows.border & (rows.inputs > 0) & (target < seq_len))
    own_rows = rows.row[border] - np.array(bounds, np.int64)[step[border]]
    return own_rows * seq_len + target[border], np.searchsorted(border, edges)


def _patches(rows: Segments, bounds: list[int]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The patches with their rows counted within each step, and where each step's begin."""
    edges = np.searchsorted(rows.patches[:, 0], bounds)
    patches = rows.patches.copy()
    patches[:, 0] -= np.repeat(np.array(bounds[:-1], np.int64), np.diff(edges))
    return patches, edges


def _borders(
    rows: Segments, all_rows: NDArray[np.int64], used: NDArray[np.int64], n_steps: int, batch_size: int, seq_len: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Where documents, and a row's padding, begin in the inputs of each step, and where each step's begin in these."""
    padding = np.flatnonzero(used < seq_len)
    borders = (all_rows * seq_len + rows.slot)[rows.inputs > 0]
    if len(padding):
        borders = np.sort(np.concatenate([borders, padding * seq_len + used[padding]]), kind="stable")
    per_step = batch_size * seq_len
    edges = np.searchsorted(borders, np.arange(n_steps + 1) * per_step)
    borders -= np.repeat(np.arange(n_steps) * per_step, np.diff(edges))
    return borders, edges


def _joined(
    starts: NDArray[np.int64],
    sizes: NDArray[np.int64],
    places: NDArray[np.int64],
    step: NDArray[np.int64],
    edges: NDArray[np.int64],
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """Pieces of a step that lie end to end in the stream and in the buffer, as one: starts, sizes, places, edges."""
    follows = (starts[1:] == starts[:-1] + sizes[:-1]) & (places[1:] == places[:-1] + sizes[:-1])
    first = np.flatnonzero(np.concatenate([[True], ~follows | (step[1:] != step[:-1])]))
    return starts[first], np.add.reduceat(sizes, first), places[first], np.searchsorted(first, edges)


def _gaps(
    filled: NDArray[np.int64],
    places: NDArray[np.int64],
    edges: NDArray[np.int64],
    width: int,
    batch_size: int,
    itemsize: int,
) -> list[list[tuple[int, int]]]:
    """What no piece fills, as in Prepared: the rest of each of the steps' rows, where it is not full."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(len(edges) - 1)]
    empty = np.flatnonzero(filled < width)
    before = np.searchsorted(places, empty * width + filled[empty])
    for row, n, at in zip(empty.tolist(), (width - filled[empty]).tolist(), before.tolist(), strict=True):
        k = row // batch_size
        found[k].append((at - int(edges[k]), n * itemsize))
    return found


def _by_step(values: NDArray[np.int64], limit: int, n_steps: int, batch_size: int) -> list[list[tuple[int, int]]]:
    """(row, value) of each step's rows whose value is below the limit."""
    found: list[list[tuple[int, int]]] = [[] for _ in range(n_steps)]
    below = np.flatnonzero(values < limit)
    for at, value in zip(below.tolist(), values[below].tolist(), strict=True):
        found[at // batch_size].append((at % batch_size, value))
    return found
