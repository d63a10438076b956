"""Documents out of sources: one sequential reader cuts raw blocks, any number of workers parse them.

    sources = find_sources(inputs, options)
    for raw in read_blocks(sources, options):      # in one thread: reads, decompresses, cuts
        block = parse_block(raw, options)          # in any thread: the texts as two arrays

The documents and their order depend on the sources and options alone, not on `block_bytes`; reading can begin again
at the start or end of any block that was ever cut, with any other block size.
"""

from __future__ import annotations

import functools
import itertools
from contextlib import ExitStack
from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.batches import TextBatch
from tokenriver.corpus.ahead import FilesAhead, files_ahead
from tokenriver.corpus.arrays import cut_array, parse_array
from tokenriver.corpus.blocks import (
    DocumentBlock,
    Position,
    RawBlock,
    Segment,
    drop_empty,
    join_documents,
)
from tokenriver.corpus.density import MOST_RECORDS, cut_dense
from tokenriver.corpus.finding import find_sources
from tokenriver.corpus.jsonl import cut_jsonl, parse_jsonl, record_fields
from tokenriver.corpus.parquet import cut_parquet, parquet_columns, parquet_parts, whole_documents
from tokenriver.corpus.parquet_rows import parse_parquet
from tokenriver.corpus.sources import BLOCK_BYTES, Source, SourceOptions
from tokenriver.corpus.streams import READ_BYTES, read_chunks, read_small
from tokenriver.corpus.text import cut_text, parse_text
from tokenriver.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    _ReadSmall = Callable[[Source, Callable[[bytes], None] | None], bytes]

__all__ = [
    "BLOCK_BYTES",
    "DocumentBlock",
    "Position",
    "RawBlock",
    "Segment",
    "Source",
    "SourceOptions",
    "find_sources",
    "parse_block",
    "peek_fields",
    "read_blocks",
]


def read_blocks(
    sources: Sequence[Source],
    options: SourceOptions,
    *,
    block_bytes: int = BLOCK_BYTES,
    start: Position = Position(0, 0),  # noqa: B008
    stop: Position | None = None,
    on_source: Callable[[int], None] | None = None,
    on_raw: Callable[[int, bytes], None] | None = None,
    workers: int = 1,
) -> Iterator[RawBlock]:
    """Raw blocks of whole records from `start` (the start or end of a block cut earlier), in order, up to `stop`
    (likewise; None: the end).

    `on_source(source_index)` is told before a source is opened, and may wait until the file is there.
    `on_raw(source_index, chunk)` gets the bytes of each file as they are read, from its first one, and b"" at its
    end. A Parquet file is not read in order, so only its end is told; nothing is told of a plain file whose reading
    begins in the middle, nor of the sources before `start`: InputHasher (hashing.py) reads those apart. With more
    `workers` that parse, compressed and Parquet files are read ahead (ahead.py), and `on_raw` is called by several
    threads. Raises CorpusError (damaged file, wrong column) and IntegrityError (a file that changes).
    """
    if block_bytes < 1:
        raise UsageError(f"block size {block_bytes}: give at least 1 byte")
    with ExitStack() as stack:
        read = read_small
        if on_source is None and any(source.remote is not None for source in sources[start.source_index :]):
            from tokenriver.corpus.remote import SmallAhead

            ahead = SmallAhead(sources, lambda source: _is_small(source, block_bytes))
            stack.callback(ahead.close)
            read = ahead.read
        n_threads, n_bytes = files_ahead(workers)
        last = len(sources) if stop is None else stop.source_index
        whole = range(start.source_index + (start.offset > 0), last) if n_threads and on_source is None else ()
        files = FilesAhead(
            [
                i
                for i in whole
                if sources[i].remote is None and (sources[i].compression or sources[i].kind == "parquet")
            ],
            lambda i: _parts(sources[i], i, options, block_bytes, _tap(on_raw, i)),
            n_threads=n_threads,
            n_bytes=n_bytes,
        )
        stack.callback(files.close)
        yield from _read_blocks(sources, options, block_bytes, start, stop, on_source, on_raw, read, files)


def _tap(on_raw: Callable[[int, bytes], None] | None, index: int) -> Callable[[bytes], None] | None:
    return None if on_raw is None else functools.partial(on_raw, index)


def _parts(
    source: Source, index: int, options: SourceOptions, block_bytes: int, tap: Callable[[bytes], None] | None
) -> Sequence[Callable[[], Iterable[Segment]]]:
    if source.kind == "parquet":
        return parquet_parts(source, index, options, block_bytes=block_bytes)
    return [lambda: _cut(source, index, options, 0, block_bytes, tap, read_small)]


def _read_blocks(
    sources: Sequence[Source],
    options: SourceOptions,
    block_bytes: int,
    start: Position,
    stop: Position | None,
    on_source: Callable[[int], None] | None,
    on_raw: Callable[[int, bytes], None] | None,
    read_small: _ReadSmall,
    files: FilesAhead,
) -> Iterator[RawBlock]:
    block = _Gathered(block_bytes, options)
    for index in range(start.source_index, len(sources)):
        if stop is not None and Position(index, 0) >= stop:
            break
        offset = start.offset if index == start.source_index else 0
        limit = stop.offset if stop is not None and index == stop.source_index else None
        if on_source is not None:
            on_source(index)
        tap = _tap(on_raw, index)
        if limit is None and not offset and _is_small(sources[index], block_bytes):
            data = read_small(sources[index], tap)
            if data:  # small files fill a block: each block costs 2 ms, whatever is in it
                yield from block.add(Segment(index, sources[index], 0, len(data), data), share=1)
            continue
        cut: Iterable[Segment]
        if index not in files.indices:
            cut = _cut(sources[index], index, options, offset, block_bytes, tap, read_small)
        elif sources[index].kind == "parquet":
            cut = whole_documents(files.segments(index), options)
        else:
            cut = files.segments(index)
        for segment in _clip(cut, limit):
            yield from block.add(segment, share=2)  # a run cut inside a file is a little shorter than a block: alone
        if tap is not None and sources[index].kind == "parquet":
            tap(b"")
    yield from block.take()


class _Gathered:
    """Segments on their way into a block, of at most so many bytes and records unless one alone exceeds them."""

    def __init__(self, block_bytes: int, options: SourceOptions) -> None:
        self._block_bytes = block_bytes
        self._options = options
        self._segments: list[Segment] = []
        self._n_bytes = self._n_records = 0

    def add(self, segment: Segment, *, share: int) -> Iterator[RawBlock]:
        """Add a segment; the blocks that are ready, one that is filled to 1/share among them."""
        for run, n in cut_dense(segment, self._options):
            if self._n_bytes + run.n_bytes > self._block_bytes or self._n_records + n > MOST_RECORDS:
                yield from self.take()
            self._segments.append(run)
            self._n_bytes += run.n_bytes
            self._n_records += n
            if share * self._n_bytes >= self._block_bytes or share * self._n_records >= MOST_RECORDS:
                yield from self.take()

    def take(self) -> Iterator[RawBlock]:
        """What is there, as a block, and begin the next."""
        if self._segments:
            yield RawBlock(tuple(self._segments))
            self._segments, self._n_bytes, self._n_records = [], 0, 0


def _clip(segments: Iterable[Segment], stop: int | None) -> Iterator[Segment]:
    """The segments up to offset `stop`, which is a border between records."""
    for segment in segments:
        if stop is not None and segment.end >= stop:
            if segment.start < stop:
                yield segment.before(stop)
            return
        yield segment


def _cut(
    source: Source,
    index: int,
    options: SourceOptions,
    start: int,
    block_bytes: int,
    tap: Callable[[bytes], None] | None,
    read_small: _ReadSmall,
) -> Iterable[Segment]:
    if not start and _is_small(source, block_bytes):
        data = read_small(source, tap)
        return [Segment(index, source, 0, len(data), data)] if data else []
    if source.kind == "array":
        return cut_array(source, index, start=start, on_raw=tap)
    if source.kind == "parquet":
        return cut_parquet(source, index, options, start=start, block_bytes=block_bytes)
    if source.kind == "txt":
        return cut_text(source, index, options, start=start, block_bytes=block_bytes, on_raw=tap)
    return cut_jsonl(source, index, start=start, block_bytes=block_bytes, on_raw=tap)


def _is_small(source: Source, block_bytes: int) -> bool:
    """Whether a file is read whole, in one go, as one segment."""
    small = source.n_bytes is not None and source.n_bytes <= min(READ_BYTES, block_bytes)
    return small and not source.compression and source.kind not in ("parquet", "array")  # an empty file is no array


def parse_block(raw: RawBlock, options: SourceOptions) -> DocumentBlock:
    """The documents of a block. Pure and thread-safe; plain blocks are parsed with the GIL released.

    Raises CorpusError for the first bad record ("FILE:LINE (byte OFFSET): …") unless `on_bad_record` is "skip", and
    for a record whose split field names no side in either case.
    """
    parts: list[DocumentBlock] = []
    for kind, run in itertools.groupby(raw.segments, key=lambda segment: segment.source.kind):
        if kind == "jsonl":
            parts += parse_jsonl(list(run), options)
        elif kind == "parquet":
            parts += [parse_parquet(segment, options) for segment in run]
        elif kind == "array":
            parts += [parse_array(segment, options) for segment in run]
        else:
            parts += [parse_text(segment, options) for segment in run]
    block = join_documents(parts, options)
    if options.strip:
        block = replace(block, texts=TextBatch.from_texts(text.strip() for text in block.texts.texts()))
    sides = {segment.source_index: segment.source.side for segment in raw.segments}
    if None not in sides.values():
        block = replace(block, splits=np.array([sides[i] for i in block.source_indices.tolist()], np.uint8))
    return drop_empty(block, options)


def peek_fields(sources: Sequence[Source]) -> list[str]:
    """Field or column names of the first good record, to see whether it has a `split`; [] for plain text.

    Nothing is lost for reading later: what is taken from standard input is put back.
    """
    for source in sources:
        if source.kind == "parquet":
            return parquet_columns(source)
        if source.kind in ("txt", "array"):
            return []
        fields = _first_fields(source)
        if fields is not None:
            return fields
    return []


def _first_fields(source: Source) -> list[str] | None:
    """The fields of a source's first record; standard input gets back what was taken from it."""
    if source.stream is None:
        chunks = read_chunks(source, read_bytes=1 << 16)
        try:
            return _fields_in(chunks, bytearray())
        finally:
            chunks.close()
    taken = bytearray()
    try:
        return _fields_in(iter(functools.partial(source.stream.read, 1 << 16), b""), taken)
    finally:
        source.stream.unread(bytes(taken))


_PEEK_LINES = 1000
"""Lines that are looked at for a record: beyond as many bad ones, nothing in the file is to be trusted."""


def _fields_in(chunks: Iterator[bytes], taken: bytearray) -> list[str] | None:
    lines = itertools.islice(_lines_of(chunks, taken), _PEEK_LINES)
    return next((fields for line in lines if (fields := record_fields(line)) is not None), None)


def _lines_of(chunks: Iterator[bytes], taken: bytearray) -> Iterator[bytes]:
    begin = searched = 0
    for chunk in chunks:
        taken += chunk
        while (newline := taken.find(b"\n", searched)) >= 0:
            yield bytes(memoryview(taken)[begin:newline])
            begin = searched = newline + 1
        searched = len(taken)
    if begin < len(taken):
        yield bytes(memoryview(taken)[begin:])
