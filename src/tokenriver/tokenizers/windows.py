"""The pieces of a batch that the reference encodes: as little as possible around each suspect code point.

Pure functions of byte positions, so that one rare character in a long document does not send all of it the slow way.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.batches import TextBatch, TokenBatch, distinct, offsets_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Windows", "anchored", "replace_texts", "suspect_windows", "without_anchors"]


@dataclass(frozen=True, slots=True, eq=False)
class Windows:
    """A batch cut into pieces: `bounds` int64 [n_pieces + 1], `is_suspect` bool [n_pieces].

    Text i is the pieces of_text[i] to of_text[i + 1]; `n_texts` of the texts hold a suspect.
    """

    bounds: NDArray[np.int64]
    is_suspect: NDArray[np.bool_]
    of_text: NDArray[np.int64]
    n_texts: int


def suspect_windows(
    batch: TextBatch, positions: NDArray[np.int64], *, cut: bool, behind_ascii: bool = False
) -> Windows:
    """Cut a batch so that every suspect (ascending byte `positions` in its data) is in a piece of suspects.

    With `cut` a piece reaches from the last safe cut at or before a suspect to the next one behind it; else, and
    where a text has none, it is the whole text. With `behind_ascii` only printable ASCII may stand before a cut.
    """
    is_word_end = _IS_ASCII_SIGN if behind_ascii else _IS_WORD_END
    texts = np.searchsorted(batch.offsets, positions, side="right") - 1
    starts, stops = batch.offsets[texts], batch.offsets[texts + 1]
    suspected = distinct(texts)[0]
    if cut:
        bounds_of = [(int(batch.offsets[t]), int(batch.offsets[t + 1])) for t in suspected]
        cuts = np.concatenate([_safe_cuts(batch.data, a, b, is_word_end) for a, b in bounds_of])
        at = np.searchsorted(cuts, positions, side="right")
        padded = np.concatenate([[-1], cuts, [np.iinfo(np.int64).max]])
        starts = np.maximum(starts, padded[at])
        stops = np.minimum(stops, padded[at + 1])
    joined = np.flatnonzero(starts[1:] > np.maximum.accumulate(stops)[:-1])
    starts = starts[np.concatenate([[0], joined + 1])]
    stops = stops[np.concatenate([joined, [len(stops) - 1]])]
    bounds = np.concatenate([batch.offsets, starts, stops])
    order = np.argsort(bounds, kind="stable")
    keep = np.ones(len(bounds), np.bool_)
    keep[1:] = np.diff(bounds[order]) > 0
    is_text_bound = order < len(batch.offsets)
    keep |= is_text_bound
    order = order[keep]
    bounds = bounds[order]
    of_text = np.flatnonzero(order < len(batch.offsets))
    inside = np.searchsorted(starts, bounds[:-1], side="right") - 1
    is_suspect = (inside >= 0) & (bounds[:-1] < stops[np.maximum(inside, 0)]) & (np.diff(bounds) > 0)
    return Windows(bounds, is_suspect, of_text, len(suspected))


_IS_ASCII_SIGN = np.zeros(256, np.bool_)
_IS_ASCII_SIGN[0x21:0x7F] = True
_IS_WORD_END = np.zeros(256, np.bool_)
_IS_WORD_END[0x21:0x7F] = True
_IS_WORD_END[0x8B:0xC0] = True
_IS_WORD_END[[0x9F, 0xA0, 0xA8, 0xA9, 0xAF]] = False
"""Bytes that never end a white-space character: printable ASCII, and the last bytes that none of U+0085, U+00A0,
U+1680, U+2000 to U+200A, U+2028, U+2029, U+202F, U+205F and U+3000 has."""


def _safe_cuts(data: NDArray[np.uint8], start: int, stop: int, is_word_end: NDArray[np.bool_]) -> NDArray[np.int64]:
    """Where a space follows something that is not white space, in data[start:stop], ascending.

    No match of the split patterns reaches over such a place: white space stands at a match's start, or is all of
    it, or is the line ends behind signs. And none looks behind itself.
    """
    text = data[start:stop]
    found: NDArray[np.int64] = np.flatnonzero((text[1:] == 0x20) & is_word_end[text[:-1]]) + (start + 1)
    return found


def replace_texts(batch: TokenBatch, others: TokenBatch, is_other: NDArray[np.bool_]) -> TokenBatch:
    """The batch with the texts where is_other (bool [n]) replaced by those of `others`, in order."""
    numbers = np.flatnonzero(is_other)
    lengths = batch.lengths
    lengths[numbers] = others.lengths
    offsets = offsets_of(lengths)
    parts: list[NDArray[np.uint32]] = []
    done = 0
    starts, stops = batch.offsets[numbers].tolist(), batch.offsets[numbers + 1].tolist()
    bounds = others.offsets.tolist()
    for k, (start, stop) in enumerate(zip(starts, stops, strict=True)):
        parts += [batch.ids[done:start], others.ids[bounds[k] : bounds[k + 1]]]
        done = stop
    parts.append(batch.ids[done:])
    return TokenBatch(np.concatenate(parts), offsets, others.n_reference)


_ANCHOR = np.frombuffer(b".", np.uint8)
"""A sign put before a part that starts inside a text at a space, so that no encoder strips the space. It must give
one id: no piece may hold a space behind a sign."""


def anchored(batch: TextBatch, is_inner: NDArray[np.bool_]) -> TextBatch:
    """A copy of the batch with a sign before every text where is_inner (bool [n]) is true."""
    parts: list[NDArray[np.uint8]] = []
    done = int(batch.offsets[0])
    for start in batch.offsets[:-1][is_inner].tolist():
        parts += [batch.data[done:start], _ANCHOR]
        done = start
    parts.append(batch.data[done : batch.offsets[-1]])
    offsets = batch.offsets - batch.offsets[0]
    offsets[1:] += np.cumsum(is_inner)
    return TextBatch(np.concatenate(parts), offsets)


def without_anchors(batch: TokenBatch, is_inner: NDArray[np.bool_]) -> TokenBatch:
    """The ids without the first of every text where is_inner (bool [n]) is true."""
    offsets = batch.offsets.copy()
    offsets[1:] -= np.cumsum(is_inner)
    return TokenBatch(np.delete(batch.ids, batch.offsets[:-1][is_inner]), offsets, batch.n_reference)
