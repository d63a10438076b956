"""Where text holds a code point on which two encoders may disagree: found on raw UTF-8, a batch at a time.

The fast encoder and its reference agree on nearly every text; where they may not, a code point in the text tells
(one that only a newer Unicode version assigns, a combining mark that the normaliser reorders, …). What stands
around one goes to the reference. Finding them must cost next to nothing on ordinary text, so it works in steps that
each see fewer bytes: 8-byte words with a byte ≥ 0x80, lead bytes in them, (lead, second) pairs, whole code points.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenriver.batches import places_of_true, positions_of
from tokenriver.tokenizers.unicode14 import N_CODE_POINTS

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SuspectFinder", "code_points_at"]

_HIGH_BITS = np.uint64(0x8080808080808080)
_PIECE = 1 << 20
"""Bytes looked at in one step."""

_DENSE = 4
"""With more than one in so many 8-byte words holding a byte ≥ 0x80, all bytes are looked at instead."""


class SuspectFinder:
    """Finds the code points of a set (bool [0x110000]) in UTF-8 bytes."""

    def __init__(self, suspects: NDArray[np.bool_]) -> None:
        self._ascii = [bytes([b]) for b in np.flatnonzero(suspects[:0x80])]
        self._is_suspect = suspects.copy()
        self._is_suspect[:0x80] = False
        self._pairs = _pair_table(self._is_suspect)
        self._any_wide = bool(self._pairs.any())

    def positions(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Where code points of the set start in `data`, ascending int64."""
        found = [self._wide_positions(data)] if self._any_wide else []
        if self._ascii:
            raw = data.tobytes()
            found += [positions_of(data, byte[0]) for byte in self._ascii if byte in raw]
        return np.sort(np.concatenate([np.zeros(0, np.int64), *found]))

    def _wide_positions(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """In steps that stay in the core's cache; each sees a byte more, for a sequence over its end."""
        scratch = np.empty(min(len(data), _PIECE) // 8, np.uint64)
        found = [self._possible_in(data[i : i + _PIECE + 1], i, scratch) for i in range(0, len(data), _PIECE)]
        leads = np.concatenate(found) if found else np.zeros(0, np.int64)
        if not len(leads):
            return leads
        suspects: NDArray[np.int64] = leads[self._is_suspect[code_points_at(data, leads)]]
        return suspects

    def _possible_in(self, data: NDArray[np.uint8], start: int, scratch: NDArray[np.uint64]) -> NDArray[np.int64]:
        """Leads whose second byte leaves a code point of the set possible."""
        leads: NDArray[np.int64] = _lead_positions(data, scratch)
        if not len(leads):
            return leads
        if leads[-1] + 1 == len(data):  # it starts the next step
            leads = leads[:-1]
        pairs = (data[leads].astype(np.uint16) << np.uint16(8)) | data[leads + 1]
        possible: NDArray[np.int64] = leads[self._pairs[pairs]]
        return possible + start


def _lead_positions(data: NDArray[np.uint8], scratch: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Where a sequence of two to four bytes starts, ascending int64. `scratch` is memory to work in."""
    n_words = len(data) // 8
    words = data[: n_words * 8].view(np.uint64)
    hot = places_of_true(np.bitwise_and(words, _HIGH_BITS, out=scratch[:n_words]) != 0)
    if len(hot) * _DENSE > n_words:
        return np.flatnonzero(data >= 0xC2)
    inside = np.flatnonzero(words[hot].view(np.uint8) >= 0xC2)
    leads: NDArray[np.int64] = hot[inside >> 3] * 8 + (inside & 7)
    if n_words * 8 == len(data):
        return leads
    return np.concatenate([leads, np.flatnonzero(data[n_words * 8 :] >= 0xC2) + n_words * 8])


def code_points_at(data: NDArray[np.uint8], leads: NDArray[np.int64]) -> NDArray[np.int64]:
    """The code points that start at `leads`; a sequence cut off by the end of the data reads its last byte again."""
    last = len(data) - 1
    one, two, three, four = (data[np.minimum(leads + k, last)].astype(np.int64) for k in range(4))
    wide = ((one & 0x1F) << 6) | (two & 0x3F)
    wide3 = ((one & 0x0F) << 12) | ((two & 0x3F) << 6) | (three & 0x3F)
    wide4 = ((one & 0x07) << 18) | ((two & 0x3F) << 12) | ((three & 0x3F) << 6) | (four & 0x3F)
    result = np.where(one < 0xE0, wide, np.where(one < 0xF0, wide3, wide4))
    return np.minimum(result, N_CODE_POINTS - 1)


_ENCODED = ((0xC0, 0x80, 0x800, 1), (0xE0, 0x800, 0x10000, 1 << 6), (0xF0, 0x10000, N_CODE_POINTS, 1 << 12))
"""Lead bytes from, code points from and up to, and how many of those have the same first two bytes."""


def _pair_table(is_suspect: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """bool [65536] by (lead << 8 | second byte): whether any code point that starts so is in the set."""
    table = np.zeros(1 << 16, np.bool_)
    for lead, start, stop, alike in _ENCODED:
        first_two = start // alike + np.flatnonzero(is_suspect[start:stop].reshape(-1, alike).any(axis=1))
        table[((lead | (first_two >> 6)) << 8) | 0x80 | (first_two & 0x3F)] = True
    return table
