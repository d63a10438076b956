"""Where the splits and the files fall: pure functions of document lengths, without a file or an id in sight.

The one machine and the cluster share them: whoever knows the lengths of the documents in order knows every cut.
A block is a run of consecutive documents, given by `bounds` int64 [n + 1]: document i is tokens
[bounds[i], bounds[i+1]) of the block's stream, separators included. Rules: docs/format.md, "Cutting".
"""

from __future__ import annotations

from dataclasses import asdict, dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.corpus.splits import TRAIN, VAL

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = [
    "Close",
    "Cutting",
    "OpenShard",
    "PlanState",
    "Run",
    "Write",
    "assign_splits",
    "close_all",
    "cut_runs",
    "document_ends",
    "documents_within",
    "side_of_all",
    "take_whole",
]


@dataclass(frozen=True, slots=True)
class Cutting:
    """How documents become files.

    `first_docs` / `first_tokens`: that many documents or tokens are val, the rest train; both None: each document's
    split is given. `whole_documents`: a file ends before the document that would push it past `shard_tokens`;
    otherwise it ends at exactly that many tokens and the document goes on in the next. `running_index`: one number
    runs over the files of both splits.
    """

    shard_tokens: int
    whole_documents: bool
    running_index: bool = False
    first_docs: int | None = None
    first_tokens: int | None = None


@dataclass(frozen=True, slots=True)
class Run:
    """Consecutive tokens [start, stop) of a block's stream that belong to one split."""

    split: int
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class OpenShard:
    """A file that is being filled: its number in the name, its tokens, and the documents that begin in it."""

    index: int
    tokens: int = 0
    documents: int = 0


@dataclass(frozen=True, slots=True)
class PlanState:
    """All that the next cut depends on; a handful of integers.

    `documents` and `tokens` count whole blocks; `val_full` says that no later document can be val (first-tokens on
    whole documents); `shards_begun` and `open` are per split [train, val].
    """

    documents: int = 0
    tokens: int = 0
    val_full: bool = False
    shards_begun: tuple[int, int] = (0, 0)
    open: tuple[OpenShard | None, OpenShard | None] = (None, None)

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        return asdict(self)

    @classmethod
    def from_json(cls, state: dict[str, Any]) -> PlanState:
        """Back from `to_json`."""
        shards = [None if o is None else OpenShard(**o) for o in state["open"]]
        begun = state["shards_begun"]
        return cls(**{**state, "open": (shards[0], shards[1]), "shards_begun": (begun[0], begun[1])})


@dataclass(frozen=True, slots=True)
class Write:
    """Put tokens [start, stop) of the block's stream at the end of file `index` of a split, which holds `at` ids."""

    split: int
    index: int
    start: int
    stop: int
    at: int = 0


@dataclass(frozen=True, slots=True)
class Close:
    """The open file of a split is complete; `state` and `skip` are where one would go on after it."""

    split: int
    shard: OpenShard
    state: PlanState = field(repr=False)
    skip: int


def documents_within(
    state: PlanState, bounds: NDArray[np.int64], *, max_documents: int | None, max_tokens: int | None
) -> int:
    """How many documents of a block are taken: all, or those before the first that would go over a limit."""
    n = len(bounds) - 1
    if max_documents is not None:
        n = min(n, max(0, max_documents - state.documents))
    if max_tokens is not None:
        n = min(n, max(0, int(np.searchsorted(bounds, max_tokens - state.tokens, "right")) - 1))
    return n


def assign_splits(
    cutting: Cutting, state: PlanState, bounds: NDArray[np.int64], given: NDArray[np.uint8] | None
) -> tuple[list[Run], PlanState]:
    """The runs of one split in a block, in order, and the state with this block's documents and tokens counted.

    `given` (uint8 [n], 0 train, 1 val) holds the documents' splits where the rule gives one to each; None means
    train for all that the first-… rules leave.
    """
    n, total = len(bounds) - 1, int(bounds[-1])
    after = replace(state, documents=state.documents + n, tokens=state.tokens + total)
    if cutting.first_docs is not None:
        n_val = min(max(cutting.first_docs - state.documents, 0), n)
        border = int(bounds[n_val])
    elif cutting.first_tokens is not None and not cutting.whole_documents:
        border = min(max(cutting.first_tokens - state.tokens, 0), total)
    elif cutting.first_tokens is not None:
        room = cutting.first_tokens - state.tokens
        n_val = 0 if state.val_full else int(np.searchsorted(bounds, room, "right")) - 1
        if state.documents == 0 and n_val <= 0 < n and cutting.first_tokens > 0:
            n_val = 1  # a first document longer than all of val is val alone, as it would be a file alone
        n_val = max(n_val, 0)
        border = int(bounds[n_val])
        after = replace(after, val_full=state.val_full or n_val < n)
    elif given is not None and n:
        changes = np.flatnonzero(given[1:] != given[:-1]) + 1
        starts = [0, *changes.tolist()]
        edges = bounds[[*starts, n]].tolist()
        return [Run(int(given[d]), edges[i], edges[i + 1]) for i, d in enumerate(starts)], after
    else:
        border = 0
    return [run for run in (Run(VAL, 0, border), Run(TRAIN, border, total)) if run.stop > run.start], after


def cut_runs(
    cutting: Cutting, before: PlanState, runs: list[Run], bounds: NDArray[np.int64], skip: int = 0
) -> Iterator[Write | Close | PlanState]:
    """What to write and close for a block's runs, and last the state after it (its block counts are `before`'s).

    `before` is the state at the block's start, except that its open files already hold the first `skip` tokens of
    the block: these are passed over, so a build goes on in the middle of a block, whatever the size of the blocks.
    """
    state = before
    for run in runs:
        start = max(run.start, skip)
        while start < run.stop:
            shard = state.open[run.split]
            if shard is None:
                state, shard = _begin(cutting, state, run.split)
            stop = _fill(cutting, shard, bounds, start, run.stop)
            if stop > start:
                yield Write(run.split, shard.index, start, stop, shard.tokens)
                begun = _begun_before(bounds, stop) - _begun_before(bounds, start)
                shard = OpenShard(shard.index, shard.tokens + stop - start, shard.documents + begun)
                state = _with_open(state, run.split, shard)
            full = shard.tokens >= cutting.shard_tokens if not cutting.whole_documents else stop < run.stop
            if full:
                state = _with_open(state, run.split, None)
                yield Close(run.split, shard, state, stop)
            start = stop
    yield state


def close_all(state: PlanState) -> Iterator[Close]:
    """Close what is still open after the last document: the larger file first, whose SHA-256 takes longest."""
    still_open = [(split, shard) for split in (VAL, TRAIN) if (shard := state.open[split]) is not None]
    for split, shard in sorted(still_open, key=lambda one: one[1].tokens, reverse=True):
        state = _with_open(state, split, None)
        yield Close(split, shard, state, 0)


def _fill(cutting: Cutting, shard: OpenShard, bounds: NDArray[np.int64], start: int, stop: int) -> int:
    """Where the shard ends that has room from `start` on: at most `stop`, at `start` when nothing more fits."""
    limit = start + cutting.shard_tokens - shard.tokens
    if limit >= stop or not cutting.whole_documents:
        return min(limit, stop)
    last = int(np.searchsorted(bounds, limit, "right")) - 1
    end = int(bounds[last]) if last >= 0 else start
    if end <= start and shard.tokens == 0:
        end = int(bounds[np.searchsorted(bounds, start, "right")])  # longer than a shard: alone in its file
    return min(max(end, start), stop)


def side_of_all(cutting: Cutting, state: PlanState, documents: int, tokens: int) -> int | None:
    """The split that a whole block falls to by its totals alone; None where only the documents' lengths can tell.

    Where each document's split is given, a block of one split is meant; this is not asked.
    """
    if cutting.first_docs is not None:
        done, more, limit = state.documents, documents, cutting.first_docs
    elif cutting.first_tokens is not None:
        done, more, limit = state.tokens, tokens, cutting.first_tokens
    else:
        return TRAIN
    if state.val_full:
        return TRAIN
    if done + more <= limit:
        return VAL
    return TRAIN if done >= limit and not (cutting.first_tokens is not None and cutting.whole_documents) else None


def take_whole(cutting: Cutting, state: PlanState, split: int, documents: int, tokens: int) -> PlanState | None:
    """The state after a run of whole documents that the open file of its split takes without being closed by it.

    None where a file would begin or end: then `cut_runs` must see the lengths. What it would do otherwise is known
    from the totals, and with 10^10 documents looking at each would take hours.
    """
    shard = state.open[split]
    if shard is None:
        return None
    room = cutting.shard_tokens - shard.tokens
    if tokens > room or (tokens == room and not cutting.whole_documents):
        return None
    return _with_open(state, split, OpenShard(shard.index, shard.tokens + tokens, shard.documents + documents))


def document_ends(bounds: NDArray[np.int64], start: int, stop: int) -> NDArray[np.int64]:
    """Where the documents in tokens [start, stop) of a block end, int64, at most `stop`: what a shard's index lists.

    These are the documents that begin there, and the one that `start` lies within; `stop` closes the last one, since
    a cut inside a document is the end of a file.
    """
    first, last = _begun_before(bounds, start), _begun_before(bounds, stop)
    if first and bounds[first] > start:
        first -= 1  # begun in the file before
    return np.minimum(bounds[first + 1 : last + 1], stop)


def _begun_before(bounds: NDArray[np.int64], token: int) -> int:
    """How many documents begin before a token; at the block's end all of them, empty last ones included."""
    return len(bounds) - 1 if token == bounds[-1] else int(np.searchsorted(bounds[:-1], token))


def _begin(cutting: Cutting, state: PlanState, split: int) -> tuple[PlanState, OpenShard]:
    """Open the next file of a split."""
    train, val = state.shards_begun
    shard = OpenShard(train + val if cutting.running_index else state.shards_begun[split])
    state = replace(state, shards_begun=(train + (split == TRAIN), val + (split == VAL)))
    return _with_open(state, split, shard), shard


def _with_open(state: PlanState, split: int, shard: OpenShard | None) -> PlanState:
    pair = (shard, state.open[VAL]) if split == TRAIN else (state.open[TRAIN], shard)
    return replace(state, open=pair)
