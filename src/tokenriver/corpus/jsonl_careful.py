"""The careful parser of JSON lines: record by record, and the judge of what is wrong with a bad one."""

from __future__ import annotations

import functools
import json
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tokenriver.batches import TextBatch
from tokenriver.corpus.blocks import DocumentBlock, Segment, Verdict, id_text
from tokenriver.corpus.jsonl_fast import plain_lines, read_columns
from tokenriver.corpus.splits import SPLITS

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenriver.corpus.blocks import SkipKind
    from tokenriver.corpus.sources import SourceOptions

__all__ = ["careful_fields", "parse_careful"]

_BLANKS = b" \t\r\n"
"""White space of JSON: a line of nothing else is blank."""


@functools.lru_cache(maxsize=16)
def _decoder(text_field: str, split_field: str | None, id_field: str | None) -> msgspec.json.Decoder[Any]:
    fields: list[tuple[str, Any] | tuple[str, Any, Any]] = [("text", str)]
    names = {"text": text_field}
    for attribute, name in (("split", split_field), ("id", id_field)):
        if name is not None and name not in names.values():
            fields.append((attribute, Any, None))
            names[attribute] = name
    return msgspec.json.Decoder(msgspec.defstruct("Record", fields, rename=names))


def parse_careful(segment: Segment, options: SourceOptions) -> DocumentBlock:
    """Documents of one segment, empty texts included; each bad record is judged."""
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
            ids.append(id_text(_get(fields, "id", options)))
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


def _line_bounds(segment: Segment) -> Iterator[int]:
    payload = segment.payload
    begin = segment.bom_bytes
    yield begin
    while begin < len(payload):
        newline = payload.find(b"\n", begin)
        begin = len(payload) if newline < 0 else newline + 1
        yield begin


def _second_look(
    line: bytes, segment: Segment, offset: int, options: SourceOptions, verdict: Verdict
) -> tuple[str, dict[str, Any]] | None:
    """A line that the careful parser refuses: its text and fields if it is good after all, else it is judged."""

    def bad(kind: SkipKind, what: str) -> None:
        verdict.bad(kind, segment, offset, what)

    if not line.strip(_BLANKS):
        verdict.skipped["blank"] += 1
        return None
    invalid: UnicodeDecodeError | None = None
    try:
        decoded = line.decode()
    except UnicodeDecodeError as error:
        invalid, decoded = error, line.decode(errors="surrogateescape")
    try:
        value = _load(decoded)
    except (ValueError, RecursionError) as error:
        rescued = _one_record(line, options)
        if rescued is not None:
            return rescued
        if invalid is not None:
            bad("invalid_utf8", _why_invalid(invalid, line))
        else:
            bad("malformed", f"broken JSON ({_why(error)}){_why_several(decoded)}")
        return None
    text = verdict.text(value, segment, offset, options.text_field, kind_of=_json_kind, why=_why_several(decoded))
    if text is None:
        return None
    if not _has_surrogate(text):
        return text, value
    if invalid is not None:
        bad("invalid_utf8", _why_invalid(invalid, line))
    else:
        bad("lone_surrogate", f"field {options.text_field!r} holds a lone surrogate, which no UTF-8 text can")
    return None


def _one_record(line: bytes, options: SourceOptions) -> tuple[str, dict[str, Any]] | None:
    """What the fast parser makes of one line: so that its verdict never depends on the lines around it."""
    body = line.removesuffix(b"\n").removesuffix(b"\r")
    if plain_lines(body) is None:
        return None
    columns = read_columns(body, options)
    if columns is None or len(columns[0]) != 1:
        return None
    texts, splits, ids = columns
    text: str = texts[0].as_py()
    record: dict[str, Any] = {options.text_field: text}
    if splits is not None and options.split_field:
        record[options.split_field] = SPLITS[splits[0]]
    if ids is not None and options.id_field:
        record[options.id_field] = ids[0]
    return text, record


def careful_fields(line: bytes) -> list[str] | None:
    """The field names of a line, or None where it is no JSON object, by the rules of the second look."""
    try:
        value = _load(line.decode(errors="surrogateescape"))
    except (ValueError, RecursionError):
        return None
    return list(value) if isinstance(value, dict) else None


def _load(text: str) -> Any:
    """JSON, not strict: a raw control character in a string is text (JSON asks for an escape, some writers forget)."""
    return json.loads(text, parse_int=_parse_int, strict=False)


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
    looks_like = next((what for magic, what in _OTHER_KINDS.items() if line.startswith(magic)), None)
    if looks_like is not None:
        return f"this looks like {looks_like}"
    return f"invalid UTF-8 at byte {error.start} of the line ({error.reason})"


_OTHER_KINDS = {
    b"\x1f\x8b": "gzip: a name ends in .gz then",
    b"\x28\xb5\x2f\xfd": "zstd: a name ends in .zst then",
    b"PAR1": "Parquet: a name ends in .parquet then",
    b"PK\x03\x04": "a zip archive: unpack it",
    b"BZh": "bzip2: decompress it",
}


def _why_several(line: str) -> str:
    """A hint where a line is the beginning of an array, or of an object over several lines."""
    begin = line.strip()
    return "; each line has to be one whole object" if begin.startswith("[") or begin == "{" else ""


def _has_surrogate(text: str) -> bool:
    try:
        text.encode()
    except UnicodeEncodeError:
        return True
    return False


def _json_kind(value: object) -> str:
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    return names.get(type(value), "a number")
