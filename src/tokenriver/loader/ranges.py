"""Ranges of shards read from the store into memory: asked for ahead, neighbours in one request, taken once."""

from __future__ import annotations

import math
import threading
import time
from functools import partial
from typing import TYPE_CHECKING

from tokenriver.cache.crew import Crew
from tokenriver.cache.objects import AT_ONCE

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from concurrent.futures import Future

    from tokenriver.cache.fetch import CachedSet, CachedShard

__all__ = ["Range", "RangeReads"]

_GAP = 32 << 10
"""Bytes between two ranges up to which they are one request: cheaper to send than to ask again."""

_LONGEST = 4 << 20
_THREADS = 16
"""Batches whose ranges are on their way at the same time, all that are asked for ahead: of 4 rows each and 30 ms to an
answer 4 threads gave 400 rows a second, 16 give 1,100."""

_HUNGRY = 0.4
"""Share of the time spent waiting for ranges from which on whole shards are worth more: a reader that gets 0.6 of what
it could take loses more by shards that come at a fifth of their speed than by fewer rows until they are here."""

_MEMORY = 2.0
"""Seconds over which that share is averaged."""

Range = tuple[int, int, int]
"""(shard, first byte, number of bytes)."""

_Place = tuple["Future[list[bytes]]", int, int]
"""(answers, which of them, first byte in it)."""


class RangeReads:
    """Reads ranges of cached shards' objects. `ask` begins, `take` gives the bytes (asking for what nobody asked for),
    `forget` drops what was asked for in vain.

    `shards_come` says whether whole shards are on their way at the moment. A reader that waits for ranges most of the
    time asks for fewer beside them: a single one for each batch.
    """

    def __init__(
        self,
        shards: Sequence[CachedShard | None],
        *,
        stopped: threading.Event,
        shards_come: Callable[[], bool] = lambda: False,
    ) -> None:
        self._shards, self._stopped, self._shards_come = shards, stopped, shards_come
        self._waits, self._noted = 0.0, time.monotonic()
        self._crew = Crew(_THREADS, "tokenriver-ranges")
        self._asked: dict[Range, list[_Place]] = {}
        self._lock = threading.Lock()

    def ask(self, wanted: Sequence[Range]) -> list[Range]:
        """Begin to read ranges, all of them at the same time; gives them back, for `forget`."""
        at_once = 1 if self._waits > _HUNGRY and self._shards_come() else AT_ONCE
        for origin, merged, members in self._by_set(wanted):
            read = partial(origin.objects.ranges, merged, stopped=self._stopped, at_once=at_once)
            answers = self._crew.submit(read)
            with self._lock:
                for one, k, at in members:
                    self._asked.setdefault(one, []).append((answers, k, at))
        return list(wanted)

    def take(self, wanted: Sequence[Range]) -> list[memoryview]:
        """The bytes of ranges, in the order given. Raises what the store raised."""
        begun = time.monotonic()
        found: list[memoryview | None] = [None] * len(wanted)
        places = [self._pop(one) for one in wanted]
        missing = [one for one, place in zip(wanted, places, strict=True) if place is None]
        if missing:
            self.ask(missing)
            places = [self._pop(one) if place is None else place for one, place in zip(wanted, places, strict=True)]
        for n, (one, place) in enumerate(zip(wanted, places, strict=True)):
            assert place is not None
            answers, k, at = place
            found[n] = memoryview(answers.result()[k])[at : at + one[2]]
        self._note_wait(begun, time.monotonic())
        return found  # type: ignore[return-value]

    def _note_wait(self, begun: float, ended: float) -> None:
        """Keep the share of the time that is spent waiting."""
        elapsed = max(ended - self._noted, 1e-6)
        self._waits += (min(1.0, (ended - begun) / elapsed) - self._waits) * -math.expm1(-elapsed / _MEMORY)
        self._noted = ended

    def forget(self, asked: Sequence[Range]) -> None:
        """Drop what nobody will take."""
        for one in asked:
            self._pop(one)

    def close(self) -> None:
        """End the threads, and let go of all bytes."""
        self._crew.close()
        with self._lock:
            self._asked.clear()

    def _pop(self, one: Range) -> _Place | None:
        with self._lock:
            places = self._asked.get(one)
            if not places:
                return None
            place = places.pop(0)
            if not places:
                del self._asked[one]
            return place

    def _by_set(
        self, wanted: Sequence[Range]
    ) -> list[tuple[CachedSet, list[tuple[str, int, int]], list[tuple[Range, int, int]]]]:
        """Requests for each data set, and for each range the request that it is in, and where."""
        found: dict[int, tuple[CachedSet, list[tuple[str, int, int]], list[tuple[Range, int, int]]]] = {}
        last: tuple[int, int, int] | None = None
        for one in sorted(wanted):
            index, start, size = one
            shard = self._shards[index]
            assert shard is not None
            _, merged, members = found.setdefault(id(shard.data_set), (shard.data_set, [], []))
            near = last is not None and last[0] == index and start - last[2] <= _GAP and start - last[1] < _LONGEST
            if near and last is not None:
                last = (index, last[1], max(last[2], start + size))
                merged[-1] = (shard.name, last[1], last[2])
            else:
                last = (index, start, start + size)
                merged.append((shard.name, start, start + size))
            members.append((one, len(merged) - 1, start - last[1]))
        return list(found.values())
