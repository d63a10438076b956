"""Batches made ahead of time: one background thread, a fixed ring of buffers, no way to hang."""

from __future__ import annotations

import os
import queue
import threading
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Feed"]

Item = TypeVar("Item")
Slot = TypeVar("Slot")
Filled = TypeVar("Filled")


class Feed(Generic[Item, Slot, Filled]):
    """Fills slots with items in order, as many ahead of the taker as slots are free; without a thread none.

    `take` gives (slot, filled) or None at the end, and raises what `fill` raised; `release` gives a slot back for
    reuse. The thread waits only for a free slot, so `close` (or garbage collection of the feed) always ends it.
    A feed does not survive a fork: `take` in the child raises; the owner makes a new one.
    """

    def __init__(
        self,
        items: Iterator[Item],
        fill: Callable[[Slot, Item], Filled],
        slots: Sequence[Slot],
        *,
        threaded: bool,
    ) -> None:
        self._free: queue.SimpleQueue[Slot | None] = queue.SimpleQueue()
        self._ready: queue.SimpleQueue[tuple[Slot, Filled] | BaseException | None] = queue.SimpleQueue()
        self._items, self._fill = items, fill
        self._ended = False
        self.pid = os.getpid()
        for slot in slots:
            self._free.put(slot)
        self._threaded = threaded
        if self._threaded:
            arguments = (items, fill, self._free, self._ready)
            threading.Thread(target=_produce, args=arguments, name="tokenriver-prefetch", daemon=True).start()

    def take(self) -> tuple[Slot, Filled] | None:
        """The next filled slot, None when the items are used up; raises what went wrong while it was filled."""
        if self._ended:
            return None
        if not self._threaded:
            item = next(self._items, None)
            if item is None:
                self._ended = True
                return None
            slot = self._free.get_nowait()
            assert slot is not None
            try:
                return slot, self._fill(slot, item)
            except BaseException:
                self._ended = True
                raise
        got = self._ready.get()
        if isinstance(got, BaseException):
            self._ended = True
            raise got
        self._ended = got is None
        return got

    def release(self, slot: Slot) -> None:
        """Give a slot back once its content was used."""
        self._free.put(slot)

    def close(self) -> None:
        """Tell the thread to end; at most the slots that are free now are still filled."""
        self._ended = True
        self._free.put(None)

    def __del__(self) -> None:
        if hasattr(self, "pid"):
            self.close()


def _produce(
    items: Iterator[Item],
    fill: Callable[[Slot, Item], Filled],
    free: queue.SimpleQueue[Slot | None],
    ready: queue.SimpleQueue[tuple[Slot, Filled] | BaseException | None],
) -> None:
    """The thread's work. It must not refer to the feed, or the feed would never be collected."""
    try:
        for item in items:
            slot = free.get()
            if slot is None:
                return
            ready.put((slot, fill(slot, item)))
        ready.put(None)
    except BaseException as error:  # handed over whole: the taker raises it
        ready.put(error)
