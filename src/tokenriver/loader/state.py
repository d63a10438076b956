"""The saved position of a loader: nine small values, and the refusal of what does not belong to the data at hand."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

from tokenriver.errors import ResumeError, UsageError
from tokenriver.loader.arguments import shown
from tokenriver.loader.fingerprint import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["MOST_EPOCHS", "STATE_KEYS", "STATE_VERSION", "check_form", "check_state", "overridden"]

STATE_VERSION = 1

STATE_KEYS = ("version", "fingerprint", "split", "seq_len", "global_batch_size", "order", "seed", "epoch", "step")

_MOST = {"seed": 2**64, "epoch": 2**64}
_LEAST = {"seq_len": 1, "global_batch_size": 1}
_TEXT = ("fingerprint", "split", "order")
_OVERRIDABLE = ("fingerprint", "split", "seq_len", "global_batch_size", "order", "seed", "packing", "mixture")
MOST_EPOCHS = 1_000_000
"""The most epochs that a mixture's source may be capped at."""

_OPTIONAL = ("packing", "mixture", "mixture_step", "sources")
"""Keys of loaders that pack or mix; without them the flat stream of one data set is meant."""


def overridden(allow_change: str | Collection[str] | bool) -> frozenset[str]:
    """The fields that may differ: one name, several, True for all or False for none."""
    if isinstance(allow_change, bool):
        return frozenset(_OVERRIDABLE if allow_change else ())
    names: list[Any] = [allow_change]
    if not isinstance(allow_change, str | bytes) and isinstance(allow_change, Iterable):
        names = list(allow_change)
    if unknown := [name for name in names if name not in _OVERRIDABLE]:
        raise UsageError(f"allow_change knows {', '.join(_OVERRIDABLE)}, not {', '.join(map(shown, unknown))}")
    return frozenset(names)


def check_state(
    state: Mapping[str, Any], mine: Mapping[str, Any], *, world_size: int, allowed: frozenset[str]
) -> tuple[int, int]:
    """The (epoch, step) of a saved state, if it belongs to a loader whose own state is `mine`.

    Raises ResumeError naming every field that differs and is not in `allowed`, what it was and is, and the way on.
    """
    check_form(state)
    changed = {
        name: _changes(name, state.get(name), mine.get(name), world_size)
        for name in _OVERRIDABLE
        if name not in allowed and state.get(name) != mine.get(name)
    }
    if problems := [problem for found in changed.values() for problem in found]:
        names = ", ".join(f'"{name}"' for name, found in changed.items() if found)
        raise ResumeError(
            f"the saved state does not belong to this loader: {'; '.join(problems)}",
            advice=(f"where that is meant: load_state_dict(state, allow_change=[{names}])",),
        )
    return state["epoch"], state["step"]


def _changes(name: str, saved: Any, mine: Any, world_size: int) -> list[str]:
    """How one field differs, in words; nothing where the difference is another field's."""
    if name == "fingerprint":
        return _data_changes(saved, mine)
    if name in _OPTIONAL:
        return _other_settings(name, saved, mine)
    if name == "global_batch_size":
        return [_explain_batch(saved, mine, world_size)]
    return [f"{name} was {shown(saved)}, here it is {shown(mine)}"]


def _data_changes(saved: Any, mine: Any) -> list[str]:
    """What changed in the data, source by source for a mixture; sources that come or go are the mixture's change."""
    if isinstance(saved, dict) and isinstance(mine, dict):
        return [
            f"{name}: {change}" for name in mine if name in saved for change in _data_changes(saved[name], mine[name])
        ]
    if isinstance(saved, dict) or isinstance(mine, dict):
        return []
    changes = Fingerprint.parse(mine).differences(Fingerprint.parse(saved))
    return ["the data changed: " + ", ".join(changes)] if changes else []


def _other_settings(name: str, saved: Any, mine: Any) -> list[str]:
    """How packing or mixture differ, by the names of their own settings."""
    if saved is None or mine is None:
        what = {"packing": "concat", "mixture": "one data set"}[name]
        kinds = ["none" if v is None else str(v.get("mode", "a mixture")) for v in (saved, mine)]
        return [f"{name} was {kinds[0].replace('none', what)}, here it is {kinds[1].replace('none', what)}"]
    return [
        f"{name}.{key} was {shown(saved.get(key))}, here it is {shown(mine.get(key))}"
        for key in {**saved, **mine}
        if saved.get(key) != mine.get(key)
    ]


def check_form(state: Mapping[str, Any]) -> None:
    """Raise ResumeError unless a state has the nine keys, each of its type, and but packing and mixture no other."""
    if not hasattr(state, "keys"):
        raise ResumeError(f"a loader's state is a dict, not {type(state).__name__}")
    version = state.get("version", STATE_VERSION)
    if type(version) is not int or version != STATE_VERSION:
        raise ResumeError(
            f"the saved state has version {shown(version)}; this tokenriver reads version {STATE_VERSION}"
        )
    missing, unknown = set(STATE_KEYS) - set(state), set(state) - set(STATE_KEYS) - set(_OPTIONAL)
    if missing or unknown:
        what = f"lacks {', '.join(sorted(missing))}" if missing else f"has {', '.join(sorted(map(str, unknown)))}"
        raise ResumeError(f"not the state of a loader: it {what}; its keys are {', '.join(STATE_KEYS)}")
    _check_optional(state)
    for name in STATE_KEYS:
        value = state[name]
        if name == "fingerprint" and "mixture" in state:
            continue
        least, most = _LEAST.get(name, 0), _MOST.get(name, 2**62)
        good = isinstance(value, str) if name in _TEXT else type(value) is int and least <= value < most
        if not good:
            kind = "a text" if name in _TEXT else f"a whole number of {least} or more, below 2^{most.bit_length() - 1}"
            raise ResumeError(f"not the state of a loader: {name} is {shown(value)}, expected {kind}")
    if state["step"] * state["global_batch_size"] >= 2**62:
        raise ResumeError(
            f"not the state of a loader: step is {state['step']} of {state['global_batch_size']} rows each, which are "
            "more than any run counts (2^62)"
        )


def _check_optional(state: Mapping[str, Any]) -> None:
    """The keys of packing and mixtures, each of its type."""
    sources = state.get("sources", {})
    good = (
        isinstance(state.get("packing", {}), dict)
        and isinstance(state.get("mixture", {}), dict)
        and type(state.get("mixture_step", 0)) is int
        and isinstance(sources, dict)
        and all(type(n) is int for n in sources.values())
        and len({name in state for name in ("mixture", "mixture_step", "sources")}) == 1
        and ("mixture" not in state or isinstance(state["fingerprint"], dict))
    )
    if not good:
        raise ResumeError("not the state of a loader: what it says of packing or its mixture has the wrong form")
    if "mixture" not in state:
        return
    caps, prints = state["mixture"].get("max_epochs", sources), state["fingerprint"]
    if not isinstance(caps, dict) or set(caps) != set(sources) or set(prints) != set(sources):
        raise ResumeError("not the state of a loader: its sources are not those of its mixture")
    if uncapped := [name for name, n in sources.items() if n < 0 and not _is_cap(caps[name])]:
        raise ResumeError(f"not the state of a loader: {uncapped[0]} is used up, but has no max_epochs")
    step, since = state["step"], state["mixture_step"]
    if not all(isinstance(text, str) for text in prints.values()) or state["epoch"] != 0:
        raise ResumeError("not the state of a loader: a mixture has a fingerprint for each source, and epoch 0")
    if type(step) is int and not 0 <= since <= max(0, step):
        raise ResumeError(f"not the state of a loader: mixture_step is {since}, and step {step}")


def _is_cap(value: Any) -> bool:
    return type(value) is int and 1 <= value <= MOST_EPOCHS


def _explain_batch(saved: int, current: int, world_size: int) -> str:
    if saved % world_size:
        return (
            f"global_batch_size was {saved} rows, which {world_size} ranks cannot share evenly "
            f"({saved} % {world_size} = {saved % world_size}); take a world size that divides {saved}"
        )
    return (
        f"global_batch_size was {saved} rows, here it is {current}; with {world_size} ranks, batch_size="
        f"{saved // world_size} gives the same"
    )
