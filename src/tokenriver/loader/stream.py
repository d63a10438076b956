"""A split as one stream of tokens: reads any range, across shard borders, and notices a shard that changed meanwhile.

Ids are read with pread into buffers of our own, not through memory maps. A map of a file that another process cuts
short kills the reader with SIGBUS, whatever was checked a moment before; a read comes back short and becomes an error
that names the shard. Nor does a map's resident memory grow with the data (both: docs/loader.md).
"""

from __future__ import annotations

import os
import threading
import time
from bisect import bisect_right
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, TypeVar

import numpy as np

from tokenriver.errors import IntegrityError
from tokenriver.loader.source import ShardFile, read_shard_file
from tokenriver.shards.header import HEADER_BYTES

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Sequence

    from numpy.typing import NDArray

    from tokenriver.loader.prepared import Prepared

__all__ = ["MAX_OPEN", "SHARDS_AHEAD", "Reads", "Rows", "Span", "TokenReader", "open_reader"]

Item = TypeVar("Item")
Reads = tuple["NDArray[np.int64]", "NDArray[np.int64]"]
"""First tokens and numbers of tokens of the ranges of the stream that a batch is read from."""

MAX_OPEN = 128
"""Descriptors kept open, least recently used closed first; far below the usual limit of 1,024 (macOS: 256)."""

SHARDS_AHEAD = 5
"""How many shards it pays to `expect`: the one at hand, and those fetched ahead."""

_CHECK_EVERY = 0.001
"""Seconds between two looks at a shard's size, inode and time of modification (2 µs each) while it is being read."""


def seek_and_read(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
    """os.preadv for systems without it (Windows): two steps, which the reader's lock makes one."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    done = 0
    for buffer in buffers:
        raw = os.read(descriptor, len(buffer))
        buffer[: len(raw)] = raw
        done += len(raw)
    return done


_preadv: Callable[[int, Sequence[Any], int], int] = getattr(os, "preadv", seek_and_read)


@dataclass(frozen=True, slots=True)
class Span:
    """Tokens [start, stop) of one shard, counted from the shard's first id."""

    shard: ShardFile
    start: int
    stop: int


class Rows:
    """A buffer for rows of raw ids: `array` [n_rows, length], `flat` [n_rows · length], both the same memory, and
    `bytes`, a writable byte view of each row for reading."""

    def __init__(self, n_rows: int, length: int, dtype: np.dtype[Any], *, memory: NDArray[Any] | None = None) -> None:
        self.array = np.zeros((n_rows, length), dtype) if memory is None else memory
        self.flat = self.array.reshape(-1)
        self.bytes = [[row.data.cast("B")] for row in self.array]


@dataclass(slots=True)
class _Open:
    descriptor: int
    checked: float


class TokenReader:
    """Reads ids of consecutive shards by their position in the whole split. Safe to share between threads and forks.

    `dtype` is the widest id type among the shards (<u2 or <u4); `n_tokens` the length of the stream.
    """

    def __init__(self, shards: Sequence[ShardFile], *, max_open: int = MAX_OPEN) -> None:
        self.shards = tuple(shards)
        self.bounds = np.zeros(len(self.shards) + 1, np.int64)
        np.cumsum([shard.n_tokens for shard in self.shards], out=self.bounds[1:])
        self._ends = self.bounds.tolist()
        self.n_tokens = self._ends[-1]
        self.dtype = max((shard.header.dtype for shard in self.shards), key=lambda dtype: dtype.itemsize)
        self._uniform = all(shard.header.dtype == self.dtype for shard in self.shards)
        self._max_open = max_open
        self._renew()

    def __getstate__(self) -> dict[str, Any]:
        return {"shards": self.shards, "max_open": self._max_open}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["shards"], max_open=state["max_open"])  # type: ignore[misc]

    def _renew(self) -> None:
        """An empty table of descriptors: at the start, and in a forked child, whose copy of the lock may be held."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _Open] = OrderedDict()

    def close(self) -> None:
        """Close all descriptors; the next read opens what it needs again."""
        if self._pid != os.getpid():
            self._renew()
        with self._lock:
            while self._open:
                os.close(self._open.popitem()[1].descriptor)

    def __del__(self) -> None:
        if getattr(self, "_pid", None) == os.getpid():
            for opened in self._open.values():
                os.close(opened.descriptor)

    def ahead(self, items: Iterator[Item], reads: Callable[[Item], Reads]) -> Iterator[Item]:  # noqa: ARG002
        """The items as they are; where reading takes long, what they will read is fetched ahead of the taker."""
        return items

    def expect(self, shards: Iterable[int]) -> None:
        """Which shards are read next: files at hand need no notice."""

    def spans(self, start: int, stop: int) -> list[Span]:
        """Which tokens of which shards make up tokens [start, stop) of the stream."""
        found = []
        index = bisect_right(self._ends, start) - 1
        while start < stop:
            first, end = self._ends[index], self._ends[index + 1]
            if end > start:
                found.append(Span(self.shards[index], start - first, min(stop, end) - first))
                start = min(stop, end)
            index += 1
        return found

    def read(self, start: int, out: NDArray[Any]) -> None:
        """Fill `out` (1-D, contiguous, of the reader's dtype) with the tokens from `start` on, across shards."""
        if self._pid != os.getpid():
            self._renew()
        with self._lock:
            self._read(start, out)
            self._trim()

    def read_rows(self, starts: NDArray[np.int64], rows: Rows) -> None:
        """Fill row k of `rows` with the tokens from starts[k] on, for every k below len(starts)."""
        length = rows.array.shape[1]
        index = np.searchsorted(self.bounds, starts, "right") - 1
        whole = starts + length <= self.bounds[index + 1]
        offsets = HEADER_BYTES + (starts - self.bounds[index]) * self.dtype.itemsize
        if self._pid != os.getpid():
            self._renew()
        with self._lock:
            for begin in range(0, len(starts), self._max_open):
                part = slice(begin, min(begin + self._max_open, len(starts)))
                if self._uniform and whole[part].all():
                    self._read_inside(index[part].tolist(), offsets[part].tolist(), rows.bytes[part])
                else:
                    for k in range(part.start, part.stop):
                        self._read(int(starts[k]), rows.array[k])
                self._trim()

    def locate(
        self, starts: NDArray[np.int64], sizes: NDArray[np.int64]
    ) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.bool_]]:
        """The shard of each range, the byte where it begins there, and whether it needs `read` (shards differ)."""
        index = np.searchsorted(self.bounds, starts, "right") - 1
        offsets = HEADER_BYTES + (starts - self.bounds[index]) * self.dtype.itemsize
        return index, offsets, (starts + sizes > self.bounds[index + 1]) | (not self._uniform)

    def read_prepared(self, pieces: Prepared, rows: Rows) -> None:
        """Read the pieces of packed rows into the flat buffer, in order."""
        if self._pid != os.getpid():
            self._renew()
        flat = rows.array.reshape(-1)
        view, width = flat.data.cast("B"), self.dtype.itemsize
        with self._lock:
            for begin in range(0, len(pieces.shards), self._max_open):
                part = slice(begin, begin + self._max_open)
                places, stops = pieces.places[part], pieces.stops[part]
                if pieces.crosses:
                    for start, a, b in zip(pieces.starts[part].tolist(), places, stops, strict=True):
                        self._read(start, flat[a:b])
                else:
                    buffers = [[view[a * width : b * width]] for a, b in zip(places, stops, strict=True)]
                    self._read_inside(pieces.shards[part], pieces.offsets[part], buffers)
                self._trim()

    def _read_inside(self, index: list[int], offsets: list[int], buffers: list[list[memoryview]]) -> None:
        """Rows that each lie in one shard: one system call a row and no Python between them."""
        opened = {i: self._descriptor(i) for i in set(index)}
        done = sum(map(_preadv, [opened[i] for i in index], buffers, offsets))
        if done != sum(len(buffer) for (buffer,) in buffers):
            for i, offset, (buffer,) in zip(index, offsets, buffers, strict=True):
                self._check_size(i, offset + len(buffer))
            raise IntegrityError(f"reads from {self.shards[index[0]].path} and others came back short; try again")

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
        filled = 0
        while filled < len(out):
            first, end = self._ends[index], self._ends[index + 1]
            count = min(stop, end) - (start + filled)
            if count > 0:
                self._read_shard(index, start + filled - first, out[filled : filled + count])
                filled += count
            index += 1

    def _read_shard(self, index: int, start: int, out: NDArray[Any]) -> None:
        """A range inside one shard, widened where the shard's ids are narrower than the stream's."""
        dtype = self.shards[index].header.dtype
        target = out if dtype == out.dtype else np.empty(len(out), dtype)
        view = target.data.cast("B")
        descriptor = self._descriptor(index)
        offset = HEADER_BYTES + start * dtype.itemsize
        while view:
            n = _preadv(descriptor, [view], offset)
            if n == len(view):
                break
            if n == 0:
                self._check_size(index, offset + len(view))
                raise IntegrityError(f"{self.shards[index].path}: a read at byte {offset:,} came back empty; try again")
            view, offset = view[n:], offset + n
        if target is not out:
            out[:] = target

    def _descriptor(self, index: int) -> int:
        """An open descriptor of a shard that still is what it was when the loader opened."""
        now = time.monotonic()
        opened = self._open.get(index)
        if opened is None:
            opened = _Open(self._reopen(index), now)
            self._open[index] = opened
        else:
            self._open.move_to_end(index)
            if now - opened.checked > _CHECK_EVERY:
                self._check_path(self.shards[index])
                opened.checked = now
        return opened.descriptor

    def _reopen(self, index: int) -> int:
        shard = self.shards[index]
        try:
            descriptor = os.open(shard.path, os.O_RDONLY | getattr(os, "O_BINARY", 0) | getattr(os, "O_CLOEXEC", 0))
        except FileNotFoundError:
            raise IntegrityError(f"{shard.path}: gone since the loader opened") from None
        try:
            self._check_same(shard, os.fstat(descriptor))
        except BaseException:
            os.close(descriptor)
            raise
        return descriptor

    def _check_path(self, shard: ShardFile) -> None:
        """What has the shard's name now must be the file that is open."""
        try:
            stat = shard.path.stat()
        except FileNotFoundError:
            raise IntegrityError(f"{shard.path}: gone since the loader opened") from None
        self._check_same(shard, stat)

    def _check_same(self, shard: ShardFile, stat: os.stat_result) -> None:
        """Raise IntegrityError, naming the shard, unless its size, time of modification and inode are the old ones."""
        if stat.st_size != shard.header.file_bytes:
            self._refuse_size(shard, stat.st_size)
        if stat.st_mtime_ns != shard.modified_ns:
            raise IntegrityError(
                f"{shard.path}: replaced or written to since the loader opened; begin again from a state"
            )
        # Some network file systems number files anew at each look: another inode alone decides nothing.
        if stat.st_ino != shard.inode and read_shard_file(shard.path).sample != shard.sample:
            raise IntegrityError(f"{shard.path}: replaced since the loader opened; begin again from a saved state")

    def _check_size(self, index: int, needed: int) -> None:
        """After a short read: raise IntegrityError if this shard is the one that ends before byte `needed`."""
        size = os.fstat(self._open[index].descriptor).st_size
        if size < needed:
            self._refuse_size(self.shards[index], size)

    def _refuse_size(self, shard: ShardFile, size: int) -> None:
        expected = shard.header.file_bytes
        raise IntegrityError(
            f"{shard.path}: {'cut short' if size < expected else 'grown'} from {expected:,} to {size:,} bytes since "
            "the loader opened"
        )

    def _trim(self) -> None:
        while len(self._open) > self._max_open:
            os.close(self._open.popitem(last=False)[1].descriptor)


def open_reader(
    shards: Sequence[ShardFile], *, sequential: bool = True, repeats: bool = True, parts: Sequence[int] = ()
) -> TokenReader:
    """A TokenReader, which reads through the cache if any shard lies behind a URL.

    `sequential`: the shards are read in order; `repeats`: from the first again after the last. `parts`: how many
    shards each source of a mixture has, where there are several.
    """
    if all(shard.origin is None for shard in shards):
        return TokenReader(shards)
    from tokenriver.loader.cached import CachedReader

    return CachedReader(shards, sequential=sequential, repeats=repeats, parts=parts)
