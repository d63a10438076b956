"""Sets of code points, bool [0x110000], on which two correct encoders can still disagree, and why."""

from __future__ import annotations

import unicodedata
from functools import lru_cache
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.tokenizers.unicode14 import N_CODE_POINTS, unassigned

if TYPE_CHECKING:
    from collections.abc import Iterable

    from numpy.typing import NDArray

__all__ = ["code_points_with_bytes", "nfc", "normalized", "numeric", "unassigned"]

_BUSY = 0x20000
"""Beyond plane 1, Unicode 14.0 has no marks and no digits, and only the block below changes under NFC."""
_CJK_COMPATIBILITY = slice(0x2F800, 0x2FA20)


@lru_cache(maxsize=1)
def nfc() -> NDArray[np.bool_]:
    """What NFC can change, join or reorder: combining class ≠ 0, NFC_QC ≠ Yes, conjoining jamo."""
    table = np.zeros(N_CODE_POINTS, np.bool_)
    table[_CJK_COMPATIBILITY] = True
    table[0x1100:0x1200] = True
    for c in range(0x80, _BUSY):
        char = chr(c)
        decomposition = unicodedata.decomposition(char)
        if unicodedata.combining(char) or (decomposition and unicodedata.normalize("NFC", char) != char):
            table[c] = True
        if decomposition and decomposition[0] != "<" and " " in decomposition:
            table[int(decomposition.split()[1], 16)] = True
    return table


@lru_cache(maxsize=1)
def numeric() -> NDArray[np.bool_]:
    """Numeric characters beyond ASCII (categories Nd, Nl, No)."""
    table = np.zeros(N_CODE_POINTS, np.bool_)
    for c in range(0x80, _BUSY):
        table[c] = unicodedata.category(chr(c))[0] == "N"
    return table


def code_points_with_bytes(missing: Iterable[int]) -> NDArray[np.bool_]:
    """Code points whose UTF-8 holds one of the bytes."""
    is_missing = np.zeros(256, np.bool_)
    is_missing[list(missing)] = True
    c = np.arange(N_CODE_POINTS)
    trail = [is_missing[0x80 | ((c >> shift) & 0x3F)] for shift in (0, 6, 12)]
    two = is_missing[0xC0 | ((c >> 6) & 0x1F)] | trail[0]
    three = is_missing[0xE0 | ((c >> 12) & 0x0F)] | trail[1] | trail[0]
    four = is_missing[0xF0 | (c >> 18)] | trail[2] | trail[1] | trail[0]
    table: NDArray[np.bool_] = np.where(c < 0x800, two, np.where(c < 0x10000, three, four))
    table[:0x80] = is_missing[:0x80]
    return table


def normalized(later: NDArray[np.int64]) -> NDArray[np.bool_]:
    """What a SentencePiece normaliser may join with what stands before it.

    `later` are the code points that its own rules look at after a first one. Added to them is
    everything that extends or starts a grapheme (marks, joiners, jamo,
    prepended signs), because an encoder that normalises grapheme by grapheme sees these differently.
    """
    table = unassigned().copy()
    table[later] = True
    for c in range(0x80, _BUSY):
        table[c] |= unicodedata.category(chr(c))[0] == "M"
    table[0x85] = True
    table[0x1100:0x1200] = True
    table[0x200C:0x200E] = True
    table[0xFF9E:0xFFA0] = True
    table[0x1F3FB:0x1F400] = True
    table[0xE0000:0xE1000] = True
    return table
