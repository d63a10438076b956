"""What the Hub's client says on its own (a refused request, how long it waits), in the form of our own warnings."""

from __future__ import annotations

import logging
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

from tokenriver.storage.paths import shown

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["hub_messages"]


class _Lines(logging.Handler):
    def emit(self, record: logging.LogRecord) -> None:
        print(f"tokenriver: warning: {shown(' '.join(record.getMessage().splitlines()))}", file=sys.stderr)


@contextmanager
def hub_messages(*, quiet: bool) -> Iterator[None]:
    """While this lasts each of the client's messages is a line of ours; with `quiet` only its errors are."""
    from huggingface_hub.utils import get_session  # noqa: F401 - its own handler is set up when it is imported

    logger = logging.getLogger("huggingface_hub")
    handlers, level = logger.handlers, logger.level
    logger.handlers = [_Lines()]
    if quiet:
        logger.setLevel(logging.ERROR)
    try:
        yield
    finally:
        logger.handlers = handlers
        logger.setLevel(level)
