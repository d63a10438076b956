"""Which shards are in the cache, and threads that bring those that will be needed, the soonest first."""

from __future__ import annotations

import errno
import logging
import threading
import time
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.cache.crew import at_exit
from tokenriver.cache.fetch import CachedShard, fetch
from tokenriver.cache.folder import CacheFullError
from tokenriver.cache.marks import mark_needed
from tokenriver.cache.objects import StoppedError
from tokenriver.errors import IntegrityError
from tokenriver.files import human_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["Keeper"]

_THREADS = 2
_POLL = 0.05
"""Seconds between two looks at a shard that another process is fetching, or for which there is no room yet."""

_SAY_EVERY = 10.0
"""Seconds between two messages of whoever waits for a shard."""

_TOUCH_EVERY = 1.0

_REST = 0.5
"""Seconds for which fetches give way: so that a reader that keeps waiting has the store for itself."""

_AGAIN = 60.0
"""Seconds after which a shard is tried again that could not be fetched and that nobody waits for."""

_LOG = logging.getLogger("tokenriver.cache")


class Keeper:
    """Brings shards into the cache. `here` [n] says which are: those without an entry (local ones) always are.

    The threads know the shards and this object, not the reader; `close` ends them, as does the reader's end.
    """

    def __init__(self, shards: Sequence[CachedShard | None]) -> None:
        self.shards = shards
        self.here = np.array([shard is None for shard in shards], np.bool_)
        self._wanted: list[int] = []
        self._must: frozenset[int] = frozenset()
        self._is_read_only = False
        self._at: set[int] = set()
        self._later: dict[int, float] = {}
        self._errors: dict[int, BaseException] = {}
        self._changed = threading.Condition()
        self._stopped = threading.Event()
        self._threads = 0
        self._touched = self._rest_until = 0.0

    def want(self, wanted: Sequence[int], *, must: bool) -> None:
        """What to fetch from now on, in this order; with `must`, `wait` may be called for them."""
        with self._changed:
            self._wanted = list(wanted)
            self._must = frozenset(wanted) if must and not self._is_read_only else frozenset()
            self._changed.notify_all()
            self._see_to_it()
        self.touch()

    def _see_to_it(self) -> None:
        """Start the threads where there is work for them."""
        missing = not self.here[self._wanted].all()
        while missing and self._threads < _THREADS:
            self._threads += 1
            thread = threading.Thread(target=self._work, name="tokenriver-cache", daemon=True)
            thread.start()
            at_exit(self.close, thread)

    def touch(self) -> bool:
        """Tell all processes that what is wanted is needed soon, the first the soonest; False if that was just done."""
        now = time.time()
        if now - self._touched < max(_TOUCH_EVERY, len(self._wanted) / 100):
            return False
        self._touched = now
        for k, index in enumerate(self._wanted):
            shard = self.shards[index]
            if shard is not None and self.here[index]:
                try:
                    mark_needed(shard.path, int(now * 1e9) - k * 1_000_000)
                except FileNotFoundError:
                    self.lost(index)
        return True

    def give_way(self) -> None:
        """Let fetches of what nobody waits for rest a moment: somebody waits for other bytes of the store."""
        self._rest_until = time.monotonic() + _REST

    def is_fetching(self) -> bool:
        """Whether shards are on their way."""
        return bool(self._at)

    def _take_turn(self) -> None:
        """For the threads: wait while others have precedence."""
        while (left := self._rest_until - time.monotonic()) > 0 and not self._must:
            if self._stopped.wait(left):
                return

    def must(self, index: int) -> bool:
        """Whether a shard is waited for instead of being read by ranges."""
        return index in self._must

    def error(self, index: int) -> IntegrityError | None:
        """What was found wrong with a shard; asked for again, it is tried again."""
        with self._changed:
            error = self._errors.get(index)
            return self._errors.pop(index) if isinstance(error, IntegrityError) else None  # type: ignore[return-value]

    def lost(self, index: int) -> None:
        """A shard is not in the cache any more."""
        with self._changed:
            self.here[index] = self.shards[index] is None
            self._see_to_it()
            self._changed.notify_all()

    def found(self, index: int) -> bool:
        """Look whether another process has brought a shard; whether it is here."""
        shard = self.shards[index]
        if not self.here[index] and shard is not None and shard.is_whole():
            self.here[index] = True
        return bool(self.here[index])

    def wait(self, index: int) -> None:
        """Until a wanted shard is here, or is wanted no more; raises what went wrong, and says what it waits for."""
        begun = said = time.monotonic()
        shard = self.shards[index]
        assert shard is not None
        before, full = shard.bytes_here(), False
        with self._changed:
            while not self.here[index] and index in self._must and not self._stopped.is_set():
                if (error := self._errors.pop(index, None)) is not None:
                    if getattr(error, "errno", None) != errno.ENOSPC or full:
                        raise error
                    full = True  # it may be from before the waiting reader closed what went from the cache
                    self._changed.notify_all()
                self._changed.wait(_SAY_EVERY)
                now = time.monotonic()
                if not self.here[index] and now - said >= _SAY_EVERY:
                    have = shard.bytes_here()
                    speed = (have - before) / (now - said)
                    _LOG.warning(
                        "waiting for %s for %.0f s: %s of %s, %s/s",
                        shard.url,
                        now - begun,
                        human_bytes(have),
                        human_bytes(shard.size),
                        human_bytes(speed),
                    )
                    said, before = now, have
        if self._stopped.is_set():
            raise StoppedError

    def close(self) -> None:
        """Let the threads end: within a range that they are reading, at the latest."""
        self._stopped.set()
        with self._changed:
            self._changed.notify_all()

    @property
    def stopped(self) -> threading.Event:
        """Set once the keeper is closed."""
        return self._stopped

    def _work(self) -> None:
        while not self._stopped.is_set():
            index = self._next()
            if index is not None:
                self._bring(index)

    def _next(self) -> int | None:
        """The wanted shard that is needed soonest and that nobody is at; None after a while without any."""
        with self._changed:
            now = time.monotonic()
            waiting = [i for i in self._wanted if not self.here[i] and i not in self._errors and i not in self._at]
            for index in waiting:
                if self._later.get(index, 0.0) <= now:
                    self._at.add(index)
                    return index
            soonest = min((self._later[i] - now for i in waiting), default=None)
            self._changed.wait(None if soonest is None else max(_POLL, soonest))
            return None

    def _bring(self, index: int) -> None:
        shard = self.shards[index]
        assert shard is not None
        with self._changed:
            sooner = self._wanted[: self._wanted.index(index)] if index in self._wanted else []
        keep = {other.path for i in sooner if (other := self.shards[i]) is not None}
        came, error = False, None
        try:
            came = fetch(shard, stopped=self._stopped, keep=keep, take_turn=self._take_turn)
        except (CacheFullError, StoppedError):
            pass  # it did not come: ranges serve it, or nobody waits any more
        except BaseException as failure:  # handed over whole: whoever waits for the shard raises it
            error = failure
        with self._changed:
            self._at.discard(index)
            self.here[index] = self.here[index] or came
            if self._stopped.is_set():
                return
            if error is not None and _is_refused(error, shard):
                self._is_read_only, self._must = True, frozenset()  # what is not there is read by ranges
            if error is not None and index not in self._must and not isinstance(error, IntegrityError):
                _LOG.warning("%s: not cached, read by ranges: %s", shard.url, error)
                self._later[index] = time.monotonic() + _AGAIN
            elif error is not None:
                self._errors[index] = error
            elif not came:
                self._later[index] = time.monotonic() + _POLL
            self._changed.notify_all()


def _is_refused(error: BaseException, shard: CachedShard) -> bool:
    """Whether an error says that nothing can be written to the cache's folder."""
    if not isinstance(error, OSError) or error.errno not in (errno.EROFS, errno.EACCES, errno.EPERM):
        return False
    return shard.data_set.folder.is_about(error)
