"""Parquet files: one column streamed in row-group slices, so that a file of any size takes the memory of a block."""

from __future__ import annotations

from functools import partial
from itertools import accumulate
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa
from msgspec.structs import replace

from tokenriver.corpus.blocks import Segment
from tokenriver.corpus.density import MOST_RECORDS
from tokenriver.corpus.parquet_rows import begins_document, plain
from tokenriver.errors import CorpusError, StorageError
from tokenriver.storage.seeking import RemoteReader

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokenriver.corpus.sources import Source, SourceOptions

__all__ = [
    "cut_parquet",
    "group_rows",
    "open_parquet",
    "parquet_columns",
    "parquet_parts",
    "whole_documents",
]

_STORE_FAILURES = (StorageError, FileNotFoundError, PermissionError)


def parquet_columns(source: Source) -> list[str]:
    """Names of a file's columns."""
    with open_parquet(source) as file:
        return list(file.schema_arrow.names)


def group_rows(source: Source) -> list[int]:
    """The row at which each row group begins, and last the number of all rows."""
    with open_parquet(source) as file:
        meta = file.metadata
        return [0, *accumulate(meta.row_group(i).num_rows for i in range(meta.num_row_groups))]


def cut_parquet(
    source: Source, index: int, options: SourceOptions, *, start: int, block_bytes: int
) -> Iterator[Segment]:
    """Runs of rows from row `start`, of about `block_bytes` of decoded columns each; of whole documents where rows
    are joined (`document_start`).
    """
    return whole_documents(_cut_rows(source, index, options, start, block_bytes), options)


def parquet_parts(
    source: Source, index: int, options: SourceOptions, *, block_bytes: int
) -> list[Callable[[], Iterator[Segment]]]:
    """The runs of a whole file, before `whole_documents`, in parts that several threads may read at a time."""
    with open_parquet(source) as file:
        columns, metadata = _check_columns(source, file.schema_arrow, options), file.metadata
    parts: list[Callable[[], Iterator[Segment]]] = []
    first = first_row = row = size = 0
    for group in range(metadata.num_row_groups):
        meta = metadata.row_group(group)
        row += meta.num_rows
        size += _column_bytes(meta, columns)
        if size >= _PART_BYTES or group == metadata.num_row_groups - 1:
            groups, begin = range(first, group + 1), first_row
            parts.append(partial(_cut_part, source, index, metadata, groups, columns, begin, block_bytes))
            first, first_row, size = group + 1, row, 0
    return parts


_PART_BYTES = 32 << 20
"""Decoded bytes of a part: far more than opening a file again takes, little enough that small files have several."""


def _cut_rows(source: Source, index: int, options: SourceOptions, start: int, block_bytes: int) -> Iterator[Segment]:
    with open_parquet(source) as file:
        columns = _check_columns(source, file.schema_arrow, options)
        yield from _cut_groups(source, index, file, range(file.num_row_groups), columns, (0, start), block_bytes)


def _cut_part(
    source: Source, index: int, metadata: Any, groups: range, columns: list[str], first_row: int, block_bytes: int
) -> Iterator[Segment]:
    with open_parquet(source, metadata=metadata) as file:
        yield from _cut_groups(source, index, file, groups, columns, (first_row, first_row), block_bytes)


def _cut_groups(
    source: Source,
    index: int,
    file: Any,
    groups: range,
    columns: list[str],
    begin: tuple[int, int],
    block_bytes: int,
) -> Iterator[Segment]:
    """Runs of the row groups, of which `begin` is the first row and the first one that is wanted."""
    row, start = begin
    for group in groups:
        n_rows = file.metadata.row_group(group).num_rows
        if n_rows and row + n_rows > start:
            yield from _cut_group(source, index, file, group, columns, (row, start), block_bytes)
        row += n_rows


def whole_documents(runs: Iterator[Segment], options: SourceOptions) -> Iterator[Segment]:
    """The same rows in runs that end where a document ends: what may go on in the next run waits for it. Where each row
    is a document, the runs as they are.
    """
    return runs if options.document_start is None else _joined_runs(runs, options)


def _joined_runs(runs: Iterator[Segment], options: SourceOptions) -> Iterator[Segment]:
    held: list[Segment] = []
    for run in runs:
        starts = np.flatnonzero(begins_document(plain(run.payload.column(options.text_field)), options))
        first_of_all = not held and starts.tolist() == [0]
        if not len(starts) or first_of_all:
            held.append(run)
            continue
        last = run.start + int(starts[-1])
        if last > run.start:
            held.append(run.before(last))
        if held:
            yield _joined(held)
        held = [replace(run, start=last, payload=run.payload.slice(last - run.start))]
    if held:
        yield _joined(held)


def _joined(runs: list[Segment]) -> Segment:
    if len(runs) == 1:
        return runs[0]
    table = pa.Table.from_batches([run.payload for run in runs]).combine_chunks()
    return replace(runs[0], end=runs[-1].end, payload=table.to_batches()[0])


def _cut_group(
    source: Source, index: int, file: Any, group: int, columns: list[str], begin: tuple[int, int], block_bytes: int
) -> Iterator[Segment]:
    row, start = begin
    meta = file.metadata.row_group(group)
    rows = max(1, min(MOST_RECORDS, block_bytes * meta.num_rows // max(1, _column_bytes(meta, columns))))
    try:
        for batch in file.iter_batches(batch_size=rows, row_groups=[group], columns=columns, use_threads=False):
            end = row + batch.num_rows
            if end > start:
                part = batch.slice(max(0, start - row))
                yield Segment(index, source, max(row, start), end, part)
            row = end
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, _STORE_FAILURES) and source.remote is not None:
            raise
        raise CorpusError(
            f"{source}: row group {group} is damaged near row {row:,} ({error}); fetch it again"
        ) from error


def _column_bytes(row_group: Any, columns: list[str]) -> int:
    chunks = [row_group.column(i) for i in range(row_group.num_columns)]
    return sum(chunk.total_uncompressed_size for chunk in chunks if chunk.path_in_schema in columns)


def open_parquet(source: Source, *, metadata: Any = None) -> Any:
    """The open file, whose `metadata` may be known. CorpusError when it is no Parquet file; what a store behind a URL
    raises, as it is."""
    import pyarrow.parquet as pq

    try:
        return pq.ParquetFile(source.path if source.remote is None else RemoteReader(source.remote), metadata=metadata)
    except (pa.ArrowException, OSError) as error:
        if isinstance(error, _STORE_FAILURES) and source.remote is not None:
            raise
        raise CorpusError(
            f"{source}: not a whole Parquet file ({str(error).splitlines()[0]}); fetch or write it again"
        ) from error


def _check_columns(source: Source, schema: Any, options: SourceOptions) -> list[str]:
    there = ", ".join(f"{name!r} ({schema.field(i).type})" for i, name in enumerate(schema.names))
    wanted = [options.text_field]
    if options.text_field not in schema.names:
        raise CorpusError(
            f"{source}: no column {options.text_field!r}; the columns are {there}",
            advice=("name it with --text-field",),
        )
    if options.split_field and options.split_field not in wanted:
        if options.split_field not in schema.names:
            raise CorpusError(
                f"{source}: no split column {options.split_field!r}; the columns are {there}",
                advice=("choose another rule with --split",),
            )
        wanted.append(options.split_field)
    if options.id_field and options.id_field not in wanted and options.id_field in schema.names:
        wanted.append(options.id_field)
    twice = [name for name in wanted if schema.names.count(name) > 1]
    if twice:
        raise CorpusError(
            f"{source}: {schema.names.count(twice[0])} columns are called {twice[0]!r}; rename one of them"
        )
    kind = schema.field(options.text_field).type
    kind = kind.value_type if pa.types.is_dictionary(kind) else kind
    if not (pa.types.is_null(kind) or _is_text(kind) or _is_bytes(kind)):
        raise CorpusError(f"{source}: column {options.text_field!r} is {kind}, not text; the columns are {there}")
    return wanted


def _is_text(kind: Any) -> bool:
    return bool(pa.types.is_string(kind) or pa.types.is_large_string(kind) or pa.types.is_string_view(kind))


def _is_bytes(kind: Any) -> bool:
    wide = pa.types.is_large_binary(kind) or pa.types.is_fixed_size_binary(kind) or pa.types.is_binary_view(kind)
    return bool(pa.types.is_binary(kind) or wide)
