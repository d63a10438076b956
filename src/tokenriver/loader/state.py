"""The saved position of a loader: nine small values, and the refusal of what does not belong to the data at hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenriver.errors import ResumeError, UsageError
from tokenriver.loader.fingerprint import Fingerprint

if TYPE_CHECKING:
    from collections.abc import Collection, Mapping

__all__ = ["STATE_KEYS", "STATE_VERSION", "check_state", "overridden"]

STATE_VERSION = 1

STATE_KEYS = ("version", "fingerprint", "split", "seq_len", "global_batch_size", "order", "seed", "epoch", "step")

_TEXT = ("fingerprint", "split", "order")
_OVERRIDABLE = ("fingerprint", "split", "seq_len", "global_batch_size", "order", "seed")


def overridden(allow_change: str | Collection[str] | bool) -> frozenset[str]:
    """The fields that may differ: one name, several, True for all or False for none."""
    if isinstance(allow_change, bool):
        return frozenset(_OVERRIDABLE if allow_change else ())
    names = frozenset([allow_change] if isinstance(allow_change, str) else allow_change)
    if unknown := names - set(_OVERRIDABLE):
        raise UsageError(f"allow_change knows {', '.join(_OVERRIDABLE)}, not {', '.join(sorted(unknown))}")
    return names


def check_state(
    state: Mapping[str, Any], mine: Mapping[str, Any], *, world_size: int, allowed: frozenset[str]
) -> tuple[int, int]:
    """The (epoch, step) of a saved state, if it belongs to a loader whose own state is `mine`.

    Raises ResumeError naming every field that differs and is not in `allowed`, what it was and is, and the way on.
    """
    _check_shape(state)
    problems = []
    for name in _OVERRIDABLE:
        if name in allowed or state[name] == mine[name]:
            continue
        if name == "fingerprint":
            saved, current = Fingerprint.parse(state[name]), Fingerprint.parse(mine[name])
            changes = current.differences(saved)
            if changes:
                problems.append("the data changed: " + ", ".join(changes))
        elif name == "global_batch_size":
            problems.append(_explain_batch(state[name], mine[name], world_size))
        else:
            problems.append(f"{name} was {state[name]!r}, here it is {mine[name]!r}")
    if problems:
        raise ResumeError(
            f"the saved state does not belong to this loader: {'; '.join(problems)}. Where that is meant, name the "
            "field: load_state_dict(state, allow_change=[...])"
        )
    return state["epoch"], state["step"]


def _check_shape(state: Mapping[str, Any]) -> None:
    """Exactly the nine keys, each of its type."""
    if not hasattr(state, "keys"):
        raise ResumeError(f"a loader's state is a dict, not {type(state).__name__}")
    version = state.get("version", STATE_VERSION)
    if version != STATE_VERSION:
        raise ResumeError(f"the saved state has version {version}; this tokenriver reads version {STATE_VERSION}")
    missing, unknown = set(STATE_KEYS) - set(state), set(state) - set(STATE_KEYS)
    if missing or unknown:
        what = f"lacks {', '.join(sorted(missing))}" if missing else f"has {', '.join(sorted(map(str, unknown)))}"
        raise ResumeError(f"not the state of a loader: it {what}; its keys are {', '.join(STATE_KEYS)}")
    for name in STATE_KEYS:
        value = state[name]
        good = isinstance(value, str) if name in _TEXT else type(value) is int and value >= 0
        if not good:
            raise ResumeError(f"not the state of a loader: {name} is {value!r}")


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
