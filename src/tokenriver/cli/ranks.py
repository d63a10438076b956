"""The processes that torchrun started for a command, as ranks of one group."""

from __future__ import annotations

import os

from tokenriver.errors import UsageError

__all__ = ["join_ranks"]


def join_ranks(device: str | None) -> tuple[int, int]:
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
