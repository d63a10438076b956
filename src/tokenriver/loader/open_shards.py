"""Shards open for reading: a bounded number of descriptors, each looked at again and again while it is read from."""

from __future__ import annotations

import errno
import os
import threading
import time
from collections import OrderedDict
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.errors import IntegrityError
from tokenriver.loader.access_time import note_access, prepare_reads
from tokenriver.loader.shard_file import OPEN_FLAGS, ShardFile, named, read_shard_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["MAX_OPEN", "OpenNow", "OpenShards", "most_open"]

MAX_OPEN = 128
"""Descriptors kept open, least recently used closed first; far below the usual limit of 1,024 (macOS: 256)."""

_MOST_OPEN = 4096
"""As many are kept open where that is all shards, and at most a quarter of what the process may have."""

_CHECK_EVERY, _CHECK_SHARD = 0.001, 0.0002
"""Seconds between two looks at an open shard's size, times and links while it is being read, and what every open shard
adds: a look (fstat) takes 2 to 4 µs, so that with 128 shards 1 or 2 % of the time goes to it and not a third."""

_LOOK_EVERY = 0.1
"""Seconds between two looks at what has the shard's name (stat, 8 µs), for file systems whose fstat says too little."""

_NOTE_EVERY = 3600.0
"""Seconds after which a shard's time of last access is written again."""


@dataclass(slots=True, eq=False)
class _Open:
    """An open shard, when it was last looked at, and what fstat said of it then; closed when nobody holds it."""

    descriptor: int
    checked: float
    looked: float
    facts: tuple[int, int, int, int]
    pid: int

    def __del__(self) -> None:
        if self.pid == os.getpid():
            os.close(self.descriptor)


@dataclass(slots=True, eq=False)
class OpenNow:
    """The shards that were open at some moment, and stay so while this is held: `descriptors` int32 [shards], −1 for
    those that were not (`all`: none); to be looked at again from `until` on."""

    descriptors: NDArray[np.int32]
    held: tuple[_Open, ...]
    all: bool
    until: float = 0.0


class OpenShards:
    """The descriptors of a reader. `_lock` guards their table: what was asked for stays open while it is held, and
    what `_held` gave as long as somebody refers to it."""

    def __init__(self, shards: Sequence[ShardFile], *, max_open: int) -> None:
        self.shards = tuple(shards)
        self._max_open = max_open
        self._renew()

    def _renew(self) -> None:
        """An empty table of descriptors: at the start, and in a forked child, whose copy of the lock may be held."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._open: OrderedDict[int, _Open] = OrderedDict()
        self._now: OpenNow | None = None
        self._used = np.zeros(len(self.shards), np.bool_)  # since the shards of `_now` were looked at
        self._noted: dict[int, float] = {}

    def close(self) -> None:
        """Close all descriptors; the next read opens what it needs again."""
        if self._pid != os.getpid():
            self._renew()
        with self._lock:
            self._open.clear()
            self._now = None

    def _open_now(self, index: NDArray[np.int64]) -> OpenNow:
        """These shards open, and those that were read from lately; for `max_open` shards in all at most.

        All of them are looked at together, so that they stay the same ones: the system is told of others at a cost.
        """
        found, now = self._now, time.monotonic()
        if found is not None and now < found.until and (found.all or found.descriptors.take(index).min() >= 0):
            self._used[index] = True
            return found
        with self._lock:
            found, every = self._now, _look_every(len(self._open))  # as it is now: another thread may have closed them
            if found is None:  # nothing is open, or may be here no more
                self._used[:] = False
                wanted = self._used.copy()
            elif now < found.until:
                wanted = found.descriptors >= 0
            else:
                wanted, every = self._used.copy(), every / 2
                self._used[:] = False  # a shard that nothing is read from any more goes the next time
            wanted[index] = self._used[index] = True
            held = {i: self._held(i, now, every) for i in np.flatnonzero(wanted).tolist()}
            found = self._now
            if found is None or found.held != tuple(held.values()):
                descriptors = np.full(len(self.shards), -1, np.int32)
                descriptors[list(held)] = [opened.descriptor for opened in held.values()]
                found = self._now = OpenNow(descriptors, tuple(held.values()), len(held) == len(descriptors))
            found.until = min((opened.checked for opened in found.held), default=now) + _look_every(len(self._open))
            return found

    def _open_all(self, index: Sequence[int]) -> dict[int, _Open] | None:
        """The shards of several ranges, open as long as this is held, whatever else is closed meanwhile; None where
        they are more than may be open at a time."""
        wanted, now = set(index), time.monotonic()
        if len(wanted) > self._max_open:
            return None
        try:
            return {i: self._held(i, now) for i in wanted}
        except OSError as error:
            if error.errno != errno.EMFILE or len(wanted) == 1:
                raise
            return None

    def _held(self, index: int, now: float, every: float | None = None) -> _Open:
        """A shard, open, that still is what it was when the loader opened, by a look at it `every` seconds."""
        opened = self._open.get(index)
        if opened is None:
            while len(self._open) >= self._max_open:
                self._open.popitem(last=False)
            descriptor = self._reopened(index)
            opened = self._open[index] = _Open(descriptor, now, now, _facts(descriptor), self._pid)
            return opened
        if len(self.shards) > self._max_open:
            self._open.move_to_end(index)
        if now - opened.checked > (_look_every(len(self._open)) if every is None else every):
            self._look_again(index, opened, now)
        return opened

    def _reopened(self, index: int) -> int:
        """A shard opened; where the process may have no more descriptors, half of those that are open make room, unless
        they are being read from."""
        try:
            return self._reopen(index)
        except OSError as error:
            if error.errno != errno.EMFILE or not self._open:
                raise
        self._max_open = max(1, len(self._open) // 2)
        self._now = None  # it holds them too
        while len(self._open) >= self._max_open:
            self._open.popitem(last=False)
        return self._reopen(index)

    def _look_again(self, index: int, opened: _Open, now: float) -> None:
        """Whether the open file changed, or lost its name to another: then look at what has the name now."""
        try:
            facts = _facts(opened.descriptor)
        except OSError as error:
            raise named(error, self.shards[index].path) from None
        if facts != opened.facts or now - opened.looked > _LOOK_EVERY:
            self._check_path(self.shards[index])
            opened.facts, opened.looked = facts, now
        if now - self._noted.get(index, now) > _NOTE_EVERY:
            note_access(opened.descriptor)
            self._noted[index] = now
        opened.checked = now

    def _reopen(self, index: int) -> int:
        shard = self.shards[index]
        try:
            descriptor = os.open(shard.file, OPEN_FLAGS)
        except FileNotFoundError:
            raise IntegrityError(f"{shard.path}: gone since the loader opened") from None
        try:
            self._check_same(shard, os.fstat(descriptor))
            now = time.monotonic()
            note = now - self._noted.get(index, -_NOTE_EVERY) >= _NOTE_EVERY
            prepare_reads(descriptor, note=note)
            if note:
                self._noted[index] = now
        except BaseException as error:
            os.close(descriptor)
            if isinstance(error, OSError):
                raise named(error, shard.path) from None
            raise
        return descriptor

    def _check_path(self, shard: ShardFile) -> None:
        """What has the shard's name now must be the file that is open."""
        try:
            stat = os.stat(shard.file)  # noqa: PTH116
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
        if stat.st_ino != shard.inode and read_shard_file(shard.file).sample != shard.sample:
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


def most_open(n_shards: int) -> int:
    """How many descriptors a reader of so many shards keeps open: one for each, or where that is too many, few.

    Shards that are all open are read many ranges at a time; where some are opened anew at every batch, a shuffled one
    takes ten times as long.
    """
    try:
        import resource
    except ImportError:  # Windows
        return MAX_OPEN
    may = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    few = n_shards <= (_MOST_OPEN if may == resource.RLIM_INFINITY else min(_MOST_OPEN, may // 4))
    return max(MAX_OPEN, n_shards) if few else MAX_OPEN


def _look_every(n_open: int) -> float:
    """Seconds between two looks at an open shard, one of so many."""
    return _CHECK_EVERY + _CHECK_SHARD * n_open


def _facts(descriptor: int) -> tuple[int, int, int, int]:
    """What changes when an open file is written to, cut, renamed over or deleted."""
    stat = os.fstat(descriptor)
    return stat.st_size, stat.st_mtime_ns, stat.st_ctime_ns, stat.st_nlink
