"""Many ranges of open files read by one system call, outside the interpreter's lock: Linux's io_uring.

64 random rows are 64 `pread` calls, each of which gives the interpreter's lock away and takes it back, so that two
threads reading at the same time gain nothing. Handed to the kernel in one piece the same reads take 0.75 of the time,
and two threads half of that; what is not in the page cache is read from the disk at the same time. Nothing is mapped,
so a file that is cut short gives a short read, as with pread. Where the system has no io_uring, or refuses it (some
containers do), `many_reads` gives None, and ranges are read one by one.
"""

from __future__ import annotations

import ctypes
import errno
import mmap
import os
import sys
from functools import partial
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.loader.open_shards import OpenNow

__all__ = ["FEWEST", "ManyReads", "many_reads"]

FEWEST = 8
"""Ranges from which on one call for all is worth its preparation."""

_CAPACITY = 512
"""Reads given to the kernel at a time."""

# linux/io_uring.h. The numbers of these system calls are the same on every architecture.
_SETUP, _ENTER, _REGISTER = 425, 426, 427
_GET_EVENTS, _READ, _FIXED_FILE, _REGISTER_FILES, _UNREGISTER_FILES = 1, 22, 1, 2, 3
_REQUESTS_AT = 0x10000000
_REQUEST = np.dtype(
    [
        ("operation", "u1"),
        ("flags", "u1"),
        ("priority", "u2"),
        ("file", "i4"),
        ("offset", "i8"),
        ("address", "u8"),
        ("size", "u4"),
        ("read_flags", "u4"),
        ("data", "u8"),
        ("rest", "u8", 3),
    ]
)
_RESULT = np.dtype([("data", "u8"), ("result", "i4"), ("flags", "u4")])
_PARAMETERS = np.dtype(
    [
        ("n_requests", "u4"),
        ("n_results", "u4"),
        ("flags", "u4", 8),
        # Where in the rings' memory: head, tail, mask, entries, flags, dropped, array; then two more.
        ("requests", "u4", 10),
        # head, tail, mask, entries, overflow, results; then four more.
        ("results", "u4", 10),
    ]
)


class ManyReads:
    """Reads of many ranges at once, by any number of threads; each has a queue of the kernel's to itself meanwhile."""

    def __init__(self) -> None:
        self._idle = [_Queue()]
        self._pid = os.getpid()

    def read(
        self,
        files: OpenNow,
        index: NDArray[np.int64],
        offsets: NDArray[np.int64],
        addresses: NDArray[np.uint64],
        sizes: NDArray[np.int64] | int,
        *,
        total: int,
        memory: object,
    ) -> bool:
        """Read sizes[k] bytes from offsets[k] of file index[k] on to addresses[k] in `memory`, `total` in all; whether
        they all came. Raises OSError when no further queue can be had.
        """
        if self._pid != os.getpid():  # a forked child must not touch its parent's queues
            self.__init__()  # type: ignore[misc]
        idle = self._idle
        try:
            queue = idle.pop()
        except IndexError:
            queue = _Queue()
        queue.know(files)
        queue.memory = memory
        if len(offsets) <= _CAPACITY:
            done = queue.read(index, offsets, addresses, sizes)
        else:
            done = 0
            for begin in range(0, len(offsets), _CAPACITY):
                part = slice(begin, begin + _CAPACITY)
                own_sizes = sizes if isinstance(sizes, int) else sizes[part]
                done += queue.read(index[part], offsets[part], addresses[part], own_sizes)
        queue.memory = None
        idle.append(queue)  # one that was interrupted is not used again
        return done == total

    def let_go(self) -> None:
        """Close the queues, which hold the files open that they know."""
        self._idle = []


class _Queue:
    """A pair of rings in memory shared with the kernel: requests go in by one, results come out of the other."""

    memory: object = None
    """What is written to while reads are under way, which must not go before they are done."""

    def __init__(self) -> None:
        parameters = np.zeros(1, _PARAMETERS)
        self._ring = _setup(_CAPACITY, parameters.ctypes.data)
        if self._ring < 0:
            raise OSError(ctypes.get_errno(), "io_uring_setup")
        self._pid = os.getpid()
        found = {name: parameters[name][0].tolist() for name in _PARAMETERS.names or ()}
        n, n_results, requests, results = (found[k] for k in ("n_requests", "n_results", "requests", "results"))
        rings = mmap.mmap(self._ring, max(requests[6] + 4 * n, results[5] + _RESULT.itemsize * n_results))
        table = np.frombuffer(mmap.mmap(self._ring, n * _REQUEST.itemsize, offset=_REQUESTS_AT), _REQUEST, n)
        words = memoryview(rings).cast("I")
        self._begun, self._tail, self._head, self._done = (
            words[k // 4 : k // 4 + 1] for k in (*requests[:2], *results[:2])
        )
        self._chosen = np.frombuffer(rings, np.uint32, n, requests[6])
        self._results = np.frombuffer(rings, _RESULT, n_results, results[5])["result"]
        table["operation"] = _READ
        self._index, self._offsets, self._addresses, self._sizes = (
            table[name] for name in ("file", "offset", "address", "size")
        )
        # Entry 0 of the table is the first request wherever the ring stands: what it chooses is turned back by that.
        self._turned = np.arange(2 * n, dtype=np.uint32) % n
        table["flags"] = _FIXED_FILE
        self._files: OpenNow | None = None
        self._last: NDArray[np.uint64] | None = None
        self._at = -1
        self._given = 0

    def know(self, files: OpenNow) -> None:
        """Let requests name these files by their places in the table: threads that name the same descriptors wait for
        each other at every read, a tenth of the time."""
        if self._files is files:
            return
        table = files.descriptors
        if self._files is not None:
            _register(self._ring, _UNREGISTER_FILES, None, 0)
        self._files = None
        if _register(self._ring, _REGISTER_FILES, table.ctypes.data, len(table)) < 0:
            raise OSError(ctypes.get_errno(), "io_uring_register")
        self._files = files

    def read(
        self,
        index: NDArray[np.int64],
        offsets: NDArray[np.int64],
        addresses: NDArray[np.uint64],
        sizes: NDArray[np.int64] | int,
    ) -> int:
        """Bytes read, of at most _CAPACITY ranges; fewer than all where a read came back short, or with an error."""
        n = len(offsets)
        self._index[:n] = index
        self._offsets[:n] = offsets
        if self._last is not addresses:  # a buffer's rows have the same places and sizes, batch after batch
            self._addresses[:n] = addresses
            self._sizes[:n] = sizes
            self._last = addresses
        start = self._given
        if self._at != start % _CAPACITY:
            self._at = start % _CAPACITY
            self._chosen[:] = self._turned[_CAPACITY - self._at : 2 * _CAPACITY - self._at]
        self._given = (start + n) % (1 << 32)
        self._tail[0] = self._given
        _enter(self._ring, n, n, _GET_EVENTS, None, 0)
        self._wait()
        first = start % len(self._results)
        total = int(self._results[first : first + n].sum())
        if first + n > len(self._results):
            total += int(self._results[: first + n - len(self._results)].sum())
        return total

    def _wait(self) -> None:
        """Until all that was given has come back; a signal may have ended the call before. Raises OSError where the
        system did not take all of it, when nothing is under way any more."""
        refused = 0
        while self._done[0] != self._given:
            left, done = ((self._given - word[0]) % (1 << 32) for word in (self._begun, self._done))
            if _enter(self._ring, left, done, _GET_EVENTS, None, 0) < 0 and ctypes.get_errno() != errno.EINTR:
                refused = ctypes.get_errno()
                self._given = self._tail[0] = self._begun[0]
        self._head[0] = self._given
        if refused:
            raise OSError(refused, "io_uring_enter")

    def __del__(self) -> None:
        if getattr(self, "_ring", -1) < 0:
            return
        try:
            if self._pid == os.getpid() and self.memory is not None:
                self._wait()  # what is under way writes to memory that goes now
        finally:
            os.close(self._ring)


def many_reads() -> ManyReads | None:
    """Reads of many ranges at once, None where the system has no such thing."""
    if sys.platform != "linux" or sys.byteorder != "little" or ctypes.sizeof(ctypes.c_void_p) != 8:
        return None
    try:
        return ManyReads()
    except OSError:  # too old, or refused here: pread does as well
        return None


def _system_call(number: int, *arguments: Any) -> Any:
    """A function for a system call that the C library has none for; −1 for an error, whose number is in errno."""
    call = ctypes.CDLL(None, use_errno=True)["syscall"]
    call.argtypes, call.restype = (ctypes.c_long, *arguments), ctypes.c_long
    return partial(call, number)


if sys.platform == "linux":
    _register = _system_call(_REGISTER, ctypes.c_int, ctypes.c_uint, ctypes.c_void_p, ctypes.c_uint)
    _setup = _system_call(_SETUP, ctypes.c_uint, ctypes.c_void_p)
    _enter = _system_call(
        _ENTER, ctypes.c_int, ctypes.c_uint, ctypes.c_uint, ctypes.c_uint, ctypes.c_void_p, ctypes.c_size_t
    )
