"""Corpus shards from a cluster: the texts' lengths are counted first, then each shard is written by a task of its own.

The inputs are read twice. Which documents a shard holds follows from the lengths of all texts before it, by the same
rule as on one machine, and a shard's bytes from its documents alone.
"""

from __future__ import annotations

import os
from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.batches import tally
from tokenriver.cluster.ordered import Call, completed
from tokenriver.cluster.shared import attempt_path, read_exactly, require_probe
from tokenriver.corpus.blocks import Position
from tokenriver.corpus.documents import parse_block, read_blocks
from tokenriver.corpus.manifest import CorpusFile
from tokenriver.corpus.naming import DocumentNames, sides_of
from tokenriver.corpus.range_reader import RangeReader
from tokenriver.corpus.ranges import cut_ranges, range_bytes
from tokenriver.corpus.unchanged import modified_ns, require_unchanged
from tokenriver.corpus.writers import fitting, open_shard_file
from tokenriver.corpus.writing import shard_name
from tokenriver.errors import IntegrityError
from tokenriver.files import PART_SUFFIX, fsync_directory, sha256_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from tokenriver.cluster.work import Work
    from tokenriver.corpus.ranges import Range
    from tokenriver.corpus.sources import Source, SourceOptions
    from tokenriver.corpus.splits import SplitRule
    from tokenriver.corpus.writers import CorpusFormat

__all__ = ["CorpusWritten", "write_on_cluster"]

_MOST_RANGE = 256 << 20


def _lengths_of(k: int) -> str:
    """The file with the lengths of a range's texts."""
    return f"{k:07d}.lengths"


@dataclass(frozen=True, slots=True)
class CorpusWritten:
    """Documents of train and val, bytes of text, records left out."""

    documents: tuple[int, int]
    text_bytes: int
    skipped: Counter[str]


@dataclass(frozen=True, slots=True)
class _Block:
    """A block as it was counted: where it begins and ends, its documents by source, its bytes of text, and where the
    lengths of its texts are in the file of its range.
    """

    range: int
    start: Position
    end: Position
    sources: list[tuple[int, int]]
    text_bytes: int
    at: int

    @property
    def n_documents(self) -> int:
        return sum(n for _, n in self.sources)


@dataclass(frozen=True, slots=True)
class _Piece:
    """Documents [start, stop) of a block. Before the block there are `before` documents in all and `of_source` of the
    source that it begins in.
    """

    block: _Block
    start: int
    stop: int
    before: int
    of_source: int


@dataclass(slots=True)
class _Shard:
    pieces: list[_Piece] = field(default_factory=list)
    documents: int = 0
    text_bytes: int = 0


@dataclass(frozen=True, slots=True)
class _Job:
    folder: Path
    probe: str
    target: Path
    format: CorpusFormat
    options: SourceOptions
    rule: SplitRule
    block_bytes: int


def write_on_cluster(
    work: Work,
    target: Path,
    sources: Sequence[Source],
    options: SourceOptions,
    rule: SplitRule,
    *,
    shard_format: CorpusFormat,
    shard_bytes: int,
    block_bytes: int,
    finished: Mapping[str, tuple[CorpusFile, int]],
    on_shard: Callable[[CorpusFile, int], None],
    progress: Callable[[int, int], None] | None,
) -> CorpusWritten:
    """Count, plan and write the shards as parts in `target`. Raises what reading raises, the first in the inputs.

    `on_shard` is told each that is whole, with its documents of val; those that are `finished` are not made again.
    """
    job = _Job(work.folder, work.probe, target, shard_format, options, rule, block_bytes)
    modified = [modified_ns(source) for source in sources]
    size = range_bytes(sources, cpus=work.cpus, block_bytes=block_bytes, most=_MOST_RANGE)
    ranges = list(cut_ranges(sources, options, range_bytes=size))
    blocks: dict[int, list[_Block]] = {}
    skipped: Counter[str] = Counter()
    done = [0, 0]
    scans = [_scan_call(job, k, part, sources, modified) for k, part in enumerate(ranges)]
    for k, (found, left_out) in completed(work.pool, "count", scans):
        blocks[k] = found
        skipped.update(left_out)
        done[0] += ranges[k].file_bytes(sources)
        done[1] += sum(block.n_documents for block in found)
        if progress is not None:
            progress(done[0], done[1])
    in_order = [block for k in range(len(ranges)) for block in blocks[k]]
    shards = list(plan_shards(in_order, shard_bytes, lambda block: _lengths(work.folder, block)))
    named = {shard_name(i, shard_format): shard for i, shard in enumerate(shards)}
    for name, (file, _) in finished.items():
        if name not in named or named[name].documents != file.n_docs:
            raise IntegrityError(
                f"{sources[0]} and what follows: documents changed behind sizes and times; start again"
            )
    missing = [name for name in named if name not in finished]
    calls = [_write_call(job, name, named[name], sources, modified) for name in missing]
    n_val = sum(val for _, val in finished.values())
    for _, (file, val) in completed(work.pool, "write", calls):
        on_shard(file, val)
        n_val += val
    n_all = sum(shard.documents for shard in shards)
    text_bytes = sum(shard.text_bytes for shard in shards)
    return CorpusWritten((n_all - n_val, n_val), text_bytes, skipped)


def _scan_call(job: _Job, k: int, part: Range, sources: Sequence[Source], modified: Sequence[int]) -> Call:
    own = [sources[i] for i in part.sources]
    arguments = (job, k, part, own, [modified[i] for i in part.sources])
    return Call(_scan, arguments, _lengths_of(k), f"counting {own[0]} from byte {part.begin[1]:,}")


def _scan(
    job: _Job, k: int, part: Range, sources: Sequence[Source], modified: Sequence[int]
) -> tuple[list[_Block], Counter[str]]:
    """The blocks of a range, and the records that it leaves out; the lengths of its texts go to a file."""
    require_probe(job.folder, job.probe)
    path = job.folder / _lengths_of(k)
    attempt = attempt_path(job.folder, path.name)
    first, blocks, at = part.sources[0], [], 0
    skipped: Counter[str] = Counter()
    with open(attempt, "wb") as file:
        for raw in RangeReader(sources, part, job.options, job.block_bytes, hashing=False).blocks():
            block = parse_block(raw, job.options)
            skipped.update(block.skipped)
            start, end = (Position(first + p.source_index, p.offset) for p in (raw.start, raw.end))
            counts = [(first + i, n) for i, n in tally(block.source_indices).items()]
            blocks.append(_Block(k, start, end, counts, int(block.texts.lengths.sum()), at))
            at += file.write(block.texts.lengths.astype("<u8").tobytes())
    require_unchanged(sources, modified)
    attempt.replace(path)
    return blocks, skipped


def _lengths(folder: Path, block: _Block) -> np.ndarray[Any, np.dtype[np.int64]]:
    raw = read_exactly(folder / _lengths_of(block.range), block.at, 8 * block.n_documents)
    return np.frombuffer(raw, "<u8").astype(np.int64)


def plan_shards(
    blocks: Sequence[_Block], shard_bytes: int, lengths: Callable[[_Block], np.ndarray[Any, np.dtype[np.int64]]]
) -> Iterator[_Shard]:
    """Which documents each shard holds: it closes before the one that would push it past `shard_bytes` of text."""
    shard, before, of_source = _Shard(), 0, Counter[int]()
    for block in blocks:
        n, base = block.n_documents, of_source[block.start.source_index]
        offsets = None
        if shard.text_bytes + block.text_bytes > shard_bytes:
            offsets = np.concatenate([[0], np.cumsum(lengths(block))])
        begin = 0
        while begin < n:
            room = shard_bytes - shard.text_bytes
            end = n if offsets is None else fitting(offsets, begin, room)
            if end == begin and shard.documents:
                yield shard
                shard = _Shard()
                continue
            end = max(end, begin + 1)  # a document larger than a shard stands alone in one
            shard.pieces.append(_Piece(block, begin, end, before, base))
            shard.documents += end - begin
            shard.text_bytes += block.text_bytes if offsets is None else int(offsets[end] - offsets[begin])
            begin = end
        before += n
        of_source.update(dict(block.sources))
    if shard.documents:
        yield shard


def _write_call(job: _Job, name: str, shard: _Shard, sources: Sequence[Source], modified: Sequence[int]) -> Call:
    first, last = shard.pieces[0].block.start.source_index, shard.pieces[-1].block.end.source_index
    stop = min(last + 1, len(sources))
    arguments = (job, name, shard, first, list(sources[first:stop]), list(modified[first:stop]))
    return Call(_write, arguments, name, f"writing {job.target / name}")


def _write(
    job: _Job, name: str, shard: _Shard, first: int, sources: Sequence[Source], modified: Sequence[int]
) -> tuple[CorpusFile, int]:
    """Write one shard as a part in the target; what the manifest says of it, and its documents of val."""
    require_probe(job.folder, job.probe)
    attempt = attempt_path(job.folder, name)
    n_val = 0
    with open(attempt, "wb") as file:
        output = open_shard_file(file, job.format)
        for piece in shard.pieces:
            n_val += _write_piece(job, piece, first, sources, output)
        output.close()
        file.flush()
        os.fsync(file.fileno())
    require_unchanged(sources, modified)
    facts = CorpusFile(name, shard.documents, attempt.stat().st_size, sha256_file(attempt))
    attempt.replace(job.target / (name + PART_SUFFIX))
    fsync_directory(job.target)
    return facts, n_val


def _write_piece(job: _Job, piece: _Piece, first: int, sources: Sequence[Source], output: Any) -> int:
    """Read a block again and add its documents to the shard; how many of them are val."""
    start, end = (Position(p.source_index - first, p.offset) for p in (piece.block.start, piece.block.end))
    names = DocumentNames(sources, Counter({start.source_index: piece.of_source}))
    done = n_val = 0
    for raw in read_blocks(sources, job.options, block_bytes=job.block_bytes, start=start, stop=end):
        block = parse_block(raw, job.options)
        ids, sides = names.of(block), sides_of(job.rule, block, piece.before + done)
        a, b = (min(max(edge - done, 0), len(block)) for edge in (piece.start, piece.stop))
        if b > a:
            output.add(ids[a:b], block.texts.slice(a, b), sides[a:b])
            n_val += int(np.count_nonzero(sides[a:b]))
        done += len(block)
    if done != piece.block.n_documents:
        raise IntegrityError(f"{sources[start.source_index]}: it changed between the two readings; start again")
    return n_val
