"""Arrays of one shape that are used again once nobody holds them: fresh memory costs more than the batch in it.

The C library gives two arrays of 256 KiB back to the system when they are freed, or not, by its own rules. Where it
does, every new batch of 64 x 1024 costs 128 page faults, 150 to 200 µs, four times as much as filling it.
"""

from __future__ import annotations

import sys
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Recycled"]

_MINE = 3
"""References to an array that only its pool knows: those of a pair, of a variable, and of the argument."""

_KEPT = 4
"""Pairs kept for reuse: those of the batches on their way to the consumer, and of one or two in use there."""

# Counts of references tell that nobody else holds an array where they are exact: in CPython with its global lock.
_COUNTS = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


class Recycled:
    """A pool of pairs of arrays for one thread at a time. Views, tensors and buffers made of an array hold it too."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> None:
        self._shape, self._dtype = shape, dtype
        self._pairs: list[tuple[NDArray[Any], NDArray[Any]]] = []

    def take(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two arrays of the pool's shape with any content, which nobody else holds."""
        for a, b in self._pairs:
            if getrefcount(a) == _MINE and getrefcount(b) == _MINE:
                return a, b
        pair = np.empty(self._shape, self._dtype), np.empty(self._shape, self._dtype)
        if _COUNTS:
            if len(self._pairs) == _KEPT:
                del self._pairs[0]
            self._pairs.append(pair)
        return pair
