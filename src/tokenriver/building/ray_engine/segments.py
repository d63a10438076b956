"""Segments: what the encoding of a range of the inputs leaves on shared storage, until the shards are made of it.

The segment of range k is up to three files in the work folder: `k.train` with ids in the shards' dtype, separators
included; `k.val` with those of val, where each document's split is known when it is encoded (else all ids are in
`k.train`, and "stream 0" means that file); and `k.docs` with the documents' lengths. A segment is a row of chunks,
so that a range of any size is planned in little memory. In `k.docs`, for each chunk: tokens of each document `<u4`, its
side `u1` (with two streams), a row of BLOCK_DTYPE for each block that was appended, and bytes of each text `<u8`.
Ids carry a CRC-32 a block: they cross storage that we know nothing of, and no damage may get into a shard.
"""

from __future__ import annotations

import zlib
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tokenriver.batches import offsets_of
from tokenriver.cluster.shared import attempt_path, read_exactly
from tokenriver.corpus.splits import VAL
from tokenriver.errors import UsageError
from tokenriver.files import naming, write_all

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

    from tokenriver.building.assemble import EncodedBlock

__all__ = ["BLOCK_DTYPE", "Chunk", "ChunkDocuments", "SegmentWriter", "read_documents", "segment_paths"]

STREAMS = (".train", ".val")
BLOCK_DTYPE = np.dtype([("tokens", "<u8", 2), ("crc", "<u4", 2)])

_CHUNK_BYTES = 128 << 20
_CHUNK_DOCUMENTS = 1 << 20
"""A chunk ends with the block that takes it past one of these; the plan loads one chunk's lengths at a time."""

_MAX_TOKENS = (1 << 32) - 1


class Chunk(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Consecutive documents of a segment; per stream where there are two, else [0] is all.

    `first_id` is where the chunk's ids begin in the files of its streams, `docs_at` the byte in `k.docs`; `sources`
    (source index, documents) of each source, in order.
    """

    segment: int
    documents: tuple[int, int]
    tokens: tuple[int, int]
    text_bytes: tuple[int, int]
    first_id: tuple[int, int]
    docs_at: int
    blocks: int
    sources: list[tuple[int, int]]

    @property
    def n_documents(self) -> int:
        """Documents of both streams."""
        return sum(self.documents)

    @property
    def n_tokens(self) -> int:
        """Ids of both streams."""
        return sum(self.tokens)


@dataclass(frozen=True, slots=True, eq=False)
class ChunkDocuments:
    """The documents of a chunk in order: `lengths` uint32 [n] in tokens, `given` uint8 [n] or None, `blocks`
    BLOCK_DTYPE [n_blocks], and where it was asked for `text_bytes` int64 [n].
    """

    lengths: NDArray[np.uint32]
    given: NDArray[np.uint8] | None
    blocks: NDArray[Any]
    text_bytes: NDArray[np.int64] | None = None

    def bounds(self, stream: int | None = None) -> NDArray[np.int64]:
        """The documents' bounds int64 [n + 1] in the chunk, or those of one stream in that."""
        lengths = self.lengths
        if stream is not None and self.given is not None:
            lengths = lengths[self.given == stream]
        return offsets_of(lengths)


def segment_paths(folder: Path, segment: int) -> tuple[Path, Path, Path]:
    """The two files of ids, and that of the documents."""
    name = f"{segment:07d}"
    return folder / (name + STREAMS[0]), folder / (name + STREAMS[1]), folder / (name + ".docs")


class SegmentWriter:
    """Writes one segment: nothing has its name before `publish`, and writing it again gives the same bytes.

    Source indices in the blocks count from `first_source`.
    """

    def __init__(self, folder: Path, segment: int, first_source: int, *, two_streams: bool) -> None:
        self._segment = segment
        self._first_source = first_source
        self._two = two_streams
        self._final = segment_paths(folder, segment)
        if not two_streams:
            self._final = (self._final[0], self._final[2])  # type: ignore[assignment]
        self._parts = [attempt_path(folder, p.name) for p in self._final]
        self._files = [open(part, "wb", buffering=0) for part in self._parts]  # noqa: SIM115
        self._blocks: list[EncodedBlock] = []
        self._table: list[tuple[list[int], list[int]]] = []
        self._size = [0, 0]
        self._first_id = (0, 0)
        self._docs_at = 0
        self._text = self._documents = 0
        self.chunks: list[Chunk] = []

    def add(self, block: EncodedBlock) -> None:
        """Append a block's ids; its lengths are kept until the chunk ends."""
        if len(block.bounds) > 1 and int(np.diff(block.bounds).max()) > _MAX_TOKENS:
            raise UsageError("a document of over 2^32 tokens does not fit a segment; build it with --engine local")
        if self._two and block.given is None:
            assert not len(block.text_bytes), "the rule gives each document a side"
            block = replace(block, given=np.zeros(0, np.uint8))
        streams = _split_streams(block) if self._two else [block.stream]
        tokens, crcs = [0, 0], [0, 0]
        for i, ids in enumerate(streams):
            view = np.ascontiguousarray(ids).data.cast("B")
            crcs[i], tokens[i] = zlib.crc32(view), len(ids)
            self._write(i, view)
            self._size[i] += len(ids)
        self._table.append((tokens, crcs))
        self._blocks.append(replace(block, stream=block.stream[:0].copy()))
        self._text += int(block.text_bytes.sum())
        self._documents += len(block.text_bytes)
        if self._text >= _CHUNK_BYTES or self._documents >= _CHUNK_DOCUMENTS:
            self._end_chunk()

    def _write(self, i: int, data: bytes | memoryview) -> None:
        with naming(self._parts[i]):
            write_all(self._files[i].fileno(), data)

    def _end_chunk(self) -> None:
        lengths = np.concatenate([np.diff(b.bounds) for b in self._blocks])
        texts = np.concatenate([b.text_bytes for b in self._blocks])
        sides = np.concatenate([b.given for b in self._blocks if b.given is not None]) if self._two else None
        table = np.array([(t, c) for t, c in self._table], BLOCK_DTYPE)
        raw = lengths.astype("<u4").tobytes() + (b"" if sides is None else sides.tobytes())
        raw += table.tobytes() + texts.astype("<u8").tobytes()
        self._write(-1, raw)
        val = np.zeros(len(lengths), np.bool_) if sides is None else sides == VAL
        n_val, val_bytes = int(np.count_nonzero(val)), int(texts[val].sum())
        per_stream = table["tokens"].sum(axis=0).tolist()
        sources: dict[int, int] = {}
        for block in self._blocks:
            for index, n in block.source_documents.items():
                sources[self._first_source + index] = sources.get(self._first_source + index, 0) + n
        self.chunks.append(
            Chunk(
                segment=self._segment,
                documents=(len(lengths) - n_val, n_val),
                tokens=(per_stream[0], per_stream[1]),
                text_bytes=(int(texts.sum()) - val_bytes, val_bytes),
                first_id=self._first_id,
                docs_at=self._docs_at,
                blocks=len(table),
                sources=list(sources.items()),
            )
        )
        self._first_id = (self._size[0], self._size[1])
        self._docs_at += len(raw)
        self._blocks, self._table, self._text, self._documents = [], [], 0, 0

    def publish(self) -> dict[str, int]:
        """End the last chunk and give the files their names; their sizes in bytes by name."""
        if self._table:
            self._end_chunk()
        sizes = {}
        for file, part, path in zip(self._files, self._parts, self._final, strict=True):
            sizes[path.name] = file.tell()
            file.close()
            part.replace(path)
        return sizes

    def discard(self) -> None:
        """Remove the parts; harmless after `publish`."""
        for file, part in zip(self._files, self._parts, strict=True):
            file.close()
            part.unlink(missing_ok=True)


def _split_streams(block: EncodedBlock) -> list[NDArray[Any]]:
    """The block's ids of train and of val, each in order."""
    assert block.given is not None
    given, bounds = block.given, block.bounds
    if not len(given):
        return [block.stream, block.stream]
    changes = np.flatnonzero(given[1:] != given[:-1]) + 1
    starts = np.concatenate([[0], changes])
    edges = bounds[np.append(starts, len(given))].tolist()
    pieces: list[list[NDArray[Any]]] = [[block.stream[:0]], [block.stream[:0]]]
    for i, side in enumerate(given[starts].tolist()):
        pieces[side].append(block.stream[edges[i] : edges[i + 1]])
    return [np.concatenate(side) for side in pieces]


def read_documents(folder: Path, chunk: Chunk, *, two_streams: bool, with_text: bool = False) -> ChunkDocuments:
    """The lengths of a chunk's documents. IntegrityError where the file is cut short."""
    n = chunk.n_documents
    table_at = n * (5 if two_streams else 4)
    text_at = table_at + chunk.blocks * BLOCK_DTYPE.itemsize
    size = text_at + (8 * n if with_text else 0)
    raw = read_exactly(segment_paths(folder, chunk.segment)[2], chunk.docs_at, size)
    return ChunkDocuments(
        np.frombuffer(raw, "<u4", n),
        np.frombuffer(raw, np.uint8, n, 4 * n) if two_streams else None,
        np.frombuffer(raw, BLOCK_DTYPE, chunk.blocks, table_at),
        np.frombuffer(raw, "<u8", n, text_at).astype(np.int64) if with_text else None,
    )
