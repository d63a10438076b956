"""The driver of a build on a cluster: gives out tasks, plans the shards as their documents become known, keeps the log.

Encoding tasks are given in the order of the inputs and end in any; the plan takes their segments in order, and every
shard that is known is written while later segments are still being encoded. Of several errors the one that stands
first in the inputs is raised, as on one machine.
"""

from __future__ import annotations

from collections import Counter, deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenriver.building.counts import no_documents
from tokenriver.building.ray_engine.build_log import InputHash
from tokenriver.building.ray_engine.encode_task import encode_range, hash_file
from tokenriver.building.ray_engine.segments import read_documents, segment_paths
from tokenriver.building.ray_engine.shard_plan import ShardPlanner
from tokenriver.building.ray_engine.shard_task import make_shard
from tokenriver.corpus.splits import TRAIN, VAL
from tokenriver.errors import IntegrityError
from tokenriver.files import human_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenriver.building.ray_engine.build_log import BuildLog
    from tokenriver.building.ray_engine.encode_task import EncodeJob, SegmentFacts
    from tokenriver.building.ray_engine.shard_plan import PlannedShard
    from tokenriver.building.ray_engine.shard_task import ShardJob
    from tokenriver.cluster.pool import Outcome, TaskPool
    from tokenriver.corpus.progress import ProgressSink
    from tokenriver.corpus.ranges import Range
    from tokenriver.corpus.sources import Source

__all__ = ["Driver"]


@dataclass(slots=True)
class Driver:
    """One build under way. `modified` (ns) of each source is what it was when the build began."""

    log: BuildLog
    pool: TaskPool
    ranges: Sequence[Range]
    sources: Sequence[Source]
    modified: Sequence[int]
    encoding: EncodeJob
    sharding: ShardJob
    progress: ProgressSink | None = None
    planner: ShardPlanner = field(init=False)
    _next: int = 0  # the segment that the plan waits for
    _given: int = 0  # ranges before this one were given or are finished
    _planned: bool = False
    _errors: dict[int, Exception] = field(default_factory=dict)
    _partial: dict[int, SegmentFacts] = field(default_factory=dict)
    _to_hash: deque[int] = field(default_factory=deque)
    _hashing: set[int] = field(default_factory=set)  # asked for, finished or not
    _to_write: deque[PlannedShard] = field(default_factory=deque)
    _writing: dict[str, PlannedShard] = field(default_factory=dict)
    _users: Counter[tuple[int, int]] = field(default_factory=Counter)
    _held: set[tuple[int, int]] = field(default_factory=set)
    _parts: dict[int, list[int]] = field(default_factory=dict)
    _done: list[int] = field(default_factory=lambda: [0, 0, 0])

    def __post_init__(self) -> None:
        shape, encoding = self.sharding.shape, self.encoding
        self.planner = ShardPlanner(
            shape.cutting,
            two_streams=encoding.two_streams,
            read=lambda chunk, with_text: read_documents(
                encoding.folder, chunk, two_streams=encoding.two_streams, with_text=with_text
            ),
            max_documents=shape.max_documents,
            max_tokens=shape.max_tokens,
        )
        for number, part in enumerate(self.ranges):
            if not part.whole(part.sources[0]):
                self._parts.setdefault(part.sources[0], []).append(number)
        self._hashing |= set(self.log.inputs)
        for number, facts in self.log.segments.items():
            self._count(number, facts)

    def run(self) -> None:
        """Until every shard has its name. Raises what a task met."""
        self._plan()
        while not self._planned or self._to_write or self._writing or self._to_hash or self.pool.running:
            self._give()
            assert self.pool.running, "nothing is under way, and not all is done"
            if (ended := self.pool.next()) is not None:
                self._take(*ended)

    def _give(self) -> None:
        """Give out what there is room for: shards first, since they free storage."""
        while self.pool.has_room:
            if self._to_write:
                self._give_shard(self._to_write.popleft())
            elif self._to_hash:
                self._give_hash(self._to_hash.popleft())
            elif not self._give_range():
                return

    def _give_range(self) -> bool:
        """Give the next range that is missing; False when there is none, or an error has made it useless."""
        while self._given in self.log.segments:
            self._given += 1
        number = self._given
        if self._planned or number >= len(self.ranges) or self._errors:
            return False
        part = self.ranges[number]
        if part.sources[0] in self._parts:
            self._want_hash(part.sources[0])
        sources = [self.sources[i] for i in part.sources]
        modified = [self.modified[i] for i in part.sources]
        what = f"encoding {sources[0]}" + (f" and {len(sources) - 1:,} more" if len(sources) > 1 else "")
        if not part.whole(part.sources[0]):
            what += f" from byte {part.begin[1]:,} ({human_bytes(part.file_bytes(self.sources))})"
        mark = segment_paths(self.encoding.folder, number)[0].name
        self.pool.submit(
            "encode", number, encode_range, self.encoding, number, part, sources, modified, mark=mark, what=what
        )
        self._given += 1
        return True

    def _want_hash(self, index: int) -> None:
        """A file that is read in parts is hashed apart, at about the time when its first part is read."""
        if index not in self._hashing:
            self._hashing.add(index)
            self._to_hash.append(index)

    def _give_hash(self, index: int) -> None:
        source = self.sources[index]
        marks = [self.ranges[k].begin[1] for k in self._parts.get(index, [])]
        job = self.encoding
        arguments = (job.folder, job.probe, source, self.modified[index], job.reading, marks)
        self.pool.submit("hash", index, hash_file, *arguments, mark="", what=f"hashing {source}")

    def _give_shard(self, shard: PlannedShard) -> None:
        path = self.sharding.shape.path(shard.split, shard.index)
        self._writing[path.name] = shard
        self.pool.submit("shard", path.name, make_shard, self.sharding, shard, mark=path.name, what=f"writing {path}")

    def _take(self, kind: str, key: Any, outcome: Outcome) -> None:
        """A task has ended."""
        if kind == "encode":
            self._take_segment(key, outcome)
            return
        if outcome.error is not None:
            raise outcome.error
        if kind == "hash":
            self.log.input(key, InputHash(*outcome.value))
        else:
            shard = self._writing.pop(key)
            self._users.subtract(_files_of(shard))
            file, index_sha256 = outcome.value
            self.log.shard(file, index_sha256, self._unneeded())

    def _take_segment(self, number: int, outcome: Outcome) -> None:
        facts, error = outcome.value if outcome.error is None else (None, outcome.error)
        if facts is not None and error is None:
            self.log.segment(number, facts)
            self._count(number, facts)
        else:
            self._errors[number] = error
            if facts is not None:
                self._partial[number] = facts
            self.pool.cancel("encode", after=min(self._errors))
        self._plan()

    def _plan(self) -> None:
        """Plan what is known in order, as far as there is no gap."""
        while not self._planned:
            number = self._next
            facts = self.log.segments.get(number) or self._partial.get(number)
            if facts is not None:
                self._plan_segment(facts)
            if number in self._errors and not self.planner.full:
                raise self._errors[number]
            if facts is None and number < len(self.ranges):
                return
            self._next += facts is not None
            if self.planner.full or self._next >= len(self.ranges):
                self._end_plan()

    def _plan_segment(self, facts: SegmentFacts) -> None:
        self.planner.counts.notice(facts)
        for chunk in facts.chunks:
            streams = (TRAIN, VAL) if self.encoding.two_streams else (TRAIN,)
            self._held |= {(chunk.segment, stream) for stream in streams} - self.log.released
            if not self.planner.full:
                for shard in self.planner.add(chunk):
                    self._add_shard(shard)

    def _end_plan(self) -> None:
        """Everything is planned, or the limits leave the rest out."""
        if not sum(self.planner.counts.documents):
            raise no_documents(self.sources, self.planner.counts.skipped, full=self.planner.full)
        for shard in self.planner.finish():
            self._add_shard(shard)
        self._planned = True
        self.pool.cancel("encode")
        read_whole = {index for facts in self.log.segments.values() for index in facts.inputs}
        for index in range(self.n_sources):
            if index not in read_whole:
                self._want_hash(index)
        self._to_hash = deque(i for i in self._to_hash if i < self.n_sources)

    def _add_shard(self, shard: PlannedShard) -> None:
        if self.sharding.shape.path(shard.split, shard.index).name not in self.log.shards:
            self._users.update(_files_of(shard))
            self._to_write.append(shard)

    def _unneeded(self) -> list[tuple[int, int]]:
        """Files of ids that are wholly planned and that no unfinished shard needs."""
        open_ones = self.planner.open_files()
        done = [f for f in self._held if f[0] < self._next and self._users[f] <= 0 and f not in open_ones]
        self._held -= set(done)
        return sorted(done)

    @property
    def n_sources(self) -> int:
        """How many of the sources count: with limits those up to the last one that gave a document."""
        if not self.sharding.shape.limited:
            return len(self.sources)
        return max(self.planner.source_documents, default=-1) + 1

    def _count(self, number: int, facts: SegmentFacts) -> None:
        """Report what is encoded."""
        self._done[0] += self.ranges[number].file_bytes(self.sources)
        self._done[1] += sum(chunk.n_documents for chunk in facts.chunks)
        self._done[2] += sum(chunk.n_tokens for chunk in facts.chunks)
        if self.progress is not None:
            self.progress.update(self._done[0], self._done[1], self._done[2])

    def check_parts(self) -> None:
        """IntegrityError for a file whose parts, as they were encoded, are not those that were hashed."""
        for index, numbers in self._parts.items():
            crcs = self.log.inputs[index].crcs if index in self.log.inputs else []
            for number, crc in zip(numbers, crcs, strict=False):
                facts = self.log.segments.get(number)
                if facts is not None and facts.crc not in (None, crc):
                    raise IntegrityError(
                        f"{self.sources[index]}: the bytes from {self.ranges[number].begin[1]:,} on were other ones "
                        "when they were encoded than when they were hashed, so the input changed",
                        advice=("give it as it was, or build with --restart to begin anew",),
                    )


def _files_of(shard: PlannedShard) -> set[tuple[int, int]]:
    """The files of ids that a shard is made of, as (segment, stream)."""
    return {(piece.chunk.segment, piece.stream) for piece in shard.pieces}
