"""Rows of any kind dealt to ranks in global batches: what packed documents and mixtures share."""

from __future__ import annotations

from dataclasses import dataclass, replace
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tokenriver.batches import offsets_of
from tokenriver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tokenriver.loader.order import Order
    from tokenriver.loader.segments import Segments

__all__ = ["DealtPlan", "RowSource"]


class RowSource(Protocol):
    """Rows numbered from 0 in every epoch, any of them found on their own."""

    @property
    def alike(self) -> bool:
        """Whether all epochs have as many rows."""

    def n_rows(self, epoch: int) -> int | None:
        """Rows in an epoch; None when there is no end."""

    def picked(self, epoch: int, rows: NDArray[np.int64]) -> NDArray[np.int64] | Segments:
        """These rows of an epoch (ascending): first tokens in the stream, or pieces of documents. Many at a time cost
        little more than one."""


@dataclass(frozen=True, slots=True)
class DealtPlan:
    """Global batch k of an epoch is its source's rows [k·G, k·G + G), and rank r has the r-th part of them.

    The same interface as loader.plan.Plan, for row sources whose epochs differ in length, or never end.
    """

    source: RowSource
    n_tokens: int
    seq_len: int
    batch_size: int
    world_size: int
    rank: int
    order: Order
    seed: int
    drop_last: bool
    split: str = "train"

    @property
    def global_batch_size(self) -> int:
        """Rows that all ranks take together in a step."""
        return self.batch_size * self.world_size

    def for_rank(self, rank: int) -> DealtPlan:
        """The same plan as another rank sees it."""
        return replace(self, rank=rank)

    def steps(self, epoch: int) -> int | None:
        """Global batches in an epoch, None without an end. Raises UsageError when there is too little for one."""
        n = self.source.n_rows(epoch)
        if n is None:
            return None
        full, rest = divmod(n, self.batch_size * self.world_size)
        steps = full + (rest > 0 and not self.drop_last)
        if steps == 0:
            raise UsageError(
                f"too little data: a batch needs {self.global_batch_size if self.drop_last else 1:,} rows of "
                f"{self.seq_len} targets ({self.world_size} ranks x {self.batch_size} rows), but the {self.split} "
                f"split of {self.n_tokens:,} tokens gives {n:,}"
            )
        return steps

    def take(self, epoch: int, step: int) -> NDArray[np.int64] | Segments:
        """This rank's rows in a step, fewer than `batch_size` only in the last one without `drop_last`."""
        return self.source.picked(epoch, self._own_rows(epoch, step, 1)[0])

    def _own_rows(self, epoch: int, step: int, n_steps: int) -> tuple[NDArray[np.int64], list[int]]:
        """This rank's rows in steps [step, step + n_steps), one step's after the other, and where each one's begin and
        end."""
        firsts = np.arange(step, step + n_steps, dtype=np.int64) * self.global_batch_size + self.rank * self.batch_size
        n = self.source.n_rows(epoch)
        counts = np.full(n_steps, self.batch_size) if n is None else np.clip(n - firsts, 0, self.batch_size)
        bounds = offsets_of(counts)
        return np.arange(bounds[-1]) + np.repeat(firsts - bounds[:-1], counts), bounds.tolist()

    def walk(
        self, epoch: int, step: int, epochs: int | None
    ) -> Iterator[tuple[int, int, list[NDArray[np.int64]] | tuple[Segments, list[int]]]]:
        """(epoch, first step, rows of one or more steps) from a position on; endless when `epochs` is None.

        Packed rows come with where each step's begin and end.
        """
        n_rows = _PLANNED_FIRST
        while epochs is None or epoch < epochs:
            steps = self.steps(epoch)
            while steps is None or step < steps:
                most = min(_SPAN, getattr(self.source, "most_together", _SPAN)) // self.global_batch_size
                count = max(1, min(n_rows // self.batch_size, most))
                count = count if steps is None else min(count, steps - step)
                rows, bounds = self._own_rows(epoch, step, count)
                found = self.source.picked(epoch, rows)
                if isinstance(found, np.ndarray):
                    yield epoch, step, [found[a:b] for a, b in pairwise(bounds)]
                else:
                    yield epoch, step, (found, bounds)
                step, n_rows = step + count, min(2 * n_rows, _PLANNED)
            if self.endless_epoch:
                return
            epoch, step = epoch + 1, 0

    @property
    def endless_epoch(self) -> bool:
        """Whether there is one epoch only, which is the whole run (a mixture)."""
        return bool(getattr(self.source, "one_run", False))

    def settle(self, epoch: int, step: int) -> tuple[int, int]:
        """The same position with `step` within its epoch; the end of a run stays where it is. UsageError for a step
        so many epochs ahead that counting them all, each shuffled anew, would take too long."""
        steps = self.steps(epoch)
        if steps is None and step * self.global_batch_size >= 1 << 62:
            raise UsageError(f"step {step:,} is beyond every run: rows are counted below 2^62")
        if self.endless_epoch or steps is None or step < steps:
            return epoch, step
        if self.source.alike:
            return epoch + step // steps, step % steps
        if step // steps > _MOST_AHEAD:
            raise UsageError(
                f"step {step:,} is more than {_MOST_AHEAD:,} epochs after the start of epoch {epoch}, each of which "
                "has its own number of packed rows; give the epoch, and the step in it"
            )
        while (steps := self.steps(epoch)) is not None and step >= steps:
            epoch, step = epoch + 1, step - steps
        return epoch, step


_MOST_AHEAD = 10_000
"""Epochs that are counted to find a step; with one window each that is 10 ms an epoch."""

_PLANNED_FIRST, _PLANNED = 1 << 12, 1 << 14
"""Rows that are looked up in one go: NumPy's 100 calls for it are then next to nothing for each step. Fewer at first,
to begin in 1 ms."""

_SPAN = 1 << 20
"""Rows of all ranks between the first and the last of them, at most: a mixture counts what its sources give there."""
