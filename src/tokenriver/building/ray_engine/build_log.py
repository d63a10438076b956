"""The journal of a build on a cluster: which segments, inputs and shards are finished; a dead driver costs none.

The same file as the local engine's (journal.py), with other lines, one for each finished thing:
{"segment": k, "facts": …}, {"input": i, "facts": …, "crcs": […]}, {"shard": …, "index": its index's SHA-256,
"released": [[k, stream], …]} (the files of ids that no later shard needs, which are then removed), when all shards are
there, {"complete": …}, and then, on the way to an object store, {"uploaded": …} for each that is in it.
A lost line costs the work that it speaks of, never a byte: segments and shards are written again to the same bytes.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec

from tokenriver.building.ray_engine.encode_task import SegmentFacts
from tokenriver.building.ray_engine.segments import segment_paths
from tokenriver.corpus.inputs import InputFacts  # noqa: TC001 - msgspec reads the annotations
from tokenriver.errors import ResumeError
from tokenriver.resuming.journal import RedoLog, refuse_engine
from tokenriver.shards.header import ShardHeader
from tokenriver.shards.index import index_path
from tokenriver.shards.manifest import ManifestFile

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Iterable

    from tokenriver.building.counts import BuildCounts
    from tokenriver.building.shape import Shape
    from tokenriver.building.target import Target

__all__ = ["BuildLog", "Complete", "InputHash"]


class InputHash(msgspec.Struct, frozen=True):
    """Facts of an input file, and the CRC-32 of each part that it was read in ([] where it was read whole)."""

    facts: InputFacts
    crcs: list[int] = []


class Complete(msgspec.Struct, frozen=True):
    """What the records say, once all shards are there."""

    counts: dict[str, Any]
    source_documents: dict[int, int]
    inputs: list[InputFacts]


@dataclass(slots=True)
class BuildLog:
    """An open journal and what it says. `range_bytes` is what the ranges were cut with, None before `begin`."""

    target: Target
    journal: RedoLog
    heading: dict[str, Any] = field(default_factory=dict)
    range_bytes: int | None = None
    segments: dict[int, SegmentFacts] = field(default_factory=dict)
    inputs: dict[int, InputHash] = field(default_factory=dict)
    shards: dict[str, ManifestFile] = field(default_factory=dict)
    indexes: dict[str, str] = field(default_factory=dict)
    released: set[tuple[int, int]] = field(default_factory=set)
    complete: Complete | None = None
    uploaded: set[str] = field(default_factory=set)

    @classmethod
    def open(cls, target: Target) -> BuildLog:
        """Read the journal of an unfinished build on a cluster, if there is one.

        Raises ResumeError for a damaged one, and for another engine's that has finished something.
        """
        log = cls(target, RedoLog(target.journal))
        entries = log.journal.reopen_lines()
        if not entries:
            return log
        refuse_engine(target.journal, entries, "ray")
        if entries[0].get("engine") != "ray":
            return log
        log.heading = entries[0]
        log.range_bytes = entries[0]["range_bytes"]
        try:
            for entry in entries[1:]:
                log._take(entry)
        except (msgspec.MsgspecError, KeyError, TypeError) as error:
            raise log.journal.damaged(error) from error
        return log

    def _take(self, entry: dict[str, Any]) -> None:
        if "segment" in entry:
            self.segments[entry["segment"]] = msgspec.convert(entry["facts"], SegmentFacts, strict=False)
        elif "input" in entry:
            self.inputs[entry["input"]] = msgspec.convert(entry, InputHash, strict=False)
        elif "shard" in entry:
            file = msgspec.convert(entry["shard"], ManifestFile)
            self._finished(file, entry.get("index", ""))
            self.released |= {(k, stream) for k, stream in entry["released"]}
        elif "uploaded" in entry:
            self.uploaded.add(entry["uploaded"])
        else:
            self.complete = msgspec.convert(entry["complete"], Complete, strict=False)

    def _finished(self, file: ManifestFile, index_sha256: str) -> None:
        self.shards[file.name] = file
        if index_sha256:
            self.indexes[file.name] = index_sha256

    @property
    def resumed(self) -> bool:
        """Whether an earlier run finished something that is kept."""
        return not self.journal.begun and bool(self.segments or self.shards)

    def begin(self, heading: dict[str, Any], range_bytes: int) -> None:
        """Start the journal of a new build."""
        self.range_bytes = range_bytes
        self.journal.close()
        self.journal.begin({**heading, "engine": "ray", "range_bytes": range_bytes})

    def segment(self, number: int, facts: SegmentFacts) -> None:
        """A segment is finished."""
        self.segments[number] = facts
        self.journal.append({"segment": number, "facts": facts}, sync=False)

    def input(self, index: int, found: InputHash) -> None:
        """An input that is read in parts has been hashed."""
        self.inputs[index] = found
        self.journal.append({"input": index, "facts": found.facts, "crcs": found.crcs}, sync=False)

    def shard(self, file: ManifestFile, index_sha256: str, released: Iterable[tuple[int, int]]) -> None:
        """A shard and its index have their names; the ids of `released` (segment, stream) are not needed any more and
        are removed."""
        gone = list(released)
        self._finished(file, index_sha256)
        self.released |= set(gone)
        self.journal.append({"shard": file, "index": index_sha256, "released": gone})
        for segment, stream in gone:
            segment_paths(self.target.segments, segment)[stream].unlink(missing_ok=True)

    def finish(self, counts: BuildCounts, source_documents: Counter[int], inputs: list[InputFacts]) -> None:
        """All shards are there: from here on the records alone are missing."""
        self.complete = Complete(counts.to_json(), dict(source_documents), inputs)
        self.journal.append({"complete": self.complete})

    def upload(self, name: str) -> None:
        """A shard and its index are in the store."""
        self.uploaded.add(name)
        self.journal.append({"uploaded": name})

    def drop_damaged(self, shape: Shape) -> None:
        """Forget the segments whose files are not what they were, so that they are made again: nothing forced them
        onto the disk. ResumeError for a shard that is not there whole.
        """
        folder = self.target.segments
        there = {p.name: p.stat().st_size for p in folder.iterdir()} if folder.exists() else {}
        gone = {segment_paths(folder, k)[stream].name for k, stream in self.released}
        for number, facts in list(self.segments.items()):
            if any(there.get(name) != size for name, size in facts.sizes.items() if name not in gone):
                del self.segments[number]
        for file in self.shards.values():
            path = self.target.directory / file.name
            size = path.stat().st_size if path.exists() else None
            whole = size == ShardHeader(shape.variant, file.n_tokens).file_bytes
            if not whole or (shape.doc_index and not index_path(path).exists()):
                raise ResumeError(
                    f"{path}: the journal names it, but it is not there whole",
                    advice=("build with --restart to begin anew",),
                )
