"""An iteration over a loader: batches from its position on, made in the background, wherever the position is moved."""

from __future__ import annotations

import os
from collections import deque
from typing import TYPE_CHECKING, Any, Generic, TypeVar

from tokenriver.loader.prefetch import Feed
from tokenriver.loader.step_groups import MORE_GROUPS, StepGroups, steps_together

if TYPE_CHECKING:
    from collections.abc import Callable

    import numpy as np

    from tokenriver.loader.assembly import Item
    from tokenriver.loader.batch import Batch, Raw
    from tokenriver.loader.rows import RowGroup, Rows, Steps
    from tokenriver.loader.train import TrainLoader

__all__ = ["Batches", "Iteration", "WholeBatches"]

Made = TypeVar("Made")
Filled = tuple["Rows", "Raw | Exception", Made | None]
"""A buffer, what it holds or what went wrong, and what was made of it already."""


class Iteration(Generic[Made]):
    """An iteration over a loader. It begins anew from the loader's position when that was moved, when another
    iteration took over, or in a forked child, where the thread is missing."""

    def __init__(
        self,
        loader: TrainLoader,
        make_buffer: Callable[[], Rows],
        finish: Callable[[Rows, Raw], Made],
        *,
        n_buffers: int,
    ) -> None:
        self._loader, self._make_buffer, self._finish, self._n_buffers = loader, make_buffer, finish, n_buffers
        self._feed: Feed[Any, Any, Any] | None = None
        self._begin()

    def _begin(self) -> Feed[Any, Any, Any]:
        feed, self._feed = self._feed, None  # interrupted from here on, the next call begins anew again
        if feed is not None:
            feed.close()
        self._moves = self._loader.moved(self)
        self._feed = self._new_feed()
        return self._feed

    def stop(self) -> None:
        """End the thread; asked for the next batch, the iteration begins anew."""
        feed, self._feed = self._feed, None
        if feed is not None:
            feed.close()

    def _new_feed(self) -> Feed[Any, Any, Any]:
        """Batches from the loader's position on: ids read into buffers in turn, and what `finish` makes of them.

        Both happen in the background thread, if there is one: converting there, not in the consumer, made a batch of
        64 x 1024 take 120 µs instead of 260 (two busy cores), since the two threads then hardly meet.
        """
        loader, fill, finish = self._loader, self._loader.fill, self._finish
        threaded = loader.prefetch > 0
        items = loader.assembly.run(loader.epoch, loader.step, loader.epochs, threaded=threaded)

        def fill_and_finish(buffer: Rows, item: Item, _ahead: bool) -> tuple[Raw, Made]:
            raw = fill(buffer, item)
            return raw, finish(buffer, raw)

        buffers = [self._make_buffer() for _ in range(self._n_buffers)]
        return Feed(items, fill_and_finish, buffers, threaded=threaded)

    def _running(self) -> Feed[Any, Any, Any]:
        """The feed from the loader's position on."""
        feed = self._feed
        if feed is None or self._moves != self._loader.moves or feed.pid != os.getpid():
            feed = self._begin()
        return feed

    def take(self) -> tuple[Rows, Raw, Made]:
        """The next filled buffer and what was made of it; the loader counts it when it is told that it was `received`.

        Raises StopIteration at the end, and what went wrong in the background.
        """
        feed = self._running()
        try:
            taken = feed.take()
        except BaseException:
            self._feed = None  # asked again, it tries again from the same position
            feed.close()
            raise
        if taken is None:
            raise StopIteration
        buffer, (raw, made) = taken
        return buffer, raw, made

    def release(self, buffer: Any) -> None:
        """Let a buffer be filled again. One of an earlier feed joins the present one; nothing refers to it."""
        feed = self._feed
        if feed is not None:
            feed.release(buffer)


class WholeBatches(Iteration[Made]):
    """An iteration over what `convert` makes of a loader's batches, in memory of its own.

    Where reading several batches together is a gain (step_groups.py), buffers come in groups, and two fill them: the
    thread, and a taker that would wait for it. The taker makes the batches then, unless it is away; one by one.
    """

    def __init__(
        self, loader: TrainLoader, convert: Callable[[Batch], Made], *, dtype: np.dtype[Any] | None = None
    ) -> None:
        assembly = loader.assembly
        self._together = steps_together(assembly) if loader.prefetch else 0
        ahead = (loader.prefetch + MORE_GROUPS) * self._together or loader.prefetch
        arrays, make = assembly.pool(dtype, ahead=ahead), assembly.batch
        self._group: RowGroup | None = None
        self._filled: deque[Filled[Made]] = deque()
        super().__init__(
            loader,
            assembly.buffer,
            lambda buffer, raw: convert(make(buffer, raw, arrays)),
            n_buffers=max(1, loader.prefetch),
        )

    def _new_feed(self) -> Feed[Any, Any, Any]:
        self._group = None
        self._filled.clear()
        if not self._together:
            return super()._new_feed()
        groups, finish = StepGroups(self._loader.assembly, self._together), self._finish

        def fill(group: RowGroup, steps: Steps, ahead: bool) -> deque[Filled[Made]]:
            filled: deque[Filled[Made]] = deque()
            try:
                for buffer, raw in groups.fill(group, steps):
                    filled.append((buffer, raw, finish(buffer, raw) if ahead else None))
            except Exception as error:
                if not filled:
                    raise
                filled.append((group.whole, error, None))  # raised when its step is taken
            return filled

        steps = groups.run(self._loader.epoch, self._loader.step, self._loader.epochs)
        buffers = [groups.buffers() for _ in range(self._n_buffers + MORE_GROUPS)]
        return Feed(steps, fill, buffers, threaded=True, makers=2)

    def __iter__(self) -> WholeBatches[Made]:
        return self

    def __next__(self) -> Made:
        if not self._together:
            return self._take_single()
        feed = self._running()
        try:
            if not self._filled:
                self._take_group(feed)
            buffer, raw, ready = self._filled.popleft()
            if isinstance(raw, Exception):
                raise raw
            made = self._finish(buffer, raw) if ready is None else ready
            self._loader.received(raw)
        except StopIteration:
            raise
        except BaseException:
            self._feed = None  # asked again, it tries again from the same position
            feed.close()
            raise
        return made

    def _take_single(self) -> Made:
        """What was made of the next buffer, which is free again."""
        buffer, raw, made = self.take()
        try:
            self.release(buffer)
            self._loader.received(raw)
        except BaseException:  # Ctrl-C: the batch was not received
            self._feed = None
            raise
        return made

    def _take_group(self, feed: Feed[Any, Any, Any]) -> None:
        """Give the last group of buffers back, and take the next. Raises StopIteration at the end."""
        if self._group is not None:
            group, self._group = self._group, None
            feed.release(group)
        taken = feed.take()
        if taken is None:
            raise StopIteration
        self._group, self._filled = taken


class Batches(WholeBatches["Batch"]):
    """An iteration over a loader's batches."""

    def __init__(self, loader: TrainLoader) -> None:
        super().__init__(loader, lambda batch: batch)
