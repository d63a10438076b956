"""A small GPT on token shards: train, stop, resume with the same losses. PyTorch, CPU or GPU, no framework.

    python examples/train_gpt.py --data quickstart/tokens/byte/python-docs --tokenizer byte --steps 200
    python examples/train_gpt.py --data … --tokenizer byte --steps 400 --resume
    python examples/train_gpt.py --data … --tokenizer byte --packing best-fit

The checkpoint holds the model, the optimizer and the loader's state; everything else is a function of the seed.
"""

from __future__ import annotations

import argparse
import json
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional

from tokenriver import TrainLoader
from tokenriver.torch import TensorBatch, document_mask, document_mask_mod, to_device


@dataclass(frozen=True)
class Shape:
    """The size of the model."""

    vocab_size: int
    seq_len: int
    n_layer: int
    n_head: int
    n_embd: int


Attend = Callable[[torch.Tensor, torch.Tensor, torch.Tensor], torch.Tensor]
"""Attention [B, heads, T, C] of queries, keys and values."""


def attention(batch: TensorBatch) -> Attend:
    """Causal attention, within documents where the batch marks them."""
    if batch.position_ids is None:
        return partial(functional.scaled_dot_product_attention, is_causal=True)
    if batch.inputs.device.type == "cuda":
        from torch.nn.attention.flex_attention import create_block_mask, flex_attention

        b, t = batch.inputs.shape
        blocks = create_block_mask(document_mask_mod(batch.position_ids), b, None, t, t, device=batch.inputs.device)
        return partial(flex_attention, block_mask=blocks)
    return partial(functional.scaled_dot_product_attention, attn_mask=document_mask(batch.position_ids))


class Block(nn.Module):
    """Attention and a feed-forward net, each added to the stream after a norm."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.n_head = shape.n_head
        self.norm_1, self.norm_2 = nn.LayerNorm(shape.n_embd), nn.LayerNorm(shape.n_embd)
        self.qkv = nn.Linear(shape.n_embd, 3 * shape.n_embd)
        self.out = nn.Linear(shape.n_embd, shape.n_embd)
        self.feed = nn.Sequential(
            nn.Linear(shape.n_embd, 4 * shape.n_embd), nn.GELU(), nn.Linear(4 * shape.n_embd, shape.n_embd)
        )

    def forward(self, x: torch.Tensor, attend: Attend) -> torch.Tensor:
        b, t, c = x.shape
        heads = (b, t, self.n_head, c // self.n_head)
        q, k, v = (part.view(heads).transpose(1, 2) for part in self.qkv(self.norm_1(x)).split(c, dim=2))
        attended = attend(q, k, v)
        x = x + self.out(attended.transpose(1, 2).reshape(b, t, c))
        return x + self.feed(self.norm_2(x))


class GPT(nn.Module):
    """Token and position embeddings, blocks, and a head that shares the token embedding."""

    def __init__(self, shape: Shape) -> None:
        super().__init__()
        self.tokens = nn.Embedding(shape.vocab_size, shape.n_embd)
        self.positions = nn.Embedding(shape.seq_len, shape.n_embd)
        self.blocks = nn.ModuleList(Block(shape) for _ in range(shape.n_layer))
        self.norm = nn.LayerNorm(shape.n_embd)
        for embedding in (self.tokens, self.positions):
            nn.init.normal_(embedding.weight, std=0.02)

    def forward(self, batch: TensorBatch) -> torch.Tensor:
        """Loss of every target that counts, nats, [n]."""
        positions, attend = batch.position_ids, attention(batch)
        if positions is None:
            positions = torch.arange(batch.inputs.shape[1], device=batch.inputs.device)
        x = self.tokens(batch.inputs) + self.positions(positions)
        for block in self.blocks:
            x = block(x, attend)
        logits = functional.linear(self.norm(x), self.tokens.weight)
        losses = functional.cross_entropy(logits.flatten(0, 1), batch.targets.flatten(), reduction="none")
        return losses if batch.mask is None else losses[batch.mask.flatten()]


def bytes_per_token(loader: TrainLoader, tokenizer: str) -> float:
    """Bytes of text per token of a split: from the build's record, else by decoding the split."""
    record = loader.data.shards[0].path.parent / "_BUILD.json"
    if record.exists():
        split = json.loads(record.read_text())["splits"][loader.split]
        return split["text_bytes"] / split["tokens"]
    if tokenizer == "byte":
        return 1.0
    from tokenriver import load_tokenizer, open_shard

    coder = load_tokenizer(tokenizer)
    return sum(len(coder.decode_bytes(open_shard(s.path).ids)) for s in loader.data.shards) / loader.n_tokens


@torch.no_grad()
def validate(model: GPT, options: argparse.Namespace, device: torch.device) -> tuple[float, float]:
    """Mean nats per target over the whole val split, and the split's bytes per token."""
    loader = TrainLoader(
        options.data, split="val", order="sequential", epochs=1, drop_last=False, rank=0, world_size=1,
        batch_size=options.batch_size, seq_len=options.seq_len,
    )  # fmt: skip
    nats = torch.zeros((), device=device, dtype=torch.float64)
    targets = 0
    for batch in to_device(loader, device):
        kept = model(batch)
        nats += kept.sum(dtype=torch.float64)
        targets += kept.numel()
    return float(nats) / targets, bytes_per_token(loader, options.tokenizer)


def in_words(nats: float, bytes_each: float) -> str:
    return f"{nats:.4f} nats per token, {nats / math.log(2) / bytes_each:.4f} bits per byte"


def save(path: Path, contents: dict[str, object]) -> None:
    """Whole or not at all: a run may be stopped at any moment."""
    torch.save(contents, path.with_suffix(".part"))
    path.with_suffix(".part").replace(path)


def parse_arguments(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a data set directory with train and val shards")
    parser.add_argument("--tokenizer", default="byte", help="used for bits per byte where the build left no record")
    parser.add_argument("--checkpoint", type=Path, default=Path("checkpoint.pt"))
    parser.add_argument("--resume", action="store_true", help="go on from the checkpoint")
    parser.add_argument("--packing", default="concat", choices=["concat", "bos-aligned", "best-fit"])
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    for name, default in (("steps", 200), ("batch-size", 16), ("seq-len", 128), ("eval-every", 100), ("seed", 0)):
        parser.add_argument(f"--{name}", type=int, default=default)
    for name, default in (("n-layer", 4), ("n-head", 4), ("n-embd", 128)):
        parser.add_argument(f"--{name}", type=int, default=default)
    parser.add_argument("--learning-rate", type=float, default=1e-3)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> None:
    options = parse_arguments(arguments)
    device = torch.device(options.device)
    torch.manual_seed(options.seed)
    loader = TrainLoader(
        options.data, batch_size=options.batch_size, seq_len=options.seq_len, seed=options.seed, packing=options.packing
    )
    manifest = json.loads((Path(options.data) / "_MANIFEST.json").read_text())
    shape = Shape(manifest["vocab_size"], options.seq_len, options.n_layer, options.n_head, options.n_embd)
    model = GPT(shape).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=options.learning_rate, betas=(0.9, 0.95))
    step = 0
    if options.resume:
        saved = torch.load(options.checkpoint, map_location=device, weights_only=True)
        model.load_state_dict(saved["model"])
        optimizer.load_state_dict(saved["optimizer"])
        loader.load_state_dict(saved["loader"])
        step = saved["step"]
    print(loader)
    bytes_each = bytes_per_token(loader, options.tokenizer)
    for batch in to_device(loader, device):
        if step >= options.steps:
            break
        loss = model(batch).mean()
        optimizer.zero_grad()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        step += 1
        print(f"step {step}: train {in_words(float(loss.detach()), bytes_each)}")
        if step % options.eval_every == 0 or step == options.steps:
            # Saved before the next batch is taken: the loader's state names the batch of step + 1.
            state = {"model": model.state_dict(), "optimizer": optimizer.state_dict()}
            save(options.checkpoint, {**state, "loader": loader.state_dict(), "step": step})
            print(f"step {step}: val {in_words(*validate(model, options, device))}")


if __name__ == "__main__":
    main()
