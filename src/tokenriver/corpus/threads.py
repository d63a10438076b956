"""Threads that work ahead of whoever reads, under one lock with it, and end when it wants no more.

What they do and how far ahead they may be is their owner's (ahead.py, apart.py); beginning and ending are alike.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["JoinedThread", "ThreadsAhead"]


class JoinedThread(threading.Thread):
    """A daemon thread that a join waits for, also one that follows a join which Ctrl-C or SIGTERM interrupted.

    `threading.Thread.join` takes a thread for ended once an exception came while it waited (CPython 3.11 does), and the
    clean-up that follows would run beside it.
    """

    def __init__(self, run: Callable[[], None], *, name: str) -> None:
        super().__init__(name=name, daemon=True)
        self._work = run
        self._ended = threading.Event()

    def run(self) -> None:
        """Do the work."""
        try:
            self._work()
        finally:
            self._ended.set()

    def join(self, timeout: float | None = None) -> None:
        """Wait until it has ended."""
        if self._ended.wait(timeout):
            super().join(timeout)


class ThreadsAhead:
    """`n` threads that each call `run`. `news` guards all that they share with their owner, and tells of changes.

    `run` must return soon after `stopped` is set, and look at it whenever it was woken.
    """

    def __init__(self, run: Callable[[], None], n: int, *, name: str) -> None:
        self.news = threading.Condition()
        self.stopped = False
        self._threads = [JoinedThread(run, name=f"{name}_{i}") for i in range(n)]

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """End the threads, each after the piece that it is at, whether they were begun or not."""
        with self.news:
            self.stopped = True
            self.news.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()
