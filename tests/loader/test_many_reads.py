"""Many ranges by one system call, and several batches together: the same ids as range by range, and the same errors."""

from __future__ import annotations

import ctypes
import errno
import os
import pickle
import resource
import threading
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing_cases import SEPARATOR, write_documents

from tokenriver import Batch, IntegrityError, Mixture, TrainLoader
from tokenriver.loader import many_reads as module
from tokenriver.loader import open_shards, range_reader, step_groups
from tokenriver.loader.many_reads import ManyReads, many_reads
from tokenriver.loader.open_shards import OpenNow

DataSet = Callable[..., Path]
REFUSED = many_reads() is None
MODES: list[tuple[str, int | None]] = [("best-fit", None), ("bos-aligned", None), ("bos-aligned", 20)]
needs_ring = pytest.mark.skipif(REFUSED, reason="io_uring is missing or refused here")


@pytest.fixture
def files(tmp_path: Path) -> Iterator[OpenNow]:
    """Three files of random bytes, and a place without one."""
    rng = np.random.default_rng(0)
    descriptors = []
    for k in range(3):
        (tmp_path / f"{k}").write_bytes(rng.bytes(100_000))
        descriptors.append(os.open(tmp_path / f"{k}", os.O_RDONLY))
    yield OpenNow(np.array([*descriptors, -1], np.int32), (), all=False)
    for descriptor in descriptors:
        os.close(descriptor)


def read(reads: ManyReads, files: OpenNow, n: int, *, seed: int, one_size: bool = False) -> tuple[bool, bytes, bytes]:
    """n random ranges: whether all came, what came, and what pread gives."""
    rng = np.random.default_rng(seed)
    index, sizes = rng.integers(0, 3, n), rng.integers(1, 3000, n)
    if one_size:
        sizes[:] = 2050
    offsets, ends = rng.integers(0, 97_000, n), np.cumsum(sizes)
    memory = np.zeros(int(ends[-1]), np.uint8)
    addresses = (memory.ctypes.data + ends - sizes).astype(np.uint64)
    all_sizes = 2050 if one_size else sizes
    whole = reads.read(files, index, offsets, addresses, all_sizes, total=int(ends[-1]), memory=memory)
    parts = zip(index.tolist(), sizes.tolist(), offsets.tolist(), strict=True)
    return whole, memory.tobytes(), b"".join(os.pread(files.descriptors[i], size, at) for i, size, at in parts)


@needs_ring
def test_any_number_of_ranges_comes_as_from_pread(files: OpenNow) -> None:
    reads = ManyReads()
    for seed, n in enumerate([1, 64, 511, 512, 513, 1500, 3, *range(100, 140)]):
        whole, found, expected = read(reads, files, n, seed=seed, one_size=seed % 2 == 1)
        assert whole
        assert found == expected


@needs_ring
def test_the_rings_may_turn_over_and_their_counts_too(files: OpenNow) -> None:
    reads = ManyReads()
    for seed in range(200):
        whole, found, expected = read(reads, files, 37, seed=seed)
        assert (whole, found) == (True, expected)
    queue = reads._idle[0]
    assert queue._given == 37 * 200
    assert queue._head[0] == queue._done[0] == queue._given


@needs_ring
def test_many_threads_have_a_queue_each(files: OpenNow) -> None:
    reads, results = ManyReads(), []

    def work(seed: int) -> None:
        results.extend(read(reads, files, 200, seed=1000 * seed + k) for k in range(30))

    threads = [threading.Thread(target=work, args=(seed,)) for seed in range(5)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(results) == 150
    assert all(whole and found == expected for whole, found, expected in results)
    assert 1 <= len(reads._idle) <= 5


@needs_ring
def test_a_range_behind_a_file_s_end_or_of_no_file_is_not_whole(files: OpenNow) -> None:
    reads, memory = ManyReads(), np.zeros(200, np.uint8)
    addresses = np.array([memory.ctypes.data, memory.ctypes.data + 100], np.uint64)
    for index, offsets in (([0, 1], [50, 99_950]), ([0, 1], [200_000, 0]), ([0, 3], [0, 0])):
        done = reads.read(files, np.array(index), np.array(offsets), addresses, 100, total=200, memory=memory)
        assert not done
    assert reads.read(files, np.array([0, 1]), np.array([0, 99_900]), addresses, 100, total=200, memory=memory)


@needs_ring
def test_a_forked_child_makes_queues_of_its_own(files: OpenNow) -> None:
    reads = ManyReads()
    assert read(reads, files, 50, seed=1)[0]
    pid = os.fork()
    if pid == 0:
        whole, found, expected = read(reads, files, 50, seed=2)
        os._exit(0 if whole and found == expected and reads._pid == os.getpid() else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    whole, found, expected = read(reads, files, 50, seed=3)
    assert (whole, found) == (True, expected)


def test_where_the_system_refuses_there_is_none(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "_setup", lambda *_: -1)
    assert many_reads() is None
    monkeypatch.setattr(module.sys, "platform", "darwin")
    assert many_reads() is None


def content(loader: TrainLoader, n: int = 10**6) -> list[tuple[Any, ...]]:
    return [facts(batch) for batch in islice(loader, n)]


def facts(b: Batch) -> tuple[Any, ...]:
    mask, borders = (None if x is None else x.tolist() for x in (b.mask, b.cu_seqlens))
    return b.epoch, b.step, b.inputs.tolist(), b.targets.tolist(), mask, borders


@pytest.mark.parametrize(("drop_last", "cpus"), [(True, 2), (False, 2), (False, 1)])
def test_batches_read_together_are_those_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, drop_last: bool, cpus: int
) -> None:
    monkeypatch.setattr(step_groups, "available_cpus", lambda: cpus)
    lengths = np.random.default_rng(5).integers(1, 60, 400).tolist()
    paths, _ = write_documents(tmp_path, lengths, shards=5)
    shape: dict[str, Any] = {"batch_size": 8, "seq_len": 16, "separator": SEPARATOR, "drop_last": drop_last}
    modes: list[dict[str, Any]] = [{}, {"cu_seqlens": True}]
    modes += [{"packing": packing, "max_doc_len": most, "window": 100} for packing, most in MODES]
    for mode in modes:
        for order in ("shuffled", "sequential"):
            words = {**shape, **mode, "order": order, "epochs": 2}
            found = content(TrainLoader(paths, **words))
            with monkeypatch.context() as patch:
                patch.setattr(range_reader, "many_reads", lambda: None)
                alone = TrainLoader(paths, **words)
                assert content(alone) == found
            loader = TrainLoader(paths, **words, prefetch=0)
            assert [facts(loader.batch_at(step, epoch=epoch)) for epoch, step, *_ in found] == found


def test_a_mixture_s_batches_read_together_are_those_read_one_by_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, _ = write_documents(tmp_path, [30] * 200, shards=2)
    words: dict[str, Any] = {"batch_size": 8, "seq_len": 16, "separator": SEPARATOR}
    mixture = Mixture({"a": {"path": str(paths[0]), "weight": 3}, "b": {"path": str(paths[1]), "weight": 1}})
    found = content(TrainLoader(mixture, **words), 100)
    monkeypatch.setattr(range_reader, "many_reads", lambda: None)
    assert content(TrainLoader(mixture, **words), 100) == found


def test_a_state_saved_inside_a_group_resumes_at_the_next_batch(data_set: DataSet) -> None:
    root = data_set([40_000])
    expected = content(TrainLoader(root, batch_size=8, seq_len=16), 60)
    loader = TrainLoader(root, batch_size=8, seq_len=16)
    found: list[tuple[Any, ...]] = []
    for count in (1, 2, 3, 5, 6, 7, 9, 10, 17):
        found += content(loader, count)
        state = loader.state_dict()
        loader = pickle.loads(pickle.dumps(loader)) if count % 2 else TrainLoader(root, batch_size=8, seq_len=16)
        loader.load_state_dict(state)
    assert found == expected


@pytest.mark.parametrize("order", ["shuffled", "sequential"])
@pytest.mark.parametrize("prefetch", [0, 1, 5])
def test_a_shard_cut_short_is_named_at_the_batch_that_needs_it(data_set: DataSet, prefetch: int, order: str) -> None:
    root = data_set([5000, 5000])
    words: dict[str, Any] = {"batch_size": 8, "seq_len": 16, "order": order, "prefetch": prefetch, "epochs": 1}
    expected = content(TrainLoader(root, **words))
    loader = TrainLoader(root, **words)
    os.truncate(root / "train-00001.bin", 1024 + 2 * 2500)
    for start in (0, 0) if order == "shuffled" else (0, 39):
        found: list[tuple[Any, ...]] = []
        with pytest.raises(IntegrityError, match=r"train-00001\.bin: cut short"):
            found += (facts(batch) for batch in loader)
        assert found == expected[start : start + len(found)]
        assert (loader.epoch, loader.step) == (0, start + len(found))
        if order == "sequential":
            assert start + len(found) == 39  # the last that needs the first shard alone


def test_a_loader_that_was_closed_holds_no_file_and_can_be_used(data_set: DataSet) -> None:
    loader = TrainLoader(data_set([5000, 5000]), batch_size=8, seq_len=16)
    first = content(loader, 3)
    loader.close()
    assert not loader.reader._open
    assert loader.reader.at_once is None or not loader.reader.at_once._idle
    again = TrainLoader(loader.data.shards[0].path.parent, batch_size=8, seq_len=16)
    assert content(again, 3) == first
    assert content(loader, 1)[0][:2] == (0, 3)


@needs_ring
@pytest.mark.parametrize("at", [1, 2])
def test_a_queue_for_which_the_descriptors_do_not_suffice_leaves_none_behind(
    monkeypatch: pytest.MonkeyPatch, at: int
) -> None:
    maps, made, setup, rings = module.mmap.mmap, [], module._setup, []

    def ring(*words: Any) -> Any:
        rings.append(setup(*words))
        return rings[0]

    def limited(*words: Any, **more: Any) -> Any:
        made.append(words)
        if len(made) == at:
            raise OSError(errno.EMFILE, "Too many open files")
        return maps(*words, **more)

    monkeypatch.setattr(module, "_setup", ring)
    monkeypatch.setattr(module.mmap, "mmap", limited)
    assert many_reads() is None
    with pytest.raises(OSError, match="Bad file descriptor"):
        os.fstat(rings[0])


@needs_ring
@pytest.mark.parametrize("taken", [0, 20, 50])
def test_where_the_system_takes_no_more_reads_nothing_is_under_way(
    files: OpenNow, monkeypatch: pytest.MonkeyPatch, taken: int
) -> None:
    reads, enter, calls = ManyReads(), module._enter, []

    def refuses(ring: int, n: int, *_: Any) -> int:
        calls.append(n)
        if len(calls) == 1:
            return int(enter(ring, taken, 0, 0, None, 0))
        ctypes.set_errno(errno.EPERM)
        return -1

    queue = reads._idle[0]
    monkeypatch.setattr(module, "_enter", refuses)
    if taken < 50:
        with pytest.raises(OSError, match="io_uring_enter"):
            read(reads, files, 50, seed=1)
        assert not reads._idle
    else:
        assert read(reads, files, 50, seed=1)[0]
    assert queue._done[0] == queue._given == queue._tail[0] == taken
    queue.memory = files  # as if it went in the middle: that waits for nothing, and says nothing
    del queue


@needs_ring
def test_a_call_that_a_signal_ended_is_made_again_for_what_is_left(
    files: OpenNow, monkeypatch: pytest.MonkeyPatch
) -> None:
    reads, enter, calls = ManyReads(), module._enter, []

    def interrupted(ring: int, n: int, wait: int, *rest: Any) -> int:
        calls.append((n, wait))
        if len(calls) < 4:
            enter(ring, min(n, 10), 0, 0, None, 0)
            ctypes.set_errno(errno.EINTR)
            return -1
        return int(enter(ring, n, wait, *rest))

    monkeypatch.setattr(module, "_enter", interrupted)
    whole, found, expected = read(reads, files, 50, seed=1)
    assert (whole, found) == (True, expected)
    assert [n for n, _ in calls] == [50, 40, 30, 20]


@needs_ring
def test_a_read_that_came_short_in_one_thread_is_no_error_in_another(
    data_set: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = TrainLoader(data_set([5000]), batch_size=8, seq_len=16)
    expected = facts(loader.batch_at(1))
    open_now = type(loader.reader)._open_now

    def meanwhile(self: Any, index: Any) -> OpenNow:
        self.at_once = None
        return open_now(self, index)

    monkeypatch.setattr(type(loader.reader), "_open_now", meanwhile)
    assert facts(loader.batch_at(1)) == expected


@needs_ring
def test_files_that_another_thread_closes_just_before_a_read_are_opened_again(data_set: DataSet) -> None:
    loader = TrainLoader(data_set([5000, 5000]), batch_size=8, seq_len=16)
    expected = facts(loader.batch_at(1))
    reader, lock = loader.reader, loader.reader._lock

    class CloseFirst:
        def __enter__(self) -> None:
            reader._lock = lock
            reader.close()
            lock.acquire()

        def __exit__(self, *_: object) -> None:
            lock.release()

    for until in (0.0, float("inf")):
        assert reader._now is not None
        reader._now.until = until
        reader._lock = CloseFirst()  # type: ignore[assignment]
        assert facts(loader.batch_at(1)) == expected
        assert reader.at_once is not None


@needs_ring
def test_where_descriptors_do_not_suffice_for_shards_and_queues_rows_are_read_one_by_one(
    data_set: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = TrainLoader(data_set([5000, 5000]), batch_size=8, seq_len=16)
    expected = facts(loader.batch_at(1))

    def too_many(*_: object) -> OpenNow:
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(type(loader.reader), "_open_now", too_many)
    assert facts(loader.batch_at(1)) == expected
    assert loader.reader.at_once is None


def test_a_shard_that_was_read_to_its_end_may_go(data_set: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(open_shards, "_CHECK_EVERY", 0.0)
    monkeypatch.setattr(open_shards, "_CHECK_SHARD", 0.0)
    for prefetch in (0, 2):
        root = data_set([5000, 5000])
        words: dict[str, Any] = {"batch_size": 8, "seq_len": 16, "order": "sequential", "epochs": 1}
        expected = content(TrainLoader(root, **words))
        batches = iter(TrainLoader(root, **words, prefetch=prefetch))
        found = [facts(batch) for batch in islice(batches, 60)]
        (root / "train-00000.bin").unlink()
        assert found + [facts(batch) for batch in batches] == expected


def test_large_batches_are_not_held_in_groups(data_set: DataSet) -> None:
    root = data_set([50_000])
    small = TrainLoader(root, batch_size=64, seq_len=64)
    assert step_groups.steps_together(small.assembly) in (0, 4)
    small.assembly.seq_len = 1 << 18  # 32 MiB of raw ids a batch
    assert step_groups.steps_together(small.assembly) == 0


@pytest.mark.parametrize("together", [True, False])
@pytest.mark.parametrize("max_open", [128, 20])
@pytest.mark.parametrize("n_ranges", [4, 32, 150])
def test_with_fewer_descriptors_than_shards_some_make_room_for_others(
    data_set: DataSet, monkeypatch: pytest.MonkeyPatch, n_ranges: int, max_open: int, *, together: bool
) -> None:
    root = data_set([4000] * 30, variants=["uint32"])
    words: dict[str, Any] = {"batch_size": n_ranges, "seq_len": 16, "epochs": 1}
    expected = content(TrainLoader(root, **words))
    loader = TrainLoader(root, **words)
    whole, loader.reader._max_open = loader.reader._reopen, max_open
    if not together:
        loader.reader.at_once = None

    def refuse(index: int) -> int:
        if len(live) >= 9:
            raise OSError(errno.EMFILE, os.strerror(errno.EMFILE))
        return whole(index)

    class Counted(open_shards._Open):
        """As the system counts: until it is closed, in the table or not."""

        def __init__(self, *words: Any) -> None:
            super().__init__(*words)
            live.append(self.descriptor)

        def __del__(self) -> None:
            live.remove(self.descriptor)
            super().__del__()

    live: list[int] = []
    monkeypatch.setattr(open_shards, "_Open", Counted)
    monkeypatch.setattr(loader.reader, "_reopen", refuse)
    assert content(loader) == expected
    assert len(loader.reader._open) <= 9


@pytest.mark.parametrize(
    ("n_shards", "may", "kept"),
    [
        (1, 1024, 128),
        (256, 1024, 256),
        (257, 1024, 128),
        (1030, 20_000, 1030),
        (4096, resource.RLIM_INFINITY, 4096),
        (10_000, resource.RLIM_INFINITY, 128),
        (200, 256, 128),
    ],
)
def test_all_shards_stay_open_where_the_process_may_have_four_times_as_many(
    monkeypatch: pytest.MonkeyPatch, n_shards: int, may: int, kept: int
) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (may, may))
    assert open_shards.most_open(n_shards) == kept


@needs_ring
@pytest.mark.parametrize("order", ["shuffled", "sequential"])
def test_hundreds_of_shards_are_read_together(data_set: DataSet, monkeypatch: pytest.MonkeyPatch, order: str) -> None:
    monkeypatch.setattr(resource, "getrlimit", lambda _which: (4096, 4096))
    monkeypatch.setattr(open_shards, "_CHECK_EVERY", 60.0)  # at a look, shards not used lately leave the table
    source = data_set([8000] * 300, variants=["uint32"])
    words: dict[str, Any] = {"batch_size": 16, "seq_len": 16, "order": order}
    reference = TrainLoader(source, **words, prefetch=0)
    reference.reader.at_once = None
    loader = TrainLoader(source, **words)
    known: list[OpenNow] = []
    real = module._Queue.know

    def know(self: Any, files: OpenNow) -> None:
        known.append(files)
        real(self, files)

    monkeypatch.setattr(module._Queue, "know", know)
    for batch, expected in islice(zip(loader, reference, strict=True), 4000):
        assert batch.inputs.tobytes() == expected.inputs.tobytes()
        assert batch.targets.tobytes() == expected.targets.tobytes()
    assert len(known) > 200
    if order == "shuffled":
        assert len(known[-1].held) == 300
        assert len({id(files) for files in known[-100:]}) <= 3, "the system is told of others now and then"
    loader.close()


@needs_ring
def test_rows_over_the_border_of_shards_do_not_keep_others_from_being_read_together(data_set: DataSet) -> None:
    source = data_set([300, 17, 900, 1, 0, 299, 400] * 9, variants=["uint16"])
    words: dict[str, Any] = {"batch_size": 16, "seq_len": 16, "epochs": 3}
    expected = content(TrainLoader(source, **words, prefetch=0))
    loader = TrainLoader(source, **words)
    read, together = loader.reader.read_group, []

    def read_group(wanted: Any, group: Any) -> bool:
        done = read(wanted, group)
        together.append(done and not wanted.inside)
        return done

    loader.reader.read_group = read_group  # type: ignore[method-assign]
    assert content(loader) == expected
    assert sum(together) > len(together) // 2


@needs_ring
def test_a_row_over_a_border_whose_second_shard_was_cut_is_told_at_its_step(data_set: DataSet) -> None:
    root = data_set([400] * 8, variants=["uint16"])
    loader = TrainLoader(root, batch_size=8, seq_len=16, seed=5)
    reference = [facts(loader.batch_at(k)) for k in range(loader.steps_per_epoch)]
    loader.close()
    broken = root / "train-00003.bin"
    os.truncate(broken, broken.stat().st_size - 10)
    found: list[Any] = []
    with pytest.raises(IntegrityError, match=r"train-00003\.bin: cut short"):
        found += (facts(batch) for batch in loader)
    assert found == reference[: len(found)]
    assert loader.step == len(found)


@needs_ring
def test_after_all_were_closed_only_what_is_read_is_opened(data_set: DataSet) -> None:
    reader = TrainLoader(data_set([200] * 12), batch_size=16, seq_len=16).reader
    assert reader._open_now(np.arange(12)).all
    reader.close()
    assert len(reader._open_now(np.array([3, 3])).held) == 1
    assert set(reader._open) == {3}
    assert len(reader._open_now(np.array([3, 5])).held) == 2
