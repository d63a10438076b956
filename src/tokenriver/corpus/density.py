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

__all__ = ["MOST_RECORDS", "cut_dense"]

MOST_RECORDS = 1 << 17
"""Records of a block, about: 8 MiB hold fewer where each has 64 bytes or more."""

_SAMPLE_BYTES, _SAMPLED = 1 << 14, 64
"""A sample's size at most, and how many of its kind a segment holds."""


def cut_dense(segment: Segment, options: SourceOptions) -> Iterator[tuple[Segment, int]]:
    """The segment in runs of about MOST_RECORDS records, with their numbers, about. (Rows of Parquet come so from their
    file; a JSON array is not cut.)"""
    payload, separator = segment.payload, _separator(segment, options)
    if not separator:
        yield segment, payload.num_rows if segment.source.kind == "parquet" else 1
        return
    n = _sampled(payload, separator)
    if n > MOST_RECORDS:  # or the samples have met the few dense places, beside a document of 256 MB
        n = payload.count(separator)
    if n <= MOST_RECORDS:
        yield segment, n
        return
    is_lines, first_line = segment.source.kind == "jsonl", segment.first_line
    borders = _lines(payload, -(-n // MOST_RECORDS)) if is_lines else _documents(payload, separator)
    for begin, end in pairwise([0, *borders, len(payload)]):
        run = bytes(memoryview(payload)[begin:end])
        n = run.count(separator)
        where = {"start": segment.start + begin, "end": segment.start + end}
        yield replace(segment, **where, payload=run, first_line=first_line), n
        first_line = None if first_line is None else first_line + n


def _sampled(payload: bytes | bytearray, separator: bytes) -> int:
    """Records of a payload, by three samples of it."""
    size = min(_SAMPLE_BYTES, len(payload) // _SAMPLED + len(separator))
    last = len(payload) - size
    found = sum(payload.count(separator, at, at + size) for at in (0, last // 2, last))
    return max(1, found * len(payload) // (3 * size))


def _separator(segment: Segment, options: SourceOptions) -> bytes:
    if segment.source.kind == "jsonl":
        return b"\n"
    return (options.document_separator or "").encode() if segment.source.kind == "txt" else b""


def _lines(payload: bytes | bytearray, n_runs: int) -> Iterator[int]:
    """Ends of lines, that many runs apart, inside the payload."""
    size, end = len(payload), 0
    for i in range(1, n_runs):
        end = payload.find(b"\n", max(end, i * size // n_runs)) + 1
        if end in (0, size):
            return
        yield end


def _documents(payload: bytes | bytearray, separator: bytes) -> Iterator[int]:
    """Ends of every so many documents inside the payload, found from the left as documents are."""
    end = n = 0
    while (at := payload.find(separator, end)) >= 0:
        end, n = at + len(separator), n + 1
        if n % MOST_RECORDS == 0 and end < len(payload):
            yield end
