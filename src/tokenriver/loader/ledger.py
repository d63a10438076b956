"""The ledger of a loader: where every token of its data goes in an epoch, for each kind of plan."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.loader.dealt import DealtPlan

if TYPE_CHECKING:
    from tokenriver.loader.plan import Plan
    from tokenriver.loader.setup import Setup

__all__ = ["dropped_tokens", "ledger"]


def ledger(setup: Setup, *, epoch: int, step: int) -> dict[str, Any]:
    """What TrainLoader.ledger gives for a loader that stands at (epoch, step)."""
    if setup.mixture is not None:
        return _of_mixture(setup, step)
    if isinstance(setup.plan, DealtPlan):
        return _of_packed(setup, setup.plan, epoch, step)
    return _of_stream(setup, setup.plan, epoch, step)


def dropped_tokens(plan: Plan) -> int:
    """Tokens of the flat stream that an epoch leaves out."""
    return plan.n_tokens - _rows_served(plan) * plan.seq_len - 1


def _rows_served(plan: Plan) -> int:
    return min(plan.n_sequences, plan.steps_per_epoch * plan.global_batch_size)


def _of_stream(setup: Setup, plan: Plan, epoch: int, step: int) -> dict[str, Any]:
    in_steps = _rows_served(plan)
    per_epoch = in_steps * plan.seq_len
    unmarked = _unmarked_targets(setup, plan, epoch, in_steps) if setup.packer.marks else 0
    so_far = epoch * per_epoch + min(step * plan.global_batch_size * plan.seq_len, per_epoch)
    return {
        "split": plan.split,
        "tokens": plan.n_tokens,
        "sequences": plan.n_sequences,
        "steps": plan.steps_per_epoch,
        "served": per_epoch + 1,
        "dropped": dropped_tokens(plan),
        "dropped_tail": (plan.n_tokens - 1) % plan.seq_len,
        "dropped_batch": (plan.n_sequences - in_steps) * plan.seq_len,
        "trained": per_epoch - unmarked,
        "padded": 1 + unmarked,
        "cropped": 0,
        "padding": (plan.steps_per_epoch * plan.global_batch_size - in_steps) * plan.seq_len,
        "epoch": epoch,
        "step": step,
        "targets_so_far": so_far,
    }


def _unmarked_targets(setup: Setup, plan: Plan, epoch: int, in_steps: int) -> int:
    """Targets of an epoch's first rows that begin another document unannounced; none if separators do."""
    if setup.data.separator_id is not None and setup.data.separator_position == "before":
        return 0
    starts = setup.starts()
    counted = np.searchsorted(starts, [0, plan.n_sequences * plan.seq_len], "right")
    left_out = plan.rows(epoch, in_steps, plan.n_sequences - in_steps)  # with drop_last less than a batch
    counted_there = np.searchsorted(starts, [left_out, left_out + plan.seq_len], "right")
    return int(counted[1] - counted[0] - (counted_there[1] - counted_there[0]).sum())


def _of_packed(setup: Setup, plan: DealtPlan, epoch: int, step: int) -> dict[str, Any]:
    packed = setup.packed[0]
    rows, steps = packed.n_rows(epoch), plan.steps(epoch) or 0
    served = min(rows, steps * plan.global_batch_size)
    facts = packed.ledger(epoch, served)
    slots = served * (plan.seq_len + (packed.packing == "best-fit"))
    return {
        "split": plan.split,
        "tokens": plan.n_tokens,
        "documents": packed.documents.n,
        "rows": rows,
        "steps": steps,
        **facts,
        "padding": facts["padding"] + (steps * plan.global_batch_size - served) * plan.seq_len,
        "utilisation": 1 - facts["padding"] / slots if slots else 0.0,
        "epoch": epoch,
        "step": step,
    }


def _of_mixture(setup: Setup, step: int) -> dict[str, Any]:
    mixed, plan = setup.mixture, setup.plan
    assert mixed is not None
    sources: dict[str, Any] = {}
    counts = mixed.counts(step)
    for i, (name, part) in enumerate(setup.parts.items()):
        epoch, row = mixed.epoch_of(i, counts[i])
        facts = {"tokens": part.n_tokens, "rows": counts[i], "targets": counts[i] * plan.seq_len}
        sources[name] = {**facts, "epoch": epoch, "row": row, "share": counts[i] / max(1, sum(counts))}
    rows = sum(counts)
    return {
        "split": plan.split,
        "tokens": setup.data.n_tokens,
        "steps": plan.steps(0),
        "rows": rows,
        "targets": rows * plan.seq_len,
        "step": step,
        "sources": sources,
    }
