"""The training loader: batches of a split in one global order, for any number of ranks, resumed at any step."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from tokenriver.errors import IntegrityError, ResumeError, UsageError
from tokenriver.loader.plan import Plan
from tokenriver.loader.prefetch import Feed
from tokenriver.loader.source import Source, hash_shards, resolve
from tokenriver.loader.state import STATE_VERSION, check_state, overridden
from tokenriver.loader.stream import Rows, TokenReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tokenriver.loader.order import Order

__all__ = ["Batch", "Iteration", "Raw", "TrainLoader"]

Arrays = TypeVar("Arrays", bound=Any)
Made = TypeVar("Made")


@dataclass(slots=True)
class Batch:
    """One rank's part of a global batch: `inputs` and `targets` [B, T], targets one token later.

    `step` counts within `epoch`, both from 0. `mask` is bool [B, T], False where a row is only padding (zeros); it
    is None when every row is real, which is always so with `drop_last=True`.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    epoch: int
    step: int
    mask: NDArray[np.bool_] | None = None


class Raw(NamedTuple):
    """A filled buffer: where it belongs, how many rows are real, and whether they lie end to end."""

    epoch: int
    step: int
    n_rows: int
    contiguous: bool


class TrainLoader:
    """Batches of token ids from shards: iterate, save `state_dict()` with the checkpoint, resume anywhere.

    `source` is a data set directory, a manifest, a shard, a glob or a list of shards; `batch_size` is rows per
    rank, `seq_len` targets per row. `rank` and `world_size` come from the arguments, else from torchrun's RANK and
    WORLD_SIZE, else 0 of 1. `order` is "shuffled" (differently every epoch, by `seed`) or "sequential". Iteration
    goes on from the loader's position until `epochs` epochs have been served in all (None: for ever). `drop_last`
    leaves out the last, partial global batch of an epoch, else it is padded and masked. `prefetch` batches are made
    ahead by one thread (0: none). `dtype` is that of the arrays, "int32" or "int64". `verify` reads every shard
    once and compares its SHA-256 with the manifest's.

    The order is a function of (data, seq_len, seed, epoch) alone: the same global batches for every world size with
    the same rows in all, whatever is prefetched (docs/loader.md has the rules and their limits). Needs NumPy only.
    Raises UsageError (an ill-chosen number, too little data for a batch), IntegrityError (a shard that is missing
    or not the manifest's), FormatError (not a shard).
    """

    def __init__(
        self,
        source: Source,
        *,
        batch_size: int,
        seq_len: int,
        split: str = "train",
        order: Order = "shuffled",
        seed: int = 0,
        rank: int | None = None,
        world_size: int | None = None,
        epochs: int | None = None,
        drop_last: bool = True,
        prefetch: int = 2,
        dtype: Literal["int32", "int64"] = "int32",
        verify: bool = False,
    ) -> None:
        if epochs is not None and epochs < 0:
            raise UsageError(f"epochs is 0 or more, or None for no end, not {epochs}")
        if prefetch < 0:
            raise UsageError(f"prefetch is 0 or more batches, not {prefetch}")
        if str(dtype) not in ("int32", "int64"):
            raise UsageError(f"dtype is 'int32' or 'int64', not {dtype!r}")
        rank, world_size = _ranks(rank, world_size)
        self.data = resolve(source, split=split)
        self.plan = Plan(
            n_tokens=self.data.n_tokens,
            seq_len=seq_len,
            batch_size=batch_size,
            world_size=world_size,
            rank=rank,
            order=order,
            seed=seed,
            drop_last=drop_last,
            split=split,
        )
        self.reader = TokenReader(self.data.shards)
        self.epochs, self.prefetch, self.dtype = epochs, prefetch, np.dtype(dtype)
        self.epoch = self.step = 0
        self._moves = 0
        self._fingerprint = str(self.data.fingerprint(hashes=self._verify() if verify else None))

    split = property(lambda self: self.data.split, doc="The split that is read.")
    seq_len = property(lambda self: self.plan.seq_len, doc="Targets per row.")
    batch_size = property(lambda self: self.plan.batch_size, doc="Rows per rank.")
    global_batch_size = property(lambda self: self.plan.global_batch_size, doc="Rows of all ranks in a step.")
    rank = property(lambda self: self.plan.rank, doc="This rank.")
    world_size = property(lambda self: self.plan.world_size, doc="Number of ranks.")
    steps_per_epoch = property(lambda self: self.plan.steps_per_epoch, doc="Global batches in an epoch.")
    n_tokens = property(lambda self: self.data.n_tokens, doc="Tokens in the split.")
    fingerprint = property(lambda self: self._fingerprint, doc="What identifies the data in a saved state.")

    def __repr__(self) -> str:
        p = self.plan
        return (
            f"TrainLoader({p.split}: {p.n_tokens:,} tokens in {len(self.data.shards)} shards, {p.order}, "
            f"{p.steps_per_epoch:,} steps an epoch of {p.world_size} x {p.batch_size} x {p.seq_len}, "
            f"{self.ledger()['dropped']:,} tokens dropped; rank {p.rank}, epoch {self.epoch}, step {self.step})"
        )

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the loader's position on. A later `load_state_dict` moves a running iteration too."""
        return _Batches(self, self.buffer, self.batch, n_buffers=max(1, self.prefetch))

    def batch_at(self, step: int, *, epoch: int = 0) -> Batch:
        """The batch that is `step` steps after the start of `epoch`, without iterating or moving the loader.

        With the default epoch, `step` is counted from the start of training: batch_at(k) is the k-th batch ever
        served. batch_at(batch.step, epoch=batch.epoch) is `batch` again.
        """
        more, step = divmod(step, self.steps_per_epoch)
        if epoch + more < 0:
            raise UsageError("step and epoch are 0 or more")
        buffer = self.buffer()
        return self.batch(buffer, self.fill(buffer, (epoch + more, step, self.plan.starts(epoch + more, step)[0])))

    def state_dict(self) -> dict[str, Any]:
        """The next global batch that the consumer has not received, as nine JSON values (see docs/loader.md).

        The same on every rank and for any world size, whatever was prefetched; a new dict each time.
        """
        return {
            "version": STATE_VERSION,
            "fingerprint": self._fingerprint,
            "split": self.plan.split,
            "seq_len": self.plan.seq_len,
            "global_batch_size": self.plan.global_batch_size,
            "order": self.plan.order,
            "seed": self.plan.seed,
            "epoch": self.epoch,
            "step": self.step,
        }

    def load_state_dict(
        self, state: Mapping[str, Any], *, allow_change: str | Collection[str] | bool = (), verify: bool = False
    ) -> None:
        """Go to a saved position, before or during iteration, in constant time.

        Raises ResumeError, naming the field, if the data or a setting differs from when the state was saved, unless
        `allow_change` names that field (True: all). A changed global_batch_size then keeps the position in rows,
        rounded down to a step; otherwise epoch and step are taken as they are. `verify` re-reads every shard and
        raises IntegrityError, naming those whose SHA-256 is not the recorded one.
        """
        allowed = overridden(allow_change)
        epoch, step = check_state(state, self.state_dict(), world_size=self.world_size, allowed=allowed)
        if verify:
            self._verify_against(state["fingerprint"], check="fingerprint" not in allowed)
        if state["global_batch_size"] != self.global_batch_size:
            step = step * state["global_batch_size"] // self.global_batch_size
        if step >= self.steps_per_epoch:
            epoch, step = epoch + 1, 0
        self.epoch, self.step = epoch, step
        self.moved()

    def ledger(self) -> dict[str, Any]:
        """Where every token of the split goes in an epoch, and what has been served so far.

        `tokens` = `served` + `dropped`, counting each token where it is a target (the first token of the split, which
        never is one, counts as served). `dropped_tail` are the targets after the last whole sequence,
        `dropped_batch` those of the last, partial global batch. `padded` are target slots filled with padding.
        """
        p = self.plan
        in_steps = min(p.n_sequences, p.steps_per_epoch * p.global_batch_size)
        served = in_steps * p.seq_len + 1
        per_epoch = in_steps * p.seq_len
        so_far = self.epoch * per_epoch + min(self.step * p.global_batch_size * p.seq_len, per_epoch)
        return {
            "split": p.split,
            "tokens": p.n_tokens,
            "sequences": p.n_sequences,
            "steps": p.steps_per_epoch,
            "served": served,
            "dropped": p.n_tokens - served,
            "dropped_tail": (p.n_tokens - 1) % p.seq_len,
            "dropped_batch": (p.n_sequences - in_steps) * p.seq_len,
            "padded": (p.steps_per_epoch * p.global_batch_size - in_steps) * p.seq_len,
            "epoch": self.epoch,
            "step": self.step,
            "targets_so_far": so_far,
        }

    def close(self) -> None:
        """Close the shards' descriptors and end a running iteration's thread; the loader can still be used."""
        self.moved()
        self.reader.close()

    def feed(self, buffers: Sequence[Rows], finish: Callable[[Rows, Raw], Made]) -> Feed[Any, Rows, tuple[Raw, Made]]:
        """Batches from the loader's position on: ids read into `buffers` in turn, and what `finish` makes of them.

        Both happen in the background thread, if there is one: converting there, not in the consumer, made a batch
        of 64 x 1024 take 120 µs instead of 260 (two busy cores), since the two threads then hardly meet.
        """
        fill, items = self.fill, self.plan.walk(self.epoch, self.step, self.epochs)

        def fill_and_finish(buffer: Rows, item: tuple[int, int, NDArray[np.int64]]) -> tuple[Raw, Made]:
            raw = fill(buffer, item)
            return raw, finish(buffer, raw)

        return Feed(items, fill_and_finish, buffers, threaded=self.prefetch > 0)

    def buffer(self) -> Rows:
        """A buffer for one batch of raw ids, [B, T + 1] of the shards' id type."""
        return Rows(self.batch_size, self.seq_len + 1, self.reader.dtype)

    def fill(self, buffer: Rows, item: tuple[int, int, NDArray[np.int64]]) -> Raw:
        """Read one batch: rows end to end as one range, other rows one by one; padding is zeros."""
        epoch, step, starts = item
        contiguous = self.plan.order == "sequential" and len(starts) == self.batch_size
        if contiguous:
            self.reader.read(int(starts[0]), buffer.flat[: self.batch_size * self.seq_len + 1])
        else:
            self.reader.read_rows(starts, buffer)
            buffer.array[len(starts) :] = 0
        return Raw(epoch, step, len(starts), contiguous)

    def split_rows(self, ids: Arrays, raw: Raw) -> tuple[Arrays, Arrays]:
        """Views (inputs, targets) [B, T] of a filled buffer's ids [B, T + 1]; NumPy arrays and torch tensors alike."""
        b, t = self.batch_size, self.seq_len
        if raw.contiguous:
            flat = ids.reshape(-1)
            return flat[: b * t].reshape(b, t), flat[1 : b * t + 1].reshape(b, t)
        return ids[:, :-1], ids[:, 1:]

    def mask(self, raw: Raw) -> NDArray[np.bool_] | None:
        """Which rows are real, bool [B, T]; None when all are."""
        if raw.n_rows == self.batch_size:
            return None
        mask = np.zeros((self.batch_size, self.seq_len), np.bool_)
        mask[: raw.n_rows] = True
        return mask

    def batch(self, buffer: Rows, raw: Raw) -> Batch:
        """A batch of its own memory from a filled buffer."""
        inputs, targets = self.split_rows(buffer.array, raw)
        return Batch(inputs.astype(self.dtype), targets.astype(self.dtype), raw.epoch, raw.step, self.mask(raw))

    def received(self, raw: Raw) -> None:
        """The consumer has this batch: the position is now the one after it."""
        last = raw.step + 1 == self.steps_per_epoch
        self.epoch, self.step = (raw.epoch + 1, 0) if last else (raw.epoch, raw.step + 1)

    @property
    def moves(self) -> int:
        """Counts the jumps of the position and the iterations begun: an iteration that sees it change begins anew."""
        return self._moves

    def moved(self) -> int:
        """Make running iterations begin anew from the loader's position; gives the new count of moves."""
        self._moves += 1
        return self._moves

    def _verify(self) -> list[str]:
        """Hash every shard; IntegrityError names those that differ from a recorded SHA-256."""
        hashes = hash_shards(self.data.shards)
        wrong = [s.path for s, found in zip(self.data.shards, hashes, strict=True) if s.sha256 not in (None, found)]
        if wrong:
            raise IntegrityError(
                f"{wrong[0]}: SHA-256 is not the one in {self.data.manifest}"
                + (f" (nor are {len(wrong) - 1} others')" if len(wrong) > 1 else "")
            )
        return hashes

    def _verify_against(self, saved: str, *, check: bool) -> None:
        """Hash every shard and compare with the manifest's and the saved state's record."""
        current = self.data.fingerprint(hashes=self._verify())
        if not check or f"content={current.content}" in saved.split(";"):
            return
        if "content=sha256:" in saved:
            raise ResumeError("the shards' content (SHA-256) is not what it was when the state was saved")
        raise UsageError(
            "verify has nothing to compare with: there is no manifest, and the state was saved by a loader without "
            "verify=True, which records samples only"
        )


class Iteration(Generic[Made]):
    """An iteration over a loader. It begins anew from the loader's position when that was moved, when another
    iteration took over, or in a forked child, where the thread is missing."""

    def __init__(
        self,
        loader: TrainLoader,
        make_buffer: Callable[[], Rows],
        finish: Callable[[Rows, Raw], Made],
        *,
        n_buffers: int,
    ) -> None:
        self._loader, self._make_buffer, self._finish, self._n_buffers = loader, make_buffer, finish, n_buffers
        self._feed: Feed[Any, Rows, tuple[Raw, Made]] | None = None
        self._begin()

    def _begin(self) -> Feed[Any, Rows, tuple[Raw, Made]]:
        if self._feed is not None:
            self._feed.close()
        self._moves = self._loader.moved()
        self._feed = self._loader.feed([self._make_buffer() for _ in range(self._n_buffers)], self._finish)
        return self._feed

    def take(self) -> tuple[Rows, Raw, Made]:
        """The next filled buffer and what was made of it, which the loader's position then counts as received.

        Raises StopIteration at the end, and what went wrong in the background.
        """
        feed = self._feed
        if feed is None or self._moves != self._loader.moves or feed.pid != os.getpid():
            feed = self._begin()
        try:
            taken = feed.take()
        except BaseException:
            self._feed = None  # asked again, it tries again from the same position
            raise
        if taken is None:
            raise StopIteration
        buffer, (raw, made) = taken
        self._loader.received(raw)
        return buffer, raw, made

    def release(self, buffer: Rows) -> None:
        """Let a buffer be filled again. One of an earlier feed joins the present one; nothing refers to it."""
        if self._feed is not None:
            self._feed.release(buffer)


class _Batches(Iteration[Batch]):
    """An iteration over a loader's batches."""

    def __iter__(self) -> _Batches:
        return self

    def __next__(self) -> Batch:
        buffer, _, batch = self.take()
        self.release(buffer)
        return batch


def _ranks(rank: int | None, world_size: int | None) -> tuple[int, int]:
    """Rank and world size: as given, else torchrun's RANK and WORLD_SIZE, else 0 of 1."""
    values = []
    for given, name, default in ((rank, "RANK", "0"), (world_size, "WORLD_SIZE", "1")):
        text = os.environ.get(name, default) if given is None else str(given)
        if not text.strip().isdigit():
            raise UsageError(f"{name.lower()} is an integer of 0 or more, not {text!r}")
        values.append(int(text))
    return values[0], values[1]
