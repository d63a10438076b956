"""What a mixture will show in a run, without reading data: tokens, epochs and shares of each source, phase by phase."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

from tokenriver.errors import MissingDependencyError, UsageError
from tokenriver.files import atomic_write
from tokenriver.loader.arguments import whole
from tokenriver.loader.train import TrainLoader

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.loader.mixture import Mixture

__all__ = ["MixPlan", "PhasePlan", "SourcePlan", "draw_mixture", "plan_mixture"]

_POINTS = 400
"""Steps at which a picture's curves are computed."""

_ENDINGS = ("png", "svg", "pdf")
"""Of a picture's name. Others that matplotlib knows need programs of their own, or are no picture to look at."""


@dataclass(frozen=True, slots=True)
class SourcePlan:
    """One source in one phase: its rows and targets, its share of the phase, and its epochs by the phase's end."""

    name: str
    rows: int
    tokens: int
    share: float
    epochs: float
    used_up: bool


@dataclass(frozen=True, slots=True)
class PhasePlan:
    """Steps [start, stop) with the same weights."""

    start: int
    stop: int
    sources: tuple[SourcePlan, ...]


@dataclass(frozen=True, slots=True)
class MixPlan:
    """A run: its steps (fewer than asked for where the sources are used up before), its phases, and all of it."""

    steps: int
    tokens: int
    phases: tuple[PhasePlan, ...]
    total: PhasePlan


def plan_mixture(mixture: Mixture, *, steps: int, **options: Any) -> MixPlan:
    """The plan of a run of `steps` steps; `options` are TrainLoader's. Only headers (and document indexes) are read."""
    if not 1 <= whole("steps", steps) < 1 << 40:
        raise UsageError(f"steps is at least 1 and below 2^40, not {steps}")
    loader, steps = _opened(mixture, steps, options)
    edges = sorted({0, steps, *(step for step, _ in mixture.phases if step < steps)})
    phases = tuple(_phase(loader, a, b) for a, b in pairwise(edges))
    tokens = steps * loader.global_batch_size * loader.seq_len
    return MixPlan(steps, tokens, phases, _phase(loader, 0, steps))


def _opened(mixture: Mixture, steps: int, options: dict[str, Any]) -> tuple[TrainLoader, int]:
    """The loader of a run, and its steps, or as many as there are. A plan is of all ranks."""
    loader = TrainLoader(mixture, prefetch=0, **{"rank": 0, **options})
    end = loader.plan.steps(0)
    return loader, steps if end is None else min(steps, end)


def _phase(loader: TrainLoader, start: int, stop: int) -> PhasePlan:
    mixed = loader.mixture_rows
    before, after = mixed.counts(start), mixed.counts(stop)
    rows = sum(after) - sum(before)
    sources = []
    for i, name in enumerate(mixed.names):
        n = after[i] - before[i]
        used_up = mixed.schedule.used_up.get(i, sum(after) + 1) <= sum(after)
        sources.append(SourcePlan(name, n, n * loader.seq_len, n / max(1, rows), mixed.epochs_of(i, after[i]), used_up))
    return PhasePlan(start, stop, tuple(sources))


def draw_mixture(mixture: Mixture, path: Path, *, steps: int, **options: Any) -> None:
    """A picture of each source's share of the steps and of its tokens so far; the format is the path's ending.

    Raises MissingDependencyError, naming the extra, without matplotlib.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError as error:
        raise MissingDependencyError("matplotlib is not installed: pip install 'tokenriver[report]'") from error
    ending = path.suffix.removeprefix(".").lower() or "png"
    if ending not in _ENDINGS:
        raise UsageError(f"{path}: a picture's name ends in .png, .svg or .pdf")
    loader, steps = _opened(mixture, steps, options)
    points = sorted({round(k * steps / _POINTS) for k in range(_POINTS + 1)})
    counts = [loader.mixture_rows.counts(step) for step in points]
    figure = Figure(figsize=(8, 6), layout="constrained")
    shares, totals = figure.subplots(2, 1, sharex=True)
    middles = [(a + b) / 2 for a, b in pairwise(points)]
    stacked = []
    for i, name in enumerate(loader.mixture_rows.names):
        stacked.append([(b[i] - a[i]) / max(1, sum(b) - sum(a)) for a, b in pairwise(counts)])
        totals.plot(points, [c[i] * loader.seq_len / 1e6 for c in counts], label=name)
    shares.stackplot(middles, stacked, labels=loader.mixture_rows.names)
    shares.set(ylabel="share of tokens", ylim=(0, 1))
    totals.set(xlabel="step", ylabel="tokens so far, millions")
    totals.legend()
    with atomic_write(path) as file:
        figure.savefig(file, format=ending)
