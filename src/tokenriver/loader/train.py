"""The training loader: batches of a split in one global order, for any number of ranks, resumed at any step."""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Generic, Literal, NamedTuple, TypeVar

import numpy as np

from tokenriver.errors import IntegrityError, ResumeError, UsageError
from tokenriver.loader.dealt import DealtPlan
from tokenriver.loader.plan import Plan
from tokenriver.loader.prefetch import Feed
from tokenriver.loader.prepared import Prepared, prepare
from tokenriver.loader.segments import cumulative_lengths, positions
from tokenriver.loader.setup import Packer, set_up
from tokenriver.loader.source import Source, hash_shards
from tokenriver.loader.state import STATE_VERSION, check_state, overridden
from tokenriver.loader.stream import Rows, TokenReader

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tokenriver.loader.mixture import Mixture, MixtureRows
    from tokenriver.loader.order import Order
    from tokenriver.loader.packing import Packing
    from tokenriver.loader.segments import Segments

__all__ = ["Batch", "Iteration", "Raw", "TrainLoader"]

Arrays = TypeVar("Arrays", bound=Any)
Made = TypeVar("Made")


@dataclass(slots=True)
class Batch:
    """One rank's part of a global batch: `inputs` and `targets` [B, T], targets one token later.

    `step` counts within `epoch`, both from 0. `mask` is bool [B, T], False where a target does not count: padding
    (zeros), or the beginning of another document that no separator announces; None when all count. With documents
    marked, `cu_seqlens` int32 [documents + 1] are their borders in the B · T inputs laid end to end (each row begins
    one, and so does a row's padding), and `position_ids` count from 0 in each.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    epoch: int
    step: int
    mask: NDArray[np.bool_] | None = None
    cu_seqlens: NDArray[np.int32] | None = None

    @property
    def position_ids(self) -> NDArray[np.int32] | None:
        """Position of each input in its document, int32 [B, T], from 0 at every border; made when it is asked for."""
        if self.cu_seqlens is None:
            return None
        rows, seq_len = self.inputs.shape
        borders = self.cu_seqlens[:-1]
        return positions(borders[borders < rows * seq_len], rows, seq_len)


class Marks(NamedTuple):
    """What a batch says about its rows beside ids: as in Batch."""

    mask: NDArray[np.bool_] | None
    cu_seqlens: NDArray[np.int32] | None


class Raw(NamedTuple):
    """A filled buffer: where it belongs, how many rows are real, whether they lie end to end, and what they are.

    `rows` are the first tokens of the rows, or their pieces; `patches` the ids of targets that lie elsewhere.
    """

    epoch: int
    step: int
    n_rows: int
    contiguous: bool
    rows: NDArray[np.int64] | Prepared
    patches: NDArray[Any] | None = None


class TrainLoader:
    """Batches of token ids from shards: iterate, save `state_dict()` with the checkpoint, resume anywhere.

    `source` is a data set directory, a manifest, a shard, a glob or a list of shards; `batch_size` is rows per
    rank, `seq_len` targets per row. `rank` and `world_size` come from the arguments, else from torchrun's RANK and
    WORLD_SIZE, else 0 of 1. `order` is "shuffled" (differently every epoch, by `seed`) or "sequential". Iteration
    goes on from the loader's position until `epochs` epochs have been served in all (None: for ever). `drop_last`
    leaves out the last, partial global batch of an epoch, else it is padded and masked. `prefetch` batches are made
    ahead by one thread (0: none). `dtype` is that of the arrays, "int32" or "int64". `verify` reads every shard
    once and compares its SHA-256 with the manifest's.

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
    ) -> None:
        if epochs is not None and epochs < 0:
            raise UsageError(f"epochs is 0 or more, or None for no end, not {epochs}")
        if prefetch < 0:
            raise UsageError(f"prefetch is 0 or more batches, not {prefetch}")
        if str(dtype) not in ("int32", "int64"):
            raise UsageError(f"dtype is 'int32' or 'int64', not {dtype!r}")
        rank, world_size = _ranks(rank, world_size)
        self._setup = set_up(
            source,
            packer=Packer(packing, cu_seqlens, max_doc_len, window),
            separator=separator,
            seq_len=seq_len,
            batch_size=batch_size,
            world_size=world_size,
            rank=rank,
            order=order,
            seed=seed,
            drop_last=drop_last,
            split=split,
        )
        self.data, self.plan = self._setup.data, self._setup.plan
        if self.plan.endless_epoch and epochs is not None:
            raise UsageError("a mixture has no epochs: give its sources max_epochs, and leave epochs out")
        self.reader = TokenReader(self.data.shards)
        self.epochs, self.prefetch, self.dtype = epochs, prefetch, np.dtype(dtype)
        self.epoch = self.step = 0
        self._moves = 0
        hashes = self._verify() if verify else None
        self._fingerprint = str(self.data.fingerprint(hashes=hashes))
        self._fingerprints = self._part_fingerprints(hashes)

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
        p, packing = self.plan, self._setup.packer.packing
        what = f"{p.order}, " + ("" if packing == "concat" else f"{packing}, ")
        if self._setup.mixture is not None:
            what += f"mixture of {', '.join(self._setup.parts)}, "
        if isinstance(p, Plan):
            what += f"{p.steps_per_epoch:,} steps an epoch of "
        shape = f"{p.world_size} x {p.batch_size} x {p.seq_len}"
        dropped = f", {self.ledger()['dropped']:,} tokens dropped" if isinstance(p, Plan) else ""
        return (
            f"TrainLoader({p.split}: {p.n_tokens:,} tokens in {len(self.data.shards)} shards, {what}{shape}{dropped}; "
            f"rank {p.rank}, epoch {self.epoch}, step {self.step})"
        )

    def __iter__(self) -> Iterator[Batch]:
        """Batches from the loader's position on. A later `load_state_dict` moves a running iteration too."""
        return _Batches(self, self.buffer, self.batch, n_buffers=max(1, self.prefetch))

    def batch_at(self, step: int, *, epoch: int = 0) -> Batch:
        """The batch that is `step` steps after the start of `epoch`, without iterating or moving the loader.

        With the default epoch, `step` is counted from the start of training: batch_at(k) is the k-th batch ever
        served. batch_at(batch.step, epoch=batch.epoch) is `batch` again.
        """
        epoch, step = self.settle(epoch, step)
        buffer = self.buffer()
        rows = self.plan.take(epoch, step)
        ready = rows if isinstance(rows, np.ndarray) else self._prepare(rows, [0, rows.n_rows])[0]
        return self.batch(buffer, self.fill(buffer, (epoch, step, ready)))

    def _items(self) -> Iterator[tuple[int, int, NDArray[np.int64] | Prepared]]:
        """(epoch, step, rows ready for `fill`) from the loader's position on."""
        for epoch, step, rows in self.plan.walk(self.epoch, self.step, self.epochs):
            if isinstance(rows, np.ndarray):
                yield epoch, step, rows
                continue
            for k, ready in enumerate(self._prepare(*rows)):
                yield epoch, step + k, ready

    def _prepare(self, rows: Segments, bounds: list[int]) -> list[Prepared]:
        packer = self._setup.packer
        return prepare(
            rows,
            bounds,
            reader=self.reader,
            batch_size=self.batch_size,
            seq_len=self.seq_len,
            shared_slots=packer.packing == "best-fit",
            marks=packer.marks,
            join=self.plan.order == "sequential",
        )

    def settle(self, epoch: int, step: int) -> tuple[int, int]:
        """(epoch, step) with the step inside its epoch, from a step that may run into later (or earlier) epochs."""
        if isinstance(self.plan, Plan):
            epoch, step = self.plan.settle(epoch, step)
        elif epoch >= 0 and step >= 0:
            epoch, step = self.plan.settle(epoch, step)
            end = self.plan.steps(epoch)
            if self.plan.endless_epoch and (epoch or (end is not None and step >= end)):
                raise UsageError(f"the mixture's run has {end} steps in epoch 0; there is no step {step} of {epoch}")
        if epoch < 0 or step < 0:
            raise UsageError("step and epoch are 0 or more")
        return epoch, step

    def state_dict(self) -> dict[str, Any]:
        """The next global batch that the consumer has not received, as nine JSON values (see docs/loader.md).

        The same on every rank and for any world size, whatever was prefetched; a new dict each time. Packing adds
        `packing`, a mixture `mixture`, `mixture_step` and `sources`, with one integer a source.
        """
        return {**self._plain_state(), **self._packing_state(), **self._mixture_state()}

    def state_at(self, batches: int) -> dict[str, Any]:
        """What `state_dict` would be after so many more batches were received."""
        epoch, step = self.plan.settle(self.epoch, self.step + batches)
        return {
            **self._plain_state(),
            "epoch": epoch,
            "step": step,
            **self._packing_state(),
            **self._mixture_state(step),
        }

    def has_step(self, step: int, *, epoch: int, before_epoch: int | None) -> bool:
        """Whether the run, or the epochs before one, reach `step` steps after the start of `epoch`."""
        epoch, step = self.plan.settle(epoch, step)
        if before_epoch is not None and epoch >= before_epoch:
            return False
        steps = self.plan.steps(epoch)
        return steps is None or step < steps

    def _packing_state(self) -> dict[str, Any]:
        packed = self._setup.packed
        if not packed:
            return {}
        digests = [part.parameters["documents"] for part in packed]
        return {"packing": {**packed[0].parameters, "documents": digests[0] if len(digests) == 1 else digests}}

    def _mixture_state(self, step: int | None = None) -> dict[str, Any]:
        mixed = self._setup.mixture
        if mixed is None:
            return {}
        return {
            "mixture": mixed.mixture.description(),
            "mixture_step": mixed.since,
            "sources": mixed.saved(self.step if step is None else step),
        }

    def _plain_state(self) -> dict[str, Any]:
        return {
            "version": STATE_VERSION,
            "fingerprint": self._fingerprints if self._setup.mixture is not None else self._fingerprint,
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
        resized = state["global_batch_size"] != self.global_batch_size
        if resized:
            step = step * state["global_batch_size"] // self.global_batch_size
        if self._setup.mixture is not None:
            self._restore_mixture(state, step, resized=resized)
        elif step and step >= (self.plan.steps(epoch) or 0):
            epoch, step = epoch + 1, 0
        self.epoch, self.step = epoch, step
        self.moved()

    def _restore_mixture(self, state: Mapping[str, Any], step: int, *, resized: bool) -> None:
        """Take up a mixture's run; where it was allowed to change, sources go on from their own positions."""
        mixed = self._setup.mixture
        assert mixed is not None
        saved, since = state.get("sources", {}), state.get("mixture_step", 0)
        if state.get("mixture") == mixed.mixture.description() and not resized:
            mixed.restore(since, step, saved)
            return
        begin = []
        for i, name in enumerate(mixed.names):
            value = saved.get(name, 0)
            begin.append(value if value >= 0 else mixed.all_rows(i))
        mixed.restart(step, begin)

    def ledger(self) -> dict[str, Any]:
        """Where every token of the split goes in the current epoch, and what has been served so far.

        `tokens` = `trained` + `padded` + `cropped` + `dropped`, each token counted once: a target that counts; read,
        but no such target (it begins the split, a row, or a document that nothing announces); cut off a document
        (bos-aligned); never read. `padding` are target slots without a token, in addition. Without packing also
        `served` = `trained` + 1 and `dropped` = `dropped_tail` + `dropped_batch`. For a mixture: rows, epochs and
        targets of each source so far, in `sources`.
        """
        if self._setup.mixture is not None:
            return self._mixture_ledger()
        if isinstance(self.plan, DealtPlan):
            return self._packed_ledger()
        p = self.plan
        in_steps = min(p.n_sequences, p.steps_per_epoch * p.global_batch_size)
        served = in_steps * p.seq_len + 1
        per_epoch = in_steps * p.seq_len
        unmarked = self._unmarked_targets(served) if self._setup.packer.marks and in_steps == p.n_sequences else 0
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
            "trained": per_epoch - unmarked,
            "padded": 1 + unmarked,
            "cropped": 0,
            "padding": (p.steps_per_epoch * p.global_batch_size - in_steps) * p.seq_len,
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
        fill, items = self.fill, self._items()

        def fill_and_finish(buffer: Rows, item: tuple[int, int, NDArray[np.int64] | Prepared]) -> tuple[Raw, Made]:
            raw = fill(buffer, item)
            return raw, finish(buffer, raw)

        return Feed(items, fill_and_finish, buffers, threaded=self.prefetch > 0)

    def _unmarked_targets(self, served: int) -> int:
        """Targets among the first `served` tokens that begin another document unannounced; none if separators do."""
        if self.data.separator_id is not None and self.data.separator_position == "before":
            return 0
        starts = self._setup.starts()
        return int(((starts > 0) & (starts < served)).sum())

    def _packed_ledger(self) -> dict[str, Any]:
        assert isinstance(self.plan, DealtPlan)
        p, packed = self.plan, self._setup.packed[0]
        rows, steps = packed.n_rows(self.epoch), p.steps(self.epoch) or 0
        served = min(rows, steps * p.global_batch_size)
        facts = packed.ledger(self.epoch, served)
        slots = served * (p.seq_len + (packed.packing == "best-fit"))
        return {
            "split": p.split,
            "tokens": p.n_tokens,
            "documents": packed.documents.n,
            "rows": rows,
            "steps": steps,
            **facts,
            "padding": facts["padding"] + (steps * p.global_batch_size - served) * p.seq_len,
            "utilisation": 1 - facts["padding"] / slots if slots else 0.0,
            "epoch": self.epoch,
            "step": self.step,
        }

    def _mixture_ledger(self) -> dict[str, Any]:
        mixed = self._setup.mixture
        assert mixed is not None
        sources = {}
        counts = mixed.counts(self.step)
        for i, (name, part) in enumerate(self._setup.parts.items()):
            epoch, row = mixed.epoch_of(i, counts[i])
            facts = {"tokens": part.n_tokens, "rows": counts[i], "targets": counts[i] * self.seq_len}
            sources[name] = {**facts, "epoch": epoch, "row": row, "share": counts[i] / max(1, sum(counts))}
        rows = self.step * self.global_batch_size
        facts = {"split": self.plan.split, "tokens": self.n_tokens, "steps": self.plan.steps(0)}
        return {**facts, "rows": rows, "targets": rows * self.seq_len, "step": self.step, "sources": sources}

    def _part_fingerprints(self, hashes: list[str] | None) -> dict[str, str]:
        """Of each source of a mixture, by name."""
        found, at = {}, 0
        for name, part in self._setup.parts.items():
            own = None if hashes is None else hashes[at : at + len(part.shards)]
            found[name] = str(part.fingerprint(hashes=own))
            at += len(part.shards)
        return found

    def buffer(self) -> Rows:
        """A buffer for one batch of raw ids, [B, T + 1] of the shards' id type."""
        return Rows(self.batch_size, self.seq_len + 1, self.reader.dtype)

    def fill(self, buffer: Rows, item: tuple[int, int, NDArray[np.int64] | Prepared]) -> Raw:
        """Read one batch: rows end to end as one range, other rows one by one or piece by piece; padding is zeros."""
        epoch, step, starts = item
        if isinstance(starts, Prepared):
            return self._fill_pieces(buffer, epoch, step, starts)
        contiguous = self.plan.order == "sequential" and len(starts) == self.batch_size and self._setup.mixture is None
        if contiguous:
            self.reader.read(int(starts[0]), buffer.flat[: self.batch_size * self.seq_len + 1])
        else:
            self.reader.read_rows(starts, buffer)
            buffer.array[len(starts) :] = 0
        return Raw(epoch, step, len(starts), contiguous, starts)

    def _fill_pieces(self, buffer: Rows, epoch: int, step: int, rows: Prepared) -> Raw:
        """Read the pieces of packed rows, and check that documents begin where they should."""
        for row, slot in rows.empty:
            buffer.array[row, slot:] = 0
        self.reader.read_prepared(rows, buffer)
        separator = self.data.separator_id
        if separator is not None and self.data.separator_position == "before":
            wrong = buffer.array.reshape(-1)[rows.first_ids] != separator
            if wrong.any():
                self._check_begins(rows.first_tokens[wrong], separator)
        patches = None
        if len(rows.patches):
            patches = np.empty((len(rows.patches), 1), self.reader.dtype)
            self.reader.read_rows(rows.patches[:, 2], Rows(len(patches), 1, self.reader.dtype, memory=patches))
        return Raw(epoch, step, rows.n_rows, False, rows, patches)

    def _check_begins(self, tokens: NDArray[np.int64], separator: int) -> None:
        """Raise IntegrityError for documents that do not begin with the separator, unless they began elsewhere."""
        wrong = sorted(set(tokens.tolist()) - self._setup.fragments())
        if wrong:
            span = self.reader.spans(wrong[0], wrong[0] + 1)[0]
            raise IntegrityError(
                f"{span.shard.path}: token {span.start:,} begins a document by the document index, but is not the "
                f"separator {separator}; make the index again with tokenriver index"
            )

    def split_rows(self, ids: Arrays, raw: Raw) -> tuple[Arrays, Arrays]:
        """Views (inputs, targets) [B, T] of a filled buffer's ids [B, T + 1]; NumPy arrays and torch tensors alike."""
        b, t = self.batch_size, self.seq_len
        if raw.contiguous:
            flat = ids.reshape(-1)
            return flat[: b * t].reshape(b, t), flat[1 : b * t + 1].reshape(b, t)
        return ids[:, :-1], ids[:, 1:]

    def marks(self, buffer: Rows, raw: Raw) -> Marks:
        """Which targets count, and where documents begin."""
        b, t, packer = self.batch_size, self.seq_len, self._setup.packer
        if isinstance(raw.rows, Prepared):
            mask, borders = raw.rows.mask(b, t), raw.rows.borders
        else:
            mask = None
            if raw.n_rows < b:
                mask = np.zeros((b, t), np.bool_)
                mask[: raw.n_rows] = True
            borders = None
            if packer.marks:
                borders, mask = self._stream_borders(buffer, raw, mask)
        if borders is None:
            return Marks(mask, None)
        return Marks(mask, cumulative_lengths(borders, b * t, length=packer.fixed_length))

    def _stream_borders(
        self, buffer: Rows, raw: Raw, mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int64], NDArray[np.bool_] | None]:
        """Where documents begin in rows of the flat stream, and the mask without targets that nothing announces."""
        b, t, separator = self.batch_size, self.seq_len, self.data.separator_id
        heads = np.arange(b, dtype=np.int64) * t
        if separator is not None:
            inputs = self.split_rows(buffer.array, raw)[0][: raw.n_rows]
            found = np.flatnonzero(np.equal(inputs, separator))
            if self.data.separator_position == "before":
                return np.union1d(heads, found), mask
            ends = found
            found = found[(found + 1) % t != 0] + 1
        else:
            assert isinstance(raw.rows, np.ndarray)
            starts = self._setup.starts()
            low, high = (np.searchsorted(starts, raw.rows + k, "right") for k in (0, t))
            n = high - low
            row = np.repeat(np.arange(len(n)), n)
            inside = starts[np.arange(int(n.sum())) - np.repeat(np.cumsum(n) - n, n) + low[row]] - raw.rows[row]
            ends = row * t + inside - 1
            found = ends[inside < t] + 1
        if len(ends):
            mask = np.ones((b, t), np.bool_) if mask is None else mask
            mask.reshape(-1)[ends] = False
        return np.union1d(heads, found), mask

    def batch(self, buffer: Rows, raw: Raw, dtype: np.dtype[Any] | None = None) -> Batch:
        """A batch of its own memory from a filled buffer."""
        inputs, targets = (part.astype(dtype or self.dtype) for part in self.split_rows(buffer.array, raw))
        if raw.patches is not None:
            assert isinstance(raw.rows, Prepared)
            targets[raw.rows.patches[:, 0], raw.rows.patches[:, 1]] = raw.patches[:, 0]
        return Batch(inputs, targets, raw.epoch, raw.step, *self.marks(buffer, raw))

    def received(self, raw: Raw) -> None:
        """The consumer has this batch: the position is now the one after it."""
        last = raw.step + 1 == self.plan.steps(raw.epoch) and not self.plan.endless_epoch
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
