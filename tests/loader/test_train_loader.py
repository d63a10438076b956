"""The loader's promises: each sequence once an epoch, the same global batches any world, no hang, no wrong token."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_cases import write_documents
from positions import write_data_set

from tokenriver import Batch, IntegrityError, TrainLoader, UsageError, write_shard
from tokenriver.loader.order import ORDERS
from tokenriver.loader.prefetch import Feed
from tokenriver.loader.step_groups import steps_together

DataSet = Callable[..., Path]


def drain(loader: TrainLoader) -> list[Batch]:
    return list(loader)


def global_rows(loaders: list[TrainLoader]) -> list[np.ndarray]:
    """First token of each row of each global batch, the ranks' parts in rank order."""
    parts = [[batch.inputs[:, 0] for batch in loader] for loader in loaders]
    assert len({len(part) for part in parts}) == 1
    return [np.concatenate(step) for step in zip(*parts, strict=True)]


@settings(max_examples=40)
@given(
    sizes=st.lists(st.integers(0, 80), min_size=1, max_size=6),
    seq_len=st.integers(1, 9),
    rows=st.sampled_from([1, 2, 4, 8, 12]),
    order=st.sampled_from(ORDERS),
    seed=st.integers(0, 1000),
    prefetch=st.integers(0, 3),
    wide=st.lists(st.booleans(), min_size=6, max_size=6),
)
def test_each_sequence_comes_once_an_epoch_in_batches_that_no_world_size_changes(
    tmp_path_factory: pytest.TempPathFactory,
    sizes: list[int],
    seq_len: int,
    rows: int,
    order: str,
    seed: int,
    prefetch: int,
    wide: list[bool],
) -> None:
    sizes = [sizes[0] + rows * seq_len + 1, *sizes[1:]]
    variants = ["uint32" if w else "uint16" for w in wide]
    root = write_data_set(tmp_path_factory.mktemp("hypothesis"), sizes, variants=variants)
    total = sum(sizes)
    n_sequences = (total - 1) // seq_len
    seen: dict[int, list[np.ndarray]] = {}
    for world in (w for w in (1, 2, 3, 4, 8) if rows % w == 0):
        loaders = [
            TrainLoader(
                root,
                batch_size=rows // world,
                seq_len=seq_len,
                order=order,
                seed=seed,
                rank=rank,
                world_size=world,
                epochs=2,
                prefetch=prefetch,
            )
            for rank in range(world)
        ]
        seen[world] = global_rows(loaders)
        for loader in loaders:
            loader.close()
    reference = seen.pop(1)
    steps = n_sequences // rows
    assert len(reference) == 2 * steps
    for batches in seen.values():
        assert all(np.array_equal(a, b) for a, b in zip(reference, batches, strict=True))
    for epoch in range(2):
        starts = np.concatenate(reference[epoch * steps : (epoch + 1) * steps])
        assert (starts % seq_len == 0).all()
        assert (starts // seq_len < n_sequences).all()
        assert len(np.unique(starts)) == len(starts) == steps * rows


@pytest.mark.parametrize("order", ORDERS)
def test_targets_are_the_tokens_one_later_across_shards_of_both_widths(data_set: DataSet, order: str) -> None:
    root = data_set([100, 7, 0, 1, 300, 33], variants=["uint16", "uint32"])
    batches = drain(TrainLoader(root, batch_size=2, seq_len=10, order=order, epochs=1))
    assert len(batches) == 22
    for step, batch in enumerate(batches):
        assert (batch.epoch, batch.step, batch.mask) == (0, step, None)
        assert batch.inputs.shape == batch.targets.shape == (2, 10)
        assert batch.inputs.dtype == np.int32
        assert np.array_equal(batch.inputs, batch.inputs[:, :1] + np.arange(10))
        assert np.array_equal(batch.targets, batch.inputs + 1)
        batch.inputs[:] = 0  # the arrays are the consumer's own
        assert batch.targets.all()


def test_int64_is_an_option_and_other_types_are_refused(data_set: DataSet) -> None:
    root = data_set([100])
    assert next(iter(TrainLoader(root, batch_size=1, seq_len=9, dtype="int64"))).targets.dtype == np.int64
    with pytest.raises(UsageError, match="dtype is 'int32' or 'int64'"):
        TrainLoader(root, batch_size=1, seq_len=9, dtype="uint16")


def test_one_token_too_few_is_an_error_with_both_numbers_and_one_more_is_one_step(tmp_path: Path) -> None:
    ids = np.zeros(524_289, np.uint16)
    write_shard(tmp_path / "short.bin", ids[1:])
    write_shard(tmp_path / "just.bin", ids)
    write_shard(tmp_path / "empty.bin", ids[:0])
    options = {"batch_size": 64, "seq_len": 1024, "world_size": 8}
    for rank in range(8):
        with pytest.raises(UsageError, match=r"524,289 tokens .* has 524,288 tokens"):
            TrainLoader(tmp_path / "short.bin", rank=rank, **options)
        assert len(drain(TrainLoader(tmp_path / "just.bin", rank=rank, epochs=1, **options))) == 1
    with pytest.raises(UsageError, match="has 0 tokens"):
        TrainLoader(tmp_path / "empty.bin", rank=0, **options)
    with pytest.raises(UsageError, match=r"needs 1,025 tokens \(a row of 1024 targets, and 1\), but .* 0 tokens"):
        TrainLoader(tmp_path / "empty.bin", rank=0, drop_last=False, **options)


def test_ten_epochs_of_tiny_shards_never_block_and_cover_the_same_sequences(data_set: DataSet) -> None:
    loader = iter(TrainLoader(data_set([30, 30, 30]), batch_size=2, seq_len=4, rank=0, world_size=1))
    passes: dict[int, set[int]] = {}
    done = threading.Event()

    def draw() -> None:
        for _ in range(11 * 10):
            batch = next(loader)
            passes.setdefault(batch.epoch, set()).update(batch.inputs[:, 0].tolist())
        done.set()

    threading.Thread(target=draw, daemon=True).start()
    assert done.wait(300)
    assert sorted(passes) == list(range(10))
    assert all(seen == {4 * i for i in range(22)} for seen in passes.values())


def test_nineteen_shards_over_eight_ranks_give_all_ranks_the_same_number_of_steps(data_set: DataSet) -> None:
    root = data_set([37] * 19)
    loaders = [TrainLoader(root, batch_size=1, seq_len=4, rank=r, world_size=8, epochs=1) for r in range(8)]
    starts = np.concatenate(global_rows(loaders))
    assert len(starts) == len(np.unique(starts)) == 702 // 4 // 8 * 8


def test_the_last_partial_batch_is_padded_and_masked_on_request(data_set: DataSet) -> None:
    root = data_set([10 * 7 + 1])
    for world in (1, 2, 4):
        loaders = [
            TrainLoader(root, batch_size=8 // world, seq_len=7, rank=r, world_size=world, epochs=1, drop_last=False)
            for r in range(world)
        ]
        assert {loader.steps_per_epoch for loader in loaders} == {2}
        rows = []
        for batch in (batch for loader in loaders for batch in loader):
            real = np.ones(len(batch.inputs), bool) if batch.mask is None else batch.mask.all(axis=1)
            assert batch.mask is None or np.array_equal(batch.mask.any(axis=1), real)
            assert not batch.inputs[~real].any()
            assert not batch.targets[~real].any()
            rows += batch.inputs[real, 0].tolist()
        assert sorted(rows) == [7 * i for i in range(10)]
        assert loaders[0].ledger()["padding"] == 6 * 7


@settings(max_examples=30)
@given(n=st.integers(20, 400), seq_len=st.integers(1, 9), rows=st.integers(1, 2), drop_last=st.booleans())
def test_the_ledger_accounts_for_every_token(
    tmp_path_factory: pytest.TempPathFactory, n: int, seq_len: int, rows: int, drop_last: bool
) -> None:
    root = write_data_set(tmp_path_factory.mktemp("ledger"), [n])
    loader = TrainLoader(root, batch_size=rows, seq_len=seq_len, epochs=1, drop_last=drop_last)
    targets = np.concatenate([b.targets[slice(None) if b.mask is None else b.mask[:, 0]].ravel() for b in loader])
    ledger = loader.ledger()
    assert len(targets) == len(np.unique(targets)) == ledger["served"] - 1 == ledger["targets_so_far"]
    assert ledger["tokens"] == n == ledger["served"] + ledger["dropped"]
    assert ledger["dropped"] == ledger["dropped_tail"] + ledger["dropped_batch"]


def test_batch_at_gives_any_batch_without_moving(data_set: DataSet) -> None:
    loader = TrainLoader(data_set([500, 41]), batch_size=3, seq_len=5, epochs=3)
    batches = drain(loader)
    fresh = TrainLoader(loader.data.manifest, batch_size=3, seq_len=5)
    for k in (0, 7, len(batches) - 1, 35, 36):
        for found in (fresh.batch_at(k), fresh.batch_at(batches[k].step, epoch=batches[k].epoch)):
            assert (found.epoch, found.step) == (batches[k].epoch, batches[k].step)
            assert np.array_equal(found.inputs, batches[k].inputs)
            assert np.array_equal(found.targets, batches[k].targets)
    assert (fresh.epoch, fresh.step) == (0, 0)
    with pytest.raises(UsageError, match="0 or more"):
        fresh.batch_at(-1)


def test_iterating_again_goes_on_and_two_iterations_share_one_position(data_set: DataSet) -> None:
    loader = TrainLoader(data_set([401]), batch_size=1, seq_len=10, order="sequential", epochs=1)
    first = [next(iter(loader)).step for _ in range(3)]
    a, b = iter(loader), iter(loader)
    mixed = [next(i).step for i in (a, b, b, a, b)]
    assert first + mixed + [batch.step for batch in loader] == list(range(40))
    assert drain(loader) == []


def test_rank_and_world_come_from_torchrun_unless_given(data_set: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    root = data_set([500])
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    loader = TrainLoader(root, batch_size=1, seq_len=5)
    assert (loader.rank, loader.world_size, loader.global_batch_size) == (2, 4, 4)
    assert TrainLoader(root, batch_size=1, seq_len=5, rank=0, world_size=1).world_size == 1
    monkeypatch.setenv("RANK", "four")
    with pytest.raises(UsageError, match="rank is an integer"):
        TrainLoader(root, batch_size=1, seq_len=5)
    monkeypatch.setenv("RANK", "4")
    with pytest.raises(UsageError, match=r"rank is in \[0, 4\)"):
        TrainLoader(root, batch_size=1, seq_len=5)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"batch_size": 0}, "batch_size is at least 1"),
        ({"seq_len": 0}, "seq_len is at least 1"),
        ({"order": "random"}, "order is one of"),
        ({"seed": -1}, "seed is an integer"),
        ({"epochs": -1}, "epochs is 0 or more"),
        ({"prefetch": -1}, "prefetch is 0 or more"),
        ({"prefetch": 1 << 63}, "prefetch is 0 or more batches, 10,000 at most"),
        ({"split": "test"}, "split is 'train' or 'val'"),
        ({"split": "val"}, "no val shards"),
    ],
)
def test_numbers_that_cannot_work_are_refused(data_set: DataSet, options: dict[str, object], message: str) -> None:
    with pytest.raises(UsageError, match=message):
        TrainLoader(data_set([100]), **({"batch_size": 1, "seq_len": 5} | options))


def new_threads(before: set[threading.Thread]) -> list[threading.Thread]:
    """Prefetching threads that were not there `before`: their number says nothing, since others' may end."""
    return [t for t in set(threading.enumerate()) - before if t.name == "tokenriver-prefetch"]


def ended(threads: list[threading.Thread]) -> bool:
    """Whether all threads end within a while."""
    for thread in threads:
        thread.join(300)
    return not any(thread.is_alive() for thread in threads)


def test_a_dropped_iteration_ends_its_thread(data_set: DataSet) -> None:
    before = set(threading.enumerate())
    loader = TrainLoader(data_set([5000]), batch_size=1, seq_len=5)
    batches = iter(loader)
    next(batches)
    threads = new_threads(before)
    assert len(threads) == 1
    del batches
    assert ended(threads)
    for _ in loader:
        break
    loader.close()
    assert ended(new_threads(before))


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("batch_size", [1, 8])
def test_closing_a_loader_ends_the_threads_of_its_iterations_which_go_on_when_they_are_asked(
    data_set: DataSet, order: str, batch_size: int
) -> None:
    before = set(threading.enumerate())
    loader = TrainLoader(data_set([5000]), batch_size=batch_size, seq_len=5, order=order)
    batches = iter(loader)
    expected = [loader.batch_at(step).inputs.tolist() for step in range(20)]
    found = [next(batches).inputs.tolist() for _ in range(10)]
    threads = new_threads(before)
    assert threads
    loader.close()
    assert ended(threads)
    found += [next(batches).inputs.tolist() for _ in range(10)]
    assert found == expected
    assert pickle.loads(pickle.dumps(loader)).state_dict() == loader.state_dict()


def test_an_interruption_of_handing_back_a_group_of_buffers_costs_no_batch(
    data_set: DataSet, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = TrainLoader(data_set([50_000]), batch_size=8, seq_len=5)
    if not steps_together(loader.assembly):
        pytest.skip("one processor, or no io_uring: buffers come one by one")
    batches = iter(loader)
    steps = [next(batches).step]
    with monkeypatch.context() as patch:
        patch.setattr(Feed, "release", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            steps += (batch.step for batch in batches)
    steps += (next(batches).step for _ in range(10))
    assert steps == list(range(len(steps)))
    assert len(steps) > 11


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_interruption_of_handing_back_a_buffer_costs_no_batch(
    data_set: DataSet, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    batches = iter(TrainLoader(data_set([5000]), batch_size=1, seq_len=5, prefetch=prefetch))
    steps = [next(batches).step]
    for _ in range(3):
        with monkeypatch.context() as patch:
            patch.setattr(Feed, "release", lambda *_: signal.raise_signal(signal.SIGINT))
            with pytest.raises(KeyboardInterrupt):
                next(batches)
        steps.append(next(batches).step)
    assert steps == [0, 1, 2, 3]


def test_an_error_in_the_thread_reaches_the_consumer_each_time_it_asks(data_set: DataSet) -> None:
    root = data_set([5000, 5000])
    loader = TrainLoader(root, batch_size=1, seq_len=5, order="sequential")
    (root / "train-00001.bin").unlink()
    batches = iter(loader)
    for _ in range(999):
        next(batches)
    for _ in range(2):
        with pytest.raises(IntegrityError, match=r"train-00001\.bin: gone"):
            next(batches)
    assert (loader.epoch, loader.step) == (0, 999)


def test_a_pickled_loader_goes_on_where_the_first_one_stood(data_set: DataSet) -> None:
    loader = TrainLoader(data_set([5000]), batch_size=1, seq_len=5)
    batches = iter(loader)
    next(batches)
    copy = pickle.loads(pickle.dumps(loader))
    assert next(iter(copy)).inputs.tolist() == next(batches).inputs.tolist()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:This process .* is multi-threaded:DeprecationWarning")
def test_a_forked_child_goes_on_by_itself(data_set: DataSet) -> None:
    loader = TrainLoader(data_set([5000]), batch_size=1, seq_len=5)
    batches = iter(loader)
    next(batches)
    expected = [loader.batch_at(k).inputs.tolist() for k in (1, 2)]
    child = os.fork()
    if child == 0:
        good = [next(batches).inputs.tolist() for _ in range(2)] == expected
        os._exit(0 if good else 1)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert [next(batches).inputs.tolist() for _ in range(2)] == expected


NUMBERS = ("batch_size", "seq_len", "seed", "prefetch", "epochs")


def test_numpy_s_integers_give_the_same_loader_and_a_state_that_is_json(data_set: DataSet) -> None:
    root = data_set([500])
    given = dict(zip(NUMBERS, (2, 8, 5, 0, 1), strict=True))
    plain = TrainLoader(root, **given)
    other = TrainLoader(root, **{name: np.int64(value) for name, value in given.items()})
    next(iter(plain)), next(iter(other))
    assert json.loads(json.dumps(other.state_dict())) == plain.state_dict()
    assert np.array_equal(other.batch_at(np.int64(3), epoch=np.uint8(0)).inputs, plain.batch_at(3).inputs)


@pytest.mark.parametrize("name", [*NUMBERS, "max_doc_len", "window", "separator", "cu_seqlens"])
@pytest.mark.parametrize("value", [1.5, 2.0, "2", float("nan"), [1]])
def test_what_is_no_whole_number_is_refused_by_name(data_set: DataSet, name: str, value: object) -> None:
    given = {"batch_size": 2, "seq_len": 8, name: value}
    with pytest.raises(UsageError, match=f"{name} is a whole number, not"):
        TrainLoader(data_set([500]), **given)  # type: ignore[arg-type]


@pytest.mark.parametrize("name", NUMBERS)
def test_a_truth_value_is_no_number(data_set: DataSet, name: str) -> None:
    with pytest.raises(UsageError, match=f"{name} is a whole number, not True"):
        TrainLoader(data_set([500]), **{"batch_size": 2, "seq_len": 8, name: True})  # type: ignore[arg-type]


@pytest.mark.parametrize("separator", [-1, 65_536, 2**80])
def test_a_separator_that_no_shard_can_hold_is_refused(data_set: DataSet, separator: int) -> None:
    for packing in ("concat", "best-fit", "bos-aligned"):
        with pytest.raises(UsageError, match=rf"separator={separator} is no id of these shards, which hold ids below"):
            TrainLoader(data_set([500]), batch_size=2, seq_len=8, packing=packing, separator=separator)


def test_a_longest_document_beyond_every_file_is_refused(data_set: DataSet) -> None:
    with pytest.raises(UsageError, match="max_doc_len"):
        TrainLoader(data_set([500]), batch_size=2, seq_len=8, packing="bos-aligned", separator=3, max_doc_len=2**63)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_an_interruption_of_beginning_anew_costs_no_batch(
    data_set: DataSet, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    loader = TrainLoader(data_set([5000]), batch_size=8, seq_len=5, prefetch=prefetch)
    batches = iter(loader)
    next(batches)
    state = loader.state_dict()
    next(batches)
    loader.load_state_dict(state)
    with monkeypatch.context() as patch:
        patch.setattr(type(batches), "_new_feed", lambda *_: signal.raise_signal(signal.SIGINT))
        with pytest.raises(KeyboardInterrupt):
            next(batches)
    assert [next(batches).step for _ in range(3)] == [1, 2, 3]


def test_after_an_error_the_iteration_s_thread_ends_though_the_error_is_kept(tmp_path: Path) -> None:
    paths, ids = write_documents(tmp_path, [20] * 500, shards=1)
    ids[20 * 105] = 7  # no separator
    write_shard(paths[0], ids, variant="uint32")
    before = set(threading.enumerate())
    loader = TrainLoader(paths, batch_size=8, seq_len=19, separator=0, order="sequential", packing="best-fit")
    batches = iter(loader)
    with pytest.raises(IntegrityError, match="2,100 begins a document") as error:
        list(batches)
    assert loader.step == 13
    for thread in set(threading.enumerate()) - before:
        thread.join(300)
    assert set(threading.enumerate()) <= before
    assert error.value.__traceback__ is not None
