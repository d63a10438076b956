"""Files that are read while the ones before them are: one core decompresses only so much.

The segments of each are given in its turn; what waits for it is bounded in bytes, for all files together. A Parquet
file has parts (runs of row groups), which are read beside each other as files are.
"""

from __future__ import annotations

from collections import deque
from functools import partial
from typing import TYPE_CHECKING

from tokenriver.corpus.threads import ThreadsAhead

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence
    from typing import NoReturn

    from tokenriver.corpus.blocks import Segment

    Part = Callable[[], Iterable[Segment]]

__all__ = ["FilesAhead", "files_ahead"]

_FEW = 4
"""Workers up to which nothing is read ahead: decompressing is a tenth to a third of all the work."""

_BYTES_A_WORKER = 32 << 20

_PARTS_A_THREAD = 16
"""Files or parts read whole that wait for their turn, at most."""


def files_ahead(workers: int) -> tuple[int, int]:
    """How many files are read ahead, and the bytes that may wait for their turn.

    gzip takes 3.5, Parquet 1.5 and zstd 1 core-ms a MB of 8. A file (or part) of more text than its share of the bytes
    waits for its turn.
    """
    return (0, 0) if workers <= _FEW else (-(-workers // 4), workers * _BYTES_A_WORKER)


class FilesAhead:
    """Reads the sources of `indices`, each in its `parts`, every part in some thread of `n_threads`, before its turn.

    `segments` must be asked for the indices in order. Errors come where the segment would have come.
    """

    def __init__(
        self, indices: Sequence[int], parts: Callable[[int], Sequence[Part]], *, n_threads: int, n_bytes: int
    ) -> None:
        self.indices = frozenset(indices)
        self._left = deque(sorted(indices))
        self._parts = parts
        self._unread: deque[tuple[tuple[int, int], Part]] = deque()  # of the source before those left
        self._n_parts: dict[int, int] = {}
        self._most_parts = _PARTS_A_THREAD * n_threads
        self._budget = n_bytes
        self._held = 0
        self._turn = (-1, 0)
        self._begun = False
        self._waiting: dict[tuple[int, int], deque[Segment | BaseException | None]] = {}
        self._threads = ThreadsAhead(self._run, n_threads, name="tokenriver-ahead")
        self._news = self._threads.news

    def segments(self, index: int) -> Generator[Segment]:
        """All segments of a source; meanwhile those after it are begun."""
        if not self._begun:
            self._begun = True
            self._threads.start()
        with self._news:
            while index not in self._n_parts:
                self._news.wait()
        for part in range(self._n_parts[index]):
            yield from self._segments((index, part))

    def _segments(self, key: tuple[int, int]) -> Generator[Segment]:
        with self._news:
            self._turn = key
            self._news.notify_all()
        while True:
            with self._news:
                while not self._waiting.get(key):
                    self._news.wait()
                one = self._waiting[key].popleft()
                if one is None or isinstance(one, BaseException):
                    del self._waiting[key]
                else:
                    self._held -= one.n_bytes
                self._news.notify_all()
            if one is None:
                return
            if isinstance(one, BaseException):
                raise one
            yield one
            del one

    def close(self) -> None:
        """End the threads after the piece that each is at."""
        self._threads.stop()

    def _next(self) -> tuple[tuple[int, int], Part] | None:
        with self._news:
            while not self._threads.stopped and len(self._waiting) >= self._most_parts:
                self._news.wait()
            while not self._threads.stopped and not self._unread and self._left:
                self._divide(self._left.popleft())
            if self._threads.stopped or not self._unread:
                return None
            key, part = self._unread.popleft()
            self._waiting[key] = deque()
            return key, part

    def _divide(self, index: int) -> None:
        """Find the parts of a source, the lock being held: a few milliseconds, for one file after the other."""
        try:
            parts = list(self._parts(index))
        except Exception as error:  # raised again where its first segment would come
            parts = [partial(_fail, error)]
        self._unread += [((index, k), part) for k, part in enumerate(parts)]
        self._n_parts[index] = len(parts)
        self._news.notify_all()

    def _run(self) -> None:
        while (found := self._next()) is not None:
            key, part = found
            last: BaseException | None = None
            try:
                for segment in part():
                    if not self._put(key, segment):
                        return
            except BaseException as error:  # raised again by whoever takes the segments
                last = error
            with self._news:
                self._waiting[key].append(last)
                self._news.notify_all()

    def _put(self, key: tuple[int, int], segment: Segment) -> bool:
        """Let a segment wait, once there is room or its part has its turn; False when none is wanted any more."""
        waiting = self._waiting[key]
        with self._news:
            while not self._threads.stopped and not (
                self._held + segment.n_bytes <= self._budget or (key == self._turn and not waiting)
            ):
                self._news.wait()
            self._held += segment.n_bytes
            waiting.append(segment)
            self._news.notify_all()
            return not self._threads.stopped


def _fail(error: Exception) -> NoReturn:
    raise error
