"""Attention within documents, for PyTorch: masks from the borders that a batch brings along, on their device."""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["document_ids", "document_mask", "document_mask_mod", "position_ids"]


def position_ids(cu_seqlens: torch.Tensor, shape: torch.Size) -> torch.Tensor:
    """Position of each input in its document, int32 of `shape` [B, T], from the borders, on their device."""
    every = torch.arange(shape.numel(), dtype=torch.int32, device=cu_seqlens.device)
    begins = cu_seqlens[torch.searchsorted(cu_seqlens, every, right=True) - 1]
    return (every - begins).view(shape)


def document_ids(position_ids: torch.Tensor) -> torch.Tensor:
    """Which piece of its row each input belongs to, int64 [B, T], from position ids that restart at each document."""
    return (position_ids == 0).cumsum(1)


def document_mask(position_ids: torch.Tensor) -> torch.Tensor:
    """Causal attention within documents for scaled_dot_product_attention, bool [B, 1, T, T], True where allowed."""
    ids = document_ids(position_ids)
    causal = torch.ones(ids.shape[1], ids.shape[1], dtype=torch.bool, device=ids.device).tril()
    return ((ids[:, :, None] == ids[:, None, :]) & causal)[:, None]


def document_mask_mod(position_ids: torch.Tensor) -> Callable[..., torch.Tensor]:
    """The same for FlexAttention: a mask_mod (batch, head, query, key) for create_block_mask(mod, B, None, T, T)."""
    ids = document_ids(position_ids)

    def allowed(b: torch.Tensor, _h: torch.Tensor, q: torch.Tensor, k: torch.Tensor) -> torch.Tensor:
        return (q >= k) & (ids[b, q] == ids[b, k])

    return allowed
