"""How many texts of a batch spell a special token: found at memory speed, since every build counts them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.batches import TextBatch, positions_of

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["SpecialTexts"]


class SpecialTexts:
    """Counts the texts that spell a special token; they are encoded as ordinary text.

    Ordinary text holds few of the bytes that such spellings begin with ("<" above all), so these are found first,
    at memory speed, and a pattern is tried only where the second byte fits as well.
    """

    def __init__(self, special_texts: tuple[str, ...]) -> None:
        raw = sorted({t.encode() for t in special_texts if t}, key=lambda t: (-len(t), t))
        self._pattern = re.compile(b"|".join(re.escape(t) for t in raw)) if raw else None
        self._seconds: dict[int, set[int | None]] = {}
        for text in raw:
            self._seconds.setdefault(text[0], set()).add(text[1] if len(text) > 1 else None)
        self._longest = max(map(len, raw), default=0)

    def count(self, texts: TextBatch) -> int:
        """How many there are in a batch, none counted twice, each within one document."""
        if self._pattern is None:
            return 0
        data, total = texts.data, 0
        starts = np.sort(np.concatenate([self._candidates(data, first) for first in self._seconds]))
        if not len(starts):
            return 0
        ends = texts.offsets[np.searchsorted(texts.offsets, starts, "right")]
        done = 0
        for start, end in zip(starts.tolist(), ends.tolist(), strict=True):
            if start >= done:
                match = self._pattern.match(data[start : min(end, start + self._longest)].tobytes())
                if match is not None:
                    total += 1
                    done = start + match.end()
        return total

    def _candidates(self, data: NDArray[np.uint8], first: int) -> NDArray[np.int64]:
        """Positions of a first byte whose second byte fits one of the spellings."""
        at = positions_of(data, first)
        seconds = self._seconds[first]
        if None in seconds or not len(at):
            return at
        inner = at[at + 1 < len(data)]
        return inner[np.isin(data[inner + 1], np.array(sorted(s for s in seconds if s is not None), np.uint8))]
