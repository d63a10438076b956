"""Threads of ours that a build or a corpus has left behind."""

from __future__ import annotations

import gc
import threading
import time

__all__ = ["end_loaders", "threads_left"]

_OF_LOADERS = (
    "tokenriver-prefetch",
    "tokenriver-blocks",
    "tokenriver-documents",
    "tokenriver-cache",
    "tokenriver-ranges",
)
"""These end when their loader is collected: if any are there, they are of a test before."""


def threads_left() -> list[str]:
    """Names of the threads that are there and should not be."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("tokenriver-") and not name.startswith(_OF_LOADERS)]


def end_loaders() -> None:
    """Collect loaders that nobody holds any more, and wait for their threads while the server still answers them: later
    they would try again and again, and close connections that they share with the next test.
    """
    if not _threads_of_loaders():
        return  # a collection takes a second or two in a process that holds vocabularies
    gc.collect()
    until = time.monotonic() + 1
    for thread in _threads_of_loaders():
        thread.join(max(0.0, until - time.monotonic()))


def _threads_of_loaders() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name.startswith(_OF_LOADERS)]
