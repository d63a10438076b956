"""Plain text files: one document a file, or as many as a separator cuts.

The separator is searched from left to right without overlaps and dropped (unless it is kept); one at the very end
closes the last document and opens no further one. Nothing else is touched, except that a BOM at the start of a file is
not text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenriver.batches import TextBatch
from tokenriver.corpus.blocks import DocumentBlock, Segment, Verdict, bad_split
from tokenriver.corpus.ranges import overlaps_itself
from tokenriver.corpus.streams import READ_BYTES, read_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokenriver.corpus.sources import Source, SourceOptions

__all__ = ["cut_text", "parse_text"]


def cut_text(
    source: Source,
    index: int,
    options: SourceOptions,
    *,
    start: int,
    block_bytes: int,
    on_raw: Callable[[bytes], None] | None,
) -> Iterator[Segment]:
    """Runs of whole documents, each with its separator, of about `block_bytes` or one document."""
    separator = (options.document_separator or "").encode()
    buffer = bytearray()
    searched = 0
    for chunk in read_chunks(source, start=start, read_bytes=min(READ_BYTES, block_bytes), on_raw=on_raw):
        buffer += chunk
        if not separator or len(buffer) < block_bytes:
            continue
        cut = _last_end(buffer, separator, searched)
        if not cut:
            searched = max(0, len(buffer) - len(separator) + 1)
            continue
        tail = bytearray(memoryview(buffer)[cut:])
        del buffer[cut:]
        yield Segment(index, source, start, start + cut, buffer)
        start += cut
        buffer, searched = tail, 0
    if buffer:
        yield Segment(index, source, start, start + len(buffer), buffer)


def _last_end(buffer: bytearray, separator: bytes, searched: int) -> int:
    """Where the last separator ends, found from the left so that "\\n\\n\\n" is cut alike in any block; 0 if none."""
    if not overlaps_itself(separator):
        return buffer.rfind(separator, searched) + len(separator) if separator in buffer[searched:] else 0
    end = 0
    at = buffer.find(separator, searched)
    while at >= 0:
        end = at + len(separator)
        at = buffer.find(separator, end)
    return end


def parse_text(segment: Segment, options: SourceOptions) -> DocumentBlock:
    """Documents of one segment of a text file, empty ones included."""
    verdict = Verdict(options)
    payload = segment.payload
    begin = segment.bom_bytes
    separator = (options.document_separator or "").encode()
    kept = len(separator) if options.keep_document_separator else 0
    texts: list[bytes] = []
    offsets: list[int] = []
    stop = -1
    while begin < len(payload):
        stop = payload.find(separator, begin) if separator else -1
        end = len(payload) if stop < 0 else stop
        text = bytes(memoryview(payload)[begin : end if stop < 0 else end + kept])
        try:
            text.decode()
        except UnicodeDecodeError as error:
            at = segment.start + begin + error.start
            verdict.bad("invalid_utf8", segment, at, f"invalid UTF-8 ({error.reason})")
        else:
            texts.append(text)
            offsets.append(segment.start + begin)
        begin = end if stop < 0 else end + len(separator)
    if kept and stop >= 0 and segment.end == segment.source.n_bytes and not segment.source.compression:
        texts.append(b"")
        offsets.append(segment.end)
    if options.split_field and texts:
        bad_split(None, segment, offsets[0], options.split_field)
    return DocumentBlock(
        TextBatch.from_texts(texts),
        None,
        [None] * len(texts) if options.id_field else None,
        np.full(len(texts), segment.source_index, np.int32),
        np.array(offsets, np.int64),
        verdict.skipped,
    )
