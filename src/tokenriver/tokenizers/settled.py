"""A SentencePiece normaliser's rules for single code points, applied to a whole batch of UTF-8 in place.

What comes out is the text that the model's merges see: blanks are single spaces, none at either end, and every code
point with a rule is rewritten. A text with a code point whose rewriting would need more room than it has, or a space
inside, is left to another encoder. Rules for sequences of code points are not applied: texts that could hold one are
the suspects of the fast path, and go to the reference.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.batches import TextBatch, places_of_true, positions_of
from tokenriver.tokenizers.sentencepiece_model import SPACE
from tokenriver.tokenizers.suspects import SuspectFinder, code_points_at
from tokenriver.tokenizers.unicode14 import N_CODE_POINTS

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

__all__ = ["Settler"]

_SPACE = np.uint8(0x20)
_ONE = np.uint8(1)
_DELETE = np.uint8(0x7F)
_GONE = np.uint8(0xFF)
"""Marks a byte that is taken out; UTF-8 has none such."""
_SPACE_PIECE = ord(SPACE)
_LAST_BLANK = 0x3000
_SHORT_RUN = 8
_SPARSE = 300
"""With fewer than one byte in so many to take out, what stands between is copied as slices."""
_PIECE = 1 << 20
"""Bytes taken together, so that they stay in the core's own cache."""


class Settler:
    """Rewrites batches by `rules` (code point → its replacement in UTF-8)."""

    def __init__(self, rules: Mapping[int, bytes]) -> None:
        self._ascii = np.arange(256, dtype=np.uint8)
        for point in range(0x80):
            new = rules.get(point)
            if new is not None:
                self._ascii[point] = new[0] if new else _GONE
        is_printable = [0x20 <= c < 0x7F for c in range(0x80)]
        self.is_settled = (
            all(len(rules.get(c, b"")) <= 1 for c in range(0x80))
            and all(rules.get(c) in (b"", b" ") for c in range(0x09, 0x0E))
            and not any(is_printable[c] for c in rules if c < 0x80)
        )
        """Whether ASCII can be settled: printable signs have no rule, blanks become a space or nothing, none grows."""
        blanks = [c for c in range(0x80, _LAST_BLANK + 1) if chr(c).isspace()]
        points = sorted({*blanks, _SPACE_PIECE, *(c for c in rules if c >= 0x80)})
        self._points = np.array(points, np.int64)
        self._sizes = np.array([len(chr(c).encode()) for c in points], np.int64)
        self._is_odd = np.array([not _fits(c, rules.get(c)) for c in points], np.bool_)
        self._new = np.full((len(points), 4), _GONE)
        for k, c in enumerate(points):
            if not self._is_odd[k]:
                self._new[k, : len(rules[c])] = list(rules[c])
        is_ruled = np.zeros(N_CODE_POINTS, np.bool_)
        is_ruled[self._points] = True
        self._finder = SuspectFinder(is_ruled)

    def odd_code_points(self) -> NDArray[np.bool_]:
        """The code points that have no rewriting in place, bool [0x110000]."""
        table = np.zeros(N_CODE_POINTS, np.bool_)
        table[self._points[self._is_odd]] = True
        return table

    def settle(self, batch: TextBatch) -> tuple[TextBatch, NDArray[np.bool_]]:
        """The batch rewritten, as a copy, and which texts hold a code point that has no rewriting, bool [n]."""
        first, last = int(batch.offsets[0]), int(batch.offsets[-1])
        old, offsets = batch.data[first:last], batch.offsets - first
        data = old.copy()
        for i in range(0, len(old), _PIECE):
            piece = old[i : i + _PIECE]
            # One comparison finds the controls: below 0x20 and 0x7F, which wraps to 0. Others that it finds stay.
            controls = places_of_true(((piece + _ONE) & _DELETE) <= _SPACE)
            data[i + controls] = self._ascii[piece[controls]]
        is_odd = np.zeros(len(batch), np.bool_)
        positions = self._finder.positions(old)
        if len(positions):
            rule = np.searchsorted(self._points, code_points_at(old, positions))
            is_odd[np.searchsorted(offsets, positions[self._is_odd[rule]], side="right") - 1] = True
            positions, rule = positions[~self._is_odd[rule]], rule[~self._is_odd[rule]]
            for k in range(4):
                reaches = self._sizes[rule] > k
                data[positions[reaches] + k] = self._new[rule[reaches], k]
        data, offsets = _without(data, offsets, positions_of(data, int(_GONE)))
        data, offsets = _without(data, offsets, places_of_true(_extra_spaces(data, offsets)))
        return TextBatch(data, offsets), is_odd


def _fits(point: int, new: bytes | None) -> bool:
    """Whether a code point's replacement has room where it stands, and is a space or holds no white space."""
    if new is None or len(new) > len(chr(point).encode()):
        return False
    text = new.decode()
    return text == " " or not any(c.isspace() or ord(c) == _SPACE_PIECE for c in text)


def _extra_spaces(data: NDArray[np.uint8], offsets: NDArray[np.int64]) -> NDArray[np.bool_]:
    """Spaces at either end of a text and all but the first of a run, bool [n_bytes]."""
    is_space = data == _SPACE
    is_extra = np.zeros(len(data), np.bool_)
    np.logical_and(is_space[1:], is_space[:-1], out=is_extra[1:])
    is_text = offsets[1:] > offsets[:-1]
    starts, ends = offsets[:-1][is_text], offsets[1:][is_text] - 1
    is_extra[starts] = is_space[starts]
    is_trailing = is_space[ends]
    starts, ends = starts[is_trailing], ends[is_trailing]
    for _ in range(_SHORT_RUN):  # all of a run but its first is extra already
        is_first = ~is_extra[ends]
        is_extra[ends[is_first]] = True
        is_more = ~is_first & (ends > starts)
        starts, ends = starts[is_more], ends[is_more] - 1
        if len(ends) == 0:
            return is_extra
    kept = np.concatenate([[-1], np.flatnonzero(is_space & ~is_extra)])
    run = kept[np.searchsorted(kept, ends, side="right") - 1]
    is_extra[run[run >= starts]] = True
    return is_extra


def _without(
    data: NDArray[np.uint8], offsets: NDArray[np.int64], gone: NDArray[np.int64]
) -> tuple[NDArray[np.uint8], NDArray[np.int64]]:
    if len(gone) == 0:
        return data, offsets
    offsets = offsets - np.searchsorted(gone, offsets)
    if len(gone) * _SPARSE < len(data):
        bounds = [-1, *gone.tolist(), len(data)]
        return np.concatenate([data[a + 1 : b] for a, b in pairwise(bounds)]), offsets
    stays = np.ones(len(data), np.bool_)
    stays[gone] = False
    pieces = [data[i : i + _PIECE][stays[i : i + _PIECE]] for i in range(0, len(data), _PIECE)]
    return np.concatenate(pieces), offsets
