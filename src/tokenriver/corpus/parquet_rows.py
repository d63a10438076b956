"""Rows of a Parquet file as documents: whatever type the text column has, null and broken texts told by their row."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from tokenriver.batches import TextBatch
from tokenriver.corpus.blocks import SPLIT_VALUES, DocumentBlock, Segment, Verdict, bad_split, id_text

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.corpus.sources import SourceOptions

__all__ = ["begins_document", "parse_parquet", "plain"]


def parse_parquet(segment: Segment, options: SourceOptions) -> DocumentBlock:
    """Documents of one run of rows, empty ones included."""
    verdict = Verdict(options)
    batch = _without_views(segment.payload)
    column = plain(batch.column(options.text_field))
    rows = np.arange(segment.start, segment.end, dtype=np.int64)
    keep = np.ones(len(column), np.bool_)
    if column.null_count:
        for i in np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False)).tolist():
            verdict.bad("null", segment, segment.start + i, f"column {options.text_field!r} is null, not a text")
            keep[i] = False
    if not _is_utf8(column):
        _judge_bytes(column, keep, segment, options, verdict)
    if not keep.all():
        column, batch, rows = column.filter(pa.array(keep)), batch.filter(pa.array(keep)), rows[keep]
    texts = TextBatch.from_arrow(column)
    if options.document_start is not None and len(rows):
        begins = begins_document(column, options)
        begins[0] = True
        texts = TextBatch(texts.data, np.append(texts.offsets[:-1][begins], texts.offsets[-1]))
        batch, rows = batch.filter(pa.array(begins)), rows[begins]
    return DocumentBlock(
        texts,
        _sides(batch, rows, segment, options.split_field) if options.split_field else None,
        _ids(batch, options.id_field) if options.id_field else None,
        np.full(len(rows), segment.source_index, np.int32),
        rows,
        verdict.skipped,
    )


def _without_views(batch: Any) -> Any:
    """The same rows with no column of a view type, which Arrow cannot filter."""
    for i, kind in enumerate(batch.schema.types):
        if pa.types.is_string_view(kind) or pa.types.is_binary_view(kind):
            plain = pa.large_string() if pa.types.is_string_view(kind) else pa.large_binary()
            batch = batch.set_column(i, batch.schema.names[i], batch.column(i).cast(plain))
    return batch


def plain(column: Any) -> Any:
    """The column as large_binary, whatever it was; null for null."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    return column if pa.types.is_large_binary(column.type) else column.cast(pa.large_binary())


def _is_utf8(column: Any) -> bool:
    try:
        column.view(pa.large_string()).validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _judge_bytes(
    column: Any, keep: NDArray[np.bool_], segment: Segment, options: SourceOptions, verdict: Verdict
) -> None:
    for i in np.flatnonzero(keep).tolist():
        try:
            column[i].as_py().decode()
        except UnicodeDecodeError as error:
            what = f"column {options.text_field!r}: invalid UTF-8 at byte {error.start} of the text ({error.reason})"
            verdict.bad("invalid_utf8", segment, segment.start + i, what)
            keep[i] = False


def _sides(batch: Any, rows: NDArray[np.int64], segment: Segment, field: str) -> NDArray[np.uint8]:
    column = batch.column(field)
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    sides = np.zeros(len(rows), np.uint8)
    for i, value in enumerate(column.to_pylist()):
        if not isinstance(value, str) or value not in SPLIT_VALUES:
            bad_split(value, segment, int(rows[i]), field)
        sides[i] = SPLIT_VALUES[value]
    return sides


def _ids(batch: Any, field: str) -> list[str | None]:
    if field not in batch.schema.names:
        return [None] * batch.num_rows
    return [id_text(one) for one in batch.column(field).to_pylist()]


def begins_document(column: Any, options: SourceOptions) -> NDArray[np.bool_]:
    """Which rows' texts begin a document, bool [rows]; null does not."""
    import pyarrow.compute as pc  # here, as pyarrow.parquet elsewhere: half of what starting a command takes

    found = pc.fill_null(pc.match_substring_regex(column, options.document_start), fill_value=False)
    return np.asarray(found.to_numpy(zero_copy_only=False), np.bool_)
