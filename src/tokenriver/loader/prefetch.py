"""Batches made ahead of time: a background thread where the taker leaves it time, a fixed ring of slots, no hang.

Handing a batch from thread to thread costs 30 to 100 µs (two wake-ups, and the interpreter's lock in between), as much
as making a batch of 64 x 1024. So a taker that comes back at once makes its batches itself; the thread works ahead
only for one that spends its time elsewhere, as training does. Where making them hardly needs the interpreter's lock
(`makers=2`), both make batches, at the same time.
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

__all__ = ["MOST_AHEAD", "Feed"]

MOST_AHEAD = 10_000
"""Batches made ahead at most: more are a mistake that would take all memory."""

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

    `take` gives (slot, filled) or None at the end, and raises what `fill(slot, item, ahead)` raised; `ahead` says that
    the taker is busy with something else. `release` gives a slot back for reuse. With `makers=2` taker and thread call
    `fill` at the same time, for different slots; items are drawn by one at a time.

    The thread waits only for a free slot, so `close` (or garbage collection of the feed) always ends it. A feed does
    not survive a fork: `take` in the child would wait; the owner sees `pid` and makes a new one.
    """

    def __init__(
        self,
        items: Iterator[Item],
        fill: Callable[[Slot, Item, bool], Filled],
        slots: Sequence[Slot],
        *,
        threaded: bool,
        makers: int = 1,
    ) -> None:
        self._work: _Work[Item, Slot, Filled] = _Work(items, fill, slots, makers)
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
        self._ended = True  # unless this goes well
        got = self._work.next(ahead=self._is_away())
        self._left = time.perf_counter()
        if isinstance(got, BaseException):
            raise got
        self._ended = got is None
        return got

    def _is_away(self) -> bool:
        """Whether the taker spends its time elsewhere, so that the thread works ahead for it."""
        if self._work.makers > 1:
            return self._work.idle  # all slots were full when it came
        away = min(time.perf_counter() - self._left, _LONGEST)
        self._away += (away - self._away) / _MEMORY
        return self._threaded and self._away > _HAND_OVER

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

    Whoever draws an item holds `drawing`; `mutex` guards the rest: how many are being made, and what is ready, by
    number. `last` says that no further item is drawn: after the end, or an error.
    """

    def __init__(
        self, items: Iterator[Item], fill: Callable[[Slot, Item, bool], Filled], slots: Sequence[Slot], makers: int
    ) -> None:
        self.items, self.fill, self.makers = items, fill, makers
        self.free: deque[Slot] = deque(slots)
        self.worth = max(1, len(self.free) // 2) if makers > 1 else 1  # free slots for which the thread is woken
        self.ready: dict[int, tuple[Slot, Filled] | BaseException | None] = {}
        self.drawing, self.mutex = threading.Lock(), threading.Lock()
        self.drawn = self.taken = self.making = 0
        self.last = self.idle = self.waiting = self.over = False
        self.ahead = makers == 1
        self.wake: queue.SimpleQueue[None] = queue.SimpleQueue()
        self.made: queue.SimpleQueue[None] = queue.SimpleQueue()

    def next(self, *, ahead: bool) -> tuple[Slot, Filled] | BaseException | None:
        """For the taker: what is ready, else made here, or what the thread is making just now."""
        while True:
            with self.mutex:
                self.ahead = ahead
                if self.taken in self.ready:
                    self.taken += 1
                    return self.ready.pop(self.taken - 1)
                busy = self.making >= self.makers or self.last or not self.free
                self.waiting = self.making > 0 and busy
            if self.waiting:
                self.made.get()
            else:
                self.make(taker=True)

    def make(self, *, taker: bool) -> bool:
        """Draw an item, fill a slot with it, and put it among what is ready; False where that is not to be now."""
        with self.drawing:
            with self.mutex:
                if not self._may_make(taker=taker):
                    return False
                number, slot = self.drawn, self.free.popleft()
                self.drawn += 1
                self.making += 1
            item = self._draw()
        made = item if item is None or isinstance(item, BaseException) else self._filled(slot, item)
        with self.mutex:
            self.ready[number] = made
            self.making -= 1
            waiting, self.waiting = self.waiting and not taker, False
        if waiting:
            self.made.put(None)
        if taker and isinstance(made, BaseException) and not isinstance(made, Exception):
            raise made  # Ctrl-C is not to wait for the thread's batch before it
        return True

    def _may_make(self, *, taker: bool) -> bool:
        """Whether taker or thread draws an item now."""
        if taker:
            wanted = self.taken not in self.ready and (bool(self.free) or not self.making)
        else:
            wanted = (self.ahead or self.makers > 1) and bool(self.free)
        wanted = wanted and not self.last and self.making < self.makers
        if not taker:
            self.idle = not wanted
        return wanted

    def _draw(self) -> Item | BaseException | None:
        """The next item, None at the end, or the error met."""
        try:
            item = next(self.items, None)
        except BaseException as error:  # handed over whole: the taker raises it
            self.last = True
            return error
        self.last = item is None
        return item

    def _filled(self, slot: Slot, item: Item) -> tuple[Slot, Filled] | BaseException:
        try:
            return slot, self.fill(slot, item, self.ahead)
        except BaseException as error:  # handed over whole, likewise
            with self.drawing:
                self.last = True
                if isinstance(self.items, Generator):
                    self.items.close()  # nobody goes on with them: what they read ahead is dropped now
            return error

    def go_on(self) -> None:
        """Wake the thread, if it has something to do."""
        if self.idle and (self.ahead or self.makers > 1) and not self.over and len(self.free) >= self.worth:
            self.idle = False
            self.wake.put(None)

    def close(self) -> None:
        """Let the thread end."""
        self.over = True
        self.wake.put(None)


def _work_ahead(work: _Work[Item, Slot, Filled]) -> None:
    """The thread's life: it ends with the items, at an error, or when told."""
    while not work.over and not work.last:
        if not work.make(taker=False):
            work.wake.get()
