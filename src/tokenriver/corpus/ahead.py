"""Compressed files that are read while the ones before them are: one stream decompresses no faster than one core does.

The segments of each are given in its turn; what waits for it is bounded in bytes, for all files together.
"""

from __future__ import annotations

import threading
from collections import deque
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterable, Sequence

    from tokenriver.corpus.blocks import Segment

__all__ = ["FilesAhead", "files_ahead"]

_FEW = 4
"""Workers up to which nothing is read ahead: decompressing is a tenth to a third of all the work."""

_BYTES_A_WORKER = 32 << 20

_FILES_A_THREAD = 16
"""Files read whole that wait for their turn, at most."""


def files_ahead(workers: int) -> tuple[int, int]:
    """How many files are read ahead, and the bytes that may wait for their turn.

    gzip takes 3.5 and zstd 1 core-ms a MB of 8. A file of more text than its share of the bytes waits for its turn.
    """
    return (0, 0) if workers <= _FEW else (-(-workers // 4), workers * _BYTES_A_WORKER)


class FilesAhead:
    """Reads the sources of `indices`, each by `cut` in some thread of `n_files`, before their turn.

    `segments` must be asked for the indices in order. Errors come where the segment would have come.
    """

    def __init__(
        self, indices: Sequence[int], cut: Callable[[int], Iterable[Segment]], *, n_files: int, n_bytes: int
    ) -> None:
        self.indices = frozenset(indices)
        self._left = deque(sorted(indices))
        self._cut = cut
        self._most_files = _FILES_A_THREAD * n_files
        self._budget = n_bytes
        self._held = 0
        self._turn = -1
        self._waiting: dict[int, deque[Segment | BaseException | None]] = {}
        self._news = threading.Condition()
        self._stopped = False
        self._threads = [
            threading.Thread(target=self._run, name=f"tokenriver-ahead_{i}", daemon=True) for i in range(n_files)
        ]

    def segments(self, index: int) -> Generator[Segment]:
        """What `cut` gives for a source; meanwhile those after it are begun."""
        with self._news:
            begun, self._turn = self._turn >= 0, index
            self._news.notify_all()
        if not begun:
            for thread in self._threads:
                thread.start()
        while True:
            with self._news:
                while not self._waiting.get(index):
                    self._news.wait()
                one = self._waiting[index].popleft()
                if one is None or isinstance(one, BaseException):
                    del self._waiting[index]
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
        with self._news:
            self._stopped = True
            self._news.notify_all()
        for thread in self._threads:
            if thread.ident is not None:
                thread.join()

    def _next(self) -> int | None:
        with self._news:
            while self._left and not self._stopped and len(self._waiting) >= self._most_files:
                self._news.wait()
            if self._stopped or not self._left:
                return None
            self._waiting[self._left[0]] = deque()
            return self._left.popleft()

    def _run(self) -> None:
        while (index := self._next()) is not None:
            last: BaseException | None = None
            try:
                for segment in self._cut(index):
                    if not self._put(index, segment):
                        return
            except BaseException as error:  # raised again by whoever takes the segments
                last = error
            with self._news:
                self._waiting[index].append(last)
                self._news.notify_all()

    def _put(self, index: int, segment: Segment) -> bool:
        """Let a segment wait, once there is room or its file has its turn; False when none is wanted any more."""
        waiting = self._waiting[index]
        with self._news:
            while not self._stopped and not (
                self._held + segment.n_bytes <= self._budget or (index == self._turn and not waiting)
            ):
                self._news.wait()
            self._held += segment.n_bytes
            waiting.append(segment)
            self._news.notify_all()
            return not self._stopped
