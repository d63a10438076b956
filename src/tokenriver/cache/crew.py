"""Daemon threads that do jobs in the order given: a process that ends does not wait for a store that is slow."""

from __future__ import annotations

import atexit
import queue
import threading
import time
import weakref
from concurrent.futures import Future
from typing import TYPE_CHECKING, Any, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["Crew", "at_exit"]

_Job: TypeAlias = "tuple[Future[Any], Callable[[], Any]]"


class Crew:
    """At most `n` threads, started when there is work. `close` lets them end after what they are doing."""

    def __init__(self, n: int, name: str) -> None:
        self._n, self._name, self._started = n, name, 0
        self._jobs: queue.SimpleQueue[_Job | None] = queue.SimpleQueue()

    def submit(self, job: Callable[[], Any]) -> Future[Any]:
        """Have a job done; its result, or what it raised, comes with the future."""
        done: Future[Any] = Future()
        self._jobs.put((done, job))
        if self._started < self._n:
            self._started += 1
            thread = threading.Thread(target=_work, args=(self._jobs,), name=self._name, daemon=True)
            thread.start()
            at_exit(self.close, thread)
        return done

    def close(self) -> None:
        """Let the threads end."""
        for _ in range(self._started):
            self._jobs.put(None)
        self._started = 0


def at_exit(stop: Callable[[], Any], thread: threading.Thread) -> None:
    """When the process ends, call `stop` and give the thread a moment: the client's loop dies more quietly then."""
    if not _TO_STOP:
        atexit.register(_stop_all)
    for known in [known for known in _TO_STOP if not known.is_alive()]:
        del _TO_STOP[known]
    _TO_STOP[thread] = weakref.WeakMethod(stop)


_TO_STOP: dict[threading.Thread, weakref.WeakMethod[Any]] = {}
_MOMENT = 1.0


def _stop_all() -> None:
    for stop in list(_TO_STOP.values()):
        if (method := stop()) is not None:
            method()
    until = time.monotonic() + _MOMENT
    for thread in list(_TO_STOP):
        thread.join(max(0.0, until - time.monotonic()))


def _work(jobs: queue.SimpleQueue[_Job | None]) -> None:
    """A thread's work; it knows the queue, not the crew, and while it waits nothing of the job before."""
    while (job := jobs.get()) is not None:
        _do(*job)
        del job


def _do(done: Future[Any], action: Callable[[], Any]) -> None:
    """Do one job, unless it was cancelled."""
    if done.set_running_or_notify_cancel():
        try:
            done.set_result(action())
        except BaseException as error:  # handed over whole: whoever waits raises it
            done.set_exception(error)
