"""The selection of documents on a cluster: counted, chosen by their keys, and sorted in buckets, all by tasks.

What a document's key is and which are chosen follows from its number in the inputs, which is known once all are
counted; so nothing depends on where ranges are cut. Only the last step, one file and its SHA-256, is for one process.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from itertools import accumulate
from typing import TYPE_CHECKING

from tokenriver.batches import tally
from tokenriver.cluster.ordered import Call, completed
from tokenriver.cluster.shared import attempt_path, read_exactly, require_probe
from tokenriver.corpus.documents import parse_block
from tokenriver.corpus.range_reader import RangeReader, hash_parts
from tokenriver.corpus.ranges import cut_ranges, range_bytes
from tokenriver.corpus.unchanged import modified_ns, require_unchanged
from tokenriver.errors import IntegrityError
from tokenriver.golfing.keys import chosen_lines, sort_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from pathlib import Path

    from tokenriver.cluster.work import Work
    from tokenriver.corpus.inputs import InputFacts
    from tokenriver.corpus.ranges import Range
    from tokenriver.corpus.sources import Source, SourceOptions

__all__ = ["ClusterSelection"]

_MOST_RANGE = 256 << 20
_RUN_BYTES = 64 << 20
"""Chosen lines held by a task; then they are written, in the order of their buckets."""


def _chosen_of(k: int) -> str:
    return f"{k:07d}.chosen"


def _sorted_of(bucket: int) -> str:
    return f"{bucket:04d}.sorted"


@dataclass(frozen=True, slots=True)
class _Job:
    folder: Path
    probe: str
    options: SourceOptions
    block_bytes: int


@dataclass(frozen=True, slots=True)
class _Counted:
    by_source: Counter[int]
    skipped: Counter[str]
    facts: dict[int, InputFacts]
    crc: int | None


@dataclass(slots=True)
class ClusterSelection:
    """The two readings of the inputs by tasks; `by_source` and `skipped` are known after `count`."""

    work: Work
    sources: Sequence[Source]
    options: SourceOptions
    block_bytes: int
    progress: Callable[[int], None] | None
    by_source: Counter[int] = field(default_factory=Counter)
    skipped: Counter[str] = field(default_factory=Counter)
    _ranges: list[Range] = field(default_factory=list)
    _modified: list[int] = field(default_factory=list)
    _counts: list[_Counted] = field(default_factory=list)
    _read: int = 0

    def count(self) -> list[InputFacts]:
        """Count all documents and hash the inputs; size and hash of each source."""
        job, sources = self._job, self.sources
        self._modified = [modified_ns(source) for source in sources]
        size = range_bytes(sources, cpus=self.work.cpus, block_bytes=self.block_bytes, most=_MOST_RANGE)
        self._ranges = list(cut_ranges(sources, self.options, range_bytes=size))
        calls = [Call(_count, (job, part, *self._of(part)), "", self._words("counting", part)) for part in self._ranges]
        counted = {}
        for k, one in completed(self.work.pool, "count", calls):
            counted[k] = one
            self._tell(k)
        self._counts = [counted[k] for k in range(len(self._ranges))]
        for one in self._counts:
            self.by_source.update(one.by_source)
            self.skipped.update(one.skipped)
        return self._input_facts()

    def _input_facts(self) -> list[InputFacts]:
        """Facts of all sources; files that were read in parts are hashed now, and must be what was read."""
        facts = {i: one for counted in self._counts for i, one in counted.facts.items()}
        parts: dict[int, list[int]] = {}
        for k, part in enumerate(self._ranges):
            if not part.whole(part.sources[0]):
                parts.setdefault(part.sources[0], []).append(k)
        calls = []
        for i, ks in parts.items():
            marks = [self._ranges[k].begin[1] for k in ks]
            calls.append(Call(hash_parts, (self.sources[i], self.options, marks), "", f"hashing {self.sources[i]}"))
        for n, (found, crcs) in completed(self.work.pool, "hash", calls):
            index, ks = list(parts.items())[n]
            facts[index] = found
            for k, crc in zip(ks, crcs, strict=False):
                if self._counts[k].crc not in (None, crc):
                    raise IntegrityError(f"{self.sources[index]}: it changed between the two readings; start again")
        return [facts[i] for i in range(len(self.sources))]

    def chosen(self, seed: int, limit: int, n_buckets: int) -> Iterator[bytes]:
        """The lines of the documents whose keys are at most `limit`, in the order of their keys, a few at a time."""
        job = self._job
        starts = [0, *accumulate(sum(one.by_source.values()) for one in self._counts)]
        calls = [
            Call(
                _choose,
                (job, k, part, *self._of(part), self._counts[k].crc, (seed, limit, n_buckets), starts[k : k + 2]),
                _chosen_of(k),
                self._words("choosing from", part),
            )
            for k, part in enumerate(self._ranges)
        ]
        runs: list[tuple[int, int, list[int]]] = []
        for k, tables in completed(self.work.pool, "choose", calls):
            runs += [(k, at, table) for at, table in tables]
            self._tell(k)
        runs.sort()
        calls = []
        for b in range(n_buckets):
            spans = [(k, at + edges[b], edges[b + 1] - edges[b]) for k, at, edges in runs]
            calls.append(Call(_sort, (job, b, spans), _sorted_of(b), f"sorting bucket {b}"))
        for _ in completed(self.work.pool, "sort", calls):
            pass
        for b in range(n_buckets):
            path = self.work.folder / _sorted_of(b)
            with open(path, "rb") as file:
                while piece := file.read(1 << 20):
                    yield piece
            path.unlink()

    @property
    def _job(self) -> _Job:
        return _Job(self.work.folder, self.work.probe, self.options, self.block_bytes)

    def _of(self, part: Range) -> tuple[list[Source], list[int]]:
        return [self.sources[i] for i in part.sources], [self._modified[i] for i in part.sources]

    def _words(self, doing: str, part: Range) -> str:
        return f"{doing} {self.sources[part.sources[0]]} from byte {part.begin[1]:,}"

    def _tell(self, k: int) -> None:
        self._read += self._ranges[k].file_bytes(self.sources)
        if self.progress is not None:
            self.progress(self._read)


def _count(job: _Job, part: Range, sources: Sequence[Source], modified: Sequence[int]) -> _Counted:
    """The documents of a range by source, and the hashes of the files that lie in it as a whole."""
    require_probe(job.folder, job.probe)
    reader = RangeReader(sources, part, job.options, job.block_bytes)
    by_source: Counter[int] = Counter()
    skipped: Counter[str] = Counter()
    for raw in reader.blocks():
        block = parse_block(raw, job.options)
        by_source.update({part.sources[0] + i: n for i, n in tally(block.source_indices).items()})
        skipped.update(block.skipped)
    require_unchanged(sources, modified)
    return _Counted(by_source, skipped, reader.facts, reader.crc)


def _choose(
    job: _Job,
    k: int,
    part: Range,
    sources: Sequence[Source],
    modified: Sequence[int],
    crc: int | None,
    choice: tuple[int, int, int],
    numbers: Sequence[int],
) -> list[tuple[int, list[int]]]:
    """Write the chosen lines of a range, in runs ordered by bucket; for each run where it begins in the file, and
    where each bucket does in the run.
    """
    require_probe(job.folder, job.probe)
    seed, limit, n_buckets = choice
    path = job.folder / _chosen_of(k)
    attempt = attempt_path(job.folder, path.name)
    reader = RangeReader(sources, part, job.options, job.block_bytes, hashing=False)
    number, at, held = numbers[0], 0, 0
    tables: list[tuple[int, list[int]]] = []
    buckets: list[list[bytes]] = [[] for _ in range(n_buckets)]
    with open(attempt, "wb") as file:

        def end_run() -> None:
            nonlocal at, held, buckets
            edges = [0, *accumulate(sum(map(len, bucket)) for bucket in buckets)]
            file.writelines(piece for bucket in buckets for piece in bucket)
            tables.append((at, edges))
            at, held, buckets = at + edges[-1], 0, [[] for _ in range(n_buckets)]

        for raw in reader.blocks():
            texts = parse_block(raw, job.options).texts
            for bucket, line in chosen_lines(texts, seed, number, limit, n_buckets):
                buckets[bucket].append(line)
                held += len(line)
            number += len(texts)
            if held >= _RUN_BYTES:
                end_run()
        end_run()
    require_unchanged(sources, modified)
    if number != numbers[1] or reader.crc != crc:
        raise IntegrityError(f"{sources[0]}: it changed between the two readings; start again")
    attempt.replace(path)
    return tables


def _sort(job: _Job, bucket: int, spans: Sequence[tuple[int, int, int]]) -> None:
    """Join a bucket's pieces (range, first byte, bytes) and write its lines in the order of their keys."""
    require_probe(job.folder, job.probe)
    raw = b"".join(read_exactly(job.folder / _chosen_of(k), at, size) for k, at, size in spans if size)
    path = job.folder / _sorted_of(bucket)
    attempt = attempt_path(job.folder, path.name)
    with open(attempt, "wb") as file:
        file.writelines(sort_bucket(raw))
    attempt.replace(path)
