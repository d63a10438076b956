"""Where ranges of a stream of shards lie: which shards they touch, and which part of each. Pure functions of integers.

Shard i holds the tokens [bounds[i], bounds[i + 1]) of the stream; it may be empty.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["parts_of_range", "shards_touched"]


def parts_of_range(bounds: Sequence[int], start: int, size: int) -> Iterator[tuple[int, int, int, int]]:
    """(shard, first token in it, first and last + 1 of the range's own tokens), for each shard that a range crosses.

    Raises IndexError for a range that is not in the stream.
    """
    if start < 0 or start + size > bounds[-1]:
        raise IndexError(f"tokens [{start}, {start + size}) of a stream of {bounds[-1]}")
    index, done = bisect_right(bounds, start) - 1, 0
    while done < size:
        first, end = bounds[index], bounds[index + 1]
        count = min(size - done, end - start - done)
        if count > 0:
            yield index, start + done - first, done, done + count
            done += count
        index += 1


def shards_touched(bounds: NDArray[np.int64], starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> list[int]:
    """The shards that ranges [start, start + size) lie in, ascending."""
    filled = sizes > 0
    if not filled.any():
        return []
    first = np.searchsorted(bounds, starts[filled], "right") - 1
    last = np.searchsorted(bounds, starts[filled] + sizes[filled] - 1, "right") - 1
    if len(first) == 1 or (first == last).all():
        found = np.unique(np.concatenate([first, last]))
        return list(range(int(found[0]), int(found[-1]) + 1)) if len(first) == 1 else found.tolist()
    return sorted({i for a, b in zip(first.tolist(), last.tolist(), strict=True) for i in range(a, b + 1)})
