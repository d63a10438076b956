"""Which sequences a rank reads at a step: pure integers, so that it can be tested and reasoned about without files."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Protocol

import numpy as np

from tokenriver.errors import UsageError
from tokenriver.loader.arguments import shown
from tokenriver.loader.block_order import BlockOrder
from tokenriver.loader.order import ORDERS, Order, permute

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = ["Plan", "check_shape"]


class HasShape(Protocol):
    """What every plan is given."""

    @property
    def seq_len(self) -> int: ...
    @property
    def batch_size(self) -> int: ...
    @property
    def world_size(self) -> int: ...
    @property
    def rank(self) -> int: ...
    @property
    def order(self) -> Order: ...
    @property
    def seed(self) -> int: ...


def check_shape(plan: HasShape) -> None:
    """Raise UsageError for a number that cannot work."""
    for name in ("seq_len", "batch_size", "world_size"):
        if getattr(plan, name) < 1:
            raise UsageError(f"{name} is at least 1, not {getattr(plan, name)}")
    if not 0 <= plan.rank < plan.world_size:
        raise UsageError(f"rank is in [0, {plan.world_size}) for a world size of {plan.world_size}, not {plan.rank}")
    if plan.order not in ORDERS:
        raise UsageError(f"order is one of {', '.join(ORDERS)}, not {shown(plan.order)}")
    if not 0 <= plan.seed < 1 << 64:
        raise UsageError(f"seed is an integer in [0, 2^64), not {plan.seed}")


@dataclass(frozen=True, slots=True)
class Plan:
    """An epoch of a split of `n_tokens` ids, cut into rows of `seq_len` targets and dealt to ranks.

    Sequence i is tokens [i·T, i·T + T] of the split. A global batch is the next `global_batch_size` sequences of
    the order, and rank r takes the r-th run of `batch_size` of them, so a global batch does not depend on how
    many ranks share it. Raises UsageError for numbers that cannot work or too little data for one batch.
    """

    n_tokens: int
    seq_len: int
    batch_size: int
    world_size: int
    rank: int
    order: Order
    seed: int
    drop_last: bool
    split: str = "train"
    steps_per_epoch: int = field(init=False)
    """Global batches in an epoch, the same on every rank; the last may be partial without `drop_last`."""
    blocks: BlockOrder | None = field(init=False, repr=False, compare=False, default=None)
    """The order of rows where that is block-shuffled."""

    def __post_init__(self) -> None:
        check_shape(self)
        if self.order == "block-shuffled":
            blocks = BlockOrder(self.n_sequences, self.seq_len, self.global_batch_size, self.seed)
            object.__setattr__(self, "blocks", blocks)
        full, rest = divmod(self.n_sequences, self.global_batch_size)
        object.__setattr__(self, "steps_per_epoch", full + (rest > 0 and not self.drop_last))
        if self.steps_per_epoch == 0:
            rows = self.global_batch_size if self.drop_last else 1
            made_of = f"{self.world_size} ranks x {self.batch_size} rows x " if self.drop_last else "a row of "
            raise UsageError(
                f"too little data: a batch needs {rows * self.seq_len + 1:,} tokens ({made_of}{self.seq_len} targets, "
                f"and 1), but the {self.split} split has {self.n_tokens:,} tokens"
            )

    @property
    def global_batch_size(self) -> int:
        """Rows that all ranks take together in a step."""
        return self.batch_size * self.world_size

    @property
    def n_sequences(self) -> int:
        """Rows in an epoch: ⌊(n_tokens − 1) / seq_len⌋."""
        return max(0, self.n_tokens - 1) // self.seq_len

    def for_rank(self, rank: int) -> Plan:
        """The same plan as another rank sees it."""
        return replace(self, rank=rank)

    def steps(self, epoch: int) -> int:  # noqa: ARG002 - epochs of sequences are all alike
        """Global batches in an epoch."""
        return self.steps_per_epoch

    alike = True
    """All epochs have as many rows."""

    def n_rows(self, epoch: int) -> int:  # noqa: ARG002
        """Sequences in an epoch."""
        return self.n_sequences

    def rows(self, epoch: int, first: int, count: int) -> NDArray[np.int64]:
        """First tokens of the sequences at positions [first, first + count) of an epoch's order, fewer at its end."""
        return self.picked(epoch, np.arange(first, min(first + count, self.n_sequences), dtype=np.int64))

    def picked(self, epoch: int, positions: NDArray[np.int64]) -> NDArray[np.int64]:
        """First tokens of the sequences at ascending positions of an epoch's order."""
        if self.blocks is not None:
            positions = self.blocks.rows(positions, epoch)
        elif self.order == "shuffled":
            positions = permute(positions, n=self.n_sequences, seed=self.seed, epoch=epoch)
        return positions * self.seq_len

    def take(self, epoch: int, step: int) -> NDArray[np.int64]:
        """First token of each of this rank's rows in a step."""
        return self.starts(epoch, step)[0]

    def settle(self, epoch: int, step: int) -> tuple[int, int]:
        """The same position with `step` within its epoch."""
        more, step = divmod(step, self.steps_per_epoch)
        return epoch + more, step

    @property
    def endless_epoch(self) -> bool:
        """Whether there is one epoch only: no, another follows."""
        return False

    def starts(self, epoch: int, step: int, n_steps: int = 1) -> list[NDArray[np.int64]]:
        """First token of each of this rank's rows in steps [step, step + n_steps) of an epoch, int64 [≤ B] each.

        Fewer than `batch_size` (or none) only in the last step of an epoch, without `drop_last`.
        """
        first = np.arange(step, step + n_steps, dtype=np.int64)[:, None] * self.global_batch_size
        positions = (first + (self.rank * self.batch_size + np.arange(self.batch_size))).ravel()
        starts = self.picked(epoch, positions[: int(np.searchsorted(positions, self.n_sequences))])
        return [starts[k : k + self.batch_size] for k in range(0, n_steps * self.batch_size, self.batch_size)]

    def walk(self, epoch: int, step: int, epochs: int | None) -> Iterator[tuple[int, int, list[NDArray[np.int64]]]]:
        """(epoch, first step, starts of many steps) from a position on; endless when `epochs` is None."""
        n_rows = _PLANNED_FIRST
        while epochs is None or epoch < epochs:
            while step < self.steps_per_epoch:
                count = min(max(1, n_rows // self.batch_size), self.steps_per_epoch - step)
                yield epoch, step, self.starts(epoch, step, count)
                step, n_rows = step + count, min(2 * n_rows, _PLANNED)
            epoch, step = epoch + 1, 0


_PLANNED_FIRST, _PLANNED = 1 << 14, 1 << 15
"""Rows whose order is computed in one go: enough that a row costs 40 ns, and that threads which read meanwhile seldom
wait for the interpreter's lock; fewer at first, to begin in 1 ms."""
