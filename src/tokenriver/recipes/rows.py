"""Rows of Parquet files as JSON lines: the form in which evaluation tasks are read."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenriver.errors import CorpusError
from tokenriver.files import atomic_write, open_binary

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["parquet_to_jsonl"]


def parquet_to_jsonl(path: Path, folder: Path) -> Path:
    """Write the rows of a Parquet file, here or behind a URL, as `<name>.jsonl` in a folder, all columns, in order."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    folder.mkdir(parents=True, exist_ok=True)
    target = folder / f"{path.stem}.jsonl"
    try:
        with open_binary(path) as raw, pq.ParquetFile(raw) as rows, atomic_write(target) as file:
            for batch in rows.iter_batches():
                for record in batch.to_pylist():
                    file.write(json.dumps(record, ensure_ascii=False).encode() + b"\n")
    except pa.ArrowException as error:
        raise CorpusError(f"{path}: not a whole Parquet file ({error}); fetch it again") from error
    return target
