"""Ctrl-C and SIGTERM end every command at the same places: as a KeyboardInterrupt in the main thread."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["StoppedError", "Terminated", "stop_of", "terminable"]


class Terminated(KeyboardInterrupt):
    """SIGTERM; whatever lets Ctrl-C through lets this through as well."""


class StoppedError(Exception):
    """A command that was stopped and says how to go on; `code` is the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


def stop_of(stop: KeyboardInterrupt) -> tuple[str, int]:
    """The word and the exit code for what stopped a command."""
    return (
        ("terminated", 128 + signal.SIGTERM) if isinstance(stop, Terminated) else ("interrupted", 128 + signal.SIGINT)
    )


@contextmanager
def terminable() -> Iterator[list[Terminated]]:
    """Turn SIGTERM into Terminated while the context lasts; gives the list of those that came.

    Does nothing outside the main thread, where Python has no signal handlers.
    """
    came: list[Terminated] = []

    def handler(_signal: int, _frame: FrameType | None) -> NoReturn:
        came.append(Terminated())
        raise came[-1]

    if threading.current_thread() is not threading.main_thread():
        yield came
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield came
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
