"""Batches made ahead of time: a background thread where the taker leaves it time, a fixed ring of slots, no hang.

Handing a batch from thread to thread costs 30 to 100 µs (two wake-ups, and the interpreter's lock in between), as much
as making a batch of 64 x 1024. So a taker that comes back at once makes its batches itself; the thread works ahead
only for one that spends its time elsewhere, as training does.
"""

from __future__ import annotations

import os
import queue
import threading
import time
from collections import deque
from collections.abc import Generator
from typing import TYPE_CHECKING, Generic, TypeVar

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

__all__ = ["Feed"]

Item = TypeVar("Item")
Slot = TypeVar("Slot")
Filled = TypeVar("Filled")

_HAND_OVER = 30e-6
"""Seconds that the taker must be away per batch, on average, for the thread to work ahead."""

_LONGEST = 4e-4
"""Longer absences count as this long. One every 13 batches, between steps of several each, is enough, but not one
alone, since the system may have stopped the taker for another process."""

_MEMORY = 16
"""Batches over which absences are averaged."""


class Feed(Generic[Item, Slot, Filled]):
    """Fills slots with items in order, as many ahead of the taker as slots are free; without a thread none.

    `take` gives (slot, filled) or None at the end, and raises what `fill` raised; `release` gives a slot back for
    reuse. The thread waits only for a free slot, so `close` (or garbage collection of the feed) always ends it.
    A feed does not survive a fork: `take` in the child would wait; the owner sees `pid` and makes a new one.
    """

    def __init__(
        self,
        items: Iterator[Item],
        fill: Callable[[Slot, Item], Filled],
        slots: Sequence[Slot],
        *,
        threaded: bool,
    ) -> None:
        self._work: _Work[Item, Slot, Filled] = _Work(items, fill, slots)
        self._ended = False
        self._threaded = threaded
        self._left = time.perf_counter()
        self._away = 2 * _HAND_OVER  # works ahead for the first dozen batches, until more is known
        self.pid = os.getpid()
        if threaded:
            threading.Thread(target=_work_ahead, args=(self._work,), name="tokenriver-prefetch", daemon=True).start()

    def take(self) -> tuple[Slot, Filled] | None:
        """The next filled slot, None when the items are used up; raises what went wrong while it was filled."""
        if self._ended:
            return None
        if not self._threaded:
            got = self._work.make()
        else:
            away = min(time.perf_counter() - self._left, _LONGEST)
            self._away += (away - self._away) / _MEMORY
            got = self._work.next(ahead=self._away > _HAND_OVER)
            self._left = time.perf_counter()
        if isinstance(got, BaseException):
            self._ended = True
            raise got
        self._ended = got is None
        return got

    def release(self, slot: Slot) -> None:
        """Give a slot back once its content was used."""
        self._work.free.append(slot)
        if self._threaded:
            self._work.go_on()
            self._left = time.perf_counter()  # what the owner did since `take` is no absence

    def close(self) -> None:
        """Tell the thread to end; at most the slot that it is filling now is still filled."""
        self._ended = True
        self._work.close()

    def __del__(self) -> None:
        if hasattr(self, "pid"):
            self.close()


class _Work(Generic[Item, Slot, Filled]):
    """What taker and thread share. It must not refer to the feed, or the feed would never be collected.

    One of the two makes a batch at a time; `mutex` guards who, and what is ready.
    """

    def __init__(self, items: Iterator[Item], fill: Callable[[Slot, Item], Filled], slots: Sequence[Slot]) -> None:
        self.items, self.fill = items, fill
        self.free: deque[Slot] = deque(slots)
        self.ready: deque[tuple[Slot, Filled] | BaseException | None] = deque()
        self.mutex = threading.Lock()
        self.making = self.idle = self.waiting = self.over = False
        self.ahead = True
        self.wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.made: queue.SimpleQueue[None] = queue.SimpleQueue()

    def make(self) -> tuple[Slot, Filled] | BaseException | None:
        """The next item in a free slot, the error met, or None at the end."""
        try:
            item = next(self.items, None)
            if item is None:
                return None
            slot = self.free.popleft()
            return slot, self.fill(slot, item)
        except BaseException as error:  # handed over whole: the taker raises it
            if isinstance(self.items, Generator):
                self.items.close()  # nobody goes on with them: what they read ahead is dropped now
            return error

    def next(self, *, ahead: bool) -> tuple[Slot, Filled] | BaseException | None:
        """For the taker: what is ready, else what the thread is making just now, else made here."""
        while True:
            with self.mutex:
                self.ahead = ahead
                if self.ready:
                    return self.ready.popleft()
                mine = not self.making
                self.making = True
                self.waiting = not mine
            if mine:
                try:
                    return self.make()
                finally:
                    self.making = False
            self.made.get()

    def go_on(self) -> None:
        """Wake the thread, if it has something to do."""
        if self.idle and self.ahead and not self.over:
            self.idle = False
            self.wake.put(None)

    def close(self) -> None:
        """Let the thread end."""
        self.over = True
        self.wake.put(None)

    def claim(self) -> bool:
        """For the thread: whether there is a batch for it to make now."""
        with self.mutex:
            found = self.ahead and not self.making and bool(self.free)
            self.making |= found
            self.idle = not found
            return found

    def deliver(self, made: tuple[Slot, Filled] | BaseException | None) -> None:
        """What the thread made; wakes a taker that waits for it."""
        with self.mutex:
            self.ready.append(made)
            self.making = False
            waiting, self.waiting = self.waiting, False
        if waiting:
            self.made.put(None)


def _work_ahead(work: _Work[Item, Slot, Filled]) -> None:
    """The thread's life: it ends with the items, at an error, or when told."""
    while not work.over:
        if not work.claim():
            work.wake.get()
            continue
        made = work.make()
        work.deliver(made)
        if made is None or isinstance(made, BaseException):
            return
        del made  # the slot's content is the taker's now
