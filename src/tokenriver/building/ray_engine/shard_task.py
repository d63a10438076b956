"""A task that makes one shard, and its document index, out of pieces of segments; made again, it is the same."""

from __future__ import annotations

import hashlib
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.building.index_part import IndexPart
from tokenriver.building.pipeline import read_ahead
from tokenriver.building.plan import document_ends
from tokenriver.building.ray_engine.segments import read_documents, segment_paths
from tokenriver.cluster.shared import attempt_path, read_exactly, require_probe
from tokenriver.errors import IntegrityError
from tokenriver.files import fsync_directory
from tokenriver.shards.header import ShardHeader, dtype_of
from tokenriver.shards.index import index_path
from tokenriver.shards.layouts import SPLITS
from tokenriver.shards.manifest import ManifestFile
from tokenriver.shards.writer import ShardWriter

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
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


def make_shard(job: ShardJob, shard: PlannedShard) -> tuple[ManifestFile, str]:
    """Write a shard under its final name, its index before it; what the manifest says of it, and the index's SHA-256
    ("" without one).

    IntegrityError where a segment does not hold the bytes that were written to it.
    """
    require_probe(job.folder, job.probe)
    shape = job.shape
    path = shape.path(shard.split, shard.index)
    attempt = attempt_path(job.folder, path.name)
    writer = ShardWriter(attempt, variant=shape.variant, vocab_size=shape.header_vocab_size)
    index = IndexPart(index_path(attempt)) if shape.doc_index else None
    digest = hashlib.sha256(ShardHeader(shape.variant, shard.tokens, shape.header_vocab_size).to_bytes())
    try:
        with closing(read_ahead(_read_pieces(job, shard, index), depth=2)) as pieces:
            _append(writer, digest, pieces)
        assert writer.n_tokens == shard.tokens, "the plan and the segments disagree"
        if index is not None:
            index.seal()
        writer.complete()
        writer.sync()
        writer.close()
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
    file = ManifestFile(
        name=path.name,
        split=SPLITS[shard.split],
        n_tokens=shard.tokens,
        n_docs=shard.documents,
        sha256=digest.hexdigest(),
    )
    return file, "" if index is None else index.sha256


_SYNC_BYTES = 32 << 20
"""Bytes after which the disk is given them, in the background, so that little is left to do at the end."""


def _append(writer: ShardWriter, digest: hashlib._Hash, pieces: Iterable[NDArray[Any]]) -> None:
    """Write and hash what another thread reads, while the disk syncs: a build's last shard has all cores."""
    unsynced, synced = 0, None
    with ThreadPoolExecutor(1) as syncing:
        for ids in pieces:
            writer.append_all([ids])
            digest.update(ids.data)
            unsynced += ids.nbytes
            if unsynced >= _SYNC_BYTES and (synced is None or synced.done()):
                if synced is not None:
                    synced.result()  # an error of the disk is told once
                synced, unsynced = syncing.submit(writer.sync), 0
        if synced is not None:
            synced.result()


def _read_pieces(job: ShardJob, shard: PlannedShard, index: IndexPart | None) -> Iterator[NDArray[Any]]:
    """The shard's ids, and its documents into the index, in step."""
    for piece in shard.pieces:
        documents = read_documents(job.folder, piece.chunk, two_streams=job.two_streams)
        yield from _read_ids(job, piece, documents)
        if index is not None:
            index.append(_ends(piece, documents))


def _read_ids(job: ShardJob, piece: Piece, documents: ChunkDocuments) -> Iterator[NDArray[Any]]:
    """The piece's ids block by block, every block that it lies in compared with its CRC-32."""
    dtype = dtype_of(job.shape.variant)
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
                "them",
                advice=("give the command with --restart",),
            )
        ids = np.frombuffer(raw, dtype)
        yield ids[max(0, piece.start - begin) : piece.stop - begin]


def _ends(piece: Piece, documents: ChunkDocuments) -> NDArray[np.int64]:
    """Where the piece's documents end, counted from the shard's first id."""
    return document_ends(documents.bounds(piece.stream), piece.start, piece.stop) + (piece.at - piece.start)
