"""Making ahead: in order, by the thread only where the taker is away, and arrays used again only when let go."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path

import numpy as np
import pytest

from tokenriver import TrainLoader
from tokenriver.loader import prefetch
from tokenriver.loader.prefetch import Feed
from tokenriver.loader.recycle import Recycled

DataSet = Callable[..., Path]


def numbers(makers: list[str], n: int = 1000, fail_at: int | None = None) -> Feed[int, list[int], int]:
    def fill(slot: list[int], item: int, _ahead: bool) -> int:
        makers.append(threading.current_thread().name)
        if item == fail_at:
            raise ValueError(item)
        slot[0] = item
        return item

    return Feed(iter(range(n)), fill, [[0], [0]], threaded=True)


def drawn(feed: Feed[int, list[int], int]) -> Iterator[int]:
    while (taken := feed.take()) is not None:
        slot, made = taken
        assert slot[0] == made
        feed.release(slot)
        yield made


@pytest.mark.parametrize("hand_over", [-1.0, 30e-6, 1.0])
def test_whoever_makes_them_batches_come_in_order_and_once(monkeypatch: pytest.MonkeyPatch, hand_over: float) -> None:
    monkeypatch.setattr(prefetch, "_HAND_OVER", hand_over)
    assert list(drawn(numbers([]))) == list(range(1000))


def test_a_taker_that_is_never_away_makes_its_batches_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prefetch, "_HAND_OVER", 1.0)
    makers: list[str] = []
    list(drawn(numbers(makers)))
    assert makers.count("tokenriver-prefetch") <= 2  # those made before the first was asked for
    monkeypatch.setattr(prefetch, "_HAND_OVER", -1.0)
    away: list[str] = []
    feed = numbers(away)
    for _ in islice(drawn(feed), 100):
        while feed._work.free and not feed._work.idle:
            pass
    assert away.count("tokenriver-prefetch") > 50


@pytest.mark.parametrize("hand_over", [-1.0, 1.0])
def test_an_error_comes_after_the_batches_before_it(monkeypatch: pytest.MonkeyPatch, hand_over: float) -> None:
    monkeypatch.setattr(prefetch, "_HAND_OVER", hand_over)
    made = drawn(numbers([], fail_at=7))
    assert list(islice(made, 7)) == list(range(7))
    with pytest.raises(ValueError, match="7"):
        next(made)


class Slow:
    """Filling that takes as long as it is told, and counts who did it."""

    def __init__(self, fail_at: int | None = None) -> None:
        self.makers: list[str] = []
        self.fail_at = fail_at
        self.at_once = self.most = 0
        self.lock = threading.Lock()

    def __call__(self, slot: list[int], item: int, _ahead: bool) -> int:
        with self.lock:
            self.makers.append(threading.current_thread().name)
            self.at_once += 1
            self.most = max(self.most, self.at_once)
        threading.Event().wait(0.0001 * (item % 7))
        slot[0] = item
        with self.lock:
            self.at_once -= 1
        if item == self.fail_at:
            raise ValueError(item)
        return item


@pytest.mark.parametrize("n_slots", [1, 2, 4])
def test_two_makers_work_at_the_same_time_and_in_order(n_slots: int) -> None:
    fill = Slow()
    feed = Feed(iter(range(400)), fill, [[0] for _ in range(n_slots)], threaded=True, makers=2)
    assert list(drawn(feed)) == list(range(400))
    assert fill.most == min(2, n_slots)
    assert len(fill.makers) == 400
    assert len(set(fill.makers)) == 2 or n_slots == 1
    assert feed.take() is None


@pytest.mark.parametrize("fail_at", [0, 1, 50, 51])
def test_of_two_makers_an_error_comes_after_the_batches_before_it(fail_at: int) -> None:
    feed = Feed(iter(range(400)), Slow(fail_at), [[0] for _ in range(4)], threaded=True, makers=2)
    made = drawn(feed)
    assert list(islice(made, fail_at)) == list(range(fail_at))
    with pytest.raises(ValueError, match=str(fail_at)):
        next(made)


def test_an_error_of_the_items_comes_after_those_before_it() -> None:
    def items() -> Iterator[int]:
        yield from range(30)
        raise ValueError("no more")

    for makers in (1, 2):
        made = drawn(Feed(items(), Slow(), [[0] for _ in range(4)], threaded=True, makers=makers))
        assert list(islice(made, 30)) == list(range(30))
        with pytest.raises(ValueError, match="no more"):
            next(made)


def test_ctrl_c_while_the_taker_makes_a_batch_does_not_wait_for_the_thread() -> None:
    started, go_on = threading.Event(), threading.Event()

    def fill(_slot: list[int], item: int, _ahead: bool) -> int:
        if threading.current_thread() is threading.main_thread():
            raise KeyboardInterrupt
        started.set()
        go_on.wait(300)
        return item

    feed = Feed(iter(range(10)), fill, [[0] for _ in range(4)], threaded=True, makers=2)
    assert started.wait(300)
    with pytest.raises(KeyboardInterrupt):
        feed.take()
    go_on.set()
    assert feed.take() is None


def test_an_array_is_used_again_only_when_nothing_refers_to_it() -> None:
    pool = Recycled((2, 3), np.dtype(np.int32), kept=4)
    inputs, targets = pool.take()
    first = inputs.ctypes.data
    part = inputs.reshape(-1)[1:]
    del inputs
    held = {pool.take()[0].ctypes.data for _ in range(3)}
    assert first not in held
    part[:] = 7
    view = memoryview(part)
    del part, targets
    assert pool.take()[0].ctypes.data != first
    del view
    assert pool.take()[0].ctypes.data == first


@pytest.mark.parametrize("prefetch_batches", [0, 2])
def test_batches_that_are_kept_keep_their_content(data_set: DataSet, prefetch_batches: int) -> None:
    loader = TrainLoader(data_set([3000]), batch_size=2, seq_len=5, epochs=1, prefetch=prefetch_batches)
    halves = [(b.inputs[0] if b.step % 2 else b.targets[1:], loader.batch_at(b.step)) for b in loader if b.step % 5]
    for k, (kept, again) in enumerate(halves):
        expected = again.inputs[0] if again.step % 2 else again.targets[1:]
        assert np.array_equal(kept, expected), k


def test_a_forked_child_takes_arrays_though_a_thread_of_its_parent_was_just_taking_one() -> None:
    pool = Recycled((2, 3), np.dtype(np.int32), kept=4)
    with pool._lock:
        pid = os.fork()
        if pid == 0:
            signal.signal(signal.SIGALRM, signal.SIG_DFL)
            signal.alarm(300)  # a lock that nobody gives back would be waited for without end
            os._exit(0 if pool.take()[0].shape == (2, 3) else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
