"""Serve an evaluation file to ranks: every example exactly once, all ranks the same number of batches.

Rows are context and completion; the place that predicts a scored id holds it as target and 1 in the mask. The split
over the ranks is llm.c's (docs/evals.md): E = ⌈N / W⌉ examples a rank, rank r has [r·E, (r + 1)·E), here cut at N.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokenriver.errors import UsageError
from tokenriver.evals.examples import UNKNOWN_LENGTH, Places
from tokenriver.evals.file import EvalFile, open_eval_file
from tokenriver.evals.lengths import with_lengths
from tokenriver.evals.parse import flat_runs

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["EvalBatch", "EvalLoader", "examples_of_rank", "packs"]


_MOST_IDS = 1 << 34
"""Ids of a batch: no model takes as many, and NumPy no array of many more."""


@dataclass(frozen=True, slots=True, eq=False)
class EvalBatch:
    """Rows for a model and what to score in them.

    `inputs`, `targets` int64 and `mask` bool, [B, T] (packed: [T]); outside the mask targets are 0. `examples`,
    `labels`: number in the file and label of each example here, int64 [n], n = 0 on a rank that has run out.
    `first_row` int64 [n + 1]: example i has completions [first_row[i], first_row[i + 1]), whose scored places follow
    each other in the mask; `n_scored`, `n_bytes`, `n_chars` int64, one a completion (UNKNOWN_LENGTH where the file
    does not say). `cu_seqlens` int32: borders of the documents in a packed row, from 0 to T; None when not packed.
    """

    inputs: NDArray[np.int64]
    targets: NDArray[np.int64]
    mask: NDArray[np.bool_]
    examples: NDArray[np.int64]
    labels: NDArray[np.int64]
    first_row: NDArray[np.int64]
    n_scored: NDArray[np.int64]
    n_bytes: NDArray[np.int64]
    n_chars: NDArray[np.int64]
    cu_seqlens: NDArray[np.int32] | None = None

    @property
    def has_lengths(self) -> bool:
        """Whether the completions' bytes and characters are known."""
        return not bool((self.n_bytes == UNKNOWN_LENGTH).any() or (self.n_chars == UNKNOWN_LENGTH).any())


def examples_of_rank(n: int, rank: int, world_size: int) -> tuple[int, int]:
    """The half-open range of `n` examples that a rank has: (10, 1, 4) → (3, 6). Ranks past the end have none."""
    each = -(-n // world_size)
    return min(rank * each, n), min((rank + 1) * each, n)


class EvalLoader:
    """Batches of an evaluation file (or of an opened one) for one rank; iterate it, as often as you like.

    `batch_size` rows of `seq_len` tokens, whole examples only: `batch_size // max_completions` examples a batch.
    `len(loader)` is the number of batches, the same on all ranks; a rank that has run out gets batches without
    examples. An example with a row of more than `seq_len` ids raises UsageError naming it, on every rank alike, or,
    with `too_long="skip"`, is left out on all ranks and counted in `n_skipped`. `tokenizer` gives the lengths of
    completions for acc_norm by characters and bytes where the file (version 1) does not hold them.
    `packed`: one row of `seq_len` ids a batch that holds several rows one after the other, with their borders in
    `cu_seqlens` (the last document is padding); `batch_size` is then not used.
    """

    def __init__(
        self,
        file: str | os.PathLike[str] | EvalFile,
        batch_size: int,
        seq_len: int,
        rank: int = 0,
        world_size: int = 1,
        *,
        too_long: Literal["error", "skip"] = "error",
        packed: bool = False,
        tokenizer: Tokenizer | None = None,
    ) -> None:
        if world_size < 1 or not 0 <= rank < world_size:
            raise UsageError(f"rank {rank} of {world_size}: give a rank from 0 to world_size - 1")
        if batch_size < 1 or seq_len < 2:
            raise UsageError(f"batch size {batch_size} and sequence length {seq_len}: give at least 1 and 2")
        if batch_size * seq_len > _MOST_IDS:
            raise UsageError(
                f"a batch of {batch_size:,} rows of {seq_len:,} ids is too large; together they are at most "
                f"{_MOST_IDS:,}"
            )
        if too_long not in ("error", "skip"):
            raise UsageError(f"too_long is {too_long!r}; choose error or skip")
        self.file = file if isinstance(file, EvalFile) else open_eval_file(file)
        self.batch_size, self.seq_len, self.rank, self.world_size = batch_size, seq_len, rank, world_size
        self.packed = packed
        everything = self.file.places(0, len(self.file))
        if tokenizer is not None:
            everything = with_lengths(self.file, everything, tokenizer)
        keep = self._fitting(everything, too_long)
        self.n_skipped = len(self.file) - len(keep)
        self._places = everything
        self._numbers = self._packed(everything, keep) if packed else self._unpacked(keep)

    def _fitting(self, everything: Places, too_long: str) -> NDArray[np.int64]:
        """Numbers of the examples that are served."""
        needed = _packed_sizes(everything) if self.packed else everything.longest()
        fits = needed <= self.seq_len
        if too_long == "error" and not fits.all():
            k = int(np.argmin(fits))
            what = "all its completions together have" if self.packed else "its longest row has"
            raise UsageError(
                f"{self.file.path}: example {k}: {what} {int(needed[k]):,} ids, more than the sequence length of "
                f'{self.seq_len:,} ({int((~fits).sum()):,} such examples); raise it, or too_long="skip" '
                "(--too-long skip) leaves them out"
            )
        return np.flatnonzero(fits)

    def _unpacked(self, keep: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        """Numbers of the examples in each batch."""
        per_batch = self.batch_size // max(self.file.max_completions, 1)
        if per_batch == 0:
            raise UsageError(
                f"batch size {self.batch_size} is below the {self.file.max_completions} completions of an example, "
                "which stay together; raise it"
            )
        start, stop = examples_of_rank(len(keep), self.rank, self.world_size)
        return [keep[min(i, stop) : min(i + per_batch, stop)] for i in self._steps(len(keep), start, per_batch)]

    def _steps(self, n: int, start: int, per_batch: int) -> range:
        each = -(-n // self.world_size)
        n_batches = -(-each // per_batch)
        return range(start, start + n_batches * per_batch, per_batch)

    def _packed(self, everything: Places, keep: NDArray[np.int64]) -> list[NDArray[np.int64]]:
        sizes = _packed_sizes(everything)
        of_ranks = []
        for rank in range(self.world_size):
            start, stop = examples_of_rank(len(keep), rank, self.world_size)
            of_ranks.append([keep[start:stop][a:b] for a, b in packs(sizes[keep[start:stop]], self.seq_len)])
        most = max(len(one) for one in of_ranks)
        mine = of_ranks[self.rank]
        return mine + [keep[:0]] * (most - len(mine))

    def __len__(self) -> int:
        return len(self._numbers)

    @property
    def n_examples(self) -> int:
        """How many examples this rank serves."""
        return sum(len(numbers) for numbers in self._numbers)

    def __iter__(self) -> Iterator[EvalBatch]:
        words = self.file.words
        for numbers in self._numbers:
            at = self._places.take(numbers)
            if self.packed:
                yield fill_packed(words, at, numbers, self.seq_len)
            else:
                yield fill_rows(words, at, numbers, self.batch_size, self.seq_len)


def _packed_sizes(at: Places) -> NDArray[np.int64]:
    """Ids that each example takes in a pack, which has it whole; the last id of a row is predicted, not read."""
    return np.add.reduceat(at.row_tokens - 1, at.first_row[:-1]) if len(at) else np.zeros(0, np.int64)


def packs(sizes: NDArray[np.int64], room: int) -> list[tuple[int, int]]:
    """Runs of whole examples that fit into `room`, first come first served: ([3, 3, 5], 8) → [(0, 2), (2, 3)]."""
    found: list[tuple[int, int]] = []
    start = used = 0
    for i, size in enumerate(sizes.tolist()):
        if used + size > room:
            found.append((start, i))
            start, used = i, 0
        used += size
    return [*found, (start, len(sizes))] if len(sizes) > start else found


def fill_rows(words: NDArray[Any], at: Places, numbers: NDArray[np.int64], batch_size: int, seq_len: int) -> EvalBatch:
    """One row a completion: context then completion from its beginning, 0 behind."""
    inputs = np.zeros((batch_size, seq_len), np.int64)
    targets = np.zeros((batch_size, seq_len), np.int64)
    mask = np.zeros((batch_size, seq_len), np.bool_)
    row_start = np.arange(len(at.start)) * seq_len
    context_len = at.context_len[at.example_of_row]
    _put(inputs.reshape(-1), words, at, row_start, context_len, drop_last=0)
    n_scored = _aim(targets.reshape(-1), mask.reshape(-1), words, at, row_start, context_len)
    return EvalBatch(inputs, targets, mask, numbers, at.label, at.first_row, n_scored, at.n_bytes, at.n_chars)


def fill_packed(words: NDArray[Any], at: Places, numbers: NDArray[np.int64], seq_len: int) -> EvalBatch:
    """One row for all completions, each a document without its last id; the rest is one document of zeros."""
    inputs = np.zeros(seq_len, np.int64)
    targets = np.zeros(seq_len, np.int64)
    mask = np.zeros(seq_len, np.bool_)
    sizes = at.row_tokens - 1
    ends = np.cumsum(sizes)
    row_start = ends - sizes
    context_len = at.context_len[at.example_of_row]
    _put(inputs, words, at, row_start, context_len, drop_last=1)
    n_scored = _aim(targets, mask, words, at, row_start, context_len)
    borders = np.unique(np.concatenate([[0], ends, [seq_len]])).astype(np.int32)
    return EvalBatch(inputs, targets, mask, numbers, at.label, at.first_row, n_scored, at.n_bytes, at.n_chars, borders)


def _put(
    inputs: NDArray[np.int64],
    words: NDArray[Any],
    at: Places,
    row_start: NDArray[np.int64],
    context_len: NDArray[np.int64],
    *,
    drop_last: int,
) -> None:
    """Context and completion (without its last `drop_last` ids) into each row."""
    context_start = at.context_start[at.example_of_row]
    inputs[flat_runs(row_start, context_len)] = words[flat_runs(context_start, context_len)]
    length = at.length - drop_last
    inputs[flat_runs(row_start + context_len, length)] = words[flat_runs(at.start, length)]


def _aim(
    targets: NDArray[np.int64],
    mask: NDArray[np.bool_],
    words: NDArray[Any],
    at: Places,
    row_start: NDArray[np.int64],
    context_len: NDArray[np.int64],
) -> NDArray[np.int64]:
    """Scored ids into the targets, one place before where they stand, and the mask; how many in each row."""
    n_scored = at.length - at.n_unscored
    places = flat_runs(row_start + context_len + at.n_unscored - 1, n_scored)
    targets[places] = words[flat_runs(at.start + at.n_unscored, n_scored)]
    mask[places] = True
    return n_scored
