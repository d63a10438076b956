"""Run a model over an evaluation file: inputs in, logits out, scores at the end; NumPy or torch."""

from __future__ import annotations

import inspect
from contextlib import ExitStack
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokenriver.errors import MissingDependencyError, UsageError
from tokenriver.evals.loader import EvalBatch, EvalLoader
from tokenriver.evals.scoring import Scores, completion_losses, score_completions

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tokenriver.evals.file import EvalFile
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["evaluate", "masked_losses"]


def evaluate(
    model: Callable[..., Any],
    file: str | os.PathLike[str] | EvalFile,
    *,
    batch_size: int = 32,
    seq_len: int = 1024,
    rank: int = 0,
    world_size: int = 1,
    too_long: Literal["error", "skip"] = "error",
    packed: bool = False,
    tokenizer: Tokenizer | None = None,
    device: str | None = None,
    autocast: str | None = None,
    progress: Callable[[int, int], object] | None = None,
    show: bool = True,
) -> Scores:
    """Score a model on a file, print the table (`show`), and return the scores of this rank.

    `model(inputs) -> logits`: inputs [B, T], logits [B, T, V], where logits[b, t] predicts what follows inputs[b, t].
    A torch module, or any model when `device` is given, gets int64 tensors (on its own parameters' device unless
    `device` says another), other models NumPy int64. `autocast`: "bfloat16" or "float16" on that device. `packed`:
    model(inputs [T], cu_seqlens=int32 [documents + 1]) -> logits [T, V] (or [1, T, V]), several rows in one.
    `progress(examples, of)` is called after each batch. The scores of ranks add up: every rank runs the same number of
    batches. UsageError for logits of another shape and for NaN.
    """
    loader = EvalLoader(
        file, batch_size, seq_len, rank, world_size, too_long=too_long, packed=packed, tokenizer=tokenizer
    )
    if not loader.n_examples:
        raise UsageError(
            f"no example is left: all {loader.n_skipped:,} are longer than the sequence length of {seq_len:,}; raise it"
            if loader.n_skipped
            else "the evaluation file has no example; there is nothing to score"
        )
    if packed and not _takes_cu_seqlens(model):
        raise UsageError("packed evaluation calls model(inputs, cu_seqlens=…); this model does not take cu_seqlens")
    run = _runner(model, device, autocast)
    scores = Scores()
    for batch in loader:
        sums = completion_losses(run(batch), batch)
        scores = scores + score_completions(sums, batch)
        if progress is not None:
            progress(scores.n_examples, loader.n_examples)
    if show:
        print(scores.table())
        if loader.n_skipped:
            print(f"{loader.n_skipped:,} examples left out: longer than {seq_len:,} ids")
    return scores


def _takes_cu_seqlens(model: Callable[..., Any]) -> bool:
    try:
        parameters = inspect.signature(getattr(model, "forward", model)).parameters.values()
    except (TypeError, ValueError):
        return True
    return any(p.name == "cu_seqlens" or p.kind is p.VAR_KEYWORD for p in parameters)


def _runner(
    model: Callable[..., Any], device: str | None, autocast: str | None
) -> Callable[[EvalBatch], NDArray[np.float64]]:
    """From a batch to the losses at its mask's places, float64 [n]."""
    is_module = hasattr(model, "parameters") and hasattr(model, "forward")
    if not is_module and device is None:
        if autocast is not None:
            raise UsageError("autocast is for torch: give a device too")
        return lambda batch: masked_losses(_call(model, batch.inputs, batch.cu_seqlens), batch)
    try:
        import torch
    except ImportError:
        raise MissingDependencyError("a torch model needs the extra: pip install 'tokenriver[torch]'") from None
    if device is None:
        first: Any = next(iter(model.parameters()), None)  # type: ignore[attr-defined]
        device = "cpu" if first is None else str(first.device)
    where = torch.device(device)
    if autocast not in (None, "bfloat16", "float16"):
        raise UsageError(f"autocast {autocast!r} is unknown; choose bfloat16 or float16")

    def run(batch: EvalBatch) -> NDArray[np.float64]:
        with ExitStack() as stack:
            stack.enter_context(torch.inference_mode())
            if autocast is not None:
                stack.enter_context(torch.autocast(where.type, dtype=getattr(torch, autocast)))
            inputs = torch.from_numpy(batch.inputs).to(where)
            borders = None if batch.cu_seqlens is None else torch.from_numpy(batch.cu_seqlens).to(where)
            logits = _call(model, inputs, borders)
        with torch.inference_mode():
            return masked_losses(logits, batch)

    return run


def _call(model: Callable[..., Any], inputs: Any, cu_seqlens: Any) -> Any:
    return model(inputs) if cu_seqlens is None else model(inputs, cu_seqlens=cu_seqlens)


def masked_losses(logits: Any, batch: EvalBatch) -> NDArray[np.float64]:
    """Loss in nats at the mask's places, in order, float64 [n]: logsumexp of the logits less the target's logit.

    Only these places are looked at, in float64 (torch: float32), so a model's whole output is never copied.
    """
    shape = tuple(getattr(logits, "shape", ()))
    wanted = batch.inputs.shape
    if shape[:1] == (1,) and len(wanted) == 1 and len(shape) == 3:
        logits, shape = logits[0], shape[1:]
    if len(shape) != len(wanted) + 1 or shape[:-1] != wanted:
        found = f"shape {shape}" if shape else f"{type(logits).__name__}"
        raise UsageError(f"the model gave {found}; expected logits of shape {(*wanted, 'vocabulary')}")
    targets = batch.targets[batch.mask]
    if len(targets) and int(targets.max()) >= shape[-1]:
        raise UsageError(f"the model has {shape[-1]:,} logits a place; the file has the id {int(targets.max()):,}")
    if hasattr(logits, "detach"):
        import torch

        places = torch.from_numpy(np.flatnonzero(batch.mask)).to(logits.device)
        chosen = logits.reshape(-1, shape[-1])[places].float()
        aimed = chosen.gather(1, torch.from_numpy(targets).to(logits.device)[:, None])[:, 0]
        values: NDArray[np.float64] = (chosen.logsumexp(dim=1) - aimed).cpu().double().numpy()
        return values
    rows = np.asarray(logits)[batch.mask].astype(np.float64)
    highest = rows.max(axis=1, keepdims=True) if len(rows) else rows[:, :1]
    with np.errstate(invalid="ignore"):  # infinite logits give NaN, which is reported with its example
        total = highest[:, 0] + np.log(np.exp(rows - highest).sum(axis=1))
    return np.asarray(total - rows[np.arange(len(rows)), targets], np.float64)
