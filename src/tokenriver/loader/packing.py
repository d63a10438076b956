"""Which documents make up which rows: pure functions of document lengths, one window of documents at a time.

docs/loader.md, "Packing", has the rules. A window is a run of documents of the epoch's order; no row crosses it, so
any row is found from its window alone. The same lengths always give the same rows: a saved state depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["PACKINGS", "Packing", "WindowRows", "best_fit_rows", "bos_aligned_rows", "count_best_fit_rows"]

Packing = Literal["concat", "bos-aligned", "best-fit"]
PACKINGS: tuple[Packing, ...] = ("concat", "bos-aligned", "best-fit")


@dataclass(frozen=True, slots=True, eq=False)
class WindowRows:
    """The pieces of a window's rows, in order of row and place: each int64 [n_pieces], but `bounds` [n_rows + 1].

    Row k has pieces [bounds[k], bounds[k+1]). A piece is tokens [offset, offset + size) of `document` (counted in the
    window), from `slot` of its row on. In best-fit rows of T + 1 slots a piece of a cut document begins with the
    last token of the piece before; in bos-aligned rows slots are the T inputs.
    """

    bounds: NDArray[np.int64]
    document: NDArray[np.int64]
    offset: NDArray[np.int64]
    size: NDArray[np.int64]
    slot: NDArray[np.int64]

    @property
    def n_rows(self) -> int:
        """Rows of the window."""
        return len(self.bounds) - 1


def bos_aligned_rows(lengths: NDArray[np.int64], *, seq_len: int, max_doc_len: int | None) -> WindowRows:
    """Rows of `seq_len` inputs that begin at a document; the row's end crops its last document, `max_doc_len` any.

    The last row may be short. `lengths` int64 [n], each at least 1.
    """
    kept = lengths if max_doc_len is None else np.minimum(lengths, max_doc_len)
    ends = np.cumsum(kept)
    begins = ends - kept
    n = len(kept)
    after = (np.minimum(np.searchsorted(ends, begins + seq_len), n - 1) + 1).tolist()
    firsts, at = [], 0
    while at < n:
        firsts.append(at)
        at = after[at]
    bounds = np.array([*firsts, n], np.int64)
    row = np.repeat(np.arange(len(firsts)), np.diff(bounds))
    slot = begins - begins[bounds[:-1]][row]
    return WindowRows(bounds, np.arange(n), np.zeros(n, np.int64), np.minimum(kept, seq_len - slot), slot)


def best_fit_rows(lengths: NDArray[np.int64], *, seq_len: int) -> WindowRows:
    """Rows of `seq_len` + 1 slots that hold whole documents, by best fit in decreasing order of length.

    A longer document is cut into consecutive rows, full ones and one that others share: its last row, or, where two
    cut documents share a row, the first one of the second. Pieces overlap by one token, so every token but the first
    is a target. A row stands where its opening document stands in the order. `lengths` int64 [n], each at least 1.
    """
    room = seq_len + 1
    long = np.flatnonzero(lengths > room)
    short = np.flatnonzero(lengths <= room)
    n_full, rest, tail, head, opened, counts = _cut(lengths, long, room)
    by_length = _stable_order(room - lengths[short], room)
    steps, n_new = pack_equal_lengths(counts, room, opened=np.bincount(opened, minlength=room + 1).tolist())
    n_bins = len(opened) + n_new
    bins_of = np.empty(len(short), np.int64)
    bins_of[by_length] = _follow(steps, counts, room, opened)

    # Where a row stands: rows that a cut document shares come right after its full rows, others at their opener.
    opener = np.empty(n_bins, np.int64)
    backwards = by_length[::-1]
    opener[bins_of[backwards]] = short[backwards]  # of several, the last assignment stays: the longest's
    opener[: len(tail)] = long[tail]
    # Rows of a shared row's second document follow it, so they stand where the first document stands.
    leader = long.copy()
    has_head = head >= 0
    leader[head[has_head]] = long[tail[has_head]]
    is_head = np.zeros(len(long), np.bool_)
    is_head[head[has_head]] = True
    full_of = np.repeat(np.arange(len(long)), n_full)
    nth = np.arange(len(full_of)) - np.repeat(np.cumsum(n_full) - n_full, n_full)
    # A row's key: where it stands, then full rows (0), the shared row (1), full rows of its second document (2).
    place = np.concatenate([leader[full_of], opener])
    phase = np.concatenate([np.where(is_head[full_of], 2, 0), np.ones(n_bins, np.int64)])
    ranked = np.empty(len(place), np.int64)
    ranked[_stable_order(3 * place + phase, 3 * len(lengths))] = np.arange(len(place))
    full_row, bin_row = ranked[: len(full_of)], ranked[len(full_of) :]

    # A head comes first in its document, so its full rows begin at its last token; a tail follows all full rows.
    begin_full = nth * seq_len + np.where(is_head[full_of], rest[full_of] - 1, 0)
    # In a row: the end of a cut document first, then whole ones in their order, last the beginning of a cut one.
    heads = head[has_head]
    document = np.concatenate([long[full_of], long[tail], short, long[heads]])
    offset = np.concatenate([begin_full, n_full[tail] * seq_len, np.zeros(len(short) + len(heads), np.int64)])
    size = np.concatenate([np.full(len(full_of), room, np.int64), rest[tail], lengths[short], rest[heads]])
    row = np.concatenate([full_row, bin_row[: len(tail)], bin_row[bins_of], bin_row[: len(tail)][has_head]])
    sorted_ = _stable_order(row, len(place))
    return _in_rows(row[sorted_], document[sorted_], offset[sorted_], size[sorted_], len(place))


def count_best_fit_rows(lengths: NDArray[np.int64], *, seq_len: int) -> int:
    """How many rows `best_fit_rows` would make, in a fifth of its time."""
    room = seq_len + 1
    n_full, _, _, _, opened, counts = _cut(lengths, np.flatnonzero(lengths > room), room)
    _, n_new = pack_equal_lengths(counts, room, opened=np.bincount(opened, minlength=room + 1).tolist())
    return int(n_full.sum()) + len(opened) + n_new


def _cut(
    lengths: NDArray[np.int64], long: NDArray[np.int64], room: int
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], NDArray[np.int64], list[int]]:
    """Cut documents: full rows and remainder of each, which remainders share rows, and the room left in those rows.

    Also how many of the other documents have each length.
    """
    n_full = (lengths[long] - 2) // (room - 1)
    rest = lengths[long] - n_full * (room - 1)  # 2 … T + 1 tokens, the one shared with a full row among them
    tail, head = _pair_rests(rest, room)
    opened = room - rest[tail] - np.where(head >= 0, rest[head], 0) if len(long) else rest
    counts = np.bincount(lengths, minlength=room + 1)[: room + 1].tolist()
    return n_full, rest, tail, head, opened, counts


def _in_rows(
    row: NDArray[np.int64], document: NDArray[np.int64], offset: NDArray[np.int64], size: NDArray[np.int64], n: int
) -> WindowRows:
    """Pieces sorted by row, with the slot that each begins at."""
    bounds = np.searchsorted(row, np.arange(n + 1))
    before = np.cumsum(size) - size
    return WindowRows(bounds, document, offset, size, before - before[bounds[:-1]][row] if n else before)


def _stable_order(keys: NDArray[np.int64], limit: int) -> NDArray[np.int64]:
    """Stable argsort of keys in [0, limit], 16 bits at a time: NumPy sorts those by counting, ten times as fast."""
    order = np.argsort((keys & 0xFFFF).astype(np.uint16), kind="stable")
    shift = 16
    while limit >> shift:
        digit = (keys[order] >> shift) & 0xFFFF
        order = order[np.argsort(digit.astype(np.uint16), kind="stable")]
        shift += 16
    return order


def _pair_rests(rest: NDArray[np.int64], room: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which remainders of cut documents share a row: indices of the first and of the second (−1: none), int64 [rows].

    Those over half a row take, from the largest on, the largest small one that fits; small ones that are left over
    pair up with their neighbours in length.
    """
    order = np.argsort(-rest, kind="stable")
    n_big = int(np.searchsorted(-rest[order], -(room // 2)))
    big, small = order[:n_big], order[n_big:]
    # Big ones from the smallest room on would waste the small; from the largest room on, each takes the largest that
    # fits and is not taken: the k-th takes index max(first that fits, one after the last taken).
    big = big[::-1]
    first = np.searchsorted(-rest[small], -(room - rest[big]))
    k = np.arange(len(big))
    choice = np.maximum.accumulate(first - k) + k if len(big) else first
    found = choice < len(small)
    head = np.full(len(big), -1, np.int64)
    head[found] = small[choice[found]]
    left = np.delete(small, choice[found])
    even = left[: len(left) // 2 * 2].reshape(-1, 2)
    tails = [big, even[:, 0], left[len(even) * 2 :]]
    heads = [head, even[:, 1], np.full(len(left) % 2, -1, np.int64)]
    tail, head = np.concatenate(tails), np.concatenate(heads)
    # The earlier document of a pair goes first, so that rows stay near their documents' places.
    swap = (head >= 0) & (head < tail)
    return np.where(swap, head, tail), np.where(swap, tail, head)


def pack_equal_lengths(counts: list[int], room: int, *, opened: list[int]) -> tuple[list[tuple[int, int, int]], int]:
    """Best fit in decreasing order, as steps for items of equal length, and the number of new rows.

    `counts[l]` items have length l, at most `room`; `opened[r]` rows are there with r slots left. Each item goes to a
    row with the least room that is enough, else to a new one. A step (left, n, each): n rows with `left` slots (`room`:
    new ones, an opened row is never empty) take `each` items more. A few steps for each length that occurs do for any
    number of items (13 M items/s in windows of 131,072).
    """
    rows_with = list(opened)
    rooms = 0  # bit r is set where a row has r slots left
    for left, n in enumerate(opened):
        rooms |= bool(n and left) << left
    steps, n_new = [], 0
    for length in range(room, 0, -1):
        count = counts[length]
        while count:
            enough = rooms >> length
            left = (enough & -enough).bit_length() - 1 + length if enough else room
            each = left // length
            n, each = (1, count) if count < each else (count // each, each)
            if enough:
                n = min(n, rows_with[left])
                rows_with[left] -= n
                if not rows_with[left]:
                    rooms ^= 1 << left
            else:
                n_new += n
            count -= n * each
            steps.append((left, n, each))
            left -= each * length
            if left:
                rows_with[left] += n
                rooms |= 1 << left
    return steps, n_new


def _follow(steps: list[tuple[int, int, int]], counts: list[int], room: int, opened: NDArray[np.int64]) -> list[int]:
    """The row of each item, largest first, when rows [0, len(opened)) have `opened` slots left and follow `steps`."""
    rows_with: list[list[int]] = [[] for _ in range(room + 1)]
    for row, left in enumerate(opened.tolist()):
        rows_with[left].append(row)
    n_rows, placed = len(opened), []
    length, count = room, counts[room]
    for left, n, each in steps:
        while not count:
            length -= 1
            count = counts[length]
        if left == room:
            rows = list(range(n_rows, n_rows + n))
            n_rows += n
        else:
            waiting = rows_with[left]
            rows = waiting[-n:]
            del waiting[-n:]
        count -= n * each
        placed += rows if each == 1 else [row for row in rows for _ in range(each)]
        if left > each * length:
            rows_with[left - each * length] += rows
    return placed
