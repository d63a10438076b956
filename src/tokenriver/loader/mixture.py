"""Several data sets in one stream of batches, by weight in tokens: what is mixed, and which rows that makes."""

from __future__ import annotations

import os
import tomllib
from bisect import bisect_right
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokenriver.errors import FormatError, ResumeError, UsageError
from tokenriver.files import open_binary
from tokenriver.loader.arguments import plain
from tokenriver.loader.interleave import Schedule, whole_weights
from tokenriver.loader.segments import Segments, merge_segments
from tokenriver.loader.state import MOST_EPOCHS
from tokenriver.storage.paths import named_in, to_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tokenriver.loader.dealt import RowSource

__all__ = ["Mixture", "MixtureRows", "MixtureSource"]

_MOST_STEPS = 1 << 40
_EXACT_EPOCHS = 1000


@dataclass(frozen=True, slots=True)
class MixtureSource:
    """One data set of a mixture: what TrainLoader takes as a source, its weight, and its epochs at most (None: any)."""

    path: Any
    weight: float
    max_epochs: int | None = None


@dataclass(frozen=True, slots=True, init=False)
class Mixture:
    """Data sets and the shares of tokens that they have in a run: the source of a TrainLoader.

    `sources` maps a name to (path, weight), (path, weight, max_epochs) or a dict with these words; or it is the path
    or URL of a TOML file with the same words (docs/loader.md). Weights are in tokens (rows), in any unit. `phases` are
    (step, weights) in order: from that step on these weights hold; a name that is left out has none. `max_epochs` (a
    number for all, or a dict) caps how often a source repeats; once it is used up the others share its part, or with
    `exhausted="stop"` the run ends. Raises UsageError for what cannot work, FormatError for a TOML file that is none.
    """

    sources: dict[str, MixtureSource] = field()
    phases: tuple[tuple[int, dict[str, float]], ...]
    exhausted: Literal["continue", "stop"]

    def __init__(
        self,
        sources: Mapping[str, Any] | str | os.PathLike[str],
        *,
        phases: Sequence[tuple[int, Mapping[str, float]]] = (),
        max_epochs: int | Mapping[str, int | None] | None = None,
        exhausted: Literal["continue", "stop"] = "continue",
    ) -> None:
        if isinstance(sources, Mapping):
            given = dict(sources)
        else:
            given, phases, exhausted = _read_toml(sources, phases, exhausted)
        if not given:
            raise UsageError("a mixture needs at least one source")
        if strange := [name for name in given if not isinstance(name, str)]:
            raise UsageError(f"a source's name is a text, not {strange[0]!r}")
        given = dict(sorted(given.items()))  # the same rows in whatever order they were written down
        if isinstance(max_epochs, Mapping) and (unknown := set(max_epochs) - set(given)):
            raise UsageError(f"max_epochs names {', '.join(sorted(unknown))}; the sources are {', '.join(given)}")
        found = {name: _source(name, value, max_epochs) for name, value in given.items()}
        if exhausted not in ("continue", "stop"):
            raise UsageError(f"exhausted is 'continue' or 'stop', not {exhausted!r}")
        phases = [_phase(phase) for phase in phases] if isinstance(phases, list | tuple) else [_phase(phases)]
        steps = [step for step, _ in phases]
        if any(type(step) is not int or not 1 <= step < _MOST_STEPS for step in steps) or steps != sorted(set(steps)):
            raise UsageError(f"phases begin at ascending steps of 1 or more, below 2^40, not {steps}")
        for step, weights in phases:
            if unknown := set(weights) - set(found):
                listed = ", ".join(sorted(map(str, unknown)))
                raise UsageError(f"the phase at step {step} names {listed}, which is no source")
        object.__setattr__(self, "sources", found)
        object.__setattr__(self, "phases", tuple((step, dict(weights)) for step, weights in phases))
        object.__setattr__(self, "exhausted", exhausted)
        self.whole_phases()

    def whole_phases(self) -> list[tuple[int, dict[str, int]]]:
        """(first step, whole weight of each source) for every phase, the first from step 0."""
        first = {name: source.weight for name, source in self.sources.items()}
        return [
            (step, whole_weights({name: weights.get(name, 0) for name in self.sources}))
            for step, weights in [(0, first), *self.phases]
        ]

    def description(self) -> dict[str, Any]:
        """What a saved state must agree in: weights by phase, caps, and what happens at one. JSON."""
        return {
            "weights": [[step, weights] for step, weights in self.whole_phases()],
            "max_epochs": {name: source.max_epochs for name, source in self.sources.items()},
            "exhausted": self.exhausted,
        }


def _phase(phase: Any) -> tuple[Any, Mapping[str, float]]:
    if isinstance(phase, list | tuple) and len(phase) == 2 and isinstance(phase[1], Mapping):
        return plain(phase[0]), phase[1]
    raise UsageError(f"phases are a list of (step, weights), not {phase!r}")


def _source(name: str, value: Any, max_epochs: int | Mapping[str, int | None] | None) -> MixtureSource:
    if isinstance(value, MixtureSource):
        source = value
    elif isinstance(value, Mapping):
        unknown = set(value) - {"path", "weight", "max_epochs"}
        if unknown or not {"path", "weight"} <= set(value):
            raise UsageError(f"source {name} has path, weight and max_epochs, not {', '.join(sorted(map(str, value)))}")
        source = MixtureSource(**value)
    elif isinstance(value, tuple | list) and len(value) in (2, 3):
        source = MixtureSource(*value)
    else:
        raise UsageError(f"source {name} is (path, weight) or a dict with path and weight, not {value!r}")
    if source.max_epochs is None and max_epochs is not None:
        cap = max_epochs.get(name) if isinstance(max_epochs, Mapping) else max_epochs
        source = MixtureSource(source.path, source.weight, cap)
    source = MixtureSource(source.path, source.weight, plain(source.max_epochs))
    if source.max_epochs is not None and (
        type(source.max_epochs) is not int or not 1 <= source.max_epochs <= MOST_EPOCHS
    ):
        raise UsageError(
            f"max_epochs of {name} is at least 1 and at most {MOST_EPOCHS:,}, or None for no limit, "
            f"not {source.max_epochs!r}"
        )
    return source


def _read_toml(file_path: Any, phases: Any, exhausted: Any) -> tuple[dict[str, Any], Any, Any]:
    """Sources, phases and what happens at a cap; data set paths are relative to the file."""
    if not (isinstance(file_path, str | os.PathLike) or hasattr(file_path, "fs")):
        raise UsageError(f"a mixture is a dict of sources or the path of a TOML file, not {file_path!r}")
    path = to_path(file_path)
    try:
        with open_binary(path) as file:
            values = tomllib.loads((file.read() or b"").decode("utf-8-sig"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"{path}: not TOML: {error}") from None
    if unknown := set(values) - {"sources", "phases", "exhausted"}:
        raise FormatError(f"{path}: knows sources, phases and exhausted, not {', '.join(sorted(unknown))}")
    sources = values.get("sources")
    if not isinstance(sources, dict) or not all(isinstance(s, dict) for s in sources.values()):
        raise FormatError(f"{path}: has no tables [sources.NAME] with path and weight")
    for source in sources.values():
        named = source.get("path")
        if isinstance(named, str):
            source["path"] = named_in(path, named)
        elif isinstance(named, list):
            source["path"] = [named_in(path, one) if isinstance(one, str) else one for one in named]
    listed = values.get("phases", [])
    if not isinstance(listed, list) or not all(
        isinstance(p, dict) and set(p) == {"step", "weights"} and isinstance(p["weights"], dict) for p in listed
    ):
        raise FormatError(f"{path}: every [[phases]] has step and weights")
    return sources, phases or [(p["step"], p["weights"]) for p in listed], values.get("exhausted", exhausted)


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

    def rows(self, epoch: int, first: int, count: int) -> NDArray[np.int64] | Segments:
        """Rows [first, first + count) of the run."""
        assert epoch == 0, "a mixture has one epoch"
        origin = self.since * self._batch
        sources = self.schedule.sources(first - origin, first - origin + count)
        before = self.schedule.counts(first - origin)
        taken = []
        for i in np.unique(sources).tolist():
            places = np.flatnonzero(sources == i)
            taken += self._take(i, self.begin[i] + before[i], places)
        if all(isinstance(item, Segments) for item, _ in taken):
            return merge_segments(taken, count)  # type: ignore[arg-type]
        starts = np.empty(count, np.int64)
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
        self, source: int, row: int, places: NDArray[np.int64]
    ) -> list[tuple[NDArray[np.int64] | Segments, NDArray[np.int64]]]:
        """A source's rows from `row` on, one for each place, epoch by epoch."""
        taken, done = [], 0
        while done < len(places):
            epoch, inside = self.epoch_of(source, row + done)
            n = min(len(places) - done, self.rows_of(source, epoch) - inside)
            taken.append((self._parts[source].rows(epoch, inside, n), places[done : done + n]))
            done += n
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

    def rows(self, epoch: int, first: int, count: int) -> NDArray[np.int64] | Segments:
        """Rows [first, first + count) of an epoch; the pieces of packed rows know their base themselves."""
        found = self.rows_of.rows(epoch, first, count)
        return found if isinstance(found, Segments) else found + self.base
