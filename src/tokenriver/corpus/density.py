"""How many records a segment holds, about, and the cutting of one with too many of them.

A block is cut by bytes, but what its documents take while they are encoded goes by their number: 8 MiB of one-letter
documents are three million, and would take a gigabyte.
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING

from msgspec.structs import replace

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenriver.corpus.blocks import Segment
    from tokenriver.corpus.sources import SourceOptions

__all__ = ["MOST_RECORDS", "about_records", "cut_dense"]

MOST_RECORDS = 1 << 17
"""Records of a block, about: 8 MiB hold fewer where each has 64 bytes or more."""

_SAMPLE_BYTES, _SAMPLED = 1 << 14, 64
"""A sample's size at most, and how many of its kind a segment holds."""


def about_records(segment: Segment, options: SourceOptions) -> int:
    """Records of a segment, by three samples of it; 1 for a JSON array, which is not cut."""
    if segment.source.kind == "parquet":
        n_rows: int = segment.payload.num_rows
        return n_rows
    separator, payload = _separator(segment, options), segment.payload
    if not separator:
        return 1
    size = min(_SAMPLE_BYTES, len(payload) // _SAMPLED + len(separator))
    last = len(payload) - size
    found = sum(payload.count(separator, at, at + size) for at in (0, last // 2, last))
    n: int = found * len(payload) // (3 * size)
    return max(1, n)


def cut_dense(segment: Segment, options: SourceOptions) -> Iterator[Segment]:
    """The segment in runs of about MOST_RECORDS records. (Rows of Parquet come so from their file.)"""
    n_runs = -(-about_records(segment, options) // MOST_RECORDS)
    if n_runs <= 1 or segment.source.kind == "parquet":
        yield segment
        return
    borders = _lines(segment, n_runs) if segment.source.kind == "jsonl" else _documents(segment, options)
    first_line = segment.first_line
    for begin, end in pairwise([0, *borders, len(segment.payload)]):
        run = bytes(memoryview(segment.payload)[begin:end])
        yield replace(segment, start=segment.start + begin, end=segment.start + end, payload=run, first_line=first_line)
        first_line = None if first_line is None else first_line + run.count(b"\n")


def _separator(segment: Segment, options: SourceOptions) -> bytes:
    if segment.source.kind == "jsonl":
        return b"\n"
    return (options.document_separator or "").encode() if segment.source.kind == "txt" else b""


def _lines(segment: Segment, n_runs: int) -> Iterator[int]:
    """Ends of lines, that many runs apart, inside the payload."""
    size, end = len(segment.payload), 0
    for i in range(1, n_runs):
        end = segment.payload.find(b"\n", max(end, i * size // n_runs)) + 1
        if end in (0, size):
            return
        yield end


def _documents(segment: Segment, options: SourceOptions) -> Iterator[int]:
    """Ends of every so many documents inside the payload, found from the left as documents are."""
    separator, payload = _separator(segment, options), segment.payload
    end = n = 0
    while (at := payload.find(separator, end)) >= 0:
        end, n = at + len(separator), n + 1
        if n % MOST_RECORDS == 0 and end < len(payload):
            yield end
