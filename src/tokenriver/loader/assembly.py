"""From the rows of a step to a batch: ids are read into a buffer, checked, converted, and their documents marked."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tokenriver.errors import FormatError, IntegrityError
from tokenriver.loader.batch import Batch, Marks, Raw, require_int32
from tokenriver.loader.block_rows import BlockRows
from tokenriver.loader.plan import Plan
from tokenriver.loader.prepared import Prepared, PreparedSteps, prepare
from tokenriver.loader.recycle import Recycled
from tokenriver.loader.rows import Located, Rows
from tokenriver.loader.segments import cumulative_lengths

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tokenriver.loader.rows import Reads
    from tokenriver.loader.segments import Segments
    from tokenriver.loader.setup import Setup
    from tokenriver.loader.stream import TokenReader

__all__ = ["Assembly", "Item"]

Arrays = TypeVar("Arrays", bound=Any)
Item = tuple[int, int, "Located | Prepared"]
"""(epoch, step, rows ready to be read)."""


class Assembly:
    """Reads and converts one rank's batches of a loader's data; no position of its own, so any thread may use it."""

    def __init__(self, setup: Setup, reader: TokenReader, dtype: np.dtype[Any]) -> None:
        self._setup, self.data, self.plan, self.reader, self.dtype = setup, setup.data, setup.plan, reader, dtype
        self.batch_size, self.seq_len = setup.plan.batch_size, setup.plan.seq_len
        separator = self.data.separator_id if self.data.separator_position == "before" else None
        # What each document begins with, as it lies in a buffer.
        self._begin = None if separator is None else _as_bytes(separator, reader.dtype)
        self.marks_documents, self._fixed_length = setup.packer.marks, setup.packer.fixed_length
        self._vocab_size = reader.vocab_size
        self._marked = self.marks_documents or setup.packer.packing != "concat"

    def run(self, epoch: int, step: int, epochs: int | None, *, threaded: bool) -> Iterator[Item]:
        """The rows of every step from a position on, ready for `fill`, what they read being fetched ahead."""
        blocks = self._blocks(threaded=threaded)
        if blocks is not None:
            return blocks.ahead(self.items(epoch, step, epochs, locate=blocks.locate))
        return self.reader.ahead(self.items(epoch, step, epochs), self.reads)

    def _blocks(self, *, threaded: bool) -> BlockRows | None:
        """Where an iteration takes its rows from in a block-shuffled order."""
        order = self.plan.blocks if isinstance(self.plan, Plan) else None
        return None if order is None else BlockRows(order, self.reader, batch_size=self.batch_size, threaded=threaded)

    def items(
        self,
        epoch: int,
        step: int,
        epochs: int | None,
        *,
        locate: Callable[[list[NDArray[np.int64]]], list[Located]] | None = None,
    ) -> Iterator[Item]:
        """The rows of every step from a position on, those of the flat stream by `locate`."""
        locate = locate or self.locate
        for at_epoch, at_step, rows in self.plan.walk(epoch, step, epochs):
            if isinstance(rows, list):
                for k, where in enumerate(locate(rows)):
                    yield at_epoch, at_step + k, where
            else:
                prepared = self.prepare(*rows)
                for k in range(len(prepared.n_rows)):
                    yield at_epoch, at_step + k, prepared.step(k)

    def ahead(self, items: Iterator[Item]) -> Iterator[Item]:
        """The items of an iteration, what they read being fetched ahead of the taker where reading takes long."""
        blocks = self._blocks(threaded=False)
        return self.reader.ahead(items, self.reads) if blocks is None else blocks.ahead(items)

    def item(self, epoch: int, step: int) -> Item:
        """The rows of one step, ready for `fill`."""
        rows = self.plan.take(epoch, step)
        if isinstance(rows, np.ndarray):
            return epoch, step, self.locate([rows])[0]
        return epoch, step, self.prepare(rows, [0, rows.n_rows]).step(0)

    def locate(self, steps: list[NDArray[np.int64]]) -> list[Located]:
        """Rows of the flat stream for several steps, or groups of them, each ready to be read."""
        if not steps:
            return []
        b, t = self.batch_size, self.seq_len
        if self.plan.order != "sequential" or self._setup.mixture is not None:
            return self.reader.locate_rows(steps, t + 1)
        full = [starts for starts in steps if len(starts) and len(starts) % b == 0]
        found = self.reader.locate_rows(full, b * t + 1, every=b) if full else []
        if len(full) < len(steps):  # the last step of an epoch, without drop_last
            found += self.reader.locate_rows(steps[len(full) :], t + 1)
        return found

    def prepare(self, rows: Segments, bounds: list[int]) -> PreparedSteps:
        """Packed rows of several steps, those of step k between bounds[k] and bounds[k + 1], each ready for `fill`."""
        packer = self._setup.packer
        return prepare(
            rows,
            bounds,
            reader=self.reader,
            batch_size=self.batch_size,
            seq_len=self.seq_len,
            shared_slots=packer.packing == "best-fit",
            marks=self.marks_documents,
            join=self.plan.order == "sequential",
        )

    def buffer(self) -> Rows:
        """A buffer for one batch of raw ids, [B, T + 1] of the shards' id type."""
        return Rows(self.batch_size, self.seq_len + 1, self.reader.dtype)

    def fill(self, buffer: Rows, item: Item) -> Raw:
        """Read one batch: rows end to end as one range, other rows one by one or piece by piece; padding is zeros."""
        rows = item[2]
        if isinstance(rows, Prepared):
            self.reader.read_prepared(rows, buffer)
        elif rows.held is not None:
            rows.held.fill(buffer)
        else:
            self.reader.read_located(rows, buffer)
        return self.checked(buffer, item)

    def checked(self, buffer: Rows, item: Item) -> Raw:
        """What a filled buffer is; checks that documents begin where they should."""
        epoch, step, rows = item
        if isinstance(rows, Prepared):
            return self._checked_pieces(buffer, epoch, step, rows)
        n_rows = len(rows.starts)
        if n_rows < self.batch_size:
            buffer.array[n_rows:] = 0
        return Raw(epoch, step, n_rows, rows.length > self.seq_len + 1, rows)

    def reads(self, item: Item) -> Reads:
        """What `fill` will read, range by range."""
        rows = item[2]
        if isinstance(rows, Prepared):
            sizes = rows.sizes // self.reader.dtype.itemsize
            patches = rows.patches[:, 2]
            return np.concatenate([rows.starts, patches]), np.concatenate([sizes, np.ones(len(patches), np.int64)])
        starts = rows.starts[: len(rows.shards)]
        return starts, np.full(len(starts), rows.length)

    def _checked_pieces(self, buffer: Rows, epoch: int, step: int, rows: Prepared) -> Raw:
        if not self.begin_right(buffer, rows.first_ids):
            found = buffer.array.take(rows.first_ids)
            self._check_begins(rows.first_tokens[found != self.data.separator_id])
        return self.patched(epoch, step, rows)

    def begin_right(self, buffer: Rows, places: NDArray[np.int64]) -> bool:
        """Whether documents begin with a separator at these places of a filled buffer, where one is known."""
        # Compared as bytes: a sixth of what an array of truths and any() take.
        return self._begin is None or buffer.array.take(places).tobytes() == self._begin * len(places)

    def patched(self, epoch: int, step: int, rows: Prepared) -> Raw:
        """What a filled buffer is, with the ids of targets that lie elsewhere."""
        patches = None
        if len(rows.patches):
            patches = np.empty((len(rows.patches), 1), self.reader.dtype)
            self.reader.read_rows(rows.patches[:, 2], Rows(len(patches), 1, self.reader.dtype, memory=patches))
        return Raw(epoch, step, rows.n_rows, False, rows, patches)

    def _check_begins(self, tokens: NDArray[np.int64]) -> None:
        """Raise IntegrityError for documents that do not begin with the separator, unless they began elsewhere."""
        wrong = sorted(set(tokens.tolist()) - self._setup.fragments())
        if wrong:
            span = self.reader.spans(wrong[0], wrong[0] + 1)[0]
            raise IntegrityError(
                f"{span.shard.path}: token {span.start:,} begins a document by the document index, but is not the "
                f"separator {self.data.separator_id}; make the index again with tokenriver index"
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
        b, t = self.batch_size, self.seq_len
        if isinstance(raw.rows, Prepared):
            mask, borders = raw.rows.mask(b, t), raw.rows.borders
        else:
            mask = None
            if raw.n_rows < b:
                mask = np.zeros((b, t), np.bool_)
                mask[: raw.n_rows] = True
            borders = None
            if self.marks_documents:
                borders, mask = self._stream_borders(buffer, raw, mask)
        if borders is None:
            return Marks(mask, None)
        return Marks(mask, cumulative_lengths(borders, length=self._fixed_length))

    def _stream_borders(
        self, buffer: Rows, raw: Raw, mask: NDArray[np.bool_] | None
    ) -> tuple[NDArray[np.int32], NDArray[np.bool_] | None]:
        """Where documents begin in rows of the flat stream, then B · T; and the mask without targets that nothing
        announces."""
        b, t, separator = self.batch_size, self.seq_len, self.data.separator_id
        heads = np.arange(b, dtype=np.int64) * t
        if separator is not None:
            inputs = self.split_rows(buffer.array, raw)[0][: raw.n_rows]
            found = np.flatnonzero(np.equal(inputs, separator))
            if self.data.separator_position == "before":
                return _with_heads(found, heads, t), mask
            ends = found
            found = found[(found + 1) % t != 0] + 1
        else:
            assert isinstance(raw.rows, Located)
            starts, firsts = self._setup.starts(), raw.rows.starts
            low, high = (np.searchsorted(starts, firsts + k, "right") for k in (0, t))
            n = high - low
            row = np.repeat(np.arange(len(n)), n)
            inside = starts[np.arange(int(n.sum())) - np.repeat(np.cumsum(n) - n, n) + low[row]] - firsts[row]
            ends = row * t + inside - 1
            found = ends[inside < t] + 1
        if len(ends):
            mask = np.ones((b, t), np.bool_) if mask is None else mask
            mask.reshape(-1)[ends] = False
        return _with_heads(found, heads, t), mask

    def pool(self, dtype: np.dtype[Any] | None = None, *, ahead: int = 0) -> Recycled:
        """Where an iteration has the arrays of its batches from, which makes so many ahead."""
        return Recycled((self.batch_size, self.seq_len), dtype or self.dtype, kept=ahead + 2)

    def batch(self, buffer: Rows, raw: Raw, arrays: Recycled) -> Batch:
        """A batch of its own memory from a filled buffer."""
        inputs, targets = arrays.take()
        parts = buffer.parts.get(raw.contiguous)
        if parts is None:
            parts = buffer.parts[raw.contiguous] = self.split_rows(buffer.array, raw)
        self.check_ids(buffer, raw, inputs.dtype)
        inputs[...] = parts[0]
        targets[...] = parts[1]
        if raw.unmarked or (raw.n_rows == self.batch_size and not self._marked):
            return Batch(inputs, targets, raw.epoch, raw.step)
        if raw.patches is not None:
            assert isinstance(raw.rows, Prepared)
            targets[raw.rows.patches[:, 0], raw.rows.patches[:, 1]] = raw.patches[:, 0]
        return Batch(inputs, targets, raw.epoch, raw.step, *self.marks(buffer, raw))

    def check_ids(self, buffer: Rows, raw: Raw, dtype: np.dtype[Any]) -> None:
        """Raise FormatError for an id that is not below the vocabulary of the shards' headers, IntegrityError where
        they name none and an id does not fit into `dtype`."""
        for ids in ([] if raw.known else [buffer.array]) + ([] if raw.patches is None else [raw.patches]):
            if self._vocab_size:
                if not self.of_vocabulary(ids):
                    place = int(np.argmax(ids >= self._vocab_size))
                    self._refuse_id(int(ids.flat[place]), self._token_at(raw, place, ids))
            elif dtype == np.int32:
                require_int32(ids, f"epoch {raw.epoch}, step {raw.step}")

    def of_vocabulary(self, ids: NDArray[Any]) -> bool:
        """Whether the headers' vocabulary is known, and all of these ids are below it (1.7 µs for 64 x 1024)."""
        return bool(self._vocab_size) and int(ids.max(initial=0)) < self._vocab_size

    def _token_at(self, raw: Raw, place: int, ids: NDArray[Any]) -> int:
        """The token of the stream that was read to a place of a filled buffer's `ids`, or of its patches."""
        if isinstance(raw.rows, Prepared):
            if ids is raw.patches:
                return int(raw.rows.patches[place, 2])
            places = raw.rows.places // ids.itemsize
            piece = int(np.searchsorted(places, place, "right")) - 1
            return int(raw.rows.starts[piece] + place - places[piece])
        row, inside = (0, place) if raw.contiguous else divmod(place, self.seq_len + 1)
        starts: Any = self.plan.take(raw.epoch, raw.step)  # `raw.rows` may be those of several steps
        return int(starts[row]) + inside

    def _refuse_id(self, value: int, token: int) -> None:
        span = self.reader.spans(token, token + 1)[0]
        raise FormatError(
            f"{span.shard.path}: id {value:,} at token {span.start:,} is not below the header's vocabulary of "
            f"{self._vocab_size:,}; tokenriver verify says which shards are damaged, build or fetch them again"
        )


def _as_bytes(token: int, dtype: np.dtype[Any]) -> bytes:
    """An id as it lies in a shard; nothing where the type cannot hold it, so that none is found."""
    value = np.array([token]).astype(dtype)
    return value.tobytes() if value[0] == token else b""


def _with_heads(borders: NDArray[np.int64], heads: NDArray[np.int64], seq_len: int) -> NDArray[np.int32]:
    """Borders of documents and heads of rows, each once, ascending, and where the last row ends."""
    both = np.concatenate([heads, borders[borders % seq_len > 0], [len(heads) * seq_len]]).astype(np.int32)
    both.sort()
    return both
