"""Several steps' batches read together: one system call for all their ranges, by two threads at the same time.

Reading a batch of 64 rows keeps the kernel busy for 150 µs and Python for 60. Four batches at a time need Python a
quarter as often, and as the kernel works without the interpreter's lock, the consumer's thread reads a group while the
background thread reads another.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenriver.cpus import available_cpus
from tokenriver.loader.batch import Raw
from tokenriver.loader.many_reads import FEWEST
from tokenriver.loader.plan import Plan
from tokenriver.loader.rows import Located, Pieces, RowGroup, Steps

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenriver.loader.assembly import Assembly
    from tokenriver.loader.rows import Rows

__all__ = ["MORE_GROUPS", "StepGroups", "steps_together"]

MORE_GROUPS = 2
"""Groups of buffers beside those that are filled ahead: the one that the taker fills itself, and the one it empties."""

_MOST_STEPS, _MOST_IN_ORDER, _MOST_ROWS, _MOST_BYTES = 4, 8, 256, 1 << 20
"""Steps that are read together at most (in order, where each is a single range, more), their rows, and their bytes:
enough that what Python does is little for each of them, and few enough to stay in a core's cache."""

_LARGE_BYTES = 16 << 20
"""A batch of more raw bytes gains nothing, and would be held four times instead of twice."""


def steps_together(assembly: Assembly) -> int:
    """How many steps are read together; 0 where that is no gain."""
    reader, n_rows = assembly.reader, assembly.batch_size
    n_bytes = n_rows * assembly.seq_len * reader.dtype.itemsize
    in_order = isinstance(assembly.plan, Plan) and assembly.plan.order == "sequential"
    most = _MOST_IN_ORDER if in_order else min(_MOST_STEPS, _MOST_ROWS // n_rows)
    n = max(1, min(most, _MOST_BYTES // n_bytes))
    if (
        n * n_rows < FEWEST
        or n_bytes > _LARGE_BYTES
        or reader.far
        or assembly.plan.order == "block-shuffled"
        or available_cpus() < 2
    ):
        return 0
    return n if reader.at_once is not None else 0


class StepGroups:
    """The batches of a loader's plan, `n` steps at a time."""

    def __init__(self, assembly: Assembly, n: int) -> None:
        self._assembly, self._n = assembly, n

    def buffers(self) -> RowGroup:
        """Buffers for as many steps as are read together."""
        a = self._assembly
        return RowGroup(self._n, a.batch_size, a.seq_len + 1, a.reader.dtype)

    def run(self, epoch: int, step: int, epochs: int | None) -> Iterator[Steps]:
        """The rows of all steps from a position on, ready for `fill`."""
        a, n, b = self._assembly, self._n, self._assembly.batch_size
        for at_epoch, at_step, rows in a.plan.walk(epoch, step, epochs):
            if not isinstance(rows, list):
                prepared = a.prepare(*rows)
                for first in range(0, len(prepared.n_rows), n):
                    stop = min(first + n, len(prepared.n_rows))
                    yield Steps(at_epoch, at_step + first, stop - first, Pieces(prepared, first, stop))
                continue
            n_full = len(rows) - (len(rows[-1]) < b)
            full = np.concatenate([rows[-1][:0], *rows[:n_full]])
            for where in a.locate([full[k : k + n * b] for k in range(0, len(full), n * b)]):
                count = len(where.starts) // b
                yield Steps(at_epoch, at_step, count, where)
                at_step += count
            if n_full < len(rows):  # the last step of an epoch, without drop_last
                yield Steps(at_epoch, at_step, 1, a.locate(rows[-1:])[0])

    def fill(self, group: RowGroup, steps: Steps) -> Iterator[tuple[Rows, Raw]]:
        """Each step's buffer and what it holds, read by one call where that can be, else step by step, so that what is
        wrong is raised at its step."""
        together = self._assembly.reader.read_group(steps.rows, group)
        if isinstance(steps.rows, Located):
            return self._rows(group, steps, steps.rows, together=together)
        return self._pieces(group, steps, steps.rows, together=together)

    def _rows(self, group: RowGroup, steps: Steps, rows: Located, *, together: bool) -> Iterator[tuple[Rows, Raw]]:
        a = self._assembly
        full = together and len(rows.starts) == steps.n * a.batch_size and not a.marks_documents
        end_to_end = rows.length > a.seq_len + 1
        known = full and a.of_vocabulary(group.whole.flat)  # here, not when batches are taken: what waits is the taker
        for k, buffer in enumerate(group.steps[: steps.n]):
            if full:
                yield buffer, Raw(steps.epoch, steps.step + k, a.batch_size, end_to_end, rows, known=known)
            else:
                item = steps.epoch, steps.step + k, rows.part(k, a.batch_size)
                yield buffer, a.checked(buffer, item) if together else a.fill(buffer, item)

    def _pieces(self, group: RowGroup, steps: Steps, rows: Pieces, *, together: bool) -> Iterator[tuple[Rows, Raw]]:
        a, (pieces, first, stop) = self._assembly, rows
        right = together and a.begin_right(group.whole, pieces.first_ids.of(first, stop) - first * pieces.step_ids)
        known = right and a.of_vocabulary(group.whole.flat)
        for k, buffer in enumerate(group.steps[: steps.n]):
            own = pieces.step(first + k)
            if right and pieces.unmarked[first + k]:
                yield buffer, Raw(steps.epoch, steps.step + k, a.batch_size, False, own, unmarked=True, known=known)
            elif right:
                yield buffer, a.patched(steps.epoch, steps.step + k, own)
            else:
                yield buffer, a.fill(buffer, (steps.epoch, steps.step + k, own))
