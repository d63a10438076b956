"""Documents to shards: read, encode, cut and write at the same time, in constant memory, and in one order.

One thread reads, `workers` threads parse and encode blocks or stand for those of other processes that do (lanes.py),
the caller's thread cuts them in order, one thread writes. The bytes depend on none of that: see docs/determinism.md.
"""

from __future__ import annotations

import queue
import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING, TypeVar

from tokenriver.corpus.threads import JoinedThread

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable
    from concurrent.futures import Future

__all__ = ["in_order", "read_ahead"]

A = TypeVar("A")
B = TypeVar("B")


def read_ahead(items: Iterable[A], *, depth: int) -> Generator[A]:
    """The same items, taken from `items` in a thread of its own, at most `depth` waiting; its errors come through.

    Closing the generator ends the thread after the item that it is at. No reference to an item is kept once it is
    given: one may be hundreds of megabytes.
    """
    waiting: queue.Queue[list[A] | BaseException | None] = queue.Queue(maxsize=depth)
    stopped = threading.Event()

    def put(entry: list[A] | BaseException | None) -> None:
        while not stopped.is_set():
            with suppress(queue.Full):
                waiting.put(entry, timeout=0.1)
                return

    def run() -> None:
        try:
            for item in items:
                box = [item]
                del item
                put(box)
                del box
                if stopped.is_set():
                    return
            put(None)
        except BaseException as error:  # raised again by the consumer
            put(error)

    thread = JoinedThread(run, name="tokenriver-reader")
    thread.start()
    try:
        while (entry := waiting.get()) is not None:
            if isinstance(entry, BaseException):
                raise entry
            yield entry.pop()
    finally:
        stopped.set()
        thread.join()


def in_order(
    function: Callable[[list[A]], B],
    items: Iterable[A],
    *,
    workers: int,
    weight: Callable[[A], int],
    budget: int,
    begin: Callable[[], None] | None = None,
    end: Callable[[], None] | None = None,
) -> Generator[B]:
    """function([item]) for every item, computed by `workers` threads and given in the items' order.

    Under way are at most workers + 2 items, and of a total weight within `budget` unless one alone exceeds it, so
    memory is bounded whatever the consumer does. The first error in the items' order is raised, after the results
    of the items before it were given. The list that a function gets holds the only reference to the item: by taking it
    out in the call where it is last needed (`parse(box.pop())`) it lets go of what may be hundreds of megabytes.
    Each thread calls `begin` first; `end` is called when no result is wanted any more, before the threads are waited
    for.
    """
    pending: deque[tuple[int, Future[B]]] = deque()
    under_way = 0
    with ThreadPoolExecutor(workers, thread_name_prefix="tokenriver-worker", initializer=begin) as pool:
        try:
            for item in items:
                size = weight(item)
                while pending and (len(pending) >= workers + 2 or under_way + size > budget):
                    under_way -= pending[0][0]
                    yield pending.popleft()[1].result()
                box = [item]
                del item
                pending.append((size, pool.submit(function, box)))
                under_way += size
            while pending:
                yield pending.popleft()[1].result()
        finally:
            for _, future in pending:
                future.cancel()
            if end is not None:
                end()
