"""Many documents in two arrays, as text and as ids: what flows from reading to encoding to shards.

Both are the Arrow (and awkward) list layout, one buffer and n + 1 offsets, so a batch goes into the encoder
and comes back without a Python object per document.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["TextBatch", "TokenBatch", "distinct", "offsets_of", "places_of_true", "positions_of", "tally"]


@dataclass(frozen=True, slots=True, eq=False)
class TextBatch:
    """UTF-8 texts: `data` uint8 [n_bytes] and `offsets` int64 [n + 1]; text i is data[offsets[i]:offsets[i+1]]."""

    data: NDArray[np.uint8]
    offsets: NDArray[np.int64]

    @classmethod
    def from_texts(cls, texts: Iterable[str | bytes]) -> TextBatch:
        """Join texts into one batch. A str with a lone surrogate raises UnicodeEncodeError."""
        pieces = [t.encode() if isinstance(t, str) else t for t in texts]
        return cls(np.frombuffer(b"".join(pieces), np.uint8), offsets_of([len(p) for p in pieces]))

    @classmethod
    def from_arrow(cls, array: Any) -> TextBatch:
        """View an Arrow (large_)string or (large_)binary array without nulls; the bytes are not copied."""
        wide = str(array.type).startswith("large_")
        _, raw_offsets, raw_data = array.buffers()
        width = np.dtype(np.int64 if wide else np.int32)
        if len(array) == 0:
            return cls(np.zeros(0, np.uint8), np.zeros(1, np.int64))
        bounds = np.frombuffer(raw_offsets, width, len(array) + 1, array.offset * width.itemsize).astype(np.int64)
        if raw_data is None:
            return cls(np.zeros(0, np.uint8), bounds - bounds[0])
        data = np.frombuffer(raw_data, np.uint8)[bounds[0] : bounds[-1]]
        return cls(data, bounds - bounds[0])

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> bytes:
        return self.data[self.offsets[i] : self.offsets[i + 1]].tobytes()

    def __iter__(self) -> Iterator[bytes]:
        return (self[i] for i in range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Bytes of each text, int64 [n]."""
        return np.diff(self.offsets)

    def texts(self) -> list[str]:
        """The texts as str."""
        raw = self.data.tobytes()
        bounds = self.offsets.tolist()
        return [raw[a:b].decode() for a, b in pairwise(bounds)]

    def slice(self, start: int, stop: int) -> TextBatch:
        """Texts [start, stop), sharing the bytes."""
        bounds = self.offsets[start : stop + 1]
        return TextBatch(self.data[bounds[0] : bounds[-1]], bounds - bounds[0])

    def take(self, keep: NDArray[np.bool_]) -> TextBatch:
        """The texts where `keep` (bool [n]) is true, copied."""
        if keep.all():
            return self
        lengths = self.lengths
        return TextBatch(self.data[np.repeat(keep, lengths)], offsets_of(lengths[keep]))


@dataclass(frozen=True, slots=True, eq=False)
class TokenBatch:
    """Ids of texts: `ids` uint32 [n_tokens] and `offsets` int64 [n + 1], without separators.

    Inside a build `ids` may be narrower (ByteTokenizer.encode_batch_narrow).
    `n_reference` is how many of the documents were encoded by the reference (the others took the fast path).
    """

    ids: NDArray[np.uint32]
    offsets: NDArray[np.int64]
    n_reference: int = 0

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def __getitem__(self, i: int) -> NDArray[np.uint32]:
        return self.ids[self.offsets[i] : self.offsets[i + 1]]

    def __iter__(self) -> Iterator[NDArray[np.uint32]]:
        return (self[i] for i in range(len(self)))

    @property
    def lengths(self) -> NDArray[np.int64]:
        """Tokens of each document, int64 [n]."""
        return np.diff(self.offsets)


def offsets_of(lengths: Sequence[int] | NDArray[np.integer[Any]]) -> NDArray[np.int64]:
    """Where runs of these lengths begin that lie end to end, and where the last one ends: int64 [n + 1]."""
    offsets = np.zeros(len(lengths) + 1, np.int64)
    np.cumsum(lengths, out=offsets[1:])
    return offsets


def distinct(values: NDArray[Any]) -> tuple[NDArray[Any], NDArray[np.int64]]:
    """The distinct values of an ascending array, and how many there are of each, int64.

    np.unique would sort them, and for its first answer load masked arrays, for 50 ms.
    """
    starts = np.flatnonzero(values[1:] != values[:-1]) + 1
    edges = np.concatenate([np.zeros(min(1, len(values)), np.int64), starts, np.array([len(values)], np.int64)])
    return values[edges[:-1]], np.diff(edges)


def tally(values: NDArray[Any]) -> dict[int, int]:
    """How many there are of each value of an ascending array of integers, in that order."""
    found, n = distinct(values)
    return dict(zip(found.tolist(), n.tolist(), strict=True))


_PIECE = 1 << 20
"""Bytes looked at in one step: what is made of them stays in the processor's cache, and calls cost little beside it."""


def places_of_true(flags: NDArray[np.bool_]) -> NDArray[np.int64]:
    """np.flatnonzero where few are true: eight are looked at together, in a quarter of the time."""
    n = len(flags) & ~7
    words = np.flatnonzero(flags[:n].view(np.uint64) != 0)
    inner = np.flatnonzero(flags[:n].reshape(-1, 8)[words])
    places: NDArray[np.int64] = (words[inner >> 3] << 3) + (inner & 7)
    return places if n == len(flags) else np.concatenate([places, np.flatnonzero(flags[n:]) + n])


def positions_of(data: NDArray[np.uint8], byte: int) -> NDArray[np.int64]:
    """Where a byte stands in `data`, ascending int64; without a temporary of the size of `data`."""
    if len(data) <= _PIECE:
        return places_of_true(data == byte)
    flags = np.empty(_PIECE, np.bool_)  # the same memory for every piece: fresh memory costs as much as looking
    found = []
    for i in range(0, len(data), _PIECE):
        piece = data[i : i + _PIECE]
        found.append(places_of_true(np.equal(piece, byte, out=flags[: len(piece)])) + i)
    return np.concatenate(found)
