"""val_loss and val_bpb of a model over an export's val shards, as Parameter Golf's training script computes them.

The arithmetic is bpb.golf's; here are the files, the ranks of torch.distributed, and the sums over them.
"""

from __future__ import annotations

import glob
import math
import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenriver.bpb.golf import bpb_of, eval_bpb
from tokenriver.errors import MissingDependencyError, UsageError
from tokenriver.golf import load_validation_tokens
from tokenriver.shards.layouts import GOLF_NAME
from tokenriver.storage.objects import below
from tokenriver.storage.paths import is_remote, to_path
from tokenriver.tokenizers.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["GolfScore", "made_with", "score_golf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GolfScore:
    """val_loss in nats a target, val_bpb in bits a byte, the targets and bytes that they are over, and the ranks."""

    val_loss: float
    val_bpb: float
    targets: int
    n_bytes: int
    world_size: int


def score_golf(
    model: Callable[[Any, Any], Any],
    *,
    val: str | os.PathLike[str],
    tokenizer: str | os.PathLike[str] | Tokenizer,
    seq_len: int = 1024,
    val_batch_size: int = 524_288,
    grad_accum_steps: int = 8,
    device: Any = None,
    progress: Callable[[int, int], object] | None = None,
) -> GolfScore:
    """Score `model(x, y)`, which gives the mean loss of a batch [sequences, seq_len].

    `val` is a folder with fineweb_val_*.bin or a pattern, or the URL of one. `x` and `y` are NumPy int64, or with
    `device` torch tensors there, under autocast to bfloat16. Where torch.distributed runs, every rank takes its
    sequences and the sums are added; every rank gets the same score. `progress(targets, of)` is called after each
    batch of this rank. Raises UsageError where a batch holds no sequence for a rank, or a loss is NaN.
    """
    pattern = _val_shards(val)
    coder = load_tokenizer(os.fspath(tokenizer)) if isinstance(tokenizer, str | os.PathLike) else tokenizer
    rank, world_size = _ranks()
    sums = eval_bpb(
        model,
        load_validation_tokens(pattern, seq_len, device=None),
        coder,
        seq_len=seq_len,
        batch_tokens=val_batch_size,
        rank=rank,
        world_size=world_size,
        grad_accum_steps=grad_accum_steps,
        device=device,
        progress=progress,
    )
    nats, targets, n_bytes = _added(sums, device) if world_size > 1 else sums
    if math.isnan(nats):  # said after the sums are added, so that no rank waits for one that gave up
        raise UsageError(f"the model's loss over the {targets:,} targets is not a number (NaN); look at its weights")
    val_loss, val_bpb = bpb_of(nats, targets, n_bytes)
    return GolfScore(val_loss=val_loss, val_bpb=val_bpb, targets=targets, n_bytes=n_bytes, world_size=world_size)


def made_with(val: str | os.PathLike[str]) -> str | None:
    """The tokenizer ("name@first digits of its SHA-256") that the build record beside the val shards names, if any."""
    from tokenriver.shards.documents import known_tokenizer

    pattern = _val_shards(val)
    shards = [] if is_remote(to_path(pattern)) else sorted(glob.glob(pattern))  # noqa: PTH207
    return known_tokenizer(to_path(shards[0])) if shards else None


def _val_shards(val: str | os.PathLike[str]) -> str:
    path = to_path(val)
    if is_remote(path):
        is_folder = not path.name.endswith(".bin") and (not glob.has_magic(str(path)) or bool(below(str(path))))
    else:
        is_folder = path.is_dir()
    return f"{glob.escape(str(path))}/{GOLF_NAME}_val_*.bin" if is_folder else str(path)


def _ranks() -> tuple[int, int]:
    """(rank, ranks) of torch.distributed where it runs, else one of one; torch is not needed for that."""
    try:
        import torch.distributed as dist
    except ImportError:
        return 0, 1
    if dist.is_available() and dist.is_initialized():
        return dist.get_rank(), dist.get_world_size()
    return 0, 1


def _added(sums: tuple[float, int, int], device: Any) -> tuple[float, int, int]:
    try:
        import torch
    except ImportError as error:  # world_size > 1 comes from torch
        raise MissingDependencyError("this needs the extra: pip install 'tokenriver[torch]'") from error
    shared = torch.tensor(sums, dtype=torch.float64, device=device)
    torch.distributed.all_reduce(shared)
    return float(shared[0]), int(shared[1]), int(shared[2])
