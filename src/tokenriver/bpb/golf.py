"""Parameter Golf's count of bytes (docs/bpb.md): tables from the pieces, and val_bpb as its training script has it.

It counts the bytes of the normalised text as SentencePiece's pieces spell it. With pieces that hold several space
marks it counts three bytes for each mark after the first, as the original does; `text` in bits.py does not.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.errors import MissingDependencyError, TokenizerError, UsageError
from tokenriver.tokenizers.sentencepiece_model import SPACE

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["GolfTable", "bpb_of", "build_sentencepiece_luts", "byte_tables", "eval_bpb", "eval_val"]


@dataclass(frozen=True, slots=True, eq=False)
class GolfTable:
    """By id: `base_bytes` int16, `has_leading_space` and `is_boundary` bool (control, unknown, unused), [vocab]."""

    base_bytes: NDArray[np.int16]
    has_leading_space: NDArray[np.bool_]
    is_boundary: NDArray[np.bool_]

    def target_bytes(self, targets: NDArray[np.int64], previous: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of each target: its base, plus one for its space unless a boundary id stands before it."""
        spaces = self.has_leading_space[targets] & ~self.is_boundary[previous]
        return self.base_bytes[targets].astype(np.int64) + spaces


def byte_tables(tokenizer: Tokenizer | Any, *, vocab_size: int = 0) -> GolfTable:
    """The tables of a SentencePiece model, given as a loaded tokenizer or as a SentencePieceProcessor.

    `vocab_size` may be larger than the model's (a padded embedding): the ids beyond are boundaries of no bytes. For a
    tokenizer of another kind the raw bytes of its ids are taken (less a first space where the tokenizer puts one before
    each text), and its ids without bytes are boundaries.
    """
    processor: Any = getattr(getattr(tokenizer, "reference", tokenizer), "processor", tokenizer)
    if not hasattr(processor, "id_to_piece"):
        return _tables_of_bytes(tokenizer, vocab_size)
    n = int(processor.get_piece_size())
    size = max(n, vocab_size)
    base, space, boundary = np.zeros(size, np.int16), np.zeros(size, np.bool_), np.ones(size, np.bool_)
    for i in range(n):
        if processor.is_control(i) or processor.is_unknown(i) or processor.is_unused(i):
            continue
        boundary[i] = False
        if processor.is_byte(i):
            base[i] = 1
            continue
        piece = processor.id_to_piece(i)
        space[i] = piece.startswith(SPACE)
        base[i] = len(piece.removeprefix(SPACE).encode())
    return GolfTable(base, space, boundary)


def _tables_of_bytes(tokenizer: Tokenizer, vocab_size: int) -> GolfTable:
    from tokenriver.bpb.tables import TextTable

    table = TextTable.of(tokenizer)
    size = max(len(table.n_bytes), vocab_size)
    base, boundary = np.zeros(size, np.int16), np.ones(size, np.bool_)
    space = np.zeros(size, np.bool_)
    space[: len(table.n_bytes)] = table.has_prefix
    base[: len(table.n_bytes)] = table.n_bytes - table.has_prefix
    boundary[: len(table.n_bytes)] = table.n_bytes == 0
    return GolfTable(base, space, boundary)


def build_sentencepiece_luts(sp: Any, vocab_size: int, device: Any) -> tuple[Any, Any, Any]:
    """`byte_tables` under the original's name: three torch tensors on a device (int16, bool, bool)."""
    torch = _torch()
    table = byte_tables(sp, vocab_size=vocab_size)
    arrays = (table.base_bytes, table.has_leading_space, table.is_boundary)
    return tuple(torch.from_numpy(array).to(device) for array in arrays)


def sequences_of_rank(n: int, rank: int, world_size: int) -> tuple[int, int]:
    """The half-open range of `n` sequences that a rank evaluates: (10, 1, 4) → (2, 5)."""
    return n * rank // world_size, n * (rank + 1) // world_size


def eval_bpb(
    model: Callable[[Any, Any], Any],
    val_tokens: Any,
    tokenizer: Tokenizer | GolfTable | Any,
    *,
    seq_len: int,
    batch_tokens: int,
    rank: int = 0,
    world_size: int = 1,
    grad_accum_steps: int = 1,
    device: Any = None,
    progress: Callable[[int, int], object] | None = None,
) -> tuple[float, int, int]:
    """Parameter Golf's validation over one rank's part: (sum of nats, targets, bytes), which add up over ranks.

    `model(x, y)` gives the mean loss of a batch [sequences, seq_len]; NumPy int64, or torch with `device` (then without
    gradients and under bfloat16 autocast, as the original runs it).
    val_loss = nats / targets, val_bpb = val_loss / ln 2 · targets / bytes: see `bpb_of`. `progress(targets, of)` is
    called after each batch. UsageError where a batch holds no whole sequence for a rank, or there is not one sequence.
    """
    table = tokenizer if isinstance(tokenizer, GolfTable) else byte_tables(tokenizer)
    per_batch = batch_tokens // (world_size * grad_accum_steps) // seq_len
    if per_batch < 1:
        raise UsageError(
            f"a batch of {batch_tokens:,} tokens is less than one sequence of {seq_len:,} for each of {world_size} "
            f"ranks and {grad_accum_steps} steps: VAL_BATCH_SIZE (--val-batch-size) must provide at least one "
            "sequence per rank"
        )
    if hasattr(val_tokens, "detach"):
        val_tokens = val_tokens.detach().cpu().numpy()
    ids = np.asarray(val_tokens).reshape(-1).astype(np.int64)
    n = (len(ids) - 1) // seq_len
    if n < 1:
        raise UsageError(f"{len(ids):,} validation ids are less than one sequence of {seq_len:,} and its target")
    if not 0 <= int(ids.min()) <= int(ids.max()) < len(table.base_bytes):
        raise TokenizerError(
            f"the validation ids go from {int(ids.min())} to {int(ids.max()):,}, but the tokenizer has "
            f"{len(table.base_bytes):,} ids; is it the one that made them?"
        )
    start, stop = sequences_of_rank(n, rank, world_size)
    nats, targets, n_bytes = 0.0, 0, 0
    for first in range(start, stop, per_batch):
        last = min(first + per_batch, stop)
        span = ids[first * seq_len : last * seq_len + 1]
        x, y = span[:-1].reshape(-1, seq_len), span[1:].reshape(-1, seq_len)
        nats += _mean_loss(model, x, y, device) * y.size
        targets += y.size
        n_bytes += int(table.target_bytes(y, x).sum())
        if progress is not None:
            progress(targets, (stop - start) * seq_len)
    return nats, targets, n_bytes


def bpb_of(nats: float, targets: int, n_bytes: int) -> tuple[float, float]:
    """(val_loss, val_bpb) of the sums, in the order of operations of the original. UsageError for no bytes."""
    if not n_bytes:
        raise UsageError(
            f"the {targets:,} targets stand for no bytes of text (control ids alone): there is nothing to score"
        )
    val_loss = nats / targets
    return val_loss, val_loss / math.log(2) * (targets / n_bytes)


def _mean_loss(model: Callable[[Any, Any], Any], x: NDArray[np.int64], y: NDArray[np.int64], device: Any) -> float:
    if device is None:
        return _one_number(model(x, y))
    torch = _torch()
    with torch.inference_mode(), torch.autocast(torch.device(device).type, dtype=torch.bfloat16):
        return _one_number(model(torch.from_numpy(x).to(device), torch.from_numpy(y).to(device)))


def _one_number(loss: Any) -> float:
    try:
        return float(loss)
    except (TypeError, ValueError, RuntimeError) as error:
        shape = tuple(getattr(loss, "shape", ()))
        found = f"shape {shape}" if shape else type(loss).__name__
        raise UsageError(f"the model gave {found}; expected one number, the mean loss of the batch in nats") from error


def eval_val(
    args: Any,
    model: Any,
    rank: int,
    world_size: int,
    device: Any,
    grad_accum_steps: int,
    val_tokens: Any,
    base_bytes_lut: Any,
    has_leading_space_lut: Any,
    is_boundary_token_lut: Any,
) -> tuple[float, float]:
    """(val_loss, val_bpb) with the original's arguments; sums go over all ranks where torch.distributed runs.

    `args` has train_seq_len and val_batch_size. The model is put into eval mode and back into train mode.
    """
    torch = _torch()
    luts = (base_bytes_lut, has_leading_space_lut, is_boundary_token_lut)
    table = GolfTable(*(lut.cpu().numpy() for lut in luts))
    model.eval()
    sums = eval_bpb(
        model,
        val_tokens,
        table,
        seq_len=args.train_seq_len,
        batch_tokens=args.val_batch_size,
        rank=rank,
        world_size=world_size,
        grad_accum_steps=grad_accum_steps,
        device=device,
    )
    if torch.distributed.is_available() and torch.distributed.is_initialized():
        shared = torch.tensor(sums, dtype=torch.float64, device=device)
        torch.distributed.all_reduce(shared)
        sums = (float(shared[0]), int(shared[1]), int(shared[2]))
    model.train()
    return bpb_of(*sums)


def _torch() -> Any:
    try:
        import torch
    except ImportError:
        raise MissingDependencyError("this needs the extra: pip install 'tokenriver[torch]'") from None
    return torch
