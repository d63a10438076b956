"""The fast parser of JSON lines: pyarrow, no Python object a record, the GIL released.

It decides only blocks that it provably reads as the careful parser would; one odd record sends its block there.
What the two must agree on was found by trying, and is held by a property test: pyarrow takes several records on one
line, records over several lines and a BOM anywhere (excluded here by looking at each line's first and last byte and
counting rows), refuses duplicate keys, lone surrogates and numbers beyond a double (then the careful parser
decides), does not check UTF-8 (validated after it), and lets NaN and Infinity and any depth of nesting through in
fields that are not read (so the careful parser does too).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
import pyarrow.json as pj

from tokenriver.batches import TextBatch, offsets_of, positions_of
from tokenriver.corpus.blocks import BOM, SPLIT_VALUES, DocumentBlock, Segment, Verdict

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.corpus.sources import SourceOptions

__all__ = ["parse_fast", "plain_lines", "read_columns"]

_MAX_FAST_BYTES = (1 << 31) - (1 << 20)
"""pyarrow counts a block's bytes in 32 bits."""


def parse_fast(segments: list[Segment], options: SourceOptions) -> DocumentBlock | None:
    """Documents of consecutive segments, empty texts included; None unless every line is a plain good record."""
    data, bounds, shifts = _join(segments)
    lines = plain_lines(data)
    if lines is None:
        return None
    columns = read_columns(data, options)
    if columns is None:
        return None
    texts, splits, ids = columns
    if len(texts) != len(lines):
        return None
    which = np.searchsorted(bounds, lines, side="right") - 1
    indices = np.array([segment.source_index for segment in segments], np.int32)
    return DocumentBlock(
        TextBatch.from_arrow(texts), splits, ids, indices[which], lines + shifts[which], Verdict(options).skipped
    )


def _join(segments: list[Segment]) -> tuple[Any, NDArray[np.int64], NDArray[np.int64]]:
    """One buffer of all lines without BOMs, where each segment begins in it, and what leads to source offsets."""
    if len(segments) == 1:
        skip, payload = segments[0].bom_bytes, segments[0].payload
        start = np.array([segments[0].start + skip], np.int64)
        return memoryview(payload)[skip:] if skip else payload, np.zeros(1, np.int64), start
    payloads = [segment.payload for segment in segments]
    edges = offsets_of([len(payload) for payload in payloads])
    data = b"".join(payloads)
    array = np.frombuffer(data, np.uint8)
    if (array[edges[1:] - 1] == 10).all() and not (array[edges[:-1]] == BOM[0]).any():
        return data, edges[:-1], np.array([segment.start for segment in segments], np.int64) - edges[:-1]
    return _join_one_by_one(segments)


def _join_one_by_one(segments: list[Segment]) -> tuple[Any, NDArray[np.int64], NDArray[np.int64]]:
    """The same where BOMs are left out or newlines added."""
    skips = [segment.bom_bytes for segment in segments]
    views = [memoryview(segment.payload)[skip:] for segment, skip in zip(segments, skips, strict=True)]
    pieces: list[Any] = []
    bounds, shifts, total = [], [], 0
    for segment, skip, view in zip(segments, skips, views, strict=True):
        bounds.append(total)
        shifts.append(segment.start + skip - total)
        pieces.append(view)
        total += len(view)
        if len(view) and view[-1] != 10:
            pieces.append(b"\n")
            total += 1
    return b"".join(pieces), np.array(bounds, np.int64), np.array(shifts, np.int64)


def plain_lines(data: Any) -> NDArray[np.int64] | None:
    """Where the lines begin, int64 [n], if each begins with "{" and ends with "}"; else None.

    Between "}" and "{" a newline can only stand outside of all records (inside a string it is refused), so every
    line then holds one or more whole records, and as many rows as lines means one a line.
    """
    array = np.frombuffer(data, np.uint8)
    if not 0 < array.size < _MAX_FAST_BYTES:
        return None
    newlines = positions_of(array, 10)  # `find` costs as much, and holds the interpreter's lock
    starts = np.concatenate([np.zeros(1, np.int64), newlines + 1])
    ends = np.append(newlines, array.size)
    if newlines.size and newlines[-1] == array.size - 1:
        starts, ends = starts[:-1], ends[:-1]
    if (ends <= starts).any():
        return None
    last = array[ends - 1]
    returns = last == 13
    if returns.any():
        last = np.where(returns, array[np.maximum(ends - 2, starts)], last)
    if (array[starts] != ord("{")).any() or (last != ord("}")).any():
        return None
    return starts


def read_columns(
    data: Any, options: SourceOptions
) -> tuple[Any, NDArray[np.uint8] | None, list[str | None] | None] | None:
    """The text column (an Arrow string array), sides and ids of plain records; None where anything is odd."""
    for id_type in (pa.string(), pa.int64()) if options.id_field else (pa.string(),):
        table = _read_table(data, options, id_type)
        if table is not None:
            break
    if table is None:
        return None
    texts = _one_chunk(table[options.text_field])
    if texts is None or texts.null_count:
        return None
    splits = ids = None
    if options.split_field:
        sides = _one_chunk(table[options.split_field])
        coded = None if sides is None or sides.null_count else sides.dictionary_encode()
        if coded is None or not set(coded.dictionary.to_pylist()) <= set(SPLIT_VALUES):
            return None
        values = [SPLIT_VALUES[side] for side in coded.dictionary.to_pylist()]
        splits = np.array(values, np.uint8)[coded.indices.to_numpy()]
    if options.id_field:
        column = _one_chunk(table[options.id_field])
        if column is None:
            return None
        ids = [None if one is None else str(one) for one in column.to_pylist()]
    return texts, splits, ids


def _read_table(data: Any, options: SourceOptions, id_type: Any) -> Any:
    fields = {options.text_field: pa.string()}
    if options.split_field:
        fields.setdefault(options.split_field, pa.string())
    if options.id_field:
        fields.setdefault(options.id_field, id_type)
    try:
        return pj.read_json(
            pa.BufferReader(pa.py_buffer(data)),
            pj.ReadOptions(use_threads=False, block_size=len(data) + 1),
            pj.ParseOptions(
                explicit_schema=pa.schema(list(fields.items())),
                newlines_in_values=False,
                unexpected_field_behavior="ignore",
            ),
        )
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None
    finally:
        if len(data) > _LARGE_BYTES:
            pa.default_memory_pool().release_unused()  # the parser's own copy, which the pool would keep for later


_LARGE_BYTES = 64 << 20


def _one_chunk(column: Any) -> Any:
    """The column as one array of valid UTF-8 (or numbers), None where it is not."""
    if column.num_chunks != 1:
        return None
    array = column.chunk(0)
    try:
        array.validate(full=True)
    except pa.ArrowInvalid:
        return None
    return array
