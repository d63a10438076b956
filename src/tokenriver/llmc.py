"""Drop-in for llm.c's data loaders and tokenizer: its names, its order, bit for bit, without its limits."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.errors import ResumeError, UsageError
from tokenriver.evals.llmc_loader import EvalLoader
from tokenriver.loader.arguments import whole
from tokenriver.loader.batch import require_int32
from tokenriver.loader.source import shards_like
from tokenriver.loader.stream import SHARDS_AHEAD, open_reader
from tokenriver.tokenizers.llmc_file import Tokenizer

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["MT19937", "DataLoader", "EvalLoader", "Tokenizer"]

_WORDS = 624
_LOADER_SEED = 42
"""The loader's generator is seeded with this plus the rank: the ranks do not share a permutation."""


class MT19937:
    """The Mersenne Twister's raw 32-bit draws, and a shuffle made of them (docs/loader.md, "Drop-in loaders").

    `state` is (624 words, left, next) with the counters of the generator's usual C form: `next` draws were taken
    from the block of words, which is made anew when `left` counts down to 0.
    """

    def __init__(self, seed: int) -> None:
        self._random = np.random.RandomState(seed)
        self._fresh = True

    def draws(self, n: int) -> NDArray[np.uint32]:
        """The next n draws, uint32 [n]."""
        self._fresh = self._fresh and n == 0
        return np.frombuffer(self._random.bytes(4 * n), "<u4")

    def permute(self, data: list[int]) -> None:
        """Shuffle in place: for i from n − 1 to 1, swap i with draw mod (i + 1)."""
        n = len(data)
        if n < 2:
            return
        picks = (self.draws(n - 1) % np.arange(n, 1, -1, dtype=np.uint32)).tolist()
        for i, j in zip(range(n - 1, 0, -1), picks, strict=True):
            data[i], data[j] = data[j], data[i]

    def get_state(self) -> dict[str, Any]:
        """{"words": 624 integers, "left", "next"}, JSON."""
        state: Any = self._random.get_state(legacy=True)
        taken = 0 if self._fresh else int(state[2])
        return {"words": state[1].tolist(), "left": 1 if self._fresh else _WORDS + 1 - taken, "next": taken}

    def set_state(self, state: Any) -> None:
        """Take up what `get_state` gave; ResumeError if it is not that."""
        what = "the state of a Mersenne Twister"
        words, (left, taken) = _numbers(state, "words", what), (_number(state, name, what) for name in ("left", "next"))
        fresh = left == 1 and taken == 0
        if len(words) != _WORDS or not all(0 <= word < 1 << 32 for word in words):
            raise ResumeError(f"not {what}: it has {_WORDS} words of 32 bits")
        if not fresh and (left + taken != _WORDS + 1 or not 1 <= taken <= _WORDS):
            raise ResumeError(f"not {what}: left is {left} and next {taken}, which make {_WORDS + 1} together")
        self._fresh = fresh
        position = _WORDS if left == 1 else taken
        self._random.set_state(("MT19937", np.array(words, np.uint32), position, 0, 0.0))


class Ids(np.ndarray[Any, np.dtype[np.int32]]):
    """A NumPy array of ids that has `to`, as the tensors of train_gpt2.py's own loader, so that its loop goes on."""

    def to(self, *where: Any, **options: Any) -> Any:
        """An int64 tensor of its own memory by torch's `to(device, …)`. MissingDependencyError without torch."""
        from tokenriver.loader.torch import from_ids

        return from_ids(np.asarray(self).astype(np.int64)).to(*where, **options)


class DataLoader:
    """Batches of `B` rows of `T` tokens, in llm.c's order for this rank, for ever.

    `filename_pattern` is a glob; its matches are read in the order of their names, one after the other, and what
    does not fill a batch of all ranks at a shard's end is left out. With `should_shuffle` the shards are permuted
    anew each epoch and the batches inside each shard each time it is opened. `next_batch` returns (inputs, targets),
    int32 [B, T] NumPy arrays whose `to(device)` gives int64 tensors, also kept as `inputs` and `targets`. Raises
    UsageError when nothing matches or a shard is too small for one batch, FormatError for a file that is no shard.

    `current_shard_idx` and `current_sample_idx` say which batch comes next (the first counts in the permuted order),
    `num_tokens` is the sum over all shards, `shard_num_samples` the batches in the open shard.
    """

    def __init__(
        self,
        filename_pattern: str,
        B: int,  # noqa: N803 (llm.c's name)
        T: int,  # noqa: N803
        process_rank: int = 0,
        num_processes: int = 1,
        should_shuffle: bool = False,
    ) -> None:
        B, T = whole("B", B), whole("T", T)  # noqa: N806
        process_rank, num_processes = whole("process_rank", process_rank), whole("num_processes", num_processes)
        if min(B, T, num_processes) < 1 or not 0 <= process_rank < num_processes:
            raise UsageError(
                f"B, T and num_processes are at least 1 and process_rank is below num_processes, not B={B}, T={T}, "
                f"num_processes={num_processes}, process_rank={process_rank}"
            )
        self.B, self.T = B, T
        self.process_rank, self.num_processes = process_rank, num_processes
        self.should_shuffle = bool(should_shuffle)
        self._shards = shards_like(str(filename_pattern))
        self.filenames = [str(shard.path) for shard in self._shards]
        self._needed = num_processes * B * T + 1
        for shard in self._shards:
            if shard.n_tokens < self._needed:
                raise UsageError(
                    f"{shard.path}: {shard.n_tokens:,} tokens, but each shard needs {self._needed:,} for one batch "
                    f"({num_processes} processes x B={B} x T={T}, and 1)"
                )
        self.num_tokens = sum(shard.n_tokens for shard in self._shards)
        self._reader = open_reader(self._shards)
        self._generator = MT19937(_LOADER_SEED + process_rank)
        self.shard_indices = list(range(len(self._shards)))
        self.intra_shard_indices: list[int] = []
        self.inputs = self.targets = np.zeros((B, T), np.int32).view(Ids)
        self.reset()

    def reset(self) -> None:
        """Begin a new epoch: the first shard, after the shards were permuted on top of the order that they had."""
        if self.should_shuffle:
            self._generator.permute(self.shard_indices)
        self._open(0)

    def resume(self, current_shard_idx: int, current_sample_idx: int) -> None:
        """Go to a shard and a batch in it. The permutations stay as they are (use load_state_dict to bring them)."""
        current_shard_idx = whole("current_shard_idx", current_shard_idx)
        current_sample_idx = whole("current_sample_idx", current_sample_idx)
        if not 0 <= current_shard_idx < len(self._shards):
            raise ResumeError(f"there is no shard {current_shard_idx} among {len(self._shards)}")
        samples = self._samples(current_shard_idx)
        if not 0 <= current_sample_idx <= samples:
            raise ResumeError(f"shard {current_shard_idx} has {samples} batches, so there is no {current_sample_idx}")
        if self.should_shuffle and len(self.intra_shard_indices) != samples:
            raise ResumeError(
                f"the shuffled order at hand is of {len(self.intra_shard_indices)} batches, but shard "
                f"{current_shard_idx} has {samples}: load_state_dict restores the order that was saved"
            )
        self.current_shard_idx, self.current_sample_idx = current_shard_idx, current_sample_idx
        self.shard_num_samples = samples
        self._reader.expect(self.shard_indices[current_shard_idx:][:SHARDS_AHEAD])

    def next_batch(self) -> tuple[Ids, Ids]:
        """The next (inputs, targets), int32 [B, T] each."""
        if self.current_sample_idx >= self.shard_num_samples:
            self._advance()
        k = self.current_sample_idx
        sample = self.intra_shard_indices[k] if self.should_shuffle else k
        shard = self.shard_indices[self.current_shard_idx]
        rows = self.B * self.T
        start = int(self._reader.bounds[shard]) + (sample * self.num_processes + self.process_rank) * rows
        ids = np.empty(rows + 1, self._reader.dtype)
        self._reader.read(start, ids)
        require_int32(ids, str(self._reader.shards[shard].path))
        self.inputs = ids[:-1].astype(np.int32).reshape(self.B, self.T).view(Ids)
        self.targets = ids[1:].astype(np.int32).reshape(self.B, self.T).view(Ids)
        self.current_sample_idx += 1
        return self.inputs, self.targets

    def state_dict(self) -> dict[str, Any]:
        """This rank's position, permutations and generator, JSON (one per rank, since each shuffles by itself)."""
        state: dict[str, Any] = {
            "current_shard_idx": self.current_shard_idx,
            "current_sample_idx": self.current_sample_idx,
            "shard_num_samples": self.shard_num_samples,
            "should_shuffle": self.should_shuffle,
        }
        if self.should_shuffle:
            state["shard_indices"] = list(self.shard_indices)
            state["intra_shard_indices"] = list(self.intra_shard_indices)
            state["generator"] = self._generator.get_state()
        return state

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Take up a saved state; ResumeError if it does not fit these shards, naming what differs."""
        what = "the state of a DataLoader"
        if not isinstance(state, Mapping):
            raise ResumeError(f"not {what}: it is a {type(state).__name__}")
        if bool(state.get("should_shuffle")) != self.should_shuffle:
            raise ResumeError("the state was saved with another should_shuffle")
        shard, sample = (_number(state, name, what) for name in ("current_shard_idx", "current_sample_idx"))
        if not self.should_shuffle:
            self._check_samples(state, shard, what)
            self.resume(shard, sample)
            return
        order, inside = (_numbers(state, name, what) for name in ("shard_indices", "intra_shard_indices"))
        if len(order) != len(self._shards):
            raise ResumeError(f"the state is of {len(order)} shards, here there are {len(self._shards)}")
        for name, numbers in (("shard_indices", order), ("intra_shard_indices", inside)):
            if sorted(numbers) != list(range(len(numbers))):
                raise ResumeError(f"not {what}: {name} is no permutation of {len(numbers)} numbers")
        generator = MT19937(0)
        generator.set_state(state.get("generator"))
        before = self.shard_indices, self.intra_shard_indices
        self.shard_indices, self.intra_shard_indices = order, inside
        try:
            self._check_samples(state, shard, what)
            self.resume(shard, sample)
        except ResumeError:
            self.shard_indices, self.intra_shard_indices = before
            raise
        self._generator = generator

    def _check_samples(self, state: Mapping[str, Any], shard: int, what: str) -> None:
        """Raise ResumeError where the saved shard had another number of batches: other B, T, processes or shards."""
        if "shard_num_samples" not in state or not 0 <= shard < len(self._shards):
            return
        saved, found = _number(state, "shard_num_samples", what), self._samples(shard)
        if saved != found:
            raise ResumeError(
                f"shard {shard} had {saved} batches when the state was saved, here it has {found}: B, T, num_processes "
                "or the shards are others; resume takes a position as it is"
            )

    def _advance(self) -> None:
        """The next shard, or the next epoch when the last one is used up."""
        if self.current_shard_idx == len(self._shards) - 1:
            self.reset()
        else:
            self._open(self.current_shard_idx + 1)

    def _open(self, shard_idx: int) -> None:
        """Stand at the start of a shard, its batches permuted from the identity."""
        self.current_shard_idx, self.current_sample_idx = shard_idx, 0
        self.shard_num_samples = self._samples(shard_idx)
        self._reader.expect(self.shard_indices[shard_idx:][:SHARDS_AHEAD])
        if self.should_shuffle:
            self.intra_shard_indices = list(range(self.shard_num_samples))
            self._generator.permute(self.intra_shard_indices)

    def _samples(self, shard_idx: int) -> int:
        n_tokens = self._shards[self.shard_indices[shard_idx]].n_tokens
        return (n_tokens - 1) // (self._needed - 1)


def _number(state: Any, name: str, what: str) -> int:
    """A whole number of a saved state."""
    return _indices(name, [state.get(name) if isinstance(state, Mapping) else None], what)[0]


def _numbers(state: Any, name: str, what: str) -> list[int]:
    """A list of whole numbers of a saved state."""
    found = state.get(name) if isinstance(state, Mapping) else None
    return _indices(name, found if isinstance(found, Iterable) else [None], what)


def _indices(name: str, values: Iterable[Any], what: str) -> list[int]:
    try:
        return [whole(name, value) for value in values]
    except UsageError:
        raise ResumeError(f"not {what}: {name} has something that is no whole number, or is missing") from None
