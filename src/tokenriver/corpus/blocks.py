"""What flows from reading to encoding: raw blocks, cut by one reader, and the documents parsed from them by many.

A block may span several small files, so that ten thousand of them cost little more than one large one; what comes
out never depends on where the blocks are cut.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, NoReturn

import msgspec
import numpy as np

from tokenriver.batches import TextBatch, offsets_of
from tokenriver.corpus.streams import count_newlines
from tokenriver.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from numpy.typing import NDArray

    from tokenriver.corpus.sources import Source, SourceOptions

__all__ = [
    "BOM",
    "SPLIT_VALUES",
    "DocumentBlock",
    "Position",
    "RawBlock",
    "Segment",
    "SkipKind",
    "Verdict",
    "bad_split",
    "counts_to_record",
    "drop_empty",
    "id_text",
    "join_documents",
]

BOM = b"\xef\xbb\xbf"

SkipKind = Literal[
    "malformed", "non_object", "missing", "null", "non_string", "invalid_utf8", "lone_surrogate", "blank", "empty"
]
"""Why a record gave no document. The last two are never errors."""


def counts_to_record(skipped: Mapping[str, int]) -> dict[str, int]:
    """The counts by kind, sorted, as a corpus or selection keeps them: {} unless a bad record was left out."""
    return dict(sorted(skipped.items())) if skipped.keys() - {"blank", "empty"} else {}


SPLIT_VALUES = {"train": 0, "val": 1, "validation": 1}
"""Values of a split column → side (0 train, 1 val)."""

_UNIT = {"parquet": "row", "array": "record"}
"""What is counted where there are no lines."""


class Position(NamedTuple):
    """A place between documents where reading can begin: the source's index and an offset in it.

    The offset counts bytes of the decompressed stream, or rows of a Parquet file. (A JSON array is read in one piece,
    so there the only ones are its two ends.)
    """

    source_index: int
    offset: int


class Segment(msgspec.Struct, frozen=True, eq=False, gc=False):
    """A run of whole records of one source: [start, end) in the source's own unit.

    `payload` is bytes-like for JSONL and text, a pyarrow RecordBatch for Parquet. `first_line` is the number (from
    0) of its first line where reading again cannot find it (standard input).
    """

    source_index: int
    source: Source
    start: int
    end: int
    payload: Any
    first_line: int | None = None

    @property
    def n_bytes(self) -> int:
        """Size of the payload."""
        return self.payload.nbytes if self.source.kind == "parquet" else len(self.payload)

    @property
    def bom_bytes(self) -> int:
        """Bytes of the BOM that the payload begins with: 3 or 0, and 0 anywhere but at the start of a file."""
        return len(BOM) if self.start == 0 and self.payload[:3] == BOM else 0

    def before(self, offset: int) -> Segment:
        """The part of it before an offset that is a border between records."""
        n = offset - self.start
        payload = self.payload.slice(0, n) if self.source.kind == "parquet" else memoryview(self.payload)[:n].tobytes()
        return msgspec.structs.replace(self, end=offset, payload=payload)

    def place(self, offset: int) -> str:
        """Where a record is, for an error: "FILE:LINE (byte OFFSET)", or "FILE: row ROW" (from 0) for Parquet."""
        if self.source.kind in _UNIT:
            return _by_number(self.source, offset)
        line = self.first_line if self.first_line is not None else count_newlines(self.source, self.start)
        line += bytes(memoryview(self.payload)[: offset - self.start]).count(b"\n")
        return _by_line(self.source, line, offset)


@dataclass(frozen=True, slots=True, eq=False)
class RawBlock:
    """Consecutive segments in the order of the sources: what one worker parses at a time."""

    segments: tuple[Segment, ...]

    @property
    def start(self) -> Position:
        """Where the block begins."""
        return Position(self.segments[0].source_index, self.segments[0].start)

    @property
    def end(self) -> Position:
        """Where the block ends and the next one begins."""
        return Position(self.segments[-1].source_index, self.segments[-1].end)

    @property
    def n_bytes(self) -> int:
        """Size of the payloads, decompressed."""
        return sum(segment.n_bytes for segment in self.segments)


@dataclass(frozen=True, slots=True, eq=False)
class DocumentBlock:
    """The documents of a block, in order.

    `splits` uint8 [n] (0 train, 1 val) where a split field was asked for, `ids` (None for a record without one) where
    ids were; `source_indices` int32 [n] and `offsets` int64 [n] say where each began (Position's units;
    in a JSON array the record's number); `skipped`
    counts by SkipKind the records that gave no document; `n_records` counts all of them.
    """

    texts: TextBatch
    splits: NDArray[np.uint8] | None
    ids: list[str | None] | None
    source_indices: NDArray[np.int32]
    offsets: NDArray[np.int64]
    skipped: Counter[str]

    def __len__(self) -> int:
        return len(self.texts)

    def where(self, i: int, sources: Sequence[Source]) -> str:
        """Where document i stands, for an error; reads the file again to count lines."""
        source, offset = sources[int(self.source_indices[i])], int(self.offsets[i])
        if source.kind in _UNIT:
            return _by_number(source, offset)
        if source.stream is not None:
            return f"{source} (byte {offset})"
        return _by_line(source, count_newlines(source, offset), offset)


def _by_number(source: Source, offset: int) -> str:
    return f"{source}: {_UNIT[source.kind]} {offset:,} (counted from 0)"


def _by_line(source: Source, line: int, offset: int) -> str:
    return f"{source}:{line + 1} (byte {offset}{' decompressed' if source.compression else ''})"


class Verdict:
    """What becomes of bad records: the first stops the run, or each is counted (`on_bad_record`)."""

    def __init__(self, options: SourceOptions) -> None:
        self._stop = options.on_bad_record == "error"
        self.skipped: Counter[str] = Counter()

    def bad(self, kind: SkipKind, segment: Segment, offset: int, what: str, *advice: str) -> None:
        """A record that begins at `offset` is bad. CorpusError naming file, line and byte unless they are skipped.

        `advice` says with which options it would not be (`TokenRiverError.advice`).
        """
        if self._stop:
            leave_out = "--on-bad-record skip leaves such records out"
            raise CorpusError(f"{segment.place(offset)}: {what}", advice=(*advice, leave_out))
        self.skipped[kind] += 1

    def text(
        self, value: Any, segment: Segment, offset: int, field: str, *, kind_of: Callable[[object], str], why: str = ""
    ) -> str | None:
        """The text of a decoded JSON record; None where it has none and bad ones are skipped.

        `kind_of` says in words what another value is, `why` how it may have come that a record is no object.
        """
        if not isinstance(value, dict):
            self.bad("non_object", segment, offset, f"expected a JSON object, found {kind_of(value)}{why}")
        elif field not in value:
            there = ", ".join(map(repr, value)) or "none"
            what = f"no field {field!r}; the fields are {there}"
            self.bad("missing", segment, offset, what, "name the text with --text-field")
        elif value[field] is None:
            self.bad("null", segment, offset, f"field {field!r} is null, not a text")
        elif not isinstance(value[field], str):
            self.bad("non_string", segment, offset, f"field {field!r} is {kind_of(value[field])}, not a text")
        else:
            text: str = value[field]
            return text
        return None

    def split(self, value: object, segment: Segment, offset: int, field: str) -> int:
        """The side (0 train, 1 val) that a record's split field names."""
        if isinstance(value, str) and value in SPLIT_VALUES:
            return SPLIT_VALUES[value]
        return bad_split(value, segment, offset, field)


def id_text(value: object) -> str | None:
    """A record's id, a text or an integer, as a text; None for anything else, which names nothing."""
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) else None


def bad_split(value: object, segment: Segment, offset: int, field: str) -> NoReturn:
    """A record that names no side is an error even where bad records are skipped: it may not land on either."""
    found = "is missing" if value is None else f"is {value!r}"
    raise CorpusError(
        f"{segment.place(offset)}: the split field {field!r} {found}; expected 'train' or 'val'",
        advice=("choose another rule with --split if the records do not name their side",),
    )


def join_documents(parts: list[DocumentBlock], options: SourceOptions) -> DocumentBlock:
    """Documents of consecutive segments as one block."""
    if len(parts) == 1:
        return parts[0]
    lengths = [part.texts.lengths for part in parts] or [np.zeros(0, np.int64)]
    skipped: Counter[str] = Counter()
    for part in parts:
        skipped.update(part.skipped)
    return DocumentBlock(
        TextBatch(_concat([part.texts.data for part in parts], np.uint8), offsets_of(np.concatenate(lengths))),
        _concat([part.splits for part in parts if part.splits is not None], np.uint8) if options.split_field else None,
        [one for part in parts for one in part.ids or ()] if options.id_field else None,
        _concat([part.source_indices for part in parts], np.int32),
        _concat([part.offsets for part in parts], np.int64),
        skipped,
    )


def _concat(arrays: list[NDArray[Any]], dtype: type[np.generic]) -> NDArray[Any]:
    return np.concatenate(arrays) if arrays else np.zeros(0, dtype)


def drop_empty(block: DocumentBlock, options: SourceOptions) -> DocumentBlock:
    """The block without its empty texts, counted, unless they are kept. The bytes stay where they are."""
    if options.keep_empty:
        return block
    keep = block.texts.lengths > 0
    n_empty = len(keep) - int(np.count_nonzero(keep))
    if not n_empty:
        return block
    offsets = block.texts.offsets
    return DocumentBlock(
        TextBatch(block.texts.data, np.concatenate([offsets[:-1][keep], offsets[-1:]])),
        None if block.splits is None else block.splits[keep],
        None if block.ids is None else [one for one, kept in zip(block.ids, keep, strict=True) if kept],
        block.source_indices[keep],
        block.offsets[keep],
        block.skipped + Counter(empty=n_empty),
    )
