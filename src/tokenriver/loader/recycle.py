"""Arrays of one shape that are used again once nobody holds them: fresh memory costs more than the batch in it.

The C library gives two arrays of 256 KiB back to the system when they are freed, or not, by its own rules. Where it
does, every new batch of 64 x 1024 costs 128 page faults, 150 to 200 µs, four times as much as filling it.
"""

from __future__ import annotations

import os
import sys
import threading
from sys import getrefcount
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["Recycled"]

# Counts of references tell that nobody else holds an array where they are exact: in CPython with its global lock.
_COUNTS = sys.implementation.name == "cpython" and getattr(sys, "_is_gil_enabled", lambda: True)()


def _idle(pairs: list[tuple[Any, Any]], alone: int) -> tuple[Any, Any] | None:
    """The first pair of which neither has more than `alone` references."""
    for a, b in pairs:
        if getrefcount(a) <= alone and getrefcount(b) <= alone:
            return a, b
    return None


# How many those of the list, the loop and the call are differs between versions of Python; so it is counted.
_ALONE = next(n for n in range(9) if _idle([(object(), object())], n))


class Recycled:
    """A pool of `kept` pairs of arrays. Views, tensors and buffers made of an array hold it
    too. As many are kept as batches are on their way to the consumer, and one or two in use there."""

    def __init__(self, shape: tuple[int, ...], dtype: np.dtype[Any], *, kept: int) -> None:
        self._shape, self._dtype, self._kept = shape, dtype, kept
        self._pairs: list[tuple[NDArray[Any], NDArray[Any]]] = []
        self._pid, self._lock = os.getpid(), threading.Lock()

    def take(self) -> tuple[NDArray[Any], NDArray[Any]]:
        """Two arrays of the pool's shape with any content, which nobody else holds."""
        if self._pid != os.getpid():  # a forked child, whose copy of the lock may be held
            self._pid, self._lock = os.getpid(), threading.Lock()
        with self._lock:
            idle = _idle(self._pairs, _ALONE)
            if idle is not None:
                return idle
        pair = np.empty(self._shape, self._dtype), np.empty(self._shape, self._dtype)
        if _COUNTS:
            with self._lock:
                if len(self._pairs) == self._kept:
                    del self._pairs[0]
                self._pairs.append(pair)
        return pair
