"""SHA-256 of input files by reads of their own, several files at a time, a little ahead of whoever reads the documents.

One file's SHA-256 goes as fast as one core (1.4 GB/s) and no faster. Where many workers read many files, the files are
therefore hashed apart from being read; the second reading finds in memory what the first one brought.
"""

from __future__ import annotations

import hashlib
from collections import deque
from typing import TYPE_CHECKING, Any, NamedTuple

from tokenriver.corpus.threads import ThreadsAhead
from tokenriver.corpus.unchanged import modified_ns, require_unchanged
from tokenriver.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from tokenriver.corpus.sources import Source

__all__ = ["ApartHasher", "Digest", "files_apart", "threads_apart"]

_ALONE = 8
"""Workers up to which one thread hashes all that is read: at 8 core-ms a MB it keeps up with 11."""

_LEAST_BYTES = 16 << 20
"""Of a file that is hashed apart. Smaller ones are hashed from the bytes that are read, as all are with few workers."""

_READ_BYTES = 1 << 20
_MARK_BYTES = 4 << 20
"""Between two places of a file that its hash up to there is kept of."""


def files_apart(sources: Sequence[Source], *, workers: int) -> list[int]:
    """Indices of the sources that are hashed apart: none with few workers, or where there is only one to hash.

    What is behind a URL is not, since it would be fetched twice.
    """
    if workers <= _ALONE:
        return []
    found = [i for i, s in enumerate(sources) if s.remote is None and (s.n_bytes or 0) >= _LEAST_BYTES]
    return found if len(found) > 1 else []


def threads_apart(workers: int) -> int:
    """How many files are hashed at a time: one for each 8 workers, at 0.75 of 8 core-ms a MB."""
    return max(2, -(-workers // 8))


class Digest(NamedTuple):
    """The SHA-256 in hex of the first `n_bytes` of a file, all of it where `whole`."""

    n_bytes: int
    sha256: str
    whole: bool


class ApartHasher:
    """Hashes the sources of `indices` in `threads` threads, in order, at most that many files ahead of `reading`.

    `heads` says how a file must begin (bytes, SHA-256), by index; `changed` makes the error where it does not. What
    the threads meet is raised in whoever asks for anything.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        indices: Sequence[int],
        *,
        threads: int,
        heads: Mapping[int, tuple[int, str]],
        changed: Callable[[int], Exception],
    ) -> None:
        self.indices = frozenset(indices)
        self._sources = sources
        self._left = deque(sorted(indices))
        self._ahead = threads
        self._heads = heads
        self._changed_error = changed
        self._modified = {i: modified_ns(sources[i]) for i in indices}
        self._reading = 0
        self._places: dict[int, deque[tuple[int, Any]]] = {i: deque() for i in indices}
        self._whole: dict[int, Digest] = {}
        self._error: BaseException | None = None
        self._threads = ThreadsAhead(self._run, threads, name="tokenriver-hash-apart")
        self._news = self._threads.news

    def start(self) -> None:
        """Begin."""
        self._threads.start()

    def stop(self) -> None:
        """End the threads, whatever they are at."""
        self._threads.stop()

    def reading(self, index: int) -> None:
        """Documents of a source are being read."""
        if self._error is not None:
            raise self._error
        if index > self._reading:
            with self._news:
                self._reading = index
                self._news.notify_all()

    def whole(self, index: int) -> Digest:
        """The SHA-256 of a file, once it is known. IntegrityError where the file changed since it was found."""
        self.reading(index)
        with self._news:
            while index not in self._whole:
                self._wait()
        require_unchanged([self._sources[index]], [self._modified[index]])
        return self._whole[index]

    def up_to(self, index: int, n_bytes: int) -> Digest:
        """The SHA-256 of a file's first bytes: `n_bytes` or a little more. Those before will not be asked for again."""
        self.reading(index)
        places = self._places[index]
        with self._news:
            while index not in self._whole and not (places and places[-1][0] >= n_bytes):
                self._wait()
            while places and places[0][0] < n_bytes:
                places.popleft()
            if places:
                return Digest(places[0][0], places[0][1].hexdigest(), False)
            return self._whole[index]

    def _wait(self) -> None:
        if self._error is None:
            self._news.wait()
        if self._error is not None:
            raise self._error

    def _run(self) -> None:
        try:
            while (index := self._next()) is not None:
                self._hash(index)
        except BaseException as error:  # raised again by whoever asks
            with self._news:
                self._error = self._error or error
                self._news.notify_all()

    def _next(self) -> int | None:
        with self._news:
            while self._left and not self._threads.stopped and self._left[0] > self._reading + self._ahead:
                self._news.wait()
            return None if self._threads.stopped or self._error is not None or not self._left else self._left.popleft()

    def _hash(self, index: int) -> None:
        digest, n_bytes, noted = hashlib.sha256(), 0, 0
        head, expected = self._heads.get(index, (0, ""))
        for chunk in self._chunks(self._sources[index]):
            if self._threads.stopped:
                return
            if n_bytes < head <= n_bytes + len(chunk):
                digest.update(chunk[: head - n_bytes])
                if digest.hexdigest() != expected:
                    raise self._changed_error(index)
                digest.update(chunk[head - n_bytes :])
            else:
                digest.update(chunk)
            n_bytes += len(chunk)
            if n_bytes - noted >= _MARK_BYTES:
                noted = n_bytes
                with self._news:
                    self._places[index].append((n_bytes, digest.copy()))
                    self._news.notify_all()
        if n_bytes < head:
            raise self._changed_error(index)
        with self._news:
            self._whole[index] = Digest(n_bytes, digest.hexdigest(), True)
            self._news.notify_all()

    def _chunks(self, source: Source) -> Iterator[memoryview]:
        buffer, n_bytes = bytearray(_READ_BYTES), 0
        view = memoryview(buffer)
        try:
            with open(source.file, "rb", buffering=0) as file:
                while n := file.readinto(buffer):
                    n_bytes += n
                    yield view[:n]
        except OSError as error:
            raise CorpusError(f"{source}: reading failed at byte {n_bytes:,} ({error.strerror})") from error
