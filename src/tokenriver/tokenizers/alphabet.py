"""The printable characters that byte-level BPE files write for the 256 bytes (GPT-2's convention)."""

from __future__ import annotations

from itertools import accumulate, pairwise
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.errors import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["BYTE_TO_CHAR", "CHAR_TO_BYTE", "bytes_of", "bytes_of_all"]


def _byte_to_char() -> list[str]:
    """Printable Latin-1 stands for itself; the other bytes take U+0100 onwards, in order."""
    printable = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = iter(range(0x100, 0x200))
    return [chr(b) if b in printable else chr(next(others)) for b in range(256)]


BYTE_TO_CHAR = _byte_to_char()
CHAR_TO_BYTE = {c: b for b, c in enumerate(BYTE_TO_CHAR)}


_CODE_POINTS = 0x144
"""Below this one lie all of those characters."""

_TO_BYTE = np.zeros(_CODE_POINTS, np.uint8)
_TO_BYTE[[ord(c) for c in CHAR_TO_BYTE]] = list(CHAR_TO_BYTE.values())
_STANDS_FOR_ONE = np.array([chr(c) in CHAR_TO_BYTE for c in range(_CODE_POINTS)])


def bytes_of_all(pieces: Sequence[str]) -> list[bytes]:
    """`bytes_of` for a vocabulary: all pieces at once, since a file has hundreds of thousands."""
    points = np.frombuffer("".join(pieces).encode("utf-32-le", "surrogatepass"), "<u4")
    if (points >= _CODE_POINTS).any() or not _STANDS_FOR_ONE[points].all():
        return [bytes_of(piece) for piece in pieces]  # it names the piece
    joined = _TO_BYTE[points].tobytes()
    return [joined[a:b] for a, b in pairwise(accumulate(map(len, pieces), initial=0))]


def bytes_of(piece: str) -> bytes:
    """Raw bytes of a piece; a character outside the alphabet raises TokenizerError."""
    try:
        return bytes([CHAR_TO_BYTE[c] for c in piece])
    except KeyError as error:
        raise TokenizerError(f"the piece {piece!r} is not byte-level: {error.args[0]!r} stands for no byte") from None
