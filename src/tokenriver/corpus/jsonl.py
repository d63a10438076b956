"""JSON lines: cutting at "\\n" alone, a fast parser for plain blocks, a careful one for everything else.

The fast parser (pyarrow, no Python object a record, the GIL released) decides only blocks that it provably reads as
the careful one would; one odd record sends its block to the careful parser (msgspec, record by record).
What the two must agree on was found by trying and is held by a property test: pyarrow takes several records on one
line, records over several lines and a BOM anywhere (excluded here by looking at each line's first and last byte and
counting rows), refuses duplicate keys, lone surrogates and numbers beyond a double (then the careful parser
decides), does not check UTF-8 (validated after it), and lets NaN and Infinity and any depth of nesting through in
fields that are not read (so the careful parser does too).
"""

from __future__ import annotations

import functools
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.json as pj

from tokenriver.batches import TextBatch
from tokenriver.corpus.blocks import SPLIT_VALUES, DocumentBlock, Segment, Verdict
from tokenriver.corpus.streams import READ_BYTES, read_chunks

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tokenriver.corpus.sources import Source, SourceOptions

__all__ = ["cut_jsonl", "parse_jsonl", "record_fields"]

BOM = b"\xef\xbb\xbf"

_BLANKS = b" \t\r"
"""White space of JSON that can stand in a line."""

_MAX_FAST_BYTES = (1 << 31) - (1 << 20)
"""pyarrow counts a block's bytes in 32 bits."""


def cut_jsonl(
    source: Source, index: int, *, start: int, block_bytes: int, on_raw: Callable[[bytes], None] | None
) -> Iterator[Segment]:
    """Runs of whole lines of about `block_bytes`; a longer line makes its run grow. No byte is searched twice."""
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
    fast = _parse_fast(segments, options)
    if fast is not None:
        return [fast]
    if len(segments) == 1:
        return [_parse_careful(segments[0], options)]
    return [_parse_fast([segment], options) or _parse_careful(segment, options) for segment in segments]


def record_fields(line: bytes) -> list[str] | None:
    """The field names of one line, or None where it is no JSON object."""
    try:
        value = msgspec.json.decode(line.removeprefix(BOM))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
        return None
    return list(value) if isinstance(value, dict) else None


def _bom_bytes(segment: Segment) -> int:
    return len(BOM) if segment.start == 0 and segment.payload[:3] == BOM else 0


# The fast parser.


def _parse_fast(segments: list[Segment], options: SourceOptions) -> DocumentBlock | None:
    data, bounds, shifts = _join(segments)
    lines = _plain_lines(data)
    if lines is None:
        return None
    columns = _read_columns(data, options)
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
    skips = [_bom_bytes(segment) for segment in segments]
    views = [memoryview(segment.payload)[skip:] for segment, skip in zip(segments, skips, strict=True)]
    if len(views) == 1:
        return views[0], np.zeros(1, np.int64), np.array([segments[0].start + skips[0]], np.int64)
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


def _plain_lines(data: Any) -> NDArray[np.int64] | None:
    """Where the lines begin, int64 [n], if each begins with "{" and ends with "}"; else None.

    Between "}" and "{" a newline can only stand outside of all records (inside a string it is refused), so every
    line then holds one or more whole records, and as many rows as lines means one a line.
    """
    array = np.frombuffer(data, np.uint8)
    if not 0 < array.size < _MAX_FAST_BYTES:
        return None
    newlines = np.flatnonzero(array == 10)
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


def _read_columns(
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
        places = None if sides is None else pc.index_in(sides, value_set=pa.array(list(SPLIT_VALUES)))
        if places is None or places.null_count:
            return None
        splits = np.array(list(SPLIT_VALUES.values()), np.uint8)[places.to_numpy()]
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


# The careful parser.


@functools.lru_cache(maxsize=16)
def _decoder(text_field: str, split_field: str | None, id_field: str | None) -> msgspec.json.Decoder[Any]:
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [("text", str)]
    names = {"text": text_field}
    for attribute, name in (("split", split_field), ("id", id_field)):
        if name is not None and name not in names.values():
            fields.append((attribute, Any, None))
            names[attribute] = name
    return msgspec.json.Decoder(msgspec.defstruct("Record", fields, rename=names))


def _parse_careful(segment: Segment, options: SourceOptions) -> DocumentBlock:
    verdict = Verdict(options)
    decode = _decoder(options.text_field, options.split_field, options.id_field).decode
    texts: list[bytes] = []
    splits: list[int] = []
    ids: list[str | None] = []
    offsets: list[int] = []
    for begin, end in pairwise(_line_bounds(segment)):
        line = memoryview(segment.payload)[begin:end]
        offset = segment.start + begin
        try:
            record = decode(line)
            text, fields = record.text, record
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            rescued = _second_look(bytes(line), segment, offset, options, verdict)
            if rescued is None:
                continue
            text, fields = rescued
        if options.split_field:
            splits.append(verdict.split(_get(fields, "split", options), segment, offset, options.split_field))
        if options.id_field:
            ids.append(_id_text(_get(fields, "id", options)))
        texts.append(text.encode())
        offsets.append(offset)
    return DocumentBlock(
        TextBatch.from_texts(texts),
        np.array(splits, np.uint8) if options.split_field else None,
        ids if options.id_field else None,
        np.full(len(texts), segment.source_index, np.int32),
        np.array(offsets, np.int64),
        verdict.skipped,
    )


def _get(record: Any, attribute: str, options: SourceOptions) -> object:
    """The split or id of a decoded record (a struct) or a rescued one (a dict)."""
    name = options.split_field if attribute == "split" else options.id_field
    if name == options.text_field:
        attribute = "text"
    elif name == options.split_field:
        attribute = "split"
    return record.get(name) if isinstance(record, dict) else getattr(record, attribute)


def _id_text(value: object) -> str | None:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def _line_bounds(segment: Segment) -> Iterator[int]:
    payload = segment.payload
    begin = _bom_bytes(segment)
    yield begin
    while begin < len(payload):
        newline = payload.find(b"\n", begin)
        begin = len(payload) if newline < 0 else newline + 1
        yield begin


def _second_look(
    line: bytes, segment: Segment, offset: int, options: SourceOptions, verdict: Verdict
) -> tuple[str, dict[str, Any]] | None:
    """A line that the careful parser refuses: its text and fields if it is good after all, else it is judged."""
    bad = functools.partial(verdict.bad, segment=segment, offset=offset)
    if not line.strip(_BLANKS + b"\n"):
        verdict.skipped["blank"] += 1
        return None
    invalid: UnicodeDecodeError | None = None
    try:
        decoded = line.decode()
    except UnicodeDecodeError as error:
        invalid, decoded = error, line.decode(errors="surrogateescape")
    try:
        value = json.loads(decoded, parse_int=_parse_int)
    except (ValueError, RecursionError) as error:
        rescued = _one_record(line, options)
        if rescued is not None:
            return rescued
        if invalid is not None:
            bad("invalid_utf8", what=_why_invalid(invalid, line))
        else:
            bad("malformed", what=f"broken JSON ({_why(error)})")
        return None
    field = options.text_field
    if not isinstance(value, dict):
        bad("non_object", what=f"expected a JSON object, found {_json_kind(value)}")
    elif field not in value:
        there = ", ".join(map(repr, value)) or "none"
        bad("missing", what=f"no field {field!r}; the fields are {there}: name the text with --text-field")
    elif value[field] is None:
        bad("null", what=f"field {field!r} is null, not a text")
    elif not isinstance(value[field], str):
        bad("non_string", what=f"field {field!r} is {_json_kind(value[field])}, not a text")
    elif not _has_surrogate(value[field]):
        return value[field], value
    elif invalid is not None:
        bad("invalid_utf8", what=_why_invalid(invalid, line))
    else:
        bad("lone_surrogate", what=f"field {field!r} holds a lone surrogate, which no UTF-8 text can")
    return None


def _one_record(line: bytes, options: SourceOptions) -> tuple[str, dict[str, Any]] | None:
    """What the fast parser makes of one line: so that its verdict never depends on the lines around it."""
    body = line.removesuffix(b"\n").removesuffix(b"\r")
    if _plain_lines(body) is None:
        return None
    columns = _read_columns(body, options)
    if columns is None or len(columns[0]) != 1:
        return None
    texts, splits, ids = columns
    text: str = texts[0].as_py()
    record: dict[str, Any] = {options.text_field: text}
    if splits is not None and options.split_field:
        record[options.split_field] = ("train", "val")[splits[0]]
    if ids is not None and options.id_field:
        record[options.id_field] = ids[0]
    return text, record


def _parse_int(digits: str) -> int | str:
    """Integers of thousands of digits stay text: Python refuses to turn them into numbers, JSON allows them."""
    return int(digits) if len(digits) < 1000 else digits


def _why(error: Exception) -> str:
    if isinstance(error, RecursionError):
        return "nested too deeply"
    if isinstance(error, json.JSONDecodeError):
        return f"{error.msg} at character {error.pos} of the line"
    return str(error)


def _why_invalid(error: UnicodeDecodeError, line: bytes) -> str:
    if line.startswith((b"\xff\xfe", b"\xfe\xff")):
        return "the file looks like UTF-16; convert it to UTF-8"
    return f"invalid UTF-8 at byte {error.start} of the line ({error.reason})"


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _json_kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
