"""The training loader: batches of a split in one global order, for any number of ranks, resumed at any step."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Literal
from weakref import WeakSet

import numpy as np

from tokenriver.cache.settings import settings_when_needed
from tokenriver.errors import ResumeError, UsageError
from tokenriver.loader.arguments import NO_EPOCHS, flag, optional_whole, plain, ranks, shown, whole
from tokenriver.loader.assembly import Assembly
from tokenriver.loader.content import part_fingerprints, recorded_hashes, verify_against
from tokenriver.loader.iteration import Batches, Iteration
from tokenriver.loader.ledger import dropped_tokens, ledger
from tokenriver.loader.plan import Plan
from tokenriver.loader.position import restore_mixture, state_of
from tokenriver.loader.prefetch import MOST_AHEAD
from tokenriver.loader.setup import Packer, set_up
from tokenriver.loader.state import check_state, overridden
from tokenriver.loader.stream import open_reader

if TYPE_CHECKING:
    import os
    from collections.abc import Collection, Iterator, Mapping

    from tokenriver.loader.assembly import Item
    from tokenriver.loader.batch import Batch, Raw
    from tokenriver.loader.mixture import Mixture
    from tokenriver.loader.mixture_rows import MixtureRows
    from tokenriver.loader.order import Order
    from tokenriver.loader.packing import Packing
    from tokenriver.loader.rows import Rows
    from tokenriver.loader.source import Source

__all__ = ["TrainLoader"]


class TrainLoader:
    """Batches of token ids from shards: iterate, save `state_dict()` with the checkpoint, resume anywhere.

    `source` is a data set directory, a manifest, a shard, a glob or a list of shards; `batch_size` is rows per
    rank, `seq_len` targets per row. `rank` and `world_size` come from the arguments, else from torchrun's RANK and
    WORLD_SIZE, else 0 of 1. `order` is "shuffled" (differently every epoch, by `seed`), "sequential", or
    "block-shuffled" (blocks of rows are shuffled, and rows among those of 256 blocks: for data behind a URL or on a
    slow disk). Iteration goes on from the loader's position until `epochs` epochs have been served in all (None: for
    ever). `drop_last` leaves out the last, partial global batch of an epoch, else it is padded and masked. At least
    `prefetch` batches are made ahead by one thread (0: none). `dtype` is that of the arrays, "int32" or "int64".
    `verify` reads every shard once and compares its SHA-256 with the manifest's.

    `source` may be a URL (s3://…, gs://…, …), of a directory, a manifest, a shard or a glob: shards are then kept in
    `cache_dir` (default: TOKENRIVER_CACHE_DIR, else the user's cache), which all processes of a machine share and
    which takes at most `cache_limit` (bytes, or "200GB"; default: TOKENRIVER_CACHE_LIMIT, else 95 % of the disk).

    `packing` says how documents become rows: "concat" (the flat stream), "bos-aligned" (every row begins at a
    document; `max_doc_len` crops them) or "best-fit" (whole documents, cut only where longer than a row). `cu_seqlens`
    marks the documents in each batch (True, or a fixed length; by default where they are packed). `window` documents
    are packed together. `separator` is the id before each document where no manifest names it. `source` may be a
    Mixture of data sets: one run without epochs.

    The order is a function of (data, seq_len, seed, epoch) alone: the same global batches for every world size with
    the same rows in all, whatever is prefetched (docs/loader.md has the rules and their limits). Needs NumPy only.
    Raises UsageError (an ill-chosen number, too little data for a batch), IntegrityError (a shard that is missing
    or not the manifest's), FormatError (not a shard).
    """

    def __init__(
        self,
        source: Source | Mixture,
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
        packing: Packing = "concat",
        cu_seqlens: bool | int | None = None,
        max_doc_len: int | None = None,
        window: int | None = None,
        separator: int | None = None,
        cache_dir: str | os.PathLike[str] | None = None,
        cache_limit: int | str | None = None,
    ) -> None:
        batch_size, seq_len = whole("batch_size", batch_size), whole("seq_len", seq_len)
        seed, prefetch, epochs = whole("seed", seed), whole("prefetch", prefetch), optional_whole("epochs", epochs)
        max_doc_len, window = optional_whole("max_doc_len", max_doc_len), optional_whole("window", window)
        cu_seqlens = cu_seqlens if isinstance(cu_seqlens, bool) else optional_whole("cu_seqlens", cu_seqlens)
        if epochs is not None and epochs < 0:
            raise UsageError(f"epochs is 0 or more, or None for no end, not {epochs}")
        if not 0 <= prefetch <= MOST_AHEAD:
            raise UsageError(f"prefetch is 0 or more batches, {MOST_AHEAD:,} at most, not {prefetch}")
        if str(dtype) not in ("int32", "int64"):
            raise UsageError(f"dtype is 'int32' or 'int64', not {shown(dtype)}")
        rank, world_size = ranks(rank, world_size)
        self._setup = set_up(
            source,
            packer=Packer(packing, cu_seqlens, max_doc_len, window),
            separator=optional_whole("separator", separator),
            seq_len=seq_len,
            batch_size=batch_size,
            world_size=world_size,
            rank=rank,
            order=order,
            seed=seed,
            drop_last=drop_last,
            split=split,
            cache=settings_when_needed(cache_dir, cache_limit),
        )
        self.data, self.plan = self._setup.data, self._setup.plan
        if self.plan.endless_epoch and epochs is not None:
            raise UsageError(NO_EPOCHS)
        self.reader = open_reader(
            self.data.shards,
            order=order,
            repeats=epochs is None or epochs > 1,
            parts=[len(part.shards) for part in self._setup.parts.values()],
        )
        self.epochs, self.prefetch, self.dtype = epochs, prefetch, np.dtype(dtype)
        self.assembly = Assembly(self._setup, self.reader, self.dtype)
        self.epoch = self.step = 0
        self._last: tuple[int, int | None] = (-1, None)
        self._moves = 0
        self._iterations: WeakSet[Iteration[Any]] = WeakSet()
        hashes = recorded_hashes(self.data) if flag("verify", verify) else None
        self._fingerprint = str(self.data.fingerprint(hashes=hashes))
        self._fingerprints = part_fingerprints(self._setup.parts, hashes)

    split = property(lambda self: self.data.split, doc="The split that is read.")
    seq_len = property(lambda self: self.plan.seq_len, doc="Targets per row.")
    batch_size = property(lambda self: self.plan.batch_size, doc="Rows per rank.")
    global_batch_size = property(lambda self: self.plan.global_batch_size, doc="Rows of all ranks in a step.")
    rank = property(lambda self: self.plan.rank, doc="This rank.")
    world_size = property(lambda self: self.plan.world_size, doc="Number of ranks.")
    steps_per_epoch = property(
        lambda self: self.plan.steps(self.epoch),
        doc="Global batches in the current epoch (packed, shuffled epochs differ by a few); None without an end.",
    )

    @property
    def mixture_rows(self) -> MixtureRows:
        """The rows of the loader's mixture. Raises UsageError without one."""
        if self._setup.mixture is None:
            raise UsageError("this loader reads one data set, not a mixture")
        return self._setup.mixture

    packing = property(lambda self: self._setup.packer.packing, doc="How documents become rows.")
    n_tokens = property(lambda self: self.data.n_tokens, doc="Tokens in the split.")
    fingerprint = property(lambda self: self._fingerprint, doc="What identifies the data in a saved state.")

    def __repr__(self) -> str:
        p, packing, dropped = self.plan, self._setup.packer.packing, ""
        what = f"{p.order}, " + ("" if packing == "concat" else f"{packing}, ")
        if self._setup.mixture is not None:
            what += f"mixture of {', '.join(self._setup.parts)}, "
        if isinstance(p, Plan):
            what += f"{p.steps_per_epoch:,} steps an epoch of "
            dropped = f", {dropped_tokens(p):,} tokens dropped"
        shape = f"{p.world_size} x {p.batch_size} x {p.seq_len}"
        return (
            f"TrainLoader({p.split}: {p.n_tokens:,} tokens in {len(self.data.shards)} shards, {what}{shape}{dropped}; "
            f"rank {p.rank}, epoch {self.epoch}, step {self.step})"
        )

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the loader's position on. A later `load_state_dict` moves a running iteration too."""
        return Batches(self)

    def batch_at(self, step: int, *, epoch: int = 0) -> Batch:
        """The batch that is `step` steps after the start of `epoch`, without iterating or moving the loader.

        With the default epoch, `step` is counted from the start of training: batch_at(k) is the k-th batch ever
        served. batch_at(batch.step, epoch=batch.epoch) is `batch` again.
        """
        return self.made(self.assembly.item(*self.settle(epoch, step)))

    def made(self, item: Item) -> Batch:
        """The batch of these rows, read now."""
        buffer = self.assembly.buffer()
        return self.assembly.batch(buffer, self.fill(buffer, item), self.assembly.pool())

    def settle(self, epoch: int, step: int) -> tuple[int, int]:
        """(epoch, step) with the step inside its epoch, from a step that may run into later (or earlier) epochs."""
        epoch, step = whole("epoch", epoch), whole("step", step)
        if isinstance(self.plan, Plan) or min(epoch, step) >= 0:
            epoch, step = self.plan.settle(epoch, step)
        if epoch < 0 or step < 0:
            raise UsageError("step and epoch are 0 or more")
        end = self.plan.steps(epoch) if self.plan.endless_epoch else None
        if (self.plan.endless_epoch and epoch) or (end is not None and step >= end):
            raise UsageError(f"the mixture's run has {end} steps in epoch 0; there is no step {step} of {epoch}")
        if self._setup.mixture is not None and step < (since := self._setup.mixture.since):
            raise UsageError(f"this mixture began at step {since}; step {step} was another's")
        return epoch, step

    def state_dict(self) -> dict[str, Any]:
        """The next global batch that the consumer has not received, as nine JSON values (see docs/loader.md).

        The same on every rank and for any world size, whatever was prefetched; a new dict each time. Packing adds
        `packing`, a mixture `mixture`, `mixture_step` and `sources`, with one integer a source.
        """
        return self._state(self.epoch, self.step)

    def state_at(self, batches: int) -> dict[str, Any]:
        """What `state_dict` would be after so many more batches were received."""
        epoch, step = self.plan.settle(self.epoch, self.step + batches)
        return self._state(epoch, step)

    def _state(self, epoch: int, step: int) -> dict[str, Any]:
        mixed = self._setup.mixture is not None
        return state_of(self._setup, self._fingerprints if mixed else self._fingerprint, epoch=epoch, step=step)

    def has_step(self, step: int, *, epoch: int, before_epoch: int | None) -> bool:
        """Whether the run, or the epochs before one, reach `step` steps after the start of `epoch`."""
        epoch, step = self.plan.settle(epoch, step)
        before = before_epoch is None or epoch < before_epoch
        return before and ((steps := self.plan.steps(epoch)) is None or step < steps)

    def load_state_dict(
        self, state: Mapping[str, Any], *, allow_change: str | Collection[str] | bool = (), verify: bool = False
    ) -> None:
        """Go to a saved position, before or during iteration, in constant time.

        Raises ResumeError, naming the field, if the data or a setting differs from when the state was saved, unless
        `allow_change` names that field (True: all). A changed global_batch_size then keeps the position in rows,
        rounded down to a step; otherwise epoch and step are taken as they are. `verify` re-reads every shard and
        raises IntegrityError, naming those whose SHA-256 is not the recorded one.
        """
        state, allowed = plain(state), overridden(allow_change)
        epoch, step = check_state(state, self.state_dict(), world_size=self.world_size, allowed=allowed)
        if flag("verify", verify):
            sources = self._setup.parts or {"": self.data}
            verify_against(sources, state["fingerprint"], check="fingerprint" not in allowed)
        resized = state["global_batch_size"] != self.global_batch_size
        if resized:
            step = step * state["global_batch_size"] // self.global_batch_size
        if self._setup.mixture is not None:
            restore_mixture(self._setup.mixture, state, step, resized=resized)
        elif step and step >= (steps := self.plan.steps(epoch) or 0):
            if step > steps and not allowed:  # nothing differs, so this loader saves no such step
                raise ResumeError(f"not the state of this loader: step is {step:,}, but epoch {epoch} has {steps:,}")
            epoch, step = epoch + 1, 0
        self.epoch, self.step = epoch, step
        self.moved()

    def ledger(self) -> dict[str, Any]:
        """Where every token of the split goes in the current epoch, and what has been served so far.

        `tokens` = `trained` + `padded` + `cropped` + `dropped`, each token counted once: a target that counts; read,
        but no such target (it begins the split, a row, or a document that nothing announces); cut off a document
        (bos-aligned); never read. `padding` are target slots without a token, in addition. Without packing also
        `served` = `trained` + 1 and `dropped` = `dropped_tail` + `dropped_batch`. For a mixture: rows, epochs and
        targets of each source so far, in `sources`.
        """
        return ledger(self._setup, epoch=self.epoch, step=self.step)

    def close(self) -> None:
        """Close the shards' descriptors and end the threads of running iterations; all of them can still be used, and
        go on from the loader's position."""
        self.moved()
        for iteration in list(self._iterations):
            iteration.stop()
        self.reader.close()

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_iterations"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _iterations=WeakSet())

    def fill(self, buffer: Rows, item: Item) -> Raw:
        """Read one batch into a buffer."""
        return self.assembly.fill(buffer, item)

    def received(self, raw: Raw) -> None:
        """The consumer has this batch: the position is now the one after it."""
        if self._last[0] != raw.epoch:
            self._last = raw.epoch, None if self.plan.endless_epoch else self.plan.steps(raw.epoch)
        last = raw.step + 1 == self._last[1]
        self.epoch, self.step = (raw.epoch + 1, 0) if last else (raw.epoch, raw.step + 1)

    @property
    def moves(self) -> int:
        """Counts the jumps of the position and the iterations begun: an iteration that sees it change begins anew."""
        return self._moves

    def moved(self, iteration: Iteration[Any] | None = None) -> int:
        """Make running iterations begin anew from the loader's position; gives the new count of moves. `iteration` is
        the one that goes on."""
        if iteration is not None:
            self._iterations.add(iteration)
        self._moves += 1
        return self._moves
