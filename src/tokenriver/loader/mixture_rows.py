"""The rows of a mixture's run, any of them on its own: which source gives each, and which of its rows that is."""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.errors import ResumeError, UsageError
from tokenriver.loader.interleave import Schedule
from tokenriver.loader.segments import Segments, merge_segments
from tokenriver.loader.state import MOST_EPOCHS

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    from tokenriver.loader.dealt import RowSource
    from tokenriver.loader.mixture import Mixture

__all__ = ["MixtureRows", "OffsetRows"]

_EPOCHS_TOGETHER = 64
"""Epochs of a source that are planned together at most: one of a handful of rows costs as much as one of thousands."""

_EXACT_EPOCHS = 1000
"""Epochs of packed, shuffled documents that a plan counts one by one; what follows is told by these."""


class MixtureRows:
    """The rows of a mixture, numbered through the run: one epoch without end, or to where its sources are used up.

    `parts` are the sources' own rows in the mixture's order. Row k of the run is source s's next row, where s is the
    schedule's. A source begins at its row `begin[s]` when the schedule begins, which is at step `since` of the run.
    """

    one_run = True
    alike = False

    def __init__(self, mixture: Mixture, parts: Sequence[RowSource], *, global_batch_size: int) -> None:
        self.mixture, self._parts, self._batch = mixture, list(parts), global_batch_size
        self.names = list(mixture.sources)
        self._epochs: list[list[int]] = [[0] for _ in self.names]
        self.begin_anew()

    def begin_anew(self) -> None:
        """The run's start: step 0, each source at its first row."""
        self.restart(0, [0] * len(self.names))

    def restart(self, since: int, begin: Sequence[int]) -> None:
        """Begin the schedule at step `since` with sources at these rows of their own."""
        self.since, self.begin, self.schedule = since, list(begin), self._schedule(since, begin)

    def _schedule(self, since: int, begin: Sequence[int], *, only: Sequence[bool] | None = None) -> Schedule:
        """That schedule; `only` caps these sources."""
        origin = since * self._batch
        caps = [
            None if cap is None or (only is not None and not only[i]) else max(0, cap - begin[i])
            for i, cap in enumerate(self._cap_rows())
        ]
        phases = [
            (max(0, step * self._batch - origin), [weights[name] for name in self.names])
            for step, weights in self.mixture.whole_phases()
        ]
        current = max(k for k, (start, _) in enumerate(phases) if start == 0)
        return Schedule(phases[current:], caps=caps, stop=self.mixture.exhausted == "stop")

    def n_rows(self, epoch: int) -> int | None:
        """Rows of the run, None without an end."""
        if epoch:
            return 0
        total = self.schedule.total
        return None if total is None else total + self.since * self._batch

    @property
    def most_together(self) -> int:
        """Rows that are worth being picked together: some epochs of the smallest source, each shuffled on its own."""
        return _EPOCHS_TOGETHER * max(1, min(self.rows_of(i, 0) for i in range(len(self._parts))))

    def picked(self, epoch: int, rows: NDArray[np.int64]) -> NDArray[np.int64] | Segments:
        """These rows (ascending) of the run."""
        assert epoch == 0, "a mixture has one epoch"
        if not len(rows):
            return self._parts[0].picked(0, rows)
        origin = self.since * self._batch
        first = int(rows[0]) - origin
        span = self.schedule.sources(first, int(rows[-1]) - origin + 1)
        before = self.schedule.counts(first)
        own = rows - rows[0]
        sources = span[own]
        taken = []
        for i in np.flatnonzero(np.bincount(sources)).tolist():
            places = np.flatnonzero(sources == i)
            given = np.arange(len(places)) if len(span) == len(rows) else np.cumsum(span == i)[own[places]] - 1
            taken += self._take(i, given + (self.begin[i] + before[i]), places)
        if all(isinstance(item, Segments) for item, _ in taken):
            return merge_segments(taken, len(rows))  # type: ignore[arg-type]
        starts = np.empty(len(rows), np.int64)
        for item, places in taken:
            assert not isinstance(item, Segments)
            starts[places] = item
        return starts

    def counts(self, step: int) -> list[int]:
        """Rows that each source has given before a step."""
        found = self.schedule.counts(step * self._batch - self.since * self._batch)
        return [a + b for a, b in zip(self.begin, found, strict=True)]

    def saved(self, step: int) -> dict[str, int]:
        """One integer a source: rows given; −1 − (rows when the schedule began) once it is used up."""
        counts = self.counts(step)
        done = (step - self.since) * self._batch
        return {
            name: -1 - self.begin[i] if self.schedule.used_up.get(i, done + 1) <= done else counts[i]
            for i, name in enumerate(self.names)
        }

    def restore(self, since: int, step: int, saved: Mapping[str, int]) -> None:
        """Take up a saved run of this same mixture. Raises ResumeError when its numbers cannot be."""
        if since == self.since and self.saved(step) == saved:
            return  # a schedule of awkward weights takes a second to lay out
        used = [saved[name] < 0 for name in self.names]
        begin = [-1 - saved[name] if used[i] else 0 for i, name in enumerate(self.names)]
        # Caps of sources that are not used up do not matter before this step, so the counts give where they began.
        given = self._schedule(since, begin, only=used).counts((step - since) * self._batch)
        begin = [
            b if used[i] else saved[name] - given[i] for i, (name, b) in enumerate(zip(self.names, begin, strict=True))
        ]
        # At step 0 sources stand at their start, or less than a batch behind it: after smaller batches.
        if min(begin) < 0 or (since == 0 and sum(begin) >= self._batch):
            raise ResumeError("the saved state's rows of the sources are not those of this mixture at that step")
        self.restart(since, begin)

    def rows_in(self, source: int, epochs: int) -> int:
        """Rows in so many epochs of a source."""
        part = self._parts[source]
        if part.alike:
            return self.rows_of(source, 0) * epochs
        return sum(part.n_rows(e) or 0 for e in range(epochs))

    def rows_of(self, source: int, epoch: int) -> int:
        """Rows in an epoch of a source."""
        return self._parts[source].n_rows(epoch) or 0

    def epoch_of(self, source: int, row: int) -> tuple[int, int]:
        """(epoch, row in it) of a source's row."""
        if self._parts[source].alike:
            return divmod(row, self._some_rows(source, 0))
        ends = self._ends(source, row, MOST_EPOCHS)
        if ends[-1] <= row:
            raise UsageError(
                f"source {self.names[source]} would be read more than {MOST_EPOCHS:,} times, each time shuffled anew"
            )
        epoch = bisect_right(ends, row) - 1
        return epoch, row - ends[epoch]

    def epochs_of(self, source: int, row: int) -> float:
        """Epochs of a source before a row; from the thousandth one on that is shuffled anew by what these held."""
        if not self._parts[source].alike:
            ends = self._ends(source, row, _EXACT_EPOCHS)
            if ends[-1] <= row:
                return row / ends[_EXACT_EPOCHS] * _EXACT_EPOCHS
        epoch, inside = self.epoch_of(source, row)
        return epoch + inside / self.rows_of(source, epoch)

    def _ends(self, source: int, row: int, most: int) -> list[int]:
        """Rows of a source before each of its epochs, up to a row's or so many epochs; perhaps more."""
        ends = self._epochs[source]
        epoch = len(ends) - 1
        while ends[epoch] <= row and epoch < most:
            ends[epoch + 1 : epoch + 2] = [ends[epoch] + self._some_rows(source, epoch)]  # the same by any thread
            epoch += 1
        return ends

    def _some_rows(self, source: int, epoch: int) -> int:
        n = self.rows_of(source, epoch)
        if not n:
            raise UsageError(f"source {self.names[source]} has too little data for one row")
        return n

    def _take(
        self, source: int, rows: NDArray[np.int64], places: NDArray[np.int64]
    ) -> list[tuple[NDArray[np.int64] | Segments, NDArray[np.int64]]]:
        """A source's rows (ascending), one for each place, epoch by epoch."""
        taken, done = [], 0
        while done < len(rows):
            first = int(rows[done])
            epoch, inside = self.epoch_of(source, first)
            stop = int(np.searchsorted(rows, first - inside + self.rows_of(source, epoch)))
            picked = self._parts[source].picked(epoch, rows[done:stop] - (first - inside))
            taken.append((picked, places[done:stop]))
            done = stop
        return taken

    def _cap_rows(self) -> list[int | None]:
        caps = [source.max_epochs for source in self.mixture.sources.values()]
        return [None if cap is None else self.rows_in(i, cap) for i, cap in enumerate(caps)]


@dataclass(frozen=True, slots=True)
class OffsetRows:
    """Rows of a source whose tokens begin at `base` of the mixture's joined stream."""

    rows_of: RowSource
    base: int

    alike = property(lambda self: self.rows_of.alike, doc="Whether all epochs have as many rows.")

    def n_rows(self, epoch: int) -> int | None:
        """Rows in an epoch."""
        return self.rows_of.n_rows(epoch)

    def picked(self, epoch: int, rows: NDArray[np.int64]) -> NDArray[np.int64] | Segments:
        """These rows (ascending) of an epoch; the pieces of packed rows know their base themselves."""
        found = self.rows_of.picked(epoch, rows)
        return found if isinstance(found, Segments) else found + self.base
