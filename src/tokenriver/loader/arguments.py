"""What a loader is given or saved: whole numbers (NumPy's become Python's, since states are JSON), and its rank."""

from __future__ import annotations

import logging
import operator
import os
from collections.abc import Mapping
from typing import Any

import numpy as np

from tokenriver.errors import UsageError

__all__ = ["NO_EPOCHS", "flag", "optional_whole", "plain", "ranks", "shown", "whole"]

_LOG = logging.getLogger("tokenriver.loader")

_MOST_DIGITS = 40
"""Of a number; Python itself refuses to read or write 5,000."""

_SHOWN = 200
"""Characters of a value in an error."""

NO_EPOCHS = "a mixture has no epochs: give its sources max_epochs, and leave epochs out"


def shown(value: Any) -> str:
    """A value as an error shows it, on one line, also a number of so many digits that Python will not write it out."""
    try:
        text = repr(value)
    except ValueError:
        return "a number of thousands of digits"
    if "\n" in text:  # an array
        text = " ".join(text.split())
    return text if len(text) <= _SHOWN else f"{text[:_SHOWN]}…"


def whole(name: str, value: Any) -> int:
    """An integer of any library as Python's. UsageError for anything else; True and 1.0 are no numbers of something."""
    try:
        if isinstance(value, bool):
            raise TypeError
        number = operator.index(value)
    except TypeError:
        raise UsageError(f"{name} is a whole number, not {shown(value)}") from None
    if abs(number) >= 10**_MOST_DIGITS:
        raise UsageError(f"{name} has at most {_MOST_DIGITS} digits, unlike {shown(number)}")
    return number


def flag(name: str, value: Any) -> bool:
    """True or False, also NumPy's; UsageError for anything else: "no" would be true."""
    if not isinstance(value, bool | np.bool_):
        raise UsageError(f"{name} is True or False, not {shown(value)}")
    return bool(value)


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


def ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given (also as a text, as the environment has them), else torchrun's RANK and WORLD_SIZE,
    else 0 of 1.

    Raises UsageError for what is no such number, and for a WORLD_SIZE without a RANK: each process would take the rows
    of rank 0. A `world_size` that was given without a rank is as good as rank 0, but worth a word.
    """
    values = []
    for given, name, default in ((rank, "RANK", "0"), (world_size, "WORLD_SIZE", "1")):
        text = os.environ.get(name, default) if given is None else given
        if not isinstance(text, str):
            number = whole(name.lower(), text)
        else:
            number = int(text) if text.strip().isdecimal() and len(text) <= _MOST_DIGITS else -1
            text = text[:_MOST_DIGITS]
        least = 0 if name == "RANK" else 1
        if number < least:
            where = f" ({name} in the environment)" if given is None else ""
            raise UsageError(f"{name.lower()} is an integer of {least} or more, not {shown(text)}{where}")
        values.append(number)
    found, of = values
    if of > 1 and rank is None and "RANK" not in os.environ:
        if world_size is None:
            raise UsageError(
                f"world_size is {of} (WORLD_SIZE in the environment), but which rank this is is not known, and all "
                "would read the same rows; give rank, or begin the processes with torchrun, which sets RANK"
            )
        _LOG.warning("world_size is %d, and no rank was given: this loader reads the rows of rank 0", of)
    if of <= found and rank is None:
        raise UsageError(
            f"rank is in [0, {of}) for a world size of {of}, not {found} (RANK in the environment); torchrun sets RANK "
            "and WORLD_SIZE together, or give rank and world_size"
        )
    return found, of
