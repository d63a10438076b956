"""Threads of ours that a build or a corpus has left behind."""

from __future__ import annotations

import threading

__all__ = ["threads_left"]

_OF_LOADERS = ("tokenriver-prefetch", "tokenriver-documents", "tokenriver-cache", "tokenriver-ranges")
"""These end when their loader is collected: if any are there, they are of a test before."""


def threads_left() -> list[str]:
    """Names of the threads that are there and should not be."""
    names = [thread.name for thread in threading.enumerate()]
    return [name for name in names if name.startswith("tokenriver-") and not name.startswith(_OF_LOADERS)]
