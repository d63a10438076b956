"""Parts of the sources that can be read apart from each other: what a cluster deals out.

Ranges are cut by the files' sizes alone, so that nothing is opened to plan them; whoever reads one finds the border
between records that belongs to a byte. Both ends of a range are found by the same rule, so the ranges of a file
hold each of its records exactly once. A compressed file, an array, and text whose separator may overlap itself are
read in one piece.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeAlias

from tokenriver.corpus.streams import read_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenriver.corpus.sources import Source, SourceOptions

    Mark: TypeAlias = tuple[int, int]

__all__ = ["Range", "cut_ranges", "find_border", "overlaps_itself", "range_bytes", "text_bytes"]

_TEXT_BYTES = 3
"""Bytes of text in a byte of a compressed file, about. Sizes of work depend on it, never what is made."""

_LEAST_BYTES = 16 << 20
_RANGES_A_CPU = 8

_MOST_FILES = 2000
"""Small files in a range, at most."""

_SEARCH_BYTES = 1 << 16
"""Read at a time to find a border: a record is rarely longer."""


@dataclass(frozen=True, slots=True)
class Range:
    """The records from mark `begin` up to mark `end`; a mark is (source index, byte of its file).

    The record that a byte lies in belongs to the range before it. Byte 0 of the source after the last one stands for
    the end.
    """

    begin: Mark
    end: Mark

    @property
    def sources(self) -> range:
        """Indices of the sources that the range lies in."""
        return range(self.begin[0], self.end[0] + (self.end[1] > 0))

    def whole(self, index: int) -> bool:
        """Whether all of a source is in it."""
        return self.begin <= (index, 0) and self.end >= (index + 1, 0)

    def file_bytes(self, sources: Sequence[Source]) -> int:
        """Bytes of the files that it stands for."""
        return sum(
            (self.end[1] if self.end[0] == i else sources[i].n_bytes or 0)
            - (self.begin[1] if self.begin[0] == i else 0)
            for i in self.sources
        )


def cut_ranges(sources: Sequence[Source], options: SourceOptions, *, range_bytes: int) -> Iterator[Range]:
    """Ranges of about `range_bytes` of text each, in order; together they hold every record once."""
    begin, size = 0, 0
    for i, source in enumerate(sources):
        n_bytes = source.n_bytes or 0
        weight = text_bytes(source)
        if 2 * weight > 3 * range_bytes and _divisible(source, options):
            if begin < i:
                yield Range((begin, 0), (i, 0))
            n = min(-(-weight // range_bytes), n_bytes)
            edges = [*((i, n_bytes * k // n) for k in range(n)), (i + 1, 0)]
            yield from (Range(edges[k], edges[k + 1]) for k in range(n))
            begin, size = i + 1, 0
            continue
        size += weight
        if size >= range_bytes or i + 1 - begin >= _MOST_FILES:
            yield Range((begin, 0), (i + 1, 0))
            begin, size = i + 1, 0
    if begin < len(sources):
        yield Range((begin, 0), (len(sources), 0))


def range_bytes(sources: Sequence[Source], *, cpus: int, block_bytes: int, most: int) -> int:
    """A size of ranges: small enough that all CPUs end at about the same time, large enough that tasks cost nothing."""
    text = sum(map(text_bytes, sources))
    return max(min(_LEAST_BYTES, 2 * block_bytes), min(text // (_RANGES_A_CPU * cpus), most))


def text_bytes(source: Source) -> int:
    """About how much text a source holds; 0 for standard input."""
    return (source.n_bytes or 0) * (_TEXT_BYTES if source.compression or source.kind == "parquet" else 1)


def _divisible(source: Source, options: SourceOptions) -> bool:
    if source.kind == "parquet":
        return options.document_start is None
    if source.compression or source.stream is not None:
        return False
    if source.kind == "jsonl":
        return True
    separator = options.document_separator or ""
    return source.kind == "txt" and bool(separator) and not overlaps_itself(separator.encode())


def overlaps_itself(separator: bytes) -> bool:
    """Whether occurrences can overlap, so that only reading from the left tells which of them count."""
    return any(separator.startswith(separator[k:]) for k in range(1, len(separator)))


def find_border(source: Source, options: SourceOptions, byte: int) -> int:
    """The offset (of a Position) of the first border between records at or after a byte of the file.

    A row group of a Parquet file begins at the byte that its share of the rows comes to. Raises CorpusError for a
    file that cannot be read.
    """
    if byte == 0:
        return 0
    if source.kind == "parquet":
        from tokenriver.corpus.parquet import group_rows

        rows = group_rows(source)
        return next((row for row in rows if row * (source.n_bytes or 0) >= byte * rows[-1]), rows[-1])
    separator = b"\n" if source.kind == "jsonl" else (options.document_separator or "").encode()
    return _after_separator(source, separator, byte)


def _after_separator(source: Source, separator: bytes, byte: int) -> int:
    """Where the first separator ends that ends at or after `byte`; the file's end where none does."""
    at = max(0, byte - len(separator))
    tail = b""
    chunks = read_chunks(source, start=at, read_bytes=_SEARCH_BYTES)
    try:
        for chunk in chunks:
            tail += chunk
            found = tail.find(separator)
            if found >= 0:
                return at + found + len(separator)
            kept = min(len(tail), len(separator) - 1)
            at += len(tail) - kept
            tail = tail[len(tail) - kept :]
    finally:
        chunks.close()
    return source.n_bytes or 0
