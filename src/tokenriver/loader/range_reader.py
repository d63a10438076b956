"""Byte ranges of open shards: one, several after each other, or many by one system call; short reads are explained."""

from __future__ import annotations

import os
import time
from contextlib import suppress
from functools import cached_property
from typing import TYPE_CHECKING, Any

from tokenriver.errors import IntegrityError
from tokenriver.loader.many_reads import FEWEST, many_reads
from tokenriver.loader.open_shards import OpenShards
from tokenriver.loader.shard_file import named

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    import numpy as np
    from numpy.typing import NDArray

    from tokenriver.loader.many_reads import ManyReads
    from tokenriver.loader.rows import RowGroup, Rows

__all__ = ["RangeReader", "seek_and_read"]


def seek_and_read(descriptor: int, buffers: Sequence[Any], offset: int) -> int:
    """os.preadv for systems without it (Windows): two steps, which the reader's lock makes one."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    done = 0
    for buffer in buffers:
        raw = os.read(descriptor, len(buffer))
        buffer[: len(raw)] = raw
        done += len(raw)
    return done


def _seek_and_get(descriptor: int, size: int, offset: int) -> bytes:
    """os.pread likewise."""
    os.lseek(descriptor, offset, os.SEEK_SET)
    return os.read(descriptor, size)


_preadv: Callable[[int, Sequence[Any], int], int] = getattr(os, "preadv", seek_and_read)
_pread: Callable[[int, int, int], bytes] = getattr(os, "pread", _seek_and_get)


_MOST_BYTES = 1 << 30
"""Of a range that is read with others by one call: the system gives at most 2 GiB of one."""


class RangeReader(OpenShards):
    """Reads ranges of shards' bytes."""

    @cached_property
    def at_once(self) -> ManyReads | None:
        """What reads many ranges by one call; None where the system has no such thing, or it once gave too little."""
        return many_reads()

    def close(self) -> None:
        """As OpenShards, with what the system holds open for reading many ranges at once."""
        super().close()
        self._forget_files()

    def _forget_files(self) -> None:
        """Let the system close the files that it knows for reading many ranges at once, but those being read."""
        known = self.__dict__.get("at_once")
        if known is not None:
            known.let_go()

    def _read_many(
        self,
        shards: NDArray[np.int64],
        offsets: NDArray[np.int64],
        addresses: NDArray[np.uint64],
        sizes: NDArray[np.int64] | int,
        total: int,
        memory: Rows | RowGroup,
        *,
        fewest: int = FEWEST,
    ) -> bool:
        """Read ranges that each lie in one shard by one system call, without the lock, so that threads read at the
        same time. False where that cannot be, or not all of it came: then they are to be read one by one."""
        if isinstance(sizes, int) and sizes > _MOST_BYTES:
            return False
        if len(shards) < fewest or len(self.shards) > self._max_open or (at_once := self.at_once) is None:
            return False
        try:
            files = self._open_now(shards)
            whole = at_once.read(files, shards, offsets, addresses, sizes, total=total, memory=memory)
        except OSError:  # the system gives no more of it, or too few descriptors for the files and it
            whole = False
        if not whole:  # a shard was cut short, which reading range by range tells, or this does not work here
            self.at_once = None
        return whole

    def _read_pieces(self, index: list[int], sizes: list[int], offsets: list[int]) -> list[bytes]:
        """Pieces that each lie in one shard, one system call each; some may come back short."""
        opened = self._open_all(index)
        if opened is None:
            half = len(index) // 2
            parts = self._read_pieces(index[:half], sizes[:half], offsets[:half])
            return parts + self._read_pieces(index[half:], sizes[half:], offsets[half:])
        try:
            return list(map(_pread, [opened[i].descriptor for i in index], sizes, offsets))
        except OSError:
            return [b""] * len(index)  # read again one by one, which says of what shard the error is

    def _complete(self, parts: list[bytes], index: list[int], sizes: list[int], offsets: list[int]) -> None:
        """Read again what came back short, which says what is wrong where it is again."""
        for k, size in enumerate(sizes):
            if len(parts[k]) != size:
                whole = bytearray(size)
                self._read_bytes(index[k], offsets[k], memoryview(whole))
                parts[k] = bytes(whole)

    def _read_inside(
        self, index: list[int], offsets: list[int], buffers: list[list[memoryview]], expected: int
    ) -> None:
        """Ranges that each lie in one shard, `expected` bytes in all: one system call each, no Python between them."""
        opened = self._open_all(index)
        if opened is None:
            half = len(index) // 2
            for part in (slice(0, half), slice(half, len(index))):
                here = index[part]
                self._read_inside(here, offsets[part], buffers[part], expected // len(index) * len(here))
            return
        with suppress(OSError):  # read again one by one, which says of what shard the error is
            if sum(map(_preadv, [opened[i].descriptor for i in index], buffers, offsets)) == expected:
                return
        # The kernel gives at most 2 GiB a call; what came back short is asked for again, and says then what is wrong.
        for i, offset, (view,) in zip(index, offsets, buffers[: len(index)], strict=True):
            self._read_bytes(i, offset, view)

    def _read_bytes(self, index: int, offset: int, view: memoryview) -> None:
        """All bytes of a range of one shard, in as many calls as it takes."""
        descriptor = self._held(index, time.monotonic()).descriptor
        while view:
            try:
                n = _preadv(descriptor, [view], offset)
            except OSError as error:
                raise named(error, self.shards[index].path) from None
            if n == len(view):
                break
            if n == 0:
                self._check_size(index, offset + len(view))
                raise IntegrityError(f"{self.shards[index].path}: a read at byte {offset:,} came back empty; try again")
            view, offset = view[n:], offset + n
