"""A split as one stream of tokens: reads any range, across shard borders, and notices a shard that changed meanwhile.

Ids are read with pread into buffers of our own, not through memory maps. A map of a file that another process cuts
short kills the reader with SIGBUS, whatever was checked a moment before; a read comes back short and becomes an error
that names the shard. Nor does a map's resident memory grow with the data (both: docs/loader.md).
"""

from __future__ import annotations

import os
from bisect import bisect_right
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tokenriver.batches import offsets_of
from tokenriver.errors import IntegrityError
from tokenriver.loader.many_reads import FEWEST
from tokenriver.loader.open_shards import MAX_OPEN, most_open
from tokenriver.loader.range_reader import RangeReader
from tokenriver.loader.rows import Located, Span
from tokenriver.loader.shard_parts import parts_of_range
from tokenriver.shards.header import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tokenriver.loader.order import Order
    from tokenriver.loader.prepared import Prepared
    from tokenriver.loader.rows import Pieces, Reads, RowGroup, Rows
    from tokenriver.loader.shard_file import ShardFile

__all__ = ["MAX_OPEN", "SHARDS_AHEAD", "TokenReader", "open_reader"]

Item = TypeVar("Item")
SHARDS_AHEAD = 5
"""How many shards it pays to `expect`: the one at hand, and those fetched ahead."""


class TokenReader(RangeReader):
    """Reads ids of consecutive shards by their position in the whole split. Safe to share between threads and forks.

    `dtype` is the widest id type among the shards (<u2 or <u4); `n_tokens` the length of the stream; `vocab_size` that
    of all their headers, 0 where one names none, or the type holds no other ids; `far` whether it pays to ask before
    reading.
    """

    far = False

    def __init__(self, shards: Sequence[ShardFile], *, max_open: int | None = None) -> None:
        self._given_max_open = max_open
        super().__init__(shards, max_open=most_open(len(shards)) if max_open is None else max_open)
        self.bounds = offsets_of([shard.n_tokens for shard in self.shards])
        self._ends = self.bounds.tolist()
        self.n_tokens = self._ends[-1]
        self.dtype = max((shard.header.dtype for shard in self.shards), key=lambda dtype: dtype.itemsize)
        sizes = {shard.header.vocab_size for shard in self.shards if shard.n_tokens}
        known = max(sizes, default=0) if 0 not in sizes else 0
        self.vocab_size = known if known < 1 << 8 * self.dtype.itemsize else 0
        self._uniform = all(shard.header.dtype == self.dtype for shard in self.shards)

    def __getstate__(self) -> dict[str, Any]:
        return {"shards": self.shards, "max_open": self._given_max_open}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["shards"], max_open=state["max_open"])  # type: ignore[misc]

    def ahead(self, items: Iterator[Item], reads: Callable[[Item], Reads]) -> Iterator[Item]:  # noqa: ARG002
        """The items as they are; where reading takes long, what they will read is fetched ahead of the taker."""
        return items

    def ask(self, starts: NDArray[np.int64], sizes: NDArray[np.int64]) -> Any:  # noqa: ARG002
        """Have ranges of tokens fetched that are read soon; gives what `forget` takes."""
        return None

    def forget(self, asked: Any) -> None:
        """Drop what was asked for in vain."""

    def give_way(self) -> None:
        """Somebody waits for what was asked for: other reading can rest."""

    def expect(self, shards: Iterable[int]) -> None:
        """Which shards are read next: files at hand need no notice."""

    def spans(self, start: int, stop: int) -> list[Span]:
        """Which tokens of which shards make up tokens [start, stop) of the stream."""
        return [
            Span(self.shards[index], inside, inside + last - first)
            for index, inside, first, last in parts_of_range(self._ends, start, max(0, stop - start))
        ]

    def read(self, start: int, out: NDArray[Any]) -> None:
        """Fill `out` (1-D, contiguous, of the reader's dtype) with the tokens from `start` on, across shards."""
        if self._pid != os.getpid():
            self._renew()
        with self._lock:
            self._read(start, out)

    def read_rows(self, starts: NDArray[np.int64], rows: Rows) -> None:
        """Fill row k of `rows` with the tokens from starts[k] on, for every k below len(starts)."""
        self.read_located(self.locate_rows([starts], rows.array.shape[1])[0], rows)

    def read_located(self, where: Located, rows: Rows) -> None:
        """Read a batch's rows into the first rows of a buffer, or end to end from its beginning."""
        if self._pid != os.getpid():
            self._renew()
        end_to_end, n_bytes = where.length != rows.array.shape[1], where.length * self.dtype.itemsize
        n = len(where.shards)
        if where.inside and self._read_many(where.shards, where.offsets, rows.addresses(n), n_bytes, n_bytes * n, rows):
            return
        with self._lock:
            if not where.inside:
                for k in range(n):
                    self._read(int(where.starts[k]), rows.flat[: where.length] if end_to_end else rows.array[k])
                return
            shards, offsets = where.shards.tolist(), where.offsets.tolist()
            if end_to_end:
                self._read_bytes(shards[0], offsets[0], rows.view[:n_bytes])
                return
            step = self._max_open  # which may fall meanwhile
            for begin in range(0, n, step):
                part = slice(begin, begin + step)
                self._read_inside(shards[part], offsets[part], rows.bytes[part], n_bytes * len(shards[part]))

    def locate(
        self, starts: NDArray[np.int64], sizes: NDArray[np.int64] | int
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The shard of each range, the byte where it begins there, and whether it needs `read` (shards differ)."""
        index = np.searchsorted(self.bounds, starts, "right") - 1
        offsets = HEADER_BYTES + (starts - self.bounds[index]) * self.dtype.itemsize
        return index, offsets, (starts + sizes > self.bounds[index + 1]) | (not self._uniform)

    def locate_rows(self, batches: Sequence[NDArray[np.int64]], length: int, *, every: int = 0) -> list[Located]:
        """Rows of `length` ids for many batches at once, whose first tokens are `batches`: 10 µs a batch less than
        singly. With `every`, so many rows at a time are one range of `length` ids, from the first one's first on.
        """
        firsts = [starts[::every] for starts in batches] if every else batches
        index, offsets, crosses = self.locate(np.concatenate(firsts), length)
        edges = np.cumsum([0, *map(len, firsts)])
        inside = np.diff(np.searchsorted(np.flatnonzero(crosses), edges)) == 0
        parts = zip(batches, edges[:-1].tolist(), edges[1:].tolist(), inside.tolist(), strict=True)
        return [Located(starts, length, index[a:z], offsets[a:z], whole) for starts, a, z, whole in parts]

    def read_prepared(self, pieces: Prepared, rows: Rows) -> None:
        """Read the pieces of packed rows into the flat buffer, in order."""
        if self._pid != os.getpid():
            self._renew()
        if pieces.crosses:
            rows.hold(None)
            rows.flat[:] = 0
            with self._lock:
                places, sizes = (n_bytes // self.dtype.itemsize for n_bytes in (pieces.places, pieces.sizes))
                for start, place, size in zip(pieces.starts.tolist(), places.tolist(), sizes.tolist(), strict=True):
                    self._read(start, rows.flat[place : place + size])
            return
        rows.hold(None)  # first, so that the memory of the last batch's bytes becomes this one's
        places, sizes = pieces.places, pieces.sizes
        addresses = places.astype(np.uint64) + rows.address
        if self._read_many(pieces.shards, pieces.offsets, addresses, sizes, pieces.n_bytes, rows):
            _clear_gaps(pieces.gaps, places, sizes, rows)
            return
        # Lists made here and now are in the cache when `map` walks them; made with 127 other steps' they are not.
        shards, sizes, offsets = pieces.shards.tolist(), sizes.tolist(), pieces.offsets.tolist()
        with self._lock:
            # As bytes and joined: a hundred slices of a buffer to read into would take 30 µs longer.
            parts = self._read_pieces(shards, sizes, offsets)
            content = b"".join(_spaced(parts, pieces.gaps))
            if len(content) != rows.view.nbytes:
                self._complete(parts, shards, sizes, offsets)
                content = b"".join(_spaced(parts, pieces.gaps))
        rows.hold(content)

    def read_group(self, wanted: Located | Pieces, group: RowGroup) -> bool:
        """Read the rows of several steps by one system call, but those over the border of two shards; False where they
        are to be read step by step, so that what is wrong is told at its step."""
        if self._pid != os.getpid():
            self._renew()
        if not isinstance(wanted, Located):
            return self._read_steps(wanted, group)
        n, n_bytes = len(wanted.shards), wanted.length * self.dtype.itemsize
        whole_steps = n != len(wanted.starts)
        addresses = group.addresses(n) if whole_steps else group.whole.addresses(n)
        if wanted.inside:
            fewest = 1 if whole_steps else FEWEST
            return self._read_many(wanted.shards, wanted.offsets, addresses, n_bytes, n_bytes * n, group, fewest=fewest)
        if whole_steps or not self._uniform:
            return False
        shards, offsets = wanted.shards, wanted.offsets
        inside = offsets + n_bytes <= HEADER_BYTES + np.diff(self.bounds)[shards] * self.dtype.itemsize
        total = n_bytes * int(np.count_nonzero(inside))
        if not self._read_many(shards[inside], offsets[inside], addresses[inside], n_bytes, total, group):
            return False
        try:
            with self._lock:
                for k in np.flatnonzero(~inside).tolist():
                    self._read(int(wanted.starts[k]), group.whole.array[k])
        except IntegrityError:  # read again, it is raised at its step
            return False
        return True

    def _read_steps(self, wanted: Pieces, group: RowGroup) -> bool:
        """Read the pieces of packed rows straight to their places in a group of buffers."""
        steps, first, stop = wanted
        if any(steps.crosses[first:stop]):
            return False
        base = int(group.whole.address) - first * group.steps[0].view.nbytes
        addresses = steps.places.of(first, stop) + base  # below 2^63, as all addresses of processes are
        shards, offsets, sizes = (column.of(first, stop) for column in (steps.shards, steps.offsets, steps.sizes))
        total = steps.bytes_before[stop] - steps.bytes_before[first]
        if not self._read_many(shards, offsets, addresses.view(np.uint64), sizes, total, group):
            return False
        for k, rows in zip(range(first, stop), group.steps, strict=False):
            rows.hold(None)
            if steps.gaps[k]:
                own = steps.step(k)
                _clear_gaps(own.gaps, own.places, own.sizes, rows)
        return True

    def _read(self, start: int, out: NDArray[Any]) -> None:
        """One range, shard by shard."""
        stop = start + len(out)
        if start < 0 or stop > self.n_tokens:
            raise IndexError(f"tokens [{start}, {stop}) of a stream of {self.n_tokens}")
        if start == stop:
            return
        index = bisect_right(self._ends, start) - 1
        if stop <= self._ends[index + 1]:
            self._read_shard(index, start - self._ends[index], out)
            return
        for index, inside, first, last in parts_of_range(self._ends, start, len(out)):
            self._read_shard(index, inside, out[first:last])

    def _read_shard(self, index: int, start: int, out: NDArray[Any]) -> None:
        """A range inside one shard, widened where the shard's ids are narrower than the stream's."""
        dtype = self.shards[index].header.dtype
        target = out if dtype == out.dtype else np.empty(len(out), dtype)
        self._read_bytes(index, HEADER_BYTES + start * dtype.itemsize, target.data.cast("B"))
        if target is not out:
            out[:] = target


def _clear_gaps(gaps: list[tuple[int, int]], places: NDArray[np.int64], sizes: NDArray[np.int64], rows: Rows) -> None:
    """Zeros where no piece of packed rows is."""
    end, last = 0, 0
    for before, n_bytes in gaps:
        if before != last:
            end = int(places[before - 1] + sizes[before - 1])
        rows.view[end : end + n_bytes] = bytes(n_bytes)
        end, last = end + n_bytes, before


def _spaced(parts: list[bytes], gaps: list[tuple[int, int]]) -> list[bytes]:
    """The parts with zeros between them: (parts before, bytes) each, ascending."""
    if not gaps:
        return parts
    spaced = parts.copy()
    for before, n_bytes in reversed(gaps):
        spaced.insert(before, bytes(n_bytes))
    return spaced


def open_reader(
    shards: Sequence[ShardFile], *, order: Order = "sequential", repeats: bool = True, parts: Sequence[int] = ()
) -> TokenReader:
    """A TokenReader, which reads through the cache if any shard lies behind a URL.

    `order`: in which rows are read; `repeats`: from the first again after the last. `parts`: how many
    shards each source of a mixture has, where there are several.
    """
    if all(shard.origin is None for shard in shards):
        return TokenReader(shards)
    from tokenriver.loader.cached import CachedReader

    return CachedReader(shards, order=order, repeats=repeats, parts=parts)
