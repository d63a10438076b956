"""The state of a loader at a position, and a mixture's sources taken up from one. loader.state checks saved states."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenriver.errors import ResumeError
from tokenriver.loader.state import STATE_VERSION

if TYPE_CHECKING:
    from collections.abc import Mapping

    from tokenriver.loader.mixture_rows import MixtureRows
    from tokenriver.loader.setup import Setup

__all__ = ["restore_mixture", "state_of"]


def state_of(setup: Setup, fingerprint: str | dict[str, str], *, epoch: int, step: int) -> dict[str, Any]:
    """The state that names (epoch, step) of a loader's data: nine values, and those of packing and mixture."""
    plan = setup.plan
    state: dict[str, Any] = {
        "version": STATE_VERSION,
        "fingerprint": fingerprint,
        "split": plan.split,
        "seq_len": plan.seq_len,
        "global_batch_size": plan.global_batch_size,
        "order": plan.order,
        "seed": plan.seed,
        "epoch": epoch,
        "step": step,
    }
    if setup.packed:
        digests = [part.parameters["documents"] for part in setup.packed]
        documents = digests[0] if len(digests) == 1 else digests
        state["packing"] = {**setup.packed[0].parameters, "documents": documents}
    if setup.mixture is not None:
        mixed = setup.mixture
        state |= {"mixture": mixed.mixture.description(), "mixture_step": mixed.since, "sources": mixed.saved(step)}
    return state


def restore_mixture(mixed: MixtureRows, state: Mapping[str, Any], step: int, *, resized: bool) -> None:
    """Take up a mixture's run; where it was allowed to change, sources go on from their own positions."""
    if state["epoch"]:
        raise ResumeError(
            f"the saved state stands in epoch {state['epoch']} of one data set; a mixture is one run without epochs, "
            "so begin it anew"
        )
    saved, since = state.get("sources", {}), state.get("mixture_step", 0)
    if state.get("mixture") == mixed.mixture.description() and not resized:
        mixed.restore(since, step, saved)
        return
    mixed.restart(step, [_rows_given(mixed, i, state, saved.get(name, 0)) for i, name in enumerate(mixed.names)])


def _rows_given(mixed: MixtureRows, source: int, state: Mapping[str, Any], value: int) -> int:
    """The rows that a source has given by a saved state: of one that was used up, all that its cap there allowed."""
    if value >= 0:
        return value
    return max(-1 - value, mixed.rows_in(source, state["mixture"]["max_epochs"][mixed.names[source]]))
