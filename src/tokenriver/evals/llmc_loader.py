"""llm.c's EvalLoader, bit for bit: its names, its buffers (never cleared but for the mask), its float32 sums."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.errors import FormatError, UsageError
from tokenriver.evals.file import open_eval_file
from tokenriver.evals.parse import N_COMPLETIONS_V1, flat_runs

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

__all__ = ["EvalLoader"]


class EvalLoader:
    """Serve a version 1 file as llm.c does: `next_batch()`, then `inputs`, `targets`, `mask`, `label`.

    `inputs`, `targets` int32 [B, T], `mask` uint8 [B, T], `label` int32 [B // 4]: the same arrays throughout, written
    in place, with what is left of earlier batches outside the mask. `num_batches` is the same on every rank; rank r
    has [r·E, min((r + 1)·E, N)), E = ⌈N / W⌉. Refused, as there: B < 4, fewer examples than ranks, a rank that would
    begin beyond the last example, a row that does not leave one place of T free. Those are found when the loader is
    made, over this rank's examples, not in the middle of an evaluation.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        B: int,  # noqa: N803
        T: int,  # noqa: N803
        process_rank: int = 0,
        num_processes: int = 1,
    ) -> None:
        if num_processes < 1 or not 0 <= process_rank < num_processes:
            raise UsageError(f"process_rank {process_rank} of {num_processes}: give one from 0 to num_processes - 1")
        if B < N_COMPLETIONS_V1:
            raise UsageError(f"batch size {B} is < {N_COMPLETIONS_V1}, the completions of an example")
        self.B, self.T, self.process_rank, self.num_processes = B, T, process_rank, num_processes
        file = open_eval_file(path)
        if file.version != 1:
            raise FormatError(f"{path}: version {file.version}; llm.c reads version 1: use tokenriver.EvalLoader")
        self.num_examples = len(file)
        if self.num_examples < num_processes:
            raise UsageError(f"{path}: {self.num_examples:,} examples for {num_processes:,} processes")
        each = -(-self.num_examples // num_processes)
        self.start_example_index = process_rank * each
        self.end_example_index = min(self.start_example_index + each, self.num_examples)
        if self.start_example_index >= self.num_examples:
            raise UsageError(
                f"{path}: process {process_rank} of {num_processes} would begin at example "
                f"{self.start_example_index:,} of {self.num_examples:,}, beyond the end, where llm.c stops; "
                "use fewer processes, or tokenriver.EvalLoader"
            )
        self._examples_per_batch = B // N_COMPLETIONS_V1
        self.num_batches = -(-each // self._examples_per_batch)
        self._words = file.words
        self._at = file.places(self.start_example_index, self.end_example_index)
        too_long = np.flatnonzero(self._at.longest() >= T)
        if len(too_long):
            k = int(too_long[0])
            raise UsageError(
                f"{path}: example {self.start_example_index + k}: its longest row has {int(self._at.longest()[k])} "
                f"ids; llm.c needs fewer than T = {T}"
            )
        self.inputs = np.zeros((B, T), np.int32)
        self.targets = np.zeros((B, T), np.int32)
        self.mask = np.zeros((B, T), np.uint8)
        self.label = np.zeros(self._examples_per_batch, np.int32)
        self.predictions: list[int] = []
        self._present = 0
        self.reset()

    def reset(self) -> None:
        """Begin with this rank's first example again."""
        self.current_example_index = self.start_example_index

    def next_batch(self) -> None:
        """Fill the buffers with the next ⌊B / 4⌋ examples, or with what is left of them (then with none)."""
        first = self.current_example_index - self.start_example_index
        last = min(first + self._examples_per_batch, len(self._at))
        self._present = max(last - first, 0)
        self.mask[:] = 0
        if self._present:
            self._fill(first, last)
        self.current_example_index += self._present

    def _fill(self, first: int, last: int) -> None:
        at = self._at
        rows = slice(first * N_COMPLETIONS_V1, last * N_COMPLETIONS_V1)
        length, start = at.length[rows], at.start[rows]
        context_len = np.repeat(at.context_len[first:last], N_COMPLETIONS_V1)
        context_start = np.repeat(at.context_start[first:last], N_COMPLETIONS_V1)
        row_start = np.arange(len(length)) * self.T
        inputs = self.inputs.reshape(-1)
        inputs[flat_runs(row_start, context_len)] = self._words[flat_runs(context_start, context_len)]
        ids = self._words[flat_runs(start, length)]
        inputs[flat_runs(row_start + context_len, length)] = ids
        aimed = flat_runs(row_start + context_len - 1, length)
        self.targets.reshape(-1)[aimed] = ids
        self.mask.reshape(-1)[aimed] = 1
        self.label[: last - first] = at.label[first:last]

    def stat_losses(self, losses: Any) -> int:
        """How many of the batch's examples a model gets right, by llm.c's acc_norm: the lowest mean loss in float32.

        `losses`: the loss at every place, [B, T] or flat, NumPy or torch. Sums run in float32 from left to right;
        ties go to the lower completion. `predictions` then holds the completion chosen for each example.
        """
        if hasattr(losses, "detach"):
            losses = losses.detach().float().cpu().numpy()
        given = np.asarray(losses, np.float32)
        if given.size != self.B * self.T:
            raise UsageError(f"{given.size:,} losses; expected one for each of {self.B} × {self.T} places")
        masked = np.where(self.mask != 0, given.reshape(self.B, self.T), np.float32(0))
        if np.isnan(masked).any():
            row = int(np.argmax(np.isnan(masked).any(axis=1)))
            raise UsageError(f"a loss in row {row} is not a number (NaN)")
        # Adding zeros changes nothing, and accumulate adds one after the other as the C loop does.
        sums = np.add.accumulate(masked, axis=1, dtype=np.float32)[:, -1]
        n_rows = self._present * N_COMPLETIONS_V1
        counts = self.mask[:n_rows].sum(axis=1, dtype=np.int64).astype(np.float32)
        means: NDArray[np.float32] = (sums[:n_rows] / counts).reshape(self._present, N_COMPLETIONS_V1)
        chosen = means.argmin(axis=1) if self._present else np.zeros(0, np.int64)
        self.predictions = chosen.tolist()
        return int(np.count_nonzero(chosen == self.label[: self._present]))
