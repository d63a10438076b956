"""JSON lines: cutting at "\\n" alone, and the choice between the fast parser and the careful one.

The documents are the same whichever parser a block takes: see jsonl_fast.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tokenriver.corpus.blocks import BOM, DocumentBlock, Segment
from tokenriver.corpus.jsonl_careful import careful_fields, parse_careful
from tokenriver.corpus.jsonl_fast import parse_fast
from tokenriver.corpus.streams import READ_BYTES, read_chunks, read_lines

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokenriver.corpus.sources import Source, SourceOptions

__all__ = ["cut_jsonl", "parse_jsonl", "record_fields"]


def cut_jsonl(
    source: Source, index: int, *, start: int, block_bytes: int, on_raw: Callable[[bytes], None] | None
) -> Iterator[Segment]:
    """Runs of whole lines of about `block_bytes`; a longer line is a run of its own."""
    if not source.compression and source.stream is None and source.remote is None:
        for run in read_lines(source, start=start, block_bytes=block_bytes, on_raw=on_raw):
            yield Segment(index, source, start, start + len(run), run)
            start += len(run)
    else:
        yield from _cut_stream(source, index, start=start, block_bytes=block_bytes, on_raw=on_raw)


def _cut_stream(
    source: Source, index: int, *, start: int, block_bytes: int, on_raw: Callable[[bytes], None] | None
) -> Iterator[Segment]:
    """The same from what can only be read forward. No byte is searched twice."""
    buffer = bytearray()
    first_line: int | None = 0 if source.stream is not None else None
    for chunk in read_chunks(source, start=start, read_bytes=min(READ_BYTES, block_bytes), on_raw=on_raw):
        cut = chunk.rfind(b"\n") + 1 if len(buffer) + len(chunk) >= block_bytes else 0
        if not cut:
            buffer += chunk
            continue
        buffer += memoryview(chunk)[:cut]
        yield Segment(index, source, start, start + len(buffer), buffer, first_line)
        start += len(buffer)
        if first_line is not None:
            first_line += buffer.count(b"\n")
        buffer = bytearray(memoryview(chunk)[cut:])
    if buffer:
        yield Segment(index, source, start, start + len(buffer), buffer, first_line)


def parse_jsonl(segments: list[Segment], options: SourceOptions) -> list[DocumentBlock]:
    """Documents of consecutive JSONL segments, empty texts included; joined, where the fast parser takes them."""
    fast = parse_fast(segments, options)
    if fast is not None:
        return [fast]
    if len(segments) == 1:
        return [parse_careful(segments[0], options)]
    return [parse_fast([segment], options) or parse_careful(segment, options) for segment in segments]


def record_fields(line: bytes) -> list[str] | None:
    """The field names of one line, or None where it is no JSON object."""
    body = line.removeprefix(BOM)
    try:
        # Raw: a value may be hundreds of megabytes, and only the names are wanted.
        return list(msgspec.json.decode(body, type=dict[str, msgspec.Raw]))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return careful_fields(body)
