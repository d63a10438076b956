"""Rows of Parquet files as JSON lines: the form in which evaluation tasks are read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenriver.errors import CorpusError
from tokenriver.files import atomic_write

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["parquet_to_jsonl"]


def parquet_to_jsonl(path: Path) -> Path:
    """Write the rows of a Parquet file as `<name>.jsonl` beside it, all columns, in order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    target = path.with_suffix(".jsonl")
    try:
        with pq.ParquetFile(path) as rows, atomic_write(target) as file:
            for batch in rows.iter_batches():
                for record in batch.to_pylist():
                    file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    except pa.ArrowException as error:
        raise CorpusError(f"{path}: not a whole Parquet file ({error}); fetch it again") from error
    return target
