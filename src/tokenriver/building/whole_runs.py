"""A block taken whole by the files that are open: what `cut_runs` would do with it, for all its runs at once.

Few blocks begin or end a file. Of the others only sums matter, and NumPy takes them without a step in Python a run.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.building.plan import take_whole
from tokenriver.corpus.splits import TRAIN, VAL

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.building.plan import Cutting, PlanState

__all__ = ["Taken", "take_block"]


@dataclass(frozen=True, slots=True, eq=False)
class Taken:
    """What the open file `index` of a split takes of a block: runs of its stream, and its documents' ends in the file.

    `starts` and `stops` int64 [n_runs], `ends` int64 [n_documents], counted from the file's first id.
    """

    split: int
    index: int
    starts: NDArray[np.int64]
    stops: NDArray[np.int64]
    ends: NDArray[np.int64]


def take_block(
    cutting: Cutting, state: PlanState, bounds: NDArray[np.int64], given: NDArray[np.uint8]
) -> tuple[list[Taken], PlanState] | None:
    """What `cut_runs` does with a block of given splits, where no file begins or ends in it; None where one does.

    Few blocks end a file, and a split by hash makes dozens of runs of each block: one by one they take the thread that
    sees all blocks 0.25 ms a MB, and every worker waits for it.
    """
    n, taken = len(given), []
    if not n or cutting.first_docs is not None or cutting.first_tokens is not None:
        return None
    borders = np.flatnonzero(given[1:] != given[:-1]) + 1
    edges = bounds[np.concatenate([[0], borders, [n]])]
    lengths = np.diff(bounds)
    after = replace(state, documents=state.documents + n, tokens=state.tokens + int(bounds[-1]))
    for split in (TRAIN, VAL):
        first = int(given[0] != split)
        ends = np.cumsum(lengths[given == split])
        shard = state.open[split]
        if not len(ends):
            continue
        whole = take_whole(cutting, after, split, len(ends), int(ends[-1]))
        if whole is None or shard is None:
            return None
        after = whole
        taken.append(Taken(split, shard.index, edges[:-1][first::2], edges[1:][first::2], ends + shard.tokens))
    return taken, after
