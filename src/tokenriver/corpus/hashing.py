"""SHA-256 of the inputs from the bytes that are read anyway, in a thread of its own: no file is read twice for it."""

from __future__ import annotations

import hashlib
import threading
from collections import deque
from typing import TYPE_CHECKING, Any

from tokenriver.corpus.apart import ApartHasher, files_apart, threads_apart
from tokenriver.corpus.inputs import InputFacts, InputMark, check_known, hash_source, other_input
from tokenriver.corpus.threads import JoinedThread
from tokenriver.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from types import TracebackType

    from tokenriver.corpus.sources import Source

__all__ = ["InputHasher"]

_BATCH_BYTES = 1 << 20
_SMALL_BYTES = 1 << 16
_BATCH_CHUNKS = 4096
"""Handed to the thread together: with small files, waking it for each would cost more than the hashing."""


class InputHasher:
    """Hashes what `read_blocks(..., on_raw=hasher.tap)` reads.

        with InputHasher(sources) as hasher:
            for raw in read_blocks(sources, options, on_raw=hasher.tap): ...
            facts = hasher.finish()        # list[InputFacts], one a source

    `known` holds facts found earlier (a journal's), by source index; a file that is not read from its start must agree
    with the longest of its `marks` in `finish`, else ResumeError; `keep_marks` makes new ones for `state`. The queue
    holds at most `queue_bytes`; a tap that finds it full waits. What the tap did not see whole (Parquet, sources
    before a resumed position) is read. With `workers` that read more than one thread hashes, large files are hashed
    apart (apart.py), whatever is tapped of them.
    """

    def __init__(
        self,
        sources: Sequence[Source],
        *,
        known: Mapping[int, InputFacts] | None = None,
        marks: Sequence[InputMark] = (),
        keep_marks: bool = False,
        queue_bytes: int = 32 << 20,
        workers: int = 1,
    ) -> None:
        self._sources = sources
        self._facts: dict[int, InputFacts] = dict(known or {})
        ordered = sorted(marks, key=lambda mark: mark.n_bytes)
        self._marks = {mark.source_index: mark for mark in ordered if mark.source_index not in self._facts}
        self._keep_marks = keep_marks
        unknown = [i for i in files_apart(sources, workers=workers) if i not in self._facts]
        self._apart = ApartHasher(
            sources,
            unknown,
            threads=threads_apart(workers) if unknown else 0,
            heads={i: (mark.n_bytes, mark.sha256) for i, mark in self._marks.items()},
            changed=lambda index: other_input(sources[index], self._marks[index].n_bytes),
        )
        self._reached: deque[tuple[int, int, Any]] = deque()  # (source, bytes, digest) after each chunk hashed
        self._handed = self._hashed = 0  # chunks
        self._at_whole_file = False  # the thread is reading a whole file, which may take long
        self._queue: deque[tuple[int, bytes]] = deque()
        self._queued = 0
        self._batch: list[tuple[int, bytes]] = []
        self._batched = 0
        self._limit = queue_bytes
        self._changed = threading.Condition()
        self._closed = False
        self._error: BaseException | None = None
        self._thread = JoinedThread(self._run, name="tokenriver-input-hash")

    def __enter__(self) -> InputHasher:
        self._thread.start()
        self._apart.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        with self._changed:
            self._closed = True
            if error is not None:
                self._queue.clear()
            self._changed.notify_all()
        self._apart.stop()
        self._thread.join()

    def tap(self, source_index: int, chunk: bytes) -> None:
        """Take the next bytes of a source's file, or its end (b"").

        A small file that comes whole is hashed at once: its hash takes less time than handing it over.
        """
        if source_index in self._apart.indices:
            self._apart.reading(source_index)
            return
        if len(chunk) <= _SMALL_BYTES and (not chunk or len(chunk) == self._sources[source_index].n_bytes):
            if source_index in self._facts:
                return
            if chunk and self._sources[source_index].stream is None:
                self._facts[source_index] = InputFacts(len(chunk), hashlib.sha256(chunk).hexdigest())
                return
        with self._changed:
            self._batch.append((source_index, chunk))
            self._batched += len(chunk)
            if self._batched >= _BATCH_BYTES or len(self._batch) >= _BATCH_CHUNKS:
                while self._queued >= self._limit and self._error is None:
                    self._changed.wait()
                self._hand_over()

    def _hand_over(self) -> None:
        """Give the thread what was tapped, the lock being held; raises what the thread met."""
        if self._error is not None:
            raise self._error
        self._queue += self._batch
        self._handed += len(self._batch)
        self._queued += self._batched
        self._batch, self._batched = [], 0
        self._changed.notify_all()

    def _wait(self) -> None:
        self._changed.wait()
        if self._error is not None:
            raise self._error

    def teller(self) -> Callable[[tuple[int, int], tuple[int, int]], tuple[dict[int, InputFacts], InputMark | None]]:
        """`state` for one journal: the sources whose facts it has been told are not told again."""
        told = 0

        def state(start: tuple[int, int], end: tuple[int, int]) -> tuple[dict[int, InputFacts], InputMark | None]:
            nonlocal told
            before, told = told, max(told, start[0])
            return self.state(start, end, told=before)

        return state

    def state(
        self, start: tuple[int, int], end: tuple[int, int], *, told: int = 0
    ) -> tuple[dict[int, InputFacts], InputMark | None]:
        """What a journal notes beside a block from `start` to `end` (positions in the sources) that was read.

        Facts of the sources from `told` to it (none of a file that is still to be hashed); and a mark that covers the
        block, of standard input if that is in it, else of the source at its end, where offsets count bytes of the
        file.
        """
        facts: dict[int, InputFacts] = {}
        with self._changed:
            self._hand_over()
            handed = self._handed
            while self._hashed < handed and not self._at_whole_file:
                self._wait()
            for index in range(told, start[0]):
                while self._is_stream(index) and index not in self._facts:
                    self._wait()  # it cannot be read again; its end was tapped, or we would not be past it
                if index in self._facts:
                    facts[index] = self._facts[index]
                elif index in self._apart.indices:
                    facts[index] = self._whole_apart(index)
            for index in range(start[0], min(end[0], len(self._sources))):
                if self._is_stream(index) and index in self._facts:
                    return facts, InputMark(index, self._facts[index].n_bytes, self._facts[index].sha256)
            if end[0] in self._apart.indices:
                return facts, self._mark_apart(*end)
            while self._reached and self._reached[0][:2] < end:
                self._reached.popleft()
            if end[0] in self._facts and self._counts_bytes(end[0]):
                return facts, InputMark(end[0], self._facts[end[0]].n_bytes, self._facts[end[0]].sha256)
            if self._reached and self._reached[0][0] == end[0]:
                index, n_bytes, digest = self._reached[0]
                return facts, InputMark(index, n_bytes, digest.hexdigest())
        return facts, None

    def _whole_apart(self, index: int) -> InputFacts:
        digest = self._apart.whole(index)
        return InputFacts(digest.n_bytes, digest.sha256)

    def _mark_apart(self, index: int, offset: int) -> InputMark | None:
        if not self._counts_bytes(index):
            return None
        digest = self._apart.up_to(index, offset)
        return InputMark(index, digest.n_bytes, digest.sha256)

    def _is_stream(self, index: int) -> bool:
        return self._sources[index].stream is not None

    def finish(self, n_sources: int | None = None) -> list[InputFacts]:
        """Facts of all sources (or the first `n_sources`) in order, once reading is over; raises what hashing met.

        IntegrityError for a file of a corpus that is not what the corpus's manifest says.
        """
        with self._changed:
            self._hand_over()
        wanted = self._sources[:n_sources]
        self._apart.reading(len(wanted))
        for index in sorted(self._apart.indices & set(range(len(wanted)))):
            self._facts[index] = self._whole_apart(index)
        self.__exit__(None, None, None)
        if self._error is not None:
            raise self._error
        for index, source in enumerate(wanted):
            if index not in self._facts:
                if source.stream is not None:
                    raise CorpusError("standard input was not read to its end, so it has no checksum")
                mark = self._marks.get(index)
                self._facts[index] = hash_source(source, mark)
            check_known(source, self._facts[index])
        return [self._facts[index] for index in range(len(wanted))]

    def _run(self) -> None:
        try:
            self._hash_all()
        except BaseException as error:  # handed to the thread that taps or finishes
            with self._changed:
                self._error = error
                self._changed.notify_all()

    def _hash_all(self) -> None:
        begun: dict[int, tuple[Any, int]] = {}  # several files may be read at a time (ahead.py)
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
                digest, n_bytes = begun.pop(index, None) or (hashlib.sha256(), 0)
                digest.update(chunk)
                n_bytes += len(chunk)
                if chunk:
                    begun[index] = digest, n_bytes
                whole = len(chunk) == self._sources[index].n_bytes  # its facts are there before anyone asks for a mark
                if chunk and not whole and self._keep_marks and self._counts_bytes(index):
                    self._reached.append((index, n_bytes, digest.copy()))
                if not chunk and index not in self._facts:
                    parquet = self._sources[index].kind == "parquet"
                    if parquet:
                        self._note_whole_file(True)
                    facts = hash_source(self._sources[index]) if parquet else InputFacts(n_bytes, digest.hexdigest())
                    self._facts[index] = facts
                    if parquet:
                        self._note_whole_file(False)
            with self._changed:
                self._hashed += len(batch)
                self._changed.notify_all()

    def _counts_bytes(self, index: int) -> bool:
        """Whether a position's offset is one in the file itself."""
        return self._sources[index].kind != "parquet" and not self._sources[index].compression

    def _note_whole_file(self, at: bool) -> None:
        with self._changed:
            self._at_whole_file = at
            self._changed.notify_all()
