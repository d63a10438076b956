"""Ranges read beside whole shards: who waits most of the time for them leaves the store to the shards."""

from __future__ import annotations

import threading
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tokenriver.cache.objects import AT_ONCE
from tokenriver.loader import ranges
from tokenriver.loader.ranges import RangeReads


class Store:
    """Answers as soon as it may, and keeps what it was asked."""

    def __init__(self) -> None:
        self.may_answer = threading.Event()
        self.may_answer.set()
        self.asked: list[int] = []

    def ranges(self, wanted: list[tuple[str, int, int]], *, stopped: threading.Event, at_once: int) -> list[bytes]:
        assert not stopped.is_set()
        self.asked.append(at_once)
        assert self.may_answer.wait(300)
        return [bytes(range(start, stop)) for _, start, stop in wanted]


@pytest.mark.parametrize("shards_come", [True, False])
def test_a_reader_that_waits_most_of_the_time_asks_for_fewer_ranges_while_shards_come(
    monkeypatch: pytest.MonkeyPatch, shards_come: bool
) -> None:
    clock = [100.0]
    monkeypatch.setattr(ranges.time, "monotonic", lambda: clock[0])
    store, stopped = Store(), threading.Event()
    shard = cast("Any", SimpleNamespace(data_set=SimpleNamespace(objects=store), name="a"))
    reads = RangeReads([shard], stopped=stopped, shards_come=lambda: shards_come)

    def batch(*, away: float, waits: float) -> None:
        reads.ask([(0, 10, 5)])
        clock[0] += away
        store.may_answer.clear()
        timer = threading.Timer(0.01, lambda: (clock.__setitem__(0, clock[0] + waits), store.may_answer.set()))
        timer.start()
        assert reads.take([(0, 10, 5)])[0].tobytes() == bytes(range(10, 15))
        timer.join()
        store.may_answer.set()

    try:
        for _ in range(10):
            batch(away=0.4, waits=0.1)
        assert set(store.asked) == {AT_ONCE}
        store.asked.clear()
        for _ in range(10):
            batch(away=0.1, waits=0.9)
        assert store.asked[-1] == (1 if shards_come else AT_ONCE)
        for _ in range(20):
            batch(away=0.9, waits=0.1)
        assert store.asked[-1] == AT_ONCE
    finally:
        reads.close()
