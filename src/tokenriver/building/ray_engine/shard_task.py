"""A task that makes one shard, and its document index, out of pieces of segments; made again, it is the same."""

from __future__ import annotations

import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.building.index_part import IndexPart
from tokenriver.building.plan import document_ends
from tokenriver.building.ray_engine.segments import read_documents, segment_paths
from tokenriver.cluster.shared import attempt_path, read_exactly, require_probe
from tokenriver.errors import IntegrityError
from tokenriver.files import fsync_directory
from tokenriver.shards.header import VARIANTS
from tokenriver.shards.index import index_path
from tokenriver.shards.layouts import SPLITS
from tokenriver.shards.manifest import ManifestFile
from tokenriver.shards.writer import ShardWriter

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from tokenriver.building.ray_engine.segments import ChunkDocuments
    from tokenriver.building.ray_engine.shard_plan import Piece, PlannedShard
    from tokenriver.building.shape import Shape

__all__ = ["ShardJob", "make_shard"]


@dataclass(frozen=True, slots=True)
class ShardJob:
    """What all shard tasks of a build have in common."""

    folder: Path
    probe: str
    shape: Shape
    two_streams: bool


def make_shard(job: ShardJob, shard: PlannedShard) -> ManifestFile:
    """Write a shard under its final name, its index before it; what the manifest says of it.

    IntegrityError where a segment does not hold the bytes that were written to it.
    """
    require_probe(job.folder, job.probe)
    shape = job.shape
    path = shape.path(shard.split, shard.index)
    attempt = attempt_path(job.folder, path.name)
    writer = ShardWriter(attempt, variant=shape.variant, vocab_size=shape.header_vocab_size)
    index = IndexPart(index_path(attempt)) if shape.doc_index else None
    try:
        for piece in shard.pieces:
            documents = read_documents(job.folder, piece.chunk, two_streams=job.two_streams)
            for ids in _read_ids(job, piece, documents):
                writer.append(ids)
            if index is not None:
                index.append(_ends(piece, documents))
        assert writer.n_tokens == shard.tokens, "the plan and the segments disagree"
        if index is not None:
            index.seal()
        facts = writer.seal()
        if index is not None:
            index.part.replace(index_path(path))
        writer.part.replace(path)
        fsync_directory(path.parent)
    except BaseException:
        writer.discard()
        if index is not None:
            index.close()
            index.part.unlink(missing_ok=True)
        raise
    return ManifestFile(
        name=path.name, split=SPLITS[shard.split], n_tokens=shard.tokens, n_docs=shard.documents, sha256=facts.sha256
    )


def _read_ids(job: ShardJob, piece: Piece, documents: ChunkDocuments) -> Iterator[NDArray[Any]]:
    """The piece's ids block by block, every block that it lies in compared with its CRC-32."""
    dtype = VARIANTS[job.shape.variant][2]
    path = segment_paths(job.folder, piece.chunk.segment)[piece.stream]
    tokens = documents.blocks["tokens"][:, piece.stream].astype(np.int64)
    ends = np.cumsum(tokens)
    first = int(np.searchsorted(ends, piece.start, "right"))
    for i in range(first, len(ends)):
        begin = int(ends[i] - tokens[i])
        if begin >= piece.stop:
            return
        at = (piece.chunk.first_id[piece.stream] + begin) * dtype.itemsize
        raw = read_exactly(path, at, int(tokens[i]) * dtype.itemsize)
        if zlib.crc32(raw) != int(documents.blocks["crc"][i, piece.stream]):
            raise IntegrityError(
                f"{path}: the {len(raw):,} bytes from byte {at:,} are not those that were written; the storage damaged "
                "them: give the command with --restart"
            )
        ids = np.frombuffer(raw, dtype)
        yield ids[max(0, piece.start - begin) : piece.stop - begin]


def _ends(piece: Piece, documents: ChunkDocuments) -> NDArray[np.int64]:
    """Where the piece's documents end, counted from the shard's first id."""
    return document_ends(documents.bounds(piece.stream), piece.start, piece.stop) + (piece.at - piece.start)
