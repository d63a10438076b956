"""SHA-256 of the inputs from the bytes that are read anyway, in a thread of its own: no file is read twice for it."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenriver.errors import CorpusError, IntegrityError
from tokenriver.files import sha256_file

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from types import TracebackType

    from tokenriver.corpus.sources import Source

__all__ = ["InputFacts", "InputHasher", "hash_source"]


_BATCH_BYTES = 1 << 20
_BATCH_CHUNKS = 4096
"""Handed to the thread together: with small files, waking it for each would cost more than the hashing."""


@dataclass(frozen=True, slots=True)
class InputFacts:
    """Size of an input file in bytes and its SHA-256 in hex (of the file as it is, compressed or not)."""

    n_bytes: int
    sha256: str


def hash_source(source: Source) -> InputFacts:
    """Hash a source's file by reading it. IntegrityError when its size is not what it was when it was found."""
    try:
        digest = sha256_file(source.path)
        n_bytes = source.path.stat().st_size
    except OSError as error:
        raise CorpusError(f"{source}: cannot be read ({error.strerror})") from error
    if n_bytes != source.n_bytes:
        raise IntegrityError(
            f"{source}: {n_bytes:,} bytes, but {source.n_bytes or 0:,} when it was found; it changes while it is read: "
            f"wait until it is complete and start again"
        )
    return InputFacts(n_bytes, digest)


class InputHasher:
    """Hashes what `read_blocks(..., on_raw=hasher.tap)` reads.

        with InputHasher(sources) as hasher:
            for raw in read_blocks(sources, options, on_raw=hasher.tap): ...
            facts = hasher.finish()        # list[InputFacts], one a source

    `known` holds facts found earlier (a journal's), by source index. The queue holds at most `queue_bytes`; a tap
    that finds it full waits. What the tap did not see whole (Parquet, sources before a resumed position) is read.
    """

    def __init__(
        self, sources: Sequence[Source], *, known: Mapping[int, InputFacts] | None = None, queue_bytes: int = 32 << 20
    ) -> None:
        self._sources = sources
        self._facts: dict[int, InputFacts] = dict(known or {})
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued = 0
        self._batch: list[tuple[int, bytes]] = []
        self._batched = 0
        self._limit = queue_bytes
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._run, name="tokenriver-input-hash", daemon=True)

    def __enter__(self) -> InputHasher:
        self._thread.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            if error is not None:
                self._queue.clear()
            self._changed.notify_all()
        self._thread.join()

    def tap(self, source_index: int, chunk: bytes) -> None:
        """Take the next bytes of a source's file, or its end (b"")."""
        self._batch.append((source_index, chunk))
        self._batched += len(chunk)
        if self._batched >= _BATCH_BYTES or len(self._batch) >= _BATCH_CHUNKS:
            self._hand_over()

    def _hand_over(self) -> None:
        with self._changed:
            while self._queued >= self._limit and self._error is None:
                self._changed.wait()
            if self._error is not None:
                raise self._error
            self._queue += self._batch
            self._queued += self._batched
            self._batch, self._batched = [], 0
            self._changed.notify_all()

    def finish(self) -> list[InputFacts]:
        """Facts of every source in order, once reading is over; raises what hashing raised.

        IntegrityError for a file of a corpus that is not what the corpus's manifest says.
        """
        self._hand_over()
        self.__exit__(None, None, None)
        if self._error is not None:
            raise self._error
        for index, source in enumerate(self._sources):
            if index not in self._facts:
                if source.stream is not None:
                    raise CorpusError("standard input was not read to its end, so it has no checksum")
                self._facts[index] = hash_source(source)
            if source.sha256 is not None and self._facts[index].sha256 != source.sha256:
                raise IntegrityError(
                    f"{source}: sha256 is {self._facts[index].sha256}, but the corpus's manifest says {source.sha256}: "
                    "the bytes changed; fetch or write it again"
                )
        return [self._facts[index] for index in range(len(self._sources))]

    def _run(self) -> None:
        try:
            self._hash_all()
        except BaseException as error:  # handed to the thread that taps or finishes
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _hash_all(self) -> None:
        digest, n_bytes, current = hashlib.sha256(), 0, -1
        while True:
            with self._changed:
                while not self._queue and not self._closed:
                    self._changed.wait()
                if not self._queue:
                    return
                batch = list(self._queue)
                self._queue.clear()
                self._queued = 0
                self._changed.notify_all()
            for index, chunk in batch:
                if index != current:
                    digest, n_bytes, current = hashlib.sha256(), 0, index
                digest.update(chunk)
                n_bytes += len(chunk)
                if not chunk and index not in self._facts:
                    parquet = self._sources[index].kind == "parquet"
                    facts = hash_source(self._sources[index]) if parquet else InputFacts(n_bytes, digest.hexdigest())
                    self._facts[index] = facts
