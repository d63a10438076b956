"""Whole numbers that a loader is given or saved: NumPy's are taken too and become Python's, since states are JSON."""

from __future__ import annotations

import operator
from collections.abc import Mapping
from typing import Any

from tokenriver.errors import UsageError

__all__ = ["optional_whole", "plain", "whole"]


def whole(name: str, value: Any) -> int:
    """An integer of any library as Python's. UsageError for anything else; True and 1.0 are no numbers of something."""
    try:
        if isinstance(value, bool):
            raise TypeError
        return operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is a whole number, not {value!r}") from None


def optional_whole(name: str, value: Any) -> int | None:
    """The same, where None is a choice."""
    return None if value is None else whole(name, value)


def plain(state: Any) -> Any:
    """A saved state with Python's integers where it came back with another library's; what is none stays as it is."""
    if isinstance(state, Mapping):
        return {key: plain(value) for key, value in state.items()}
    if isinstance(state, (bool, str, float, list, tuple, type(None))):
        return state
    try:
        return operator.index(state)
    except TypeError:
        return state
