"""Packed rows made ready for reading, many steps at a time: what NumPy would take 200 µs for, step by step.

Only what depends on the ids themselves is left to each step: reading, checking, converting.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.loader.segments import Segments
    from tokenriver.loader.stream import TokenReader

    Ints = NDArray[np.int64]

__all__ = ["Prepared", "PreparedSteps", "prepare"]


class Column(NamedTuple):
    """Values of all steps, step k's between edges[k] and edges[k + 1]."""

    values: NDArray[Any]
    edges: list[int]

    def of(self, first: int, stop: int) -> NDArray[Any]:
        """The values of steps [first, stop)."""
        return self.values[self.edges[first] : self.edges[stop]]


class PreparedSteps(NamedTuple):
    """The rows of consecutive steps: what a Prepared has, all steps' in one array each, and places counted in buffers
    laid end to end, of `step_ids` ids each. Step k's pieces have bytes_before[k + 1] − bytes_before[k] bytes.
    `unmarked` says of which nothing but the ids is to be told: neither mask nor borders nor patches."""

    n_rows: list[int]
    shards: Column
    offsets: Column
    sizes: Column
    bytes_before: list[int]
    gaps: list[list[tuple[int, int]]]
    starts: Column
    places: Column
    crosses: list[bool]
    first_ids: Column
    first_tokens: Column
    short: list[list[tuple[int, int]]]
    border_targets: Column
    borders: Column | None
    patches: Column
    unmarked: list[bool]
    step_ids: int
    itemsize: int

    def step(self, k: int) -> Prepared:
        """One of them."""
        return Prepared(self, k)


class Prepared:
    """One rank's rows of a step, as places in a flat buffer [B · (T + 1)] and in its B · T inputs; each of these is
    taken out of all steps' when it is asked for, since most steps are read in groups and need few.

    Piece k is `sizes[k]` bytes from byte `offsets[k]` of shard `shards[k]` on (or, where `crosses`, ids from token
    `starts[k]` on over shards), put to byte `places[k]`. Pieces end to end fill the buffer, with zeros of gaps[k] =
    (pieces before, bytes) between. `first_ids` are the places that a separator must have, `first_tokens` the tokens
    they come from. `short` are (row, leading targets that count) where not all do, `border_targets` those inside that
    do not. `borders` (int32) are where documents begin in the inputs, and B · T; None where they are not asked for.
    """

    __slots__ = ("_k", "_steps")

    def __init__(self, steps: PreparedSteps, k: int) -> None:
        self._steps, self._k = steps, k

    def _own(self, column: Column) -> NDArray[Any]:
        return column.of(self._k, self._k + 1)

    @property
    def n_rows(self) -> int:
        return self._steps.n_rows[self._k]

    @property
    def shards(self) -> NDArray[np.int64]:
        return self._own(self._steps.shards)

    @property
    def offsets(self) -> NDArray[np.int64]:
        return self._own(self._steps.offsets)

    @property
    def sizes(self) -> NDArray[np.int64]:
        return self._own(self._steps.sizes)

    @property
    def n_bytes(self) -> int:
        return self._steps.bytes_before[self._k + 1] - self._steps.bytes_before[self._k]

    @property
    def gaps(self) -> list[tuple[int, int]]:
        return self._steps.gaps[self._k]

    @property
    def starts(self) -> NDArray[np.int64]:
        return self._own(self._steps.starts)

    @property
    def places(self) -> NDArray[np.int64]:
        return self._own(self._steps.places) - self._k * self._steps.step_ids * self._steps.itemsize

    @property
    def crosses(self) -> bool:
        return self._steps.crosses[self._k]

    @property
    def first_ids(self) -> NDArray[np.int64]:
        return self._own(self._steps.first_ids) - self._k * self._steps.step_ids

    @property
    def first_tokens(self) -> NDArray[np.int64]:
        return self._own(self._steps.first_tokens)

    @property
    def borders(self) -> NDArray[np.int32] | None:
        return None if self._steps.borders is None else self._own(self._steps.borders)

    @property
    def patches(self) -> NDArray[np.int64]:
        return self._own(self._steps.patches)

    def mask(self, n_rows: int, seq_len: int) -> NDArray[np.bool_] | None:
        """Which targets count, bool [n_rows, T]; None when all do."""
        short, (border_targets, edges) = self._steps.short[self._k], self._steps.border_targets
        if not short and edges[self._k] == edges[self._k + 1]:
            return None
        border_targets = self._own(self._steps.border_targets)
        mask = np.empty((n_rows, seq_len), np.bool_)
        mask.fill(True)  # half of what np.ones takes
        for row, n in short:
            mask[row, n:] = False
        if len(border_targets):
            mask.reshape(-1)[border_targets] = False
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
) -> PreparedSteps:
    """Rows [bounds[k], bounds[k + 1]) for every k, at most `batch_size` each, as the rows of one step.

    `shared_slots` says that rows have T + 1 slots, so the last token of one has no target; `join` reads pieces as
    one that lie end to end both in the stream and in the buffer.
    """
    b, t, width, itemsize = batch_size, seq_len, seq_len + 1, reader.dtype.itemsize
    n_steps = len(bounds) - 1
    edges = np.searchsorted(rows.row, bounds)
    step = np.repeat(np.arange(n_steps), np.diff(edges))
    all_rows = rows.row + (np.arange(n_steps) * b - bounds[:-1])[step]  # counted as if every step had B rows
    places = all_rows * width + rows.slot
    # Pieces are in order of row and slot, so a row's last piece says how far it is filled.
    last = _lasts(all_rows)
    filled, used = np.zeros(n_steps * b, np.int64), np.zeros(n_steps * b, np.int64)
    in_row = all_rows[last]
    filled[in_row] = rows.slot[last] + rows.size[last]
    used[in_row] = rows.slot[last] + rows.inputs[last]
    short = _by_step(np.maximum(filled - 1, 0) if shared_slots else used, t, n_steps, b)
    begins = np.flatnonzero(rows.begins)
    starts, sizes, read_places, read_edges = rows.start, rows.size, places, edges
    if join and len(starts):
        starts, sizes, read_places, read_edges = _joined(starts, sizes, places, step, edges)
    shards, offsets, crosses = reader.locate(starts, sizes)
    n_bytes = sizes * itemsize
    before = np.zeros(len(sizes) + 1, np.int64)
    np.cumsum(n_bytes, out=before[1:])
    gaps = _gaps(filled, read_places, read_edges, width, b, itemsize)
    piece_edges = read_edges.tolist()
    begin_edges = np.searchsorted(begins, edges).tolist()
    border_targets, patches = _border_targets(rows, step, bounds, edges, t), _patches(rows, bounds)
    whole = (np.diff(bounds) == b) & ~np.diff(border_targets.edges).astype(bool) & ~np.diff(patches.edges).astype(bool)
    unmarked = [all_there and not few and not marks for all_there, few in zip(whole.tolist(), short, strict=True)]
    return PreparedSteps(
        np.diff(bounds).tolist(),
        Column(shards, piece_edges),
        Column(offsets, piece_edges),
        Column(n_bytes, piece_edges),
        before[read_edges].tolist(),
        gaps,
        Column(starts, piece_edges),
        Column(read_places * itemsize, piece_edges),
        (np.diff(np.searchsorted(np.flatnonzero(crosses), read_edges)) > 0).tolist(),
        Column(places[begins], begin_edges),
        Column(rows.start[begins], begin_edges),
        short,
        border_targets,
        _borders(rows, all_rows, used, n_steps, b, t) if marks else None,
        patches,
        unmarked,
        b * width,
        itemsize,
    )


def _lasts(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Where the last of each run of equal keys stands."""
    differs = np.empty(len(keys), np.bool_)
    differs[-1:] = True
    np.not_equal(keys[1:], keys[:-1], out=differs[:-1])
    return np.flatnonzero(differs)


def _border_targets(
    rows: Segments, step: NDArray[np.int64], bounds: list[int], edges: NDArray[np.int64], seq_len: int
) -> Column:
    """The targets inside rows that do not count, as places in their step."""
    border = np.flatnonzero(rows.border)
    target = rows.slot[border] + rows.inputs[border] - 1
    inside = (rows.inputs[border] > 0) & (target < seq_len)
    border, target = border[inside], target[inside]
    own_rows = rows.row[border] - np.array(bounds, np.int64)[step[border]]
    return Column(own_rows * seq_len + target, np.searchsorted(border, edges).tolist())


def _patches(rows: Segments, bounds: list[int]) -> Column:
    """The patches with their rows counted within each step."""
    edges = np.searchsorted(rows.patches[:, 0], bounds)
    patches = rows.patches.copy()
    patches[:, 0] -= np.repeat(np.array(bounds[:-1], np.int64), np.diff(edges))
    return Column(patches, edges.tolist())


def _borders(
    rows: Segments, all_rows: NDArray[np.int64], used: NDArray[np.int64], n_steps: int, batch_size: int, seq_len: int
) -> Column:
    """Where documents, and a row's padding, begin in the inputs of each step (int32), and the step's B · T behind."""
    per_step = batch_size * seq_len
    # All steps' inputs end to end, with one place more for each step's end, so that every border has its own.
    ends = np.arange(1, n_steps + 1) * (per_step + 1)
    padding = np.flatnonzero(used < seq_len)
    more = np.concatenate([padding * seq_len + used[padding] + padding // batch_size, ends - 1])
    kept = rows.inputs > 0
    found = all_rows * seq_len + rows.slot + all_rows // batch_size
    borders = np.concatenate([found if kept.all() else found[kept], more])
    borders.sort(kind="stable")  # three ascending runs: next to nothing
    edges = np.zeros(n_steps + 1, np.int64)
    edges[1:] = np.searchsorted(borders, ends)
    borders -= np.repeat(ends - (per_step + 1), np.diff(edges))
    return Column(borders.astype(np.int32), edges.tolist())


def _joined(starts: Ints, sizes: Ints, places: Ints, step: Ints, edges: Ints) -> tuple[Ints, Ints, Ints, Ints]:
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
