"""Which ids of which segments make each shard: the local engine's cuts, from the lengths alone.

Chunks come in the order of the documents. Most lie within a shard as a whole, and their totals say all there is to
know; only where a shard begins or ends are the documents' lengths looked at, by `assign_splits` and `cut_runs` as on
one machine. Where each document's split is given, the two splits do not know each other, so a chunk's documents are
looked at as train's and then val's, as they lie in the segment; only the running number of llm.c's files depends on
which began first, and where both splits begin one in a chunk it is looked at in its own order.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.building.assemble import EncodedBlock
from tokenriver.building.counts import BuildCounts
from tokenriver.building.plan import (
    Close,
    PlanState,
    Run,
    Write,
    assign_splits,
    close_all,
    cut_runs,
    documents_within,
    side_of_all,
    take_whole,
)
from tokenriver.corpus.blocks import Position
from tokenriver.corpus.splits import TRAIN, VAL

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tokenriver.building.plan import Cutting
    from tokenriver.building.ray_engine.segments import Chunk, ChunkDocuments

__all__ = ["Piece", "PlannedShard", "ShardPlanner"]


@dataclass(frozen=True, slots=True)
class Piece:
    """Ids [start, stop) of a stream of a chunk; the shard holds `at` ids before them."""

    chunk: Chunk
    stream: int
    start: int
    stop: int
    at: int


@dataclass(frozen=True, slots=True)
class PlannedShard:
    """A shard that is known: its split, its number in the name, its ids, the documents that begin in it, its pieces."""

    split: int
    index: int
    tokens: int
    documents: int
    pieces: list[Piece] = field(repr=False)


class ShardPlanner:
    """Takes chunks in order and gives the shards that they complete.

    `read(chunk, with_text)` loads a chunk's documents. `counts` and `source_documents` are of all chunks so far;
    `full` says that a limit is reached and nothing more is taken.
    """

    def __init__(
        self,
        cutting: Cutting,
        *,
        two_streams: bool,
        read: Callable[[Chunk, bool], ChunkDocuments],
        max_documents: int | None = None,
        max_tokens: int | None = None,
    ) -> None:
        self._cutting = cutting
        self._two = two_streams
        self._read = read
        self._limits = {"max_documents": max_documents, "max_tokens": max_tokens}
        self._state = PlanState()
        self._pieces: dict[int, list[Piece]] = {TRAIN: [], VAL: []}
        self.counts = BuildCounts()
        self.source_documents: Counter[int] = Counter()
        self.full = False

    def add(self, chunk: Chunk) -> list[PlannedShard]:
        """The shards that end within a chunk."""
        beyond = self._beyond_limits(chunk)
        side = None if self._two else side_of_all(self._cutting, self._state, chunk.n_documents, chunk.n_tokens)
        if beyond or (side is None and not self._two):
            return self._cut_and_count(chunk)
        steps = [] if self._take_whole(chunk, side) else self._cut(chunk, self._read(chunk, False))
        self._count(chunk, side)
        return steps

    def finish(self) -> list[PlannedShard]:
        """The shards that are still open after the last chunk."""
        return [self._ended(step) for step in close_all(self._state)]

    def open_files(self) -> set[tuple[int, int]]:
        """The files of ids, as (segment, stream), that the open shards are made of so far."""
        return {(piece.chunk.segment, piece.stream) for pieces in self._pieces.values() for piece in pieces}

    def _beyond_limits(self, chunk: Chunk) -> bool:
        state, limits = self._state, self._limits
        documents, tokens = state.documents + chunk.n_documents, state.tokens + chunk.n_tokens
        most_documents, most_tokens = limits["max_documents"], limits["max_tokens"]
        beyond = (most_documents is not None and documents > most_documents) or (
            most_tokens is not None and tokens > most_tokens
        )
        self.full = beyond or documents == most_documents or tokens == most_tokens
        return beyond

    def _take_whole(self, chunk: Chunk, side: int | None) -> bool:
        """Take a chunk that begins and ends no shard; False when it does, or may."""
        state, pieces = self._state, []
        for split, stream in _parts(side):
            documents, tokens = chunk.documents[stream], chunk.tokens[stream]
            if not documents:
                continue
            before = state.open[split]
            after = take_whole(self._cutting, state, split, documents, tokens)
            if after is None or before is None:
                return False
            state = after
            pieces.append((split, Piece(chunk, stream, 0, tokens, before.tokens)))
        for split, piece in pieces:
            self._pieces[split].append(piece)
        documents, tokens = state.documents + chunk.n_documents, state.tokens + chunk.n_tokens
        self._state = replace(state, documents=documents, tokens=tokens)
        return True

    def _count(self, chunk: Chunk, side: int | None) -> None:
        """Count a whole chunk from its totals."""
        for split, stream in _parts(side):
            self.counts.documents[split] += chunk.documents[stream]
            self.counts.tokens[split] += chunk.tokens[stream]
            self.counts.text_bytes[split] += chunk.text_bytes[stream]
        self.source_documents.update(dict(chunk.sources))

    def _cut_and_count(self, chunk: Chunk) -> list[PlannedShard]:
        """Cut a chunk in which the splits meet, or the limits fall, and count what is taken of it."""
        documents = self._read(chunk, True)
        block = _as_block(chunk, documents)
        n = documents_within(self._state, block.bounds, **self._limits)
        if n < len(block.bounds) - 1:
            block = block.first(n)
            documents = replace(documents, lengths=documents.lengths[:n], given=block.given)
        runs, _ = assign_splits(self._cutting, self._state, block.bounds, block.given)
        self.counts.add(block, sum(run.stop - run.start for run in runs if run.split == VAL))
        self.source_documents.update(block.source_documents)
        return self._cut(chunk, documents)

    def _cut(self, chunk: Chunk, documents: ChunkDocuments) -> list[PlannedShard]:
        """Cut documents of a chunk by their lengths."""
        if self._two:
            train, val = documents.bounds(TRAIN), documents.bounds(VAL)
            sides = np.repeat(np.array([TRAIN, VAL], np.uint8), [len(train) - 1, len(val) - 1])
            runs, after, steps = self._steps(np.append(train, val[1:] + train[-1]), sides)
            if self._cutting.running_index and len(_begun(steps)) == 2:
                runs, after, steps = self._steps(documents.bounds(), documents.given)
        else:
            runs, after, steps = self._steps(documents.bounds(), None)
        places = _Places(runs, split_streams=self._two)
        ended = []
        for step in steps:
            if isinstance(step, Write):
                self._append(step.split, places.piece(chunk, step))
            elif isinstance(step, Close):
                ended.append(self._ended(step))
            else:
                self._state = replace(after, open=step.open, shards_begun=step.shards_begun)
        return ended

    def _steps(
        self, bounds: NDArray[np.int64], given: NDArray[np.uint8] | None
    ) -> tuple[list[Run], PlanState, list[Write | Close | PlanState]]:
        """What the plan of one machine does with these documents."""
        runs, after = assign_splits(self._cutting, self._state, bounds, given)
        return runs, after, list(cut_runs(self._cutting, self._state, runs, bounds))

    def _append(self, split: int, piece: Piece) -> None:
        """Add a piece to the open shard of a split, joined to the one before it where they touch."""
        pieces = self._pieces[split]
        if pieces and pieces[-1].chunk is piece.chunk and pieces[-1].stop == piece.start:
            pieces[-1] = replace(pieces[-1], stop=piece.stop)
        else:
            pieces.append(piece)

    def _ended(self, step: Close) -> PlannedShard:
        pieces, self._pieces[step.split] = self._pieces[step.split], []
        return PlannedShard(step.split, step.shard.index, step.shard.tokens, step.shard.documents, pieces)


def _parts(side: int | None) -> list[tuple[int, int]]:
    """(split, stream) of what a chunk holds, all of it being of one side, or (None) of two streams."""
    return [(TRAIN, 0), (VAL, 1)] if side is None else [(side, 0)]


def _begun(steps: list[Write | Close | PlanState]) -> set[int]:
    """The splits that begin a file."""
    return {step.split for step in steps if isinstance(step, Write) and step.at == 0}


class _Places:
    """Where the ids that a Write names lie in the streams of the segment."""

    def __init__(self, runs: list[Run], *, split_streams: bool) -> None:
        self._split_streams = split_streams
        self._starts = [run.start for run in runs]
        done, self._shifts = [0, 0], []
        for run in runs:
            self._shifts.append(run.start - done[run.split])
            done[run.split] += run.stop - run.start

    def piece(self, chunk: Chunk, step: Write) -> Piece:
        """The piece of a chunk that a Write appends."""
        if not self._split_streams:
            return Piece(chunk, 0, step.start, step.stop, step.at)
        shift = self._shifts[int(np.searchsorted(self._starts, step.start, "right")) - 1]
        return Piece(chunk, step.split, step.start - shift, step.stop - shift, step.at)


def _as_block(chunk: Chunk, documents: ChunkDocuments) -> EncodedBlock:
    """A chunk as the block that `cut_runs` and `BuildCounts` know, without its ids. What was counted of the whole
    segment is the caller's to add.
    """
    assert documents.text_bytes is not None, "they are counted"
    nowhere = Position(0, 0)
    return EncodedBlock(
        start=nowhere,
        end=nowhere,
        source_documents=dict(chunk.sources),
        stream=np.zeros(0, np.uint16),
        bounds=documents.bounds(),
        given=documents.given,
        text_bytes=documents.text_bytes,
        skipped=Counter(),
        reference_documents=0,
        special_texts=0,
        sampled=0,
        lossy_samples=0,
    )
