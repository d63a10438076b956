"""Rows that begin at a document each: a pure function of document lengths, as loader.packing's."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenriver.loader.packing import WindowRows

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["bos_aligned_rows"]


def bos_aligned_rows(lengths: NDArray[np.int64], *, seq_len: int, max_doc_len: int | None) -> WindowRows:
    """Rows of `seq_len` inputs that begin at a document; the row's end crops its last document, `max_doc_len` any.

    The last row may be short. `lengths` int64 [n], each at least 1.
    """
    kept = lengths if max_doc_len is None else np.minimum(lengths, max_doc_len)
    ends = np.cumsum(kept)
    begins = ends - kept
    n = len(kept)
    # The document after that in which a row that begins at each ends; a row that ends in none ends with the last.
    after = np.append(np.minimum(_first_at_least(ends, begins + seq_len), n - 1) + 1, n)
    bounds = np.append(_chain(after), n)
    row = np.repeat(np.arange(len(bounds) - 1), np.diff(bounds))
    slot = begins - begins[bounds[:-1]][row]
    return WindowRows(bounds, np.arange(n), np.zeros(n, np.int64), np.minimum(kept, seq_len - slot), slot)


def _first_at_least(values: NDArray[np.int64], wanted: NDArray[np.int64]) -> NDArray[np.int64]:
    """np.searchsorted for ascending `wanted` too, by merging both: half the time of as many searches."""
    both = np.concatenate([wanted << 1, (values << 1) | 1])  # of equals the wanted ones come first
    both.sort(kind="stable")  # which merges ascending runs
    return np.flatnonzero((both & 1) == 0) - np.arange(len(wanted))


def _chain(after: NDArray[np.int64]) -> NDArray[np.int64]:
    """0, after[0], after[after[0]] and so on below the last index, which leads to itself."""
    one, n = after, len(after) - 1
    two = one[one]
    four = two[two]
    eight = four[four].data
    anchors, at = [], 0
    while at < n:  # in Python for every eighth only
        anchors.append(at)
        at = eight[at]
    found = np.array(anchors, np.int64)
    for jump in (four, two, one):
        found = np.stack([found, jump[found]], axis=1).reshape(-1)
    return found[found < n]
