"""Drop-in for Parameter Golf's data functions: its names, order and numbers, bit for bit (docs/loader.md)."""

from __future__ import annotations

import importlib
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.bpb.golf import build_sentencepiece_luts, eval_bpb, eval_val
from tokenriver.errors import UsageError
from tokenriver.loader.arguments import whole
from tokenriver.loader.shard_file import read_shard_file
from tokenriver.loader.source import shards_like
from tokenriver.loader.stream import SHARDS_AHEAD, TokenReader, open_reader
from tokenriver.storage import is_url, to_path

if TYPE_CHECKING:
    import os

    from tokenriver.golfing.check import check_golf
    from tokenriver.golfing.export import export_golf
    from tokenriver.golfing.fetch import fetch_golf
    from tokenriver.golfing.score import score_golf
    from tokenriver.golfing.select import select_golf

__all__ = [
    "DistributedTokenLoader",
    "TokenStream",
    "build_sentencepiece_luts",
    "check_golf",
    "eval_bpb",
    "eval_val",
    "export_golf",
    "fetch_golf",
    "load_data_shard",
    "load_validation_tokens",
    "score_golf",
    "select_golf",
]

_WORKFLOW = {
    "check_golf": "check",
    "export_golf": "export",
    "fetch_golf": "fetch",
    "score_golf": "score",
    "select_golf": "select",
}
"""The data workflow's functions need more than loading does, so their modules are loaded on first use."""


def __getattr__(name: str) -> object:
    if name not in _WORKFLOW:
        raise AttributeError(f"module 'tokenriver.golf' has no attribute '{name}'")
    return getattr(importlib.import_module(f"tokenriver.golfing.{_WORKFLOW[name]}"), name)


AUTO = "auto"
"""Tensors on the CPU where torch is installed, as in the original; NumPy arrays where it is not."""


def load_data_shard(file: str | os.PathLike[str], *, device: Any = AUTO) -> Any:
    """All ids of one shard: a tensor, or with `device=None` a NumPy array, uint16 (or uint32) [n_tokens].

    Raises FormatError (a ValueError) for a file that is no shard.
    """
    shards = shards_like(str(file)) if is_url(file) else [read_shard_file(str(to_path(file)))]
    reader = open_reader(shards)
    return _place(_all_ids(reader), device)


def load_validation_tokens(pattern: str, seq_len: int, *, device: Any = AUTO) -> Any:
    """The ids of all files that match, joined and cut to a whole number of rows and one id more.

    A tensor or array [⌊(n − 1) / seq_len⌋ · seq_len + 1], as `load_data_shard`. Raises UsageError when nothing
    matches or there is not one row.
    """
    seq_len = _at_least_one("seq_len", seq_len)
    reader = open_reader(shards_like(pattern))
    usable = (reader.n_tokens - 1) // seq_len * seq_len
    if usable <= 0:
        raise UsageError(f"{pattern}: {reader.n_tokens:,} ids are too few for one row of {seq_len:,} and one id more")
    return _place(_all_ids(reader)[: usable + 1], device)


class TokenStream:
    """The ids of all files that match, in the order of their names, again from the first after the last.

    `file_idx` and `pos` say where the next `take` begins: at the end of a file it is that file's length.
    """

    def __init__(self, pattern: str, *, device: Any = AUTO) -> None:
        shards = shards_like(pattern)
        self.files = [shard.path for shard in shards]
        self._device = device
        self._reader = open_reader(shards)
        if self._reader.n_tokens == 0:
            raise UsageError(f"{pattern}: 0 tokens in {len(self.files)} files")
        self.file_idx = self.pos = 0
        self._told = -1

    def take(self, n: int) -> Any:
        """The next n ids: a tensor, or with `device=None` a NumPy array, uint16 (or uint32) [n]."""
        return _place(self.take_array(n), self._device)

    def take_array(self, n: int) -> np.ndarray[Any, Any]:
        """The next n ids as a NumPy array."""
        n = whole("n", n)
        if not 0 <= n < 1 << 48:
            raise UsageError(f"{n:,} ids cannot be taken at once; take 0 or more, as many as fit into memory")
        reader = self._reader
        if self._told != self.file_idx:
            self._told = self.file_idx
            reader.expect((self.file_idx + k) % len(self.files) for k in range(SHARDS_AHEAD))
        out = np.empty(n, reader.dtype)
        start = int(reader.bounds[self.file_idx]) + self.pos
        done = 0
        while done < n:
            start %= reader.n_tokens
            count = min(n - done, reader.n_tokens - start)
            reader.read(start, out[done : done + count])
            start, done = start + count, done + count
        if n:
            # The file that holds the last id taken: a file used up is left only by the next take.
            self.file_idx = int(np.searchsorted(reader.bounds, start - 1, "right")) - 1
            self.pos = start - int(reader.bounds[self.file_idx])
        return out


class DistributedTokenLoader:
    """Batches cut from one stream: each rank has its run of every take.

    `device` is where the tensors go; None gives NumPy arrays.
    """

    def __init__(self, pattern: str, rank: int, world_size: int, device: Any) -> None:
        rank, world_size = whole("rank", rank), _at_least_one("world_size", world_size)
        if not 0 <= rank < world_size:
            raise UsageError(f"rank is in [0, {world_size}), not {rank}")
        self.rank, self.world_size, self.device = rank, world_size, device
        self.stream = TokenStream(pattern, device=None)

    def next_batch(self, global_tokens: int, seq_len: int, grad_accum_steps: int) -> tuple[Any, Any]:
        """(x, y), int64 [rows, seq_len] each, of global_tokens // (world_size · grad_accum_steps) ids.

        Every rank takes (ids + 1) · world_size ids from the stream and keeps its own run of ids + 1. Raises
        UsageError when a rank's share is not a whole number of rows.
        """
        seq_len, steps = _at_least_one("seq_len", seq_len), _at_least_one("grad_accum_steps", grad_accum_steps)
        global_tokens = whole("global_tokens", global_tokens)
        local = global_tokens // (self.world_size * steps)
        if local <= 0 or local % seq_len:
            raise UsageError(
                f"a rank's share is {local:,} tokens ({global_tokens:,} / ({self.world_size} ranks x "
                f"{steps} steps)), which is not a multiple of seq_len {seq_len:,}"
            )
        taken = self.stream.take_array((local + 1) * self.world_size)
        span = taken[self.rank * (local + 1) :][: local + 1].astype(np.int64)
        x, y = span[:-1].reshape(-1, seq_len), span[1:].reshape(-1, seq_len)
        return _place(x, self.device), _place(y, self.device)


def _at_least_one(name: str, value: Any) -> int:
    number = whole(name, value)
    if number < 1:
        raise UsageError(f"{name} is at least 1, not {number}")
    return number


def _all_ids(reader: TokenReader) -> np.ndarray[Any, Any]:
    ids = np.empty(reader.n_tokens, reader.dtype)
    bounds = reader.bounds.tolist()
    for k, (start, stop) in enumerate(pairwise(bounds)):
        reader.expect(range(k, min(k + SHARDS_AHEAD, len(reader.shards))))
        reader.read(start, ids[start:stop])
    return ids


def _place(ids: np.ndarray[Any, Any], device: Any) -> Any:
    """A NumPy array as it is (device None), else a tensor on the device; MissingDependencyError without torch."""
    if device is None or (isinstance(device, str) and device == AUTO and find_spec("torch") is None):
        return ids
    from tokenriver.loader.torch import from_ids

    tensor = from_ids(ids)
    return tensor if isinstance(device, str) and device == AUTO else tensor.to(device, non_blocking=True)
