"""Which documents make up which rows: pure functions of document lengths, one window of documents at a time.

docs/loader.md, "Packing", has the rules. A window is a run of documents of the epoch's order; no row crosses it, so
any row is found from its window alone. The same lengths always give the same rows: a saved state depends on it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["BEST_FIT_RULE", "PACKINGS", "Packing", "WindowRows", "best_fit_rows", "count_best_fit_rows"]

Packing = Literal["concat", "bos-aligned", "best-fit"]
PACKINGS: tuple[Packing, ...] = get_args(Packing)

BEST_FIT_RULE = 2
"""The number of the rule of best-fit rows, kept in saved states. By rule 1 the last row of equal ones came first."""


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


def best_fit_rows(lengths: NDArray[np.int64], *, seq_len: int) -> WindowRows:
    """Rows of `seq_len` + 1 slots that hold whole documents, by best fit in decreasing order of length.

    A longer document is cut into consecutive rows, full ones and one that others share: its last row, or, where two
    cut documents share a row, the first one of the second. Pieces overlap by one token, so every token but the first
    is a target. A row stands where its opening document stands in the order. `lengths` int64 [n], each at least 1.
    """
    _keep_freed_memory()
    room = _room(lengths, seq_len)
    long = np.flatnonzero(lengths > room)
    short = np.flatnonzero(lengths <= room)
    n_full, rest, tail, head, opened, counts = _cut(lengths, long, room)
    n_bits, missing = len(lengths).bit_length(), room - lengths[short]
    if room.bit_length() + n_bits < 32:
        missing = missing.astype(np.int32)  # sorts in half the time
    by_length = _joined_sort(missing, short, n_bits, own=True)
    by_length &= (1 << n_bits) - 1
    steps, n_new = pack_equal_lengths(counts, room, opened=np.bincount(opened, minlength=room + 1).tolist())
    n_bins = len(opened) + n_new
    bins, repeats, fresh = _follow(steps, room, opened)
    # Where a row stands: rows that a cut document shares come right after its full rows, others at their opener.
    opener = np.empty(n_bins, np.int64)
    opener[: len(tail)] = long[tail]
    opener[bins[fresh]] = by_length[(np.cumsum(repeats) - repeats)[fresh]]
    # Rows of a shared row's second document follow it, so they stand where the first document stands.
    leader, has_head = long.copy(), head >= 0
    leader[head[has_head]] = long[tail[has_head]]
    is_head = np.zeros(len(long), np.bool_)
    is_head[head[has_head]] = True
    full_of = np.repeat(np.arange(len(long)), n_full)
    nth = np.arange(len(full_of)) - np.repeat(np.cumsum(n_full) - n_full, n_full)
    # A row's key: where it stands, then full rows (0), the shared row (1), full rows of its second document (2).
    place = np.concatenate([3 * leader[full_of] + np.where(is_head[full_of], 2, 0), 3 * opener + 1])
    n_rows, ranked = len(place), _ranks(place)
    full_row, bin_row = ranked[: len(full_of)], ranked[len(full_of) :]

    # In a row: the end of a cut document first (0), then whole ones in their order, last the beginning of a cut one.
    tail_row = bin_row[: len(tail)]
    head_row = tail_row[has_head]
    row = np.concatenate([full_row, tail_row, np.repeat(bin_row[bins], repeats), head_row])
    n_cut, n = len(full_row) + len(tail), len(lengths)
    whole = np.zeros(len(row), np.int64)
    np.add(by_length, 1, out=whole[n_cut : n_cut + len(by_length)])
    whole[n_cut + len(by_length) :] = n + 1
    n_bits = (n + 1).bit_length()
    document = _joined_sort(row, whole, n_bits)
    # Fresh memory costs as much as filling it, so what is not needed any more takes what comes.
    sorted_row = np.right_shift(document, n_bits, out=whole)
    document &= (1 << n_bits) - 1
    document -= 1
    bounds = np.zeros(n_rows + 1, np.int64)
    np.cumsum(np.bincount(row, minlength=n_rows), out=bounds[1:])
    size = lengths.take(document, mode="clip")
    offset = np.zeros(len(row), np.int64)
    # A head comes first in its document, so its full rows begin at its last token; a tail follows all full rows.
    at, heads = bounds[full_row], head[has_head]
    document[at], size[at] = long[full_of], room
    offset[at] = nth * seq_len + np.where(is_head[full_of], rest[full_of] - 1, 0)
    at = bounds[tail_row]
    document[at], size[at], offset[at] = long[tail], rest[tail], n_full[tail] * seq_len
    at = bounds[head_row + 1] - 1
    document[at], size[at] = long[heads], rest[heads]
    slot = np.cumsum(size)
    slot -= size
    slot -= np.take(slot[bounds[:-1]], sorted_row, out=row, mode="clip")
    return WindowRows(bounds, document, offset, size, slot)


def _ranks(keys: NDArray[np.int64]) -> NDArray[np.int64]:
    """Each key's place among all in ascending order; the keys are used up."""
    n = len(keys)
    order = _joined_sort(keys, np.arange(n), n.bit_length(), own=True)
    order &= (1 << n.bit_length()) - 1
    ranks = np.empty(n, np.int64)
    ranks[order] = np.arange(n)
    return ranks


def count_best_fit_rows(lengths: NDArray[np.int64], *, seq_len: int) -> int:
    """How many rows `best_fit_rows` would make, in a fifth of its time."""
    room = _room(lengths, seq_len)
    n_full, _, _, _, opened, counts = _cut(lengths, np.flatnonzero(lengths > room), room)
    _, n_new = pack_equal_lengths(counts, room, opened=np.bincount(opened, minlength=room + 1).tolist())
    return int(n_full.sum()) + len(opened) + n_new


def _room(lengths: NDArray[np.int64], seq_len: int) -> int:
    """Slots of a row, or where one row takes all documents as many as they need: time and memory grow with it."""
    return min(seq_len + 1, max(2, int(lengths.sum())))


def _keep_freed_memory() -> None:
    """Have the C library keep what is freed here for the next window, up to 32 MiB, by freeing 16 MiB untouched.

    glibc gives free memory back to the system when there is more of it than twice the largest block that was ever
    freed (up to a limit). A window's arrays are 10 MB in blocks of up to 1: to have them zeroed and mapped anew, page
    by page, took 8 of a window's 25 ms. Other C libraries have other rules, and lose nothing.
    """
    np.empty(1 << 24, np.uint8)


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
    counts = np.bincount(np.minimum(lengths, room + 1), minlength=room + 1)[: room + 1].tolist()
    return n_full, rest, tail, head, opened, counts


def _joined_sort(
    keys: NDArray[np.int64], values: NDArray[np.int64], bits: int, *, own: bool = False
) -> NDArray[np.int64]:
    """Keys, each with its value below 2^bits in the low bits, ascending: NumPy sorts numbers eight times as fast as it
    finds their order. In the memory of the keys, where they are nobody else's (`own`)."""
    joined = np.left_shift(keys, bits, out=keys if own else None)
    joined |= values
    joined.sort()
    return joined


def _pair_rests(rest: NDArray[np.int64], room: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Which remainders of cut documents share a row: indices of the first and of the second (−1: none), int64 [rows].

    Those over half a row take, from the smallest on, the largest small one that fits; small ones that are left over
    pair up with their neighbours in length.
    """
    order = _joined_sort(room - rest, np.arange(len(rest)), len(rest).bit_length())
    order &= (1 << len(rest).bit_length()) - 1
    n_big = int(np.searchsorted(-rest[order], -(room // 2)))
    big, small = order[:n_big], order[n_big:]
    # From the largest room on each takes the largest that fits and is not taken: the k-th takes index max(first that
    # fits, one after the last taken).
    big = big[::-1]
    first = np.searchsorted(-rest[small], -(room - rest[big]))
    k = np.arange(len(big))
    choice = np.maximum.accumulate(first - k) + k if len(big) else first
    found = choice < len(small)
    head = np.full(len(big), -1, np.int64)
    head[found] = small[choice[found]]
    left = np.delete(small, choice[found])
    even = left[: len(left) // 2 * 2].reshape(-1, 2)
    tail = np.concatenate([big, even[:, 0], left[len(even) * 2 :]])
    head = np.concatenate([head, even[:, 1], np.full(len(left) % 2, -1, np.int64)])
    # The earlier document of a pair goes first, so that rows stay near their documents' places.
    swap = (head >= 0) & (head < tail)
    return np.where(swap, head, tail), np.where(swap, tail, head)


def pack_equal_lengths(counts: list[int], room: int, *, opened: list[int]) -> tuple[list[int], int]:
    """Best fit in decreasing order, as steps for items of equal length, and the number of new rows.

    `counts[l]` items have length l, at most `room`; `opened[r]` rows are there with r slots left. Each item goes to a
    row with the least room that is enough, else to a new one. A step is four numbers, left, n, each, rest: n rows with
    `left` slots (`room`: new ones, an opened row is never empty) take `each` items more, which leaves `rest`. A few
    steps for each length that occurs do for any number of items (13 M items/s in windows of 131,072).
    """
    rows_with = list(opened)
    rooms = 0  # bit r is set where a row has r slots left
    for left, n in enumerate(opened):
        rooms |= bool(n and left) << left
    steps: list[int] = []
    n_new = 0
    for length in range(room, 0, -1):
        count = counts[length]
        if not count:
            continue
        # What a step leaves is less than the length, or is left by the last step: no other step of this length uses it.
        enough, rests = rooms >> length, 0
        rooms ^= enough << length
        while enough and count:
            lowest = enough & -enough
            left = lowest.bit_length() + length - 1
            there, each = rows_with[left], left // length
            if count < each:
                n, each = 1, count
            else:
                n = count // each
                if n > there:  # a call of min() takes longer than both lines
                    n = there
            if n == there:
                enough ^= lowest
            rows_with[left] = there - n
            count -= n * each
            rest = left - each * length
            steps += (left, n, each, rest)
            if rest:
                rows_with[rest] += n
                rests |= 1 << rest
        while count:
            each = min(count, room // length)
            n = count // each
            n_new += n
            count -= n * each
            rest = room - each * length
            steps += (room, n, each, rest)
            if rest:
                rows_with[rest] += n
                rests |= 1 << rest
        rooms |= enough << length | rests
    return steps, n_new


def _follow(
    steps: list[int], room: int, opened: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
    """What `steps` do, when rows [0, len(opened)) have `opened` slots left: the rows that take items, in their order
    (largest first), how many items each takes, and which of them are new rows.

    Rows with equal room wait in a queue. So the k-th row that is taken from those with r slots left is the k-th that
    came to have r, and who follows whom is known without following the steps one by one.
    """
    left, groups, each, rest = np.array(steps, np.int64).reshape(-1, 4).T
    n_opened, is_new = len(opened), left == room
    # A node is a row at a step that takes items; those of a step lie side by side, behind the opened rows by room.
    by_room = _joined_sort(opened, np.arange(n_opened), n_opened.bit_length())
    by_room &= (1 << n_opened.bit_length()) - 1
    waiting = np.concatenate([np.bincount(opened, minlength=room + 1), groups])
    begins = np.cumsum(waiting) - waiting
    rooms = np.concatenate([np.arange(room + 1), rest])
    queue, came = _by_key(rooms, begins, waiting, room)
    taken = np.flatnonzero(~is_new)
    takers, went = _by_key(left[taken], begins[room + 1 :][taken], groups[taken], room)
    n_nodes = n_opened + int(groups.sum())
    before = np.arange(n_nodes)
    before[takers] = queue[np.arange(len(takers)) + np.repeat(came - went, np.diff(went, append=len(takers)))]
    row = np.empty(n_nodes, np.int64)
    row[:n_opened] = by_room
    fresh = np.repeat(is_new, groups)
    row[n_opened:][fresh] = np.arange(n_opened, n_opened + np.count_nonzero(fresh))
    while True:
        earlier = before[before]
        if np.array_equal(earlier, before):
            break
        before = earlier
    return row[before[n_opened:]], np.repeat(each, groups), fresh


def _by_key(
    keys: NDArray[np.int64], begins: NDArray[np.int64], counts: NDArray[np.int64], top: int
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Ranges of `counts` numbers from `begins` on, put one behind the other in order of their keys (0 … top), equal
    keys as they come; and where each key's numbers begin."""
    order = np.argsort(keys, kind="stable")
    n = counts[order]
    numbers = np.arange(int(n.sum())) + np.repeat(begins[order] - (np.cumsum(n) - n), n)
    of_key = np.bincount(keys, counts, top + 1).astype(np.int64)
    return numbers, np.cumsum(of_key) - of_key
