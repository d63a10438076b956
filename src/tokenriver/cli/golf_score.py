"""`tokenriver golf score`: a model's val_loss and val_bpb, on this process or on the ranks that torchrun started."""

from __future__ import annotations

import os
from typing import Annotated

import typer

from tokenriver.cli.options import AS_JSON
from tokenriver.cli.summaries import plural
from tokenriver.errors import UsageError

__all__ = ["score_command"]


def score_command(
    model: Annotated[str, typer.Option(metavar="MODULE:CALLABLE", help="model(x, y) -> mean loss in nats.")],
    val: Annotated[str, typer.Option(metavar="DIR", help="Folder of the export, or a pattern of val shards.")],
    tokenizer: Annotated[str, typer.Option(metavar="T", help="The export's tokenizer: .model or byte JSON.")],
    seq_len: Annotated[int, typer.Option(metavar="N", min=1, help="Tokens in a sequence.")] = 1024,
    val_batch_size: Annotated[
        int, typer.Option(metavar="N", min=1, help="Tokens in a batch over all ranks and steps.")
    ] = 524_288,
    grad_accum_steps: Annotated[
        int | None, typer.Option(metavar="N", min=1, help="Steps that a batch is cut into (default: 8 over the ranks).")
    ] = None,
    device: Annotated[str | None, typer.Option(metavar="D", help="torch device; the model then gets tensors.")] = None,
    as_json: Annotated[bool, AS_JSON] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Print val_loss and val_bpb of a model over the val shards. Under torchrun over all ranks."""
    from tokenriver.cli.decoding import load_decoder
    from tokenriver.cli.eval import check_device, load_model
    from tokenriver.cli.progress import Progress
    from tokenriver.cli.summaries import print_json
    from tokenriver.golfing.score import made_with, score_golf

    check_device(device)
    rank, world_size = _join_ranks(device)
    loaded = load_model(model)
    coder = load_decoder(tokenizer, made_with=made_with(val), what=val, wrong="the bytes are")
    with Progress(None, label="scoring", quiet=quiet or rank > 0) as progress:

        def tell(targets: int, of: int) -> None:
            progress.expect(2 * of)
            progress.update(2 * targets, 0, targets)

        score = score_golf(
            loaded,
            val=val,
            tokenizer=coder,
            seq_len=seq_len,
            val_batch_size=val_batch_size,
            grad_accum_steps=grad_accum_steps or max(1, 8 // world_size),
            device=device,
            progress=tell,
        )
    if rank == 0 and as_json:
        print_json(score)
    elif rank == 0:
        print(f"val_loss {score.val_loss:.8f}\nval_bpb {score.val_bpb:.8f}")
        print(f"{score.targets:,} targets, {score.n_bytes:,} bytes, {plural(world_size, 'rank')}")


def _join_ranks(device: str | None) -> tuple[int, int]:
    """Join the processes that torchrun started; (rank, ranks)."""
    given = os.environ.get("WORLD_SIZE", "1")
    if not given.strip().isdecimal() or int(given) < 1:
        raise UsageError(f"WORLD_SIZE is {given!r}; torchrun sets it to the number of processes, 1 or more")
    world_size = int(given)
    if world_size == 1:
        return 0, 1
    try:
        import torch.distributed as dist
    except ImportError:
        raise UsageError(
            f"WORLD_SIZE is {world_size}, which needs the extra: pip install 'tokenriver[torch]'"
        ) from None
    if not dist.is_initialized():
        dist.init_process_group("nccl" if (device or "cpu").startswith("cuda") else "gloo")
    return dist.get_rank(), world_size
