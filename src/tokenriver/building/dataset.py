"""The shards of one data set being written: cuts the encoded blocks, fills the files, and journals each that closes.

Cutting happens in the caller's thread, in order; appending, hashing, syncing and renaming in a thread of its own.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import TYPE_CHECKING, Any

import msgspec

from tokenriver.building.counts import BuildCounts
from tokenriver.building.journal import Checkpoint, Journal
from tokenriver.building.plan import (
    Close,
    PlanState,
    Write,
    assign_splits,
    close_all,
    cut_runs,
    document_ends,
    documents_within,
)
from tokenriver.building.sealing import sealing_threads
from tokenriver.building.whole_runs import take_block
from tokenriver.building.writing import Closing, Pieces, WriterThread
from tokenriver.corpus.splits import VAL
from tokenriver.errors import ResumeError
from tokenriver.files import PART_SUFFIX, part_of, sha256_file
from tokenriver.shards.header import ShardHeader
from tokenriver.shards.index import INDEX_DTYPE, INDEX_SUFFIX, index_path
from tokenriver.shards.layouts import SPLITS, parse_shard_name, record_prefix
from tokenriver.shards.manifest import ManifestFile
from tokenriver.storage.paths import shown

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokenriver.building.assemble import EncodedBlock
    from tokenriver.building.journal import JournalContent
    from tokenriver.building.shape import Shape
    from tokenriver.building.writing import InputState, Place
    from tokenriver.storage.directory import RemoteDirectory

__all__ = ["DatasetWriter"]


class DatasetWriter:
    """Takes encoded blocks in order and leaves whole, named, journalled shards.

    `skip` tokens of the first blocks are passed over after a resume (they are in files already). `input_state` tells
    for a block what the journal notes about the inputs (InputHasher.state).
    """

    def __init__(
        self, shape: Shape, journal: Journal, *, remote: RemoteDirectory | None = None, workers: int = 1
    ) -> None:
        self.shape = shape
        self._journal = journal
        self._remote = remote
        self.files: list[ManifestFile] = []
        self.indexes: dict[str, str] = {}
        self.counts = BuildCounts()
        self.input_state: Callable[[Place, Place], InputState] = lambda _start, _end: ({}, None)
        self.source_documents: Counter[int] = Counter()
        self._touched: set[int] = set()
        self._state = PlanState()
        self._skip = 0
        self.full = False
        """Nothing more is taken: a limit is reached."""
        self._indexed = [0, 0]
        self._pieces: dict[int, Pieces] = {}
        threads = sealing_threads(workers)
        self._thread = WriterThread(shape, journal, self.files, self.indexes, sealing_threads=threads, remote=remote)

    def resume(self, content: JournalContent) -> tuple[int, int]:
        """Take up a journalled build; returns the (source, offset) to read from.

        Raises ResumeError when a file that the journal names is neither there nor waiting under its part name.
        """
        if self._remote is None:
            for entry in content.files:
                self._settle(entry)
        self.files += [msgspec.convert(f, ManifestFile) for f in content.files]
        self.indexes.update(content.indexes)
        if self._remote is not None:
            self._require_uploaded(self._remote, "build with --restart to begin anew")
        self.source_documents = Counter({int(k): v for k, v in content.source_documents.items()})
        checkpoint = content.checkpoint
        kept = set()
        if checkpoint is not None:
            self._state = PlanState.from_json(checkpoint.plan)
            self.counts = BuildCounts.from_json(checkpoint.counts)
            self._skip = checkpoint.skip
            self._thread.durable = checkpoint.position
            for split, shard in enumerate(self._state.open):
                if shard is not None:
                    path = self.shape.path(split, shard.index)
                    self._indexed[split] = checkpoint.parts.get(index_path(path).name, 0)
                    self._thread.reopen(split, path, checkpoint.parts[path.name], self._indexed[split])
                    kept |= {path.name + PART_SUFFIX, index_path(path).name + PART_SUFFIX}
        self._remove_parts(kept)
        return checkpoint.position if checkpoint is not None else (0, 0)

    def add(self, block: EncodedBlock) -> None:
        """Cut a block and hand its pieces to the writing thread; raises what that thread met."""
        block = self._within_limits(block)
        val_tokens = self._take_whole(block)
        if val_tokens is None:
            val_tokens = self._cut(block)
        self._hand_over()
        self._skip = max(0, self._skip - int(block.bounds[-1]))
        self.counts.add(block, val_tokens)
        self.source_documents.update(block.source_documents)
        self._touched.update(block.source_documents)

    def _take_whole(self, block: EncodedBlock) -> int | None:
        """Note a block that no file begins or ends in; its tokens in val. None where it must be cut."""
        if block.given is None or self._skip:
            return None
        found = take_block(self.shape.cutting, self._state, block.bounds, block.given)
        if found is None:
            return None
        taken, self._state = found
        val_tokens = 0
        for one in taken:
            runs = list(zip(one.starts.tolist(), one.stops.tolist(), strict=True))
            pieces = Pieces(one.index, [block.stream[start:stop] for start, stop in runs])
            if self.shape.doc_index:
                pieces.ends.append(one.ends)
                self._indexed[one.split] += len(one.ends)
            self._pieces[one.split] = pieces
            val_tokens += sum(stop - start for start, stop in runs) if one.split == VAL else 0
        return val_tokens

    def _cut(self, block: EncodedBlock) -> int:
        """Note the pieces of a block, closing the files that end in it; its tokens in val."""
        cutting = self.shape.cutting
        runs, after = assign_splits(cutting, self._state, block.bounds, block.given)
        for step in cut_runs(cutting, self._state, runs, block.bounds, self._skip):
            if isinstance(step, Write):
                self._write(step, block)
            elif isinstance(step, Close):
                self._hand_over()
                self._close(step, block.start, block.end, step.skip)
            else:
                self._state = replace(after, open=step.open, shards_begun=step.shards_begun)
        return sum(run.stop - run.start for run in runs if run.split == VAL)

    def _within_limits(self, block: EncodedBlock) -> EncodedBlock:
        shape, n_all = self.shape, len(block.bounds) - 1
        n = documents_within(self._state, block.bounds, max_documents=shape.max_documents, max_tokens=shape.max_tokens)
        documents, tokens = self._state.documents + n, self._state.tokens + int(block.bounds[n])
        self.full = n < n_all or documents == shape.max_documents or tokens == shape.max_tokens
        return block if n == n_all else block.first(n)

    @property
    def durable(self) -> tuple[int, int]:
        """The (source, offset) that a build resumed now would read from: what is before it is not needed again."""
        return self._thread.durable

    @property
    def n_sources(self) -> int | None:
        """How many sources the documents come from, where a limit leaves some out; None without one."""
        if not self.shape.limited:
            return None
        return max(self.source_documents, default=-1) + 1

    def _write(self, step: Write, block: EncodedBlock) -> None:
        """Note a piece for its file, with the ends of its documents, counted from the shard's first id."""
        pieces = self._pieces.setdefault(step.split, Pieces(step.index))
        pieces.ids.append(block.stream[step.start : step.stop])
        if self.shape.doc_index:
            ends = document_ends(block.bounds, step.start, step.stop) + (step.at - step.start)
            pieces.ends.append(ends)
            self._indexed[step.split] += len(ends)

    def _hand_over(self) -> None:
        """Give the noted pieces to the writing thread: with a split by hash a block has dozens, one by one they would
        have the two threads wait for each other as often."""
        for split, pieces in self._pieces.items():
            self._thread.put(split, pieces)
        self._pieces = {}

    def finish(self, end: tuple[int, int]) -> list[ManifestFile]:
        """Close the last files and wait until all are on disk; `end` is the position after the last block."""
        for step in close_all(self._state):
            self._close(step, end, end, 0)
        self._thread.join()
        if self._remote is not None:
            self._require_uploaded(self._remote, "something else writes there", "build with --restart to begin anew")
        return self.files

    def abort(self) -> None:
        """Stop at once; parts and journal stay as they are."""
        self._thread.stop()

    @property
    def leaves_something(self) -> bool:
        """Whether, after `abort`, there is something that only the journal explains."""
        return bool(self.files) or self._thread.journalled or self._thread.abandoned_upload

    def remove_unfinished(self) -> None:
        """Delete parts, after `abort`, when no file was finished."""
        self._remove_parts(set())

    def _close(self, step: Close, position: Place, end: Place, skip: int) -> None:
        path = self.shape.path(step.split, step.shard.index)
        parts = {
            self.shape.path(split, shard.index).name: shard.tokens
            for split, shard in enumerate(step.state.open)
            if shard is not None
        }
        self._indexed[step.split] = 0
        if self.shape.doc_index:
            parts |= {
                index_path(self.shape.path(split, shard.index)).name: self._indexed[split]
                for split, shard in enumerate(step.state.open)
                if shard is not None
            }
        checkpoint = Checkpoint(position, skip, step.state.to_json(), self.counts.to_json(), parts)
        sources = {str(s): self.source_documents[s] for s in self._touched}
        self._touched.clear()
        entry = {"name": path.name, "split": SPLITS[step.split], "n_tokens": step.shard.tokens}
        entry["n_docs"] = step.shard.documents
        self._thread.close_shard(step.split, Closing(entry, checkpoint, sources, self.input_state(position, end)))

    def _settle(self, file: dict[str, Any]) -> None:
        """Give a journalled shard its SHA-256 and its name, if a crash came before them."""
        path = self.shape.directory / file["name"]
        found = _find_whole(path, ShardHeader(self.shape.variant, file["n_tokens"]).file_bytes)
        index = _find_whole(index_path(path), None) if self.shape.doc_index else None
        if found is None or (self.shape.doc_index and index is None):
            raise ResumeError(
                f"{path}: the journal names it, but it is not there whole",
                advice=("build with --restart to begin anew",),
            )
        if not file["sha256"]:
            file["sha256"] = sha256_file(found)
            self._journal.record_sha256(file["name"], file["sha256"])
        if index is not None and index != index_path(path):
            index.replace(index_path(path))
        if found != path:
            found.replace(path)

    def _require_uploaded(self, remote: RemoteDirectory, *advice: str) -> None:
        """ResumeError unless the store lists every finished shard, and its index, with its size."""
        there = remote.list()
        for file in self.files:
            expected = ShardHeader(self.shape.variant, file.n_tokens).file_bytes
            found = there.get(file.name)
            if found is None or found.n_bytes != expected:
                what = "it is not there" if found is None else f"it has {found.n_bytes or 0:,} bytes, not {expected:,}"
                raise ResumeError(f"{shown(remote.url_of(file.name))}: the journal names it, but {what}", advice=advice)
            index = index_path(self.shape.directory / file.name).name
            if self.shape.doc_index and index not in there:
                what = f"{shown(remote.url_of(index))}: it is not there, though its shard is"
                raise ResumeError(what, advice=advice)

    def _remove_parts(self, kept: set[str]) -> None:
        prefix = record_prefix(self.shape.layout, self.shape.dataset)
        for suffix in (PART_SUFFIX, INDEX_SUFFIX + PART_SUFFIX):
            for part in self.shape.directory.glob("*.bin" + suffix):
                name = parse_shard_name(part.name.removesuffix(suffix))
                if name is not None and name.dataset == prefix and part.name not in kept:
                    part.unlink()


def _find_whole(path: Path, expected: int | None) -> Path | None:
    """A file of `expected` bytes (None: whole ends of an index), under its own name or still as a part."""
    for candidate in (path, part_of(path)):
        if candidate.exists():
            size = candidate.stat().st_size
            if size == expected or (expected is None and size % INDEX_DTYPE.itemsize == 0):
                return candidate
    return None
