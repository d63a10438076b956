"""For PyTorch: a data set for its DataLoader, and batches on a device by one copy.

`tokenriver.torch` is this module.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.errors import MissingDependencyError, ResumeError, UsageError
from tokenriver.loader.arguments import NO_EPOCHS, optional_whole, plain, shown, whole
from tokenriver.loader.batch import Batch, Marks, Raw
from tokenriver.loader.iteration import Iteration, WholeBatches
from tokenriver.loader.prepared import Prepared
from tokenriver.loader.rows import Rows
from tokenriver.loader.train import TrainLoader

try:
    import torch
    from torch.utils.data import IterableDataset, get_worker_info

    from tokenriver.loader.document_masks import document_ids, document_mask, document_mask_mod, position_ids
except ImportError as error:
    raise MissingDependencyError("PyTorch is not installed: pip install 'tokenriver[torch]'") from error

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from numpy.typing import NDArray

    from tokenriver.loader.assembly import Item

__all__ = [
    "TensorBatch",
    "TrainDataset",
    "document_ids",
    "document_mask",
    "document_mask_mod",
    "from_ids",
    "to_device",
    "widen",
]

IGNORED = -100  # target of a padded row: what torch's cross_entropy leaves out by default
_NO_EPOCH = -1  # told to workers that persist: the position was moved to no epoch's start


class TrainDataset(IterableDataset[tuple[torch.Tensor, torch.Tensor]]):
    """Whole batches (inputs, targets), int64 [B, T] each, for `DataLoader(dataset, batch_size=None)`.

    Takes the arguments of TrainLoader (`prefetch` and `dtype` aside) and serves the same order for any number of
    workers: worker w of n makes every n-th batch, and DataLoader takes them in turn. Every pass begins at the
    data set's start, which is (epoch 0, step 0), what `set_epoch` or `load_state_dict` said, and lasts `epochs`
    epochs counted from there (None: for ever). Rows padded by `drop_last=False` have targets of -100.

    torchdata's StatefulDataLoader saves and restores it through `state_dict` and `load_state_dict`; with torch's
    own DataLoader, whose workers keep their position to themselves, save `state_after(batches)`.
    """

    def __init__(self, source: Any, *, epochs: int | None = None, **options: Any) -> None:
        self.loader = TrainLoader(source, prefetch=0, dtype="int64", **options)
        self.epochs = optional_whole("epochs", epochs)
        if self.epochs is not None and self.epochs < 0:
            raise UsageError(f"epochs is 0 or more, or None for no end, not {epochs}")
        if self.epochs is not None and self.loader.plan.endless_epoch:
            raise UsageError(NO_EPOCHS)
        self._taken = self._moves = 0
        self._resumed: int | None = None  # batches that a state's pass had taken, until an iterator goes on from there
        self._chosen: int | None = None
        # How often the position was moved, and to which epoch, for workers that persist: they have a copy of this.
        self._told = torch.zeros(2, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]

    def __iter__(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        # Now, not at the first batch: StatefulDataLoader has the data set go on from a pass that had ended when it was
        # saved, drops that iterator unused, and makes another, which begins anew: where set_epoch said.
        if self._resumed is None and self._chosen is not None:
            self._go(self._chosen)
        self._taken, self._resumed = self._resumed or 0, None
        return self._pass()

    def _pass(self) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """This worker's batches, without those that were taken before."""
        worker = get_worker_info()
        number, count = (0, 1) if worker is None else (worker.id, worker.num_workers)
        self._follow()
        loader = self.loader
        start, last = loader.epoch, None if self.epochs is None else loader.epoch + self.epochs
        self._resumed = None  # where a state was loaded after the iterator was made
        first = loader.step + number + self._taken * count

        def items() -> Iterator[Item]:
            epoch, step = start, first
            while loader.has_step(step, epoch=epoch, before_epoch=last):
                epoch, step = loader.settle(epoch, step)  # not from the start each time: packed epochs differ in length
                yield loader.assembly.item(epoch, step)
                step += count

        for item in loader.assembly.ahead(items()):
            batch = loader.made(item)
            self._taken += 1
            yield _tensors(batch)

    def set_epoch(self, epoch: int) -> None:
        """Let the next pass begin at the start of this epoch."""
        epoch = whole("epoch", epoch)
        if epoch < 0:
            raise UsageError(f"epoch is 0 or more, not {epoch}")
        if epoch and self.loader.plan.endless_epoch:
            raise UsageError(NO_EPOCHS)
        self._go(epoch)
        self._chosen = epoch
        self._tell(epoch if epoch < 1 << 62 else _NO_EPOCH)

    def _go(self, epoch: int) -> None:
        if self.loader.plan.endless_epoch:
            self.loader.mixture_rows.begin_anew()
        self.loader.epoch, self.loader.step, self._resumed, self._taken = epoch, 0, None, 0

    def _tell(self, epoch: int) -> None:
        """Let workers that persist know of a move; in a worker it is its own affair."""
        if get_worker_info() is None:
            self._moves += 1
            self._told[1], self._told[0] = epoch, self._moves

    def _follow(self) -> None:
        """In a worker that persists: go where the data set that it is a copy of has gone."""
        moves, epoch = self._told.tolist()
        if get_worker_info() is None or moves == self._moves:
            return
        if epoch == _NO_EPOCH:
            raise UsageError(
                "load_state_dict does not reach workers that persist already: make the DataLoader after it, or "
                "without persistent_workers"
            )
        self.set_epoch(epoch)
        self._moves = moves

    def state_dict(self) -> dict[str, Any]:
        """Where the pass began (a TrainLoader's state), and how many batches this process took of it."""
        return {"start": self.loader.state_dict(), "taken": self._taken}

    def load_state_dict(self, state: Mapping[str, Any], **options: Any) -> None:
        """Go on from `state_dict`'s value, or begin the next pass at a TrainLoader's state; the same refusals."""
        state = plain(state)
        if not hasattr(state, "keys"):
            raise ResumeError(f"a data set's state is a dict, not {type(state).__name__}")
        taken = state.get("taken") if "start" in state else 0
        if type(taken) is not int or taken < 0:
            raise ResumeError(
                f"not the state of a TrainDataset: taken is {shown(taken)}, not a whole number of batches"
            )
        self.loader.load_state_dict(state.get("start", state), **options)
        self._chosen = self._chosen if "start" in state else None  # else it says where every pass begins
        self._resumed = self._taken = taken
        self._tell(_NO_EPOCH)

    def state_after(self, batches: int) -> dict[str, Any]:
        """A TrainLoader's state `batches` batches after the start of the pass, counted by whoever received them."""
        batches = whole("batches", batches)
        if batches < 0:
            raise UsageError(f"batches is 0 or more, not {batches}")
        return self.loader.state_at(batches)


@dataclass(slots=True)
class TensorBatch:
    """A Batch as tensors on a device: `inputs` and `targets` [B, T], the rest as there, None where it is None."""

    inputs: torch.Tensor
    targets: torch.Tensor
    epoch: int
    step: int
    mask: torch.Tensor | None = None
    cu_seqlens: torch.Tensor | None = None
    position_ids: torch.Tensor | None = None


def to_device(
    loader: TrainLoader, device: torch.device | str, *, dtype: torch.dtype = torch.int64
) -> Iterator[TensorBatch]:
    """The loader's batches as tensors [B, T] on a device; the loader's position moves as they are received.

    On CUDA the ids travel as they lie in the shards (uint16 or uint32): a background thread reads each batch into
    pinned memory, one non-blocking copy on a side stream brings it over, and the device makes (inputs, targets) of
    it. A pinned buffer is filled again only after its copy. Elsewhere one conversion makes tensors of what was read.
    """
    device = torch.device(device)
    if not isinstance(loader, TrainLoader):
        raise UsageError(f"to_device takes a TrainLoader, not a {type(loader).__name__}")
    if dtype not in (torch.int32, torch.int64):
        raise UsageError(f"dtype is torch.int32 or torch.int64, not {dtype}")
    return _Staged(loader, device, dtype) if device.type == "cuda" else _Converted(loader, device, dtype)


class _Converted(WholeBatches["TensorBatch"]):
    """Batches for the CPU, or for devices that take a plain copy."""

    def __init__(self, loader: TrainLoader, device: torch.device, dtype: torch.dtype) -> None:
        def convert(batch: Batch) -> TensorBatch:
            inputs, targets = (torch.from_numpy(x).to(device) for x in (batch.inputs, batch.targets))
            marks = (batch.mask, batch.cu_seqlens, batch.position_ids)
            mask, lengths, places = (None if m is None else torch.from_numpy(m).to(device) for m in marks)
            return TensorBatch(inputs, targets, batch.epoch, batch.step, mask, lengths, places)

        super().__init__(loader, convert, dtype=np.dtype(np.int64 if dtype == torch.int64 else np.int32))


class _PinnedRows(Rows):
    """A buffer in page-locked memory, as the array that is read into and the tensor that is copied from."""

    def __init__(self, n_rows: int, length: int, dtype: np.dtype[Any]) -> None:
        # Signed types of the same width: torch's unsigned ones lack most operations.
        kind = torch.int16 if dtype.itemsize == 2 else torch.int32
        self.tensor = torch.empty((n_rows, length), dtype=kind, pin_memory=True)
        super().__init__(n_rows, length, dtype, memory=self.tensor.numpy().view(dtype))

    def hold(self, content: bytes | None) -> None:
        """As Rows, but copied into the page-locked memory."""
        if content is not None:
            self.view[:] = content


class _Staged(Iteration[Marks]):
    """Batches for CUDA: pinned ring, side stream, one copy of the narrow ids, widening on the device."""

    def __init__(self, loader: TrainLoader, device: torch.device, dtype: torch.dtype) -> None:
        self._device, self._dtype = device, dtype
        self._stream = torch.cuda.Stream(device)  # type: ignore[no-untyped-call]
        self._in_flight: deque[tuple[torch.cuda.Event, Rows]] = deque()

        def pinned() -> Rows:
            return _PinnedRows(loader.batch_size, loader.seq_len + 1, loader.reader.dtype)

        # One buffer more than the thread fills ahead: the one whose copy may still be under way.
        super().__init__(loader, pinned, loader.assembly.marks, n_buffers=loader.prefetch + 2)

    def __iter__(self) -> _Staged:
        return self

    def __next__(self) -> TensorBatch:
        buffer, raw, marks = self.take()
        try:
            batch = self._on_device(buffer, raw, marks)
            self._loader.received(raw)
        except BaseException:  # Ctrl-C: the batch was not received
            self._feed = None
            raise
        return batch

    def _on_device(self, buffer: Rows, raw: Raw, marks: Marks) -> TensorBatch:
        """A filled buffer's batch; buffers whose copies are done are free again."""
        assert isinstance(buffer, _PinnedRows)
        dtype = np.dtype(np.int32 if self._dtype == torch.int32 else np.int64)
        self._loader.assembly.check_ids(buffer, raw, dtype)
        current = torch.cuda.current_stream(self._device)
        with torch.cuda.stream(self._stream):
            ids = buffer.tensor.to(self._device, non_blocking=True)
            copied = torch.cuda.Event()  # type: ignore[no-untyped-call]
            copied.record(self._stream)
            inputs, targets = (widen(part, self._dtype) for part in self._loader.assembly.split_rows(ids, raw))
            if raw.patches is not None:
                assert isinstance(raw.rows, Prepared)
                row, slot = (torch.from_numpy(raw.rows.patches[:, k].copy()).to(self._device) for k in (0, 1))
                values = torch.from_numpy(raw.patches[:, 0].astype(np.int64)).to(self._device)
                targets[row, slot] = values.to(self._dtype)
        current.wait_stream(self._stream)
        for tensor in (inputs, targets):
            tensor.record_stream(current)  # made on the side stream, freed only when the training stream is done
        self._in_flight.append((copied, buffer))
        while len(self._in_flight) > 1:
            event, done = self._in_flight.popleft()
            event.synchronize()
            self.release(done)
        mask, lengths = (None if m is None else torch.from_numpy(m).to(self._device) for m in marks)
        places = None if lengths is None else position_ids(lengths, inputs.shape)
        return TensorBatch(inputs, targets, raw.epoch, raw.step, mask, lengths, places)


def widen(ids: torch.Tensor, dtype: torch.dtype) -> torch.Tensor:
    """Ids whose bits are unsigned but whose type is int16 or int32, as int32 or int64 of the same shape."""
    if ids.dtype == torch.int16:
        return ids.to(dtype).bitwise_and_(0xFFFF)
    return ids.to(dtype).bitwise_and_(0xFFFFFFFF) if dtype == torch.int64 else ids.to(dtype, copy=True)


def from_ids(ids: NDArray[Any]) -> torch.Tensor:
    """A tensor (uint16, uint32, int32 or int64 as the array) over the array's memory."""
    return torch.from_numpy(ids)


def _tensors(batch: Batch) -> tuple[torch.Tensor, torch.Tensor]:
    """(inputs, targets) of an int64 batch; a padded row's targets are ignored ones."""
    if batch.mask is not None:
        batch.targets[~batch.mask] = IGNORED
    return torch.from_numpy(batch.inputs), torch.from_numpy(batch.targets)
