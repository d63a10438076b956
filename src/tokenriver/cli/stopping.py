"""Ctrl-C and SIGTERM end every command at the same places: as a KeyboardInterrupt in the main thread."""

from __future__ import annotations

import signal
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, NoReturn

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import FrameType

__all__ = ["StoppedError", "Terminated", "at_once", "going_on", "how_to_go_on", "stop_of", "terminable"]


class Terminated(KeyboardInterrupt):
    """SIGTERM; whatever lets Ctrl-C through lets this through as well."""


class StoppedError(Exception):
    """A command that was stopped and says how to go on; `code` is the exit code."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


_came: list[Terminated] = []
"""Those of the command at hand: the parser and Ray raise a KeyboardInterrupt of their own instead."""


def stop_of(stop: KeyboardInterrupt) -> tuple[str, int]:
    """The word and the exit code for what stopped a command."""
    if _came or isinstance(stop, Terminated):
        return "terminated", 128 + signal.SIGTERM
    return "interrupted", 128 + signal.SIGINT


@contextmanager
def at_once() -> Iterator[None]:
    """Ctrl-C and SIGTERM end the process itself while the context lasts, without a word.

    For compiled code that runs for minutes and lets no handler run; only where nothing is left behind.
    """
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = {kind: signal.signal(kind, signal.SIG_DFL) for kind in (signal.SIGINT, signal.SIGTERM)}
    try:
        yield
    finally:
        for kind, handler in before.items():
            signal.signal(kind, handler if handler is not None else signal.SIG_DFL)


@contextmanager
def going_on(how: str = "the same command goes on from the last finished shard") -> Iterator[None]:
    """Have a command that is stopped say how to go on."""
    try:
        yield
    except KeyboardInterrupt as stop:
        word, code = stop_of(stop)
        raise StoppedError(f"{word}; {how}", code) from None


def how_to_go_on(*, overwrite: bool, anew: bool = False) -> str:
    """What the same command does after a stop; `anew` where what was finished cannot be gone on with."""
    kept = "what --overwrite was to replace is still there, and " if overwrite else ""
    return f"{kept}the same command {'begins anew' if anew else 'goes on from the last finished shard'}"


@contextmanager
def terminable() -> Iterator[None]:
    """Turn SIGTERM into Terminated while the context lasts.

    Does nothing outside the main thread, where Python has no signal handlers.
    """

    def handler(_signal: int, _frame: FrameType | None) -> NoReturn:
        _came.append(Terminated())
        raise _came[-1]

    _came.clear()
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    before = signal.signal(signal.SIGTERM, handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before if before is not None else signal.SIG_DFL)
