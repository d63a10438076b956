"""The two kinds of corpus shard, `.jsonl.zst` and `.parquet`: their bytes depend on the documents alone."""

from __future__ import annotations

from typing import IO, TYPE_CHECKING, Literal, Protocol, get_args

import msgspec
import numpy as np
import pyarrow as pa
import zstandard

from tokenriver.corpus.splits import SPLITS
from tokenriver.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.batches import TextBatch

__all__ = ["CORPUS_FORMATS", "CorpusFormat", "ShardFile", "fitting", "open_shard_file", "written_with"]

CorpusFormat = Literal["jsonl.zst", "parquet"]
CORPUS_FORMATS: tuple[CorpusFormat, ...] = get_args(CorpusFormat)

_ZSTD_LEVEL = 3
_PIECE_BYTES = 1 << 20
"""The compressor is fed pieces of exactly this size, since its output may depend on how its input is cut."""

_GROUP_BYTES = 32 << 20
_GROUP_ROWS = 1 << 17
"""A row group closes before the document that would push it past these."""

_MAX_PARQUET_TEXT = (1 << 31) - 1


class ShardFile(Protocol):
    """A corpus shard that is being written."""

    def add(self, ids: list[str], texts: TextBatch, sides: NDArray[np.uint8]) -> None:
        """Append documents."""

    def close(self) -> None:
        """Write what is left; the file itself stays open."""


def open_shard_file(file: IO[bytes], shard_format: CorpusFormat) -> ShardFile:
    """A shard of that format written to an open binary file."""
    return _JsonlShard(file) if shard_format == "jsonl.zst" else _ParquetShard(file)


def written_with(shard_format: CorpusFormat) -> str:
    """The library, with its version, on which a shard's bytes depend."""
    if shard_format == "parquet":
        return f"pyarrow {pa.__version__}"
    return f"zstandard {zstandard.__version__} (zstd {'.'.join(map(str, zstandard.ZSTD_VERSION))})"


class _Row(msgspec.Struct):
    id: str
    text: str
    split: str


class _JsonlShard:
    def __init__(self, file: IO[bytes]) -> None:
        self._file = file
        self._encoder = msgspec.json.Encoder()
        # One frame with a checksum: many readers stop after the first frame of a file.
        self._frame = zstandard.ZstdCompressor(level=_ZSTD_LEVEL, write_checksum=True).compressobj()
        self._buffer = bytearray()

    def add(self, ids: list[str], texts: TextBatch, sides: NDArray[np.uint8]) -> None:
        rows = [
            _Row(one, text, SPLITS[side]) for one, text, side in zip(ids, texts.texts(), sides.tolist(), strict=True)
        ]
        self._buffer += self._encoder.encode_lines(rows)
        whole = len(self._buffer) - len(self._buffer) % _PIECE_BYTES
        for begin in range(0, whole, _PIECE_BYTES):
            self._file.write(self._frame.compress(bytes(self._buffer[begin : begin + _PIECE_BYTES])))
        del self._buffer[:whole]

    def close(self) -> None:
        self._file.write(self._frame.compress(bytes(self._buffer)))
        self._file.write(self._frame.flush())


class _ParquetShard:
    _SCHEMA = pa.schema([pa.field(name, pa.string(), nullable=False) for name in ("id", "text", "split")])

    def __init__(self, file: IO[bytes]) -> None:
        import pyarrow.parquet as pq  # dear to import, and only corpora in Parquet need it

        self._writer = pq.ParquetWriter(
            file, self._SCHEMA, compression="zstd", compression_level=_ZSTD_LEVEL, use_dictionary=["split"]
        )
        self._waiting: list[tuple[list[str], TextBatch, NDArray[np.uint8]]] = []
        self._rows = self._bytes = 0

    def add(self, ids: list[str], texts: TextBatch, sides: NDArray[np.uint8]) -> None:
        begin = 0
        while begin < len(texts):
            end = min(fitting(texts.offsets, begin, _GROUP_BYTES - self._bytes), begin + _GROUP_ROWS - self._rows)
            if end == begin and not self._rows:
                end = begin + 1  # a document larger than a group stands alone in one
            if end == begin:
                self._flush()
                continue
            part = texts.slice(begin, end)
            if part.data.nbytes > _MAX_PARQUET_TEXT:
                raise UsageError("a document of over 2 GiB does not fit a Parquet string; write --format jsonl.zst")
            self._waiting.append((ids[begin:end], part, sides[begin:end]))
            self._rows += end - begin
            self._bytes += part.data.nbytes
            begin = end

    def _flush(self) -> None:
        ids = [one for part, _, _ in self._waiting for one in part]
        texts = np.concatenate([part.data for _, part, _ in self._waiting])
        lengths = np.concatenate([part.lengths for _, part, _ in self._waiting])
        sides = np.concatenate([part for _, _, part in self._waiting])
        offsets = np.zeros(len(ids) + 1, np.int32)
        np.cumsum(lengths, out=offsets[1:])
        column = pa.StringArray.from_buffers(len(ids), pa.py_buffer(offsets), pa.py_buffer(texts))
        splits = pa.array([SPLITS[side] for side in sides.tolist()], pa.string())
        # One array a column: where pages end depends on how a column is chunked.
        table = pa.Table.from_arrays([pa.array(ids, pa.string()), column, splits], schema=self._SCHEMA)
        self._writer.write_table(table, row_group_size=len(ids))
        self._waiting, self._rows, self._bytes = [], 0, 0

    def close(self) -> None:
        if self._rows:
            self._flush()
        self._writer.close()


def fitting(offsets: NDArray[np.int64], begin: int, room: int) -> int:
    """The end of the documents from `begin` that fit into `room` bytes together (pure; `begin` if none does)."""
    return max(begin, int(np.searchsorted(offsets, offsets[begin] + room, side="right")) - 1)
