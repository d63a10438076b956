"""Daemon threads that do jobs in the order given: a process that ends does not wait for a store that is slow."""

from __future__ import annotations

import queue
import threading
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Crew"]


class Crew:
    """At most `n` threads, started when there is work. `close` lets them end after what they are doing."""

    def __init__(self, n: int, name: str) -> None:
        self._n, self._name, self._started = n, name, 0
        self._jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None] = queue.SimpleQueue()

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Have a job done; its result, or what it raised, comes with the future."""
        done: Future[Any] = Future()
        self._jobs.put((done, job))
        if self._started < self._n:
            self._started += 1
            threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True).start()
        return done

    def close(self) -> None:
        """Let the threads end."""
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0


def _work(jobs: queue.SimpleQueue[tuple[Future[Any], Callable[[], Any]] | None]) -> None:
    """A thread's work; it knows the queue, not the crew."""
    while (job := jobs.get()) is not None:
        done, action = job
        if not done.set_running_or_notify_cancel():
            continue
        try:
            done.set_result(action())
        except BaseException as error:  # handed over whole: whoever waits raises it
            done.set_exception(error)
