"""An iteration over a loader: batches from its position on, made in the background, wherever the position is moved."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Generic, TypeVar

from tokenriver.loader.prefetch import Feed

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tokenriver.loader.assembly import Item
    from tokenriver.loader.batch import Batch, Raw
    from tokenriver.loader.rows import Rows
    from tokenriver.loader.train import TrainLoader

__all__ = ["Batches", "Iteration"]

Made = TypeVar("Made")


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
        self._feed: Feed[Item, Rows, tuple[Raw, Made]] | None = None
        self._begin()

    def _begin(self) -> Feed[Item, Rows, tuple[Raw, Made]]:
        if self._feed is not None:
            self._feed.close()
        self._moves = self._loader.moved()
        self._feed = _feed(self._loader, [self._make_buffer() for _ in range(self._n_buffers)], self._finish)
        return self._feed

    def take(self) -> tuple[Rows, Raw, Made]:
        """The next filled buffer and what was made of it, which the loader's position then counts as received.

        Raises StopIteration at the end, and what went wrong in the background.
        """
        feed = self._feed
        if feed is None or self._moves != self._loader.moves or feed.pid != os.getpid():
            feed = self._begin()
        try:
            taken = feed.take()
            if taken is not None:
                self._loader.received(taken[1][0])
        except BaseException:
            self._feed = None  # asked again, it tries again from the same position
            raise
        if taken is None:
            raise StopIteration
        buffer, (raw, made) = taken
        return buffer, raw, made

    def take_whole(self) -> Made:
        """What was made of the next buffer, of memory of its own; the buffer is free again."""
        buffer, _, made = self.take()
        try:
            self.release(buffer)
        except BaseException:  # Ctrl-C: a buffer fewer, so the next batch comes through others
            self._feed = None
            raise
        return made

    def release(self, buffer: Rows) -> None:
        """Let a buffer be filled again. One of an earlier feed joins the present one; nothing refers to it."""
        if self._feed is not None:
            self._feed.release(buffer)


class Batches(Iteration["Batch"]):
    """An iteration over a loader's batches."""

    def __init__(self, loader: TrainLoader) -> None:
        make, arrays = loader.assembly.batch, loader.assembly.pool(ahead=loader.prefetch)
        super().__init__(
            loader,
            loader.assembly.buffer,
            lambda buffer, raw: make(buffer, raw, arrays),
            n_buffers=max(1, loader.prefetch),
        )

    def __iter__(self) -> Batches:
        return self

    def __next__(self) -> Batch:
        return self.take_whole()


def _feed(
    loader: TrainLoader, buffers: Sequence[Rows], finish: Callable[[Rows, Raw], Made]
) -> Feed[Item, Rows, tuple[Raw, Made]]:
    """Batches from the loader's position on: ids read into `buffers` in turn, and what `finish` makes of them.

    Both happen in the background thread, if there is one: converting there, not in the consumer, made a batch of
    64 x 1024 take 120 µs instead of 260 (two busy cores), since the two threads then hardly meet.
    """
    fill, threaded = loader.fill, loader.prefetch > 0
    items = loader.assembly.run(loader.epoch, loader.step, loader.epochs, threaded=threaded)

    def fill_and_finish(buffer: Rows, item: Item) -> tuple[Raw, Made]:
        raw = fill(buffer, item)
        return raw, finish(buffer, raw)

    return Feed(items, fill_and_finish, buffers, threaded=threaded)
