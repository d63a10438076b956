"""What is mixed: data sets, their weights in tokens by phase, their caps, from a dict or a TOML file."""

from __future__ import annotations

import os
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Literal

from tokenriver.errors import FormatError, UsageError
from tokenriver.files import open_binary
from tokenriver.loader.arguments import plain, shown
from tokenriver.loader.interleave import whole_weights
from tokenriver.loader.state import MOST_EPOCHS
from tokenriver.storage.paths import named_in, to_path

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Mixture", "MixtureSource"]

_MOST_STEPS = 1 << 40
_MOST_BYTES = 16 << 20
"""Of a mixture's file: another one, or a device, must not fill the memory."""


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
        if not isinstance(sources, Mapping):
            given, phases, exhausted = _read_toml(sources, phases, exhausted)
            try:
                self.__init__(given, phases=phases, max_epochs=max_epochs, exhausted=exhausted)  # type: ignore[misc]
            except UsageError as error:
                raise UsageError(f"{sources}: {error}") from None
            return
        given = dict(sources)
        if not given:
            raise UsageError("a mixture needs at least one source")
        if strange := [name for name in given if not isinstance(name, str) or not name]:
            raise UsageError(f"a source's name is a text, not {shown(strange[0])}")
        given = dict(sorted(given.items()))  # the same rows in whatever order they were written down
        if isinstance(max_epochs, Mapping) and (unknown := set(max_epochs) - set(given)):
            raise UsageError(
                f"max_epochs names {', '.join(sorted(map(str, unknown)))}; the sources are {', '.join(given)}"
            )
        found = {name: _source(name, value, max_epochs) for name, value in given.items()}
        if exhausted not in ("continue", "stop"):
            raise UsageError(f"exhausted is 'continue' or 'stop', not {shown(exhausted)}")
        phases = [_phase(phase) for phase in phases] if isinstance(phases, list | tuple) else [_phase(phases)]
        steps = [step for step, _ in phases]
        if any(type(step) is not int or not 1 <= step < _MOST_STEPS for step in steps) or steps != sorted(set(steps)):
            raise UsageError(f"phases begin at ascending steps of 1 or more, below 2^40, not {shown(steps)}")
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
    raise UsageError(f"phases are a list of (step, weights), not {shown(phase)}")


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
        raise UsageError(f"source {name} is (path, weight) or a dict with path and weight, not {shown(value)}")
    if source.max_epochs is None and max_epochs is not None:
        cap = max_epochs.get(name) if isinstance(max_epochs, Mapping) else max_epochs
        source = MixtureSource(source.path, source.weight, cap)
    if isinstance(source.path, Mixture):
        raise UsageError(
            f"source {name} is a mixture itself; name its data sets here, each with its part of the weight"
        )
    source = MixtureSource(source.path, source.weight, plain(source.max_epochs))
    if source.max_epochs is not None and (
        type(source.max_epochs) is not int or not 1 <= source.max_epochs <= MOST_EPOCHS
    ):
        raise UsageError(
            f"max_epochs of {name} is at least 1 and at most {MOST_EPOCHS:,}, or None for no limit, "
            f"not {shown(source.max_epochs)}"
        )
    return source


def _read_toml(file_path: Any, phases: Any, exhausted: Any) -> tuple[dict[str, Any], Any, Any]:
    """Sources, phases and what happens at a cap; data set paths are relative to the file."""
    if not (isinstance(file_path, str | os.PathLike) or hasattr(file_path, "fs")):
        raise UsageError(f"a mixture is a dict of sources or the path of a TOML file, not {shown(file_path)}")
    path = to_path(file_path)
    with open_binary(path) as file:
        raw = file.read(_MOST_BYTES + 1) or b""
    if len(raw) > _MOST_BYTES:
        raise FormatError(f"{path}: over {_MOST_BYTES >> 20} MiB; a mixture's TOML file is far smaller")
    try:
        values = tomllib.loads(raw.decode("utf-8-sig"))
    except (ValueError, RecursionError) as error:  # numbers of 5,000 digits are no TOMLDecodeError
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
