"""Warnings as lines on standard error: Python's, what the library logs, and what the Hub's client says on its own."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenriver.storage.paths import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["hub_messages", "logged", "show_warning"]


def show_warning(message: Warning | str, *_where: object, **_more: object) -> None:
    """One line for a warning; takes what `warnings.showwarning` is given."""
    print(f"tokenriver: warning: {shown(' '.join(str(message).splitlines()))}", file=sys.stderr)


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        show_warning(record.getMessage())


@contextmanager
def logged() -> Iterator[None]:
    """While this lasts, what the library logs (a server that is waited for, mostly) is a warning like any other."""
    logger, lines = logging.getLogger("tokenriver"), _Lines(logging.WARNING)
    logger.addHandler(lines)
    try:
        yield
    finally:
        logger.removeHandler(lines)


@contextmanager
def hub_messages(*, quiet: bool) -> Iterator[None]:
    """While this lasts each message of the Hub's client is a line too; with `quiet` only errors are, also our own."""
    from huggingface_hub.utils import get_session  # noqa: F401 - its own handler is set up when it is imported

    theirs, ours = logging.getLogger("huggingface_hub"), logging.getLogger("tokenriver")
    before = theirs.handlers, theirs.level, ours.level
    theirs.handlers = [_Lines()]
    if quiet:
        theirs.setLevel(logging.ERROR)
        ours.setLevel(logging.ERROR)
    try:
        yield
    finally:
        theirs.handlers = before[0]
        theirs.setLevel(before[1])
        ours.setLevel(before[2])
