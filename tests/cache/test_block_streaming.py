"""The block-shuffled order over an object store: the batches of local files, each byte sent once, faults waited out."""

from __future__ import annotations

import gc
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest
from positions import write_data_set
from s3_server import Fault

from tokenriver import IntegrityError, TrainLoader
from tokenriver.cache import keeper
from tokenriver.loader import block_order, block_rows, ranges
from tokenriver.loader.cached import CachedReader
from tokenriver.loader.source import resolve

if TYPE_CHECKING:
    from pathlib import Path

    from s3_server import Bucket

SIZES = [12_000, 20_001, 0, 9_000]
OPTIONS: dict[str, Any] = {"batch_size": 16, "seq_len": 8, "order": "block-shuffled"}

pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture(autouse=True)
def few_blocks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forty blocks instead of a thousand: the server takes 5 ms for a request."""
    monkeypatch.setattr(block_order, "_BLOCKS", 40)


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return write_data_set(tmp_path / "data", SIZES)


@pytest.fixture
def url(local: Path, s3: Bucket) -> str:
    return s3.put_folder(local, "sets/blocks")


def rows(loader: TrainLoader, batches: int | None = None) -> list[list[int]]:
    return [batch.inputs[:, 0].tolist() for batch in islice(loader, batches)]


def sent(s3: Bucket) -> int:
    """Bytes of shards that the store has sent, once for each call."""
    return sum({r.call or i: r.sent for i, r in enumerate(s3.server.requests(r"\.bin$"))}.values())


@pytest.mark.parametrize("limit", [None, "60kB", 0])
def test_batches_and_states_are_those_of_local_files(local: Path, url: str, limit: Any) -> None:
    here = TrainLoader(local, epochs=2, drop_last=False, **OPTIONS)
    there = TrainLoader(url, epochs=2, drop_last=False, cache_limit=limit, **OPTIONS)
    for one, other in zip(here, there, strict=True):
        assert np.array_equal(one.inputs, other.inputs)
        assert np.array_equal(one.targets, other.targets)
        assert here.state_dict() == there.state_dict()
    there.close()


def test_four_ranks_have_each_byte_sent_once_without_a_cache(
    url: str, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ranges, "_GAP", 0)  # blocks of 2 kB so near each other would be one request
    s3.server.mend()
    total = []
    for rank in range(4):
        options: dict[str, Any] = {**OPTIONS, "batch_size": 4, "rank": rank, "world_size": 4, "epochs": 1}
        loader = TrainLoader(url, cache_limit=0, **options)
        total += rows(loader)
        loader.close()
    assert len(total) == 4 * (41_000 // 8 // 16)
    data = 2 * sum(SIZES)
    # Lanes begin and end inside blocks, a block has one id of the next, and each loader reads a header.
    assert data < sent(s3) < 1.2 * data + 4 * 1024


def test_a_run_of_one_epoch_leaves_the_cache_alone(url: str, tmp_path: Path) -> None:
    rows(TrainLoader(url, epochs=1, **OPTIONS))
    assert not list((tmp_path / "cache").glob("*/*.bin*"))


def test_later_epochs_come_from_the_cache(local: Path, url: str, s3: Bucket) -> None:
    loader = TrainLoader(url, epochs=3, **OPTIONS)
    expected = rows(TrainLoader(local, epochs=3, **OPTIONS))
    found = rows(loader, loader.steps_per_epoch)
    assert isinstance(loader.reader, CachedReader)
    loader.reader.keeper.want(range(len(SIZES)), must=True)
    for index in range(len(SIZES)):
        loader.reader.keeper.wait(index)
    s3.server.mend()
    assert found + rows(loader) == expected
    assert sent(s3) == 0
    loader.close()


def test_who_streams_more_than_the_cache_holds_in_shuffled_order_is_told_what_is_faster(
    url: str, caplog: pytest.LogCaptureFixture
) -> None:
    said = "room for 1 of 4 shards (86.1 kB in all): rows of the others are read one by one"
    for order, times in (("shuffled", 1), ("block-shuffled", 0), ("sequential", 0)):
        caplog.clear()
        loader = TrainLoader(url, cache_limit="30kB", **{**OPTIONS, "order": order})
        list(islice(loader, 5))
        loader.close()
        assert sum(said in message for message in caplog.messages) == times, (order, caplog.messages)


def test_filling_the_cache_gives_way_to_who_waits_for_a_block(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(keeper, "_REST", 3600.0)
    data = resolve(url, split="train")
    reader = CachedReader(data.shards, order="block-shuffled")
    reader.keeper.give_way()
    turns, waiting = threading.Event(), reader.keeper._take_turn
    monkeypatch.setattr(reader.keeper, "_take_turn", lambda: (turns.set(), waiting()))
    reader.keeper.want([0], must=False)
    assert turns.wait(300), "the thread asked for its turn"
    assert not reader.keeper.here[0]
    reader.keeper.want([0], must=True)  # waited for now, so it has precedence again
    reader.keeper._rest_until = 0.0
    fresh = CachedReader(data.shards, order="block-shuffled")
    fresh.keeper.want([1], must=True)
    fresh.keeper.wait(1)
    assert fresh.keeper.here[1]
    reader.close()
    fresh.close()


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(cut=100), Fault(reset=100)], ids=["503", "cut", "reset"])
def test_a_store_that_fails_is_waited_for(local: Path, url: str, s3: Bucket, fault: Fault) -> None:
    expected = rows(TrainLoader(local, epochs=1, **OPTIONS))
    loader = TrainLoader(url, epochs=1, cache_limit=0, **OPTIONS)
    s3.server.fail(r"\.bin$", fault, fault, fault)
    assert rows(loader) == expected
    loader.close()


def test_a_shard_that_changes_in_the_store_is_named(
    local: Path, url: str, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(block_rows, "_AHEAD_FAR", 1)  # else all that changes was asked for by now
    loader = TrainLoader(url, epochs=1, cache_limit=0, prefetch=0, **OPTIONS)
    batches = iter(loader)
    next(batches)
    raw = bytearray((local / "train-00001.bin").read_bytes())
    raw[2000:2002] = b"\1\2"
    s3.put("sets/blocks/train-00001.bin", bytes(raw))
    with pytest.raises(IntegrityError, match=r"train-00001\.bin"):
        list(batches)
    loader.close()


@pytest.mark.parametrize("order", ["shuffled", "block-shuffled"])
def test_a_shard_that_is_gone_is_named_and_not_one_that_is_there(local: Path, order: str) -> None:
    store = fsspec.filesystem("memory")
    store.put(str(local), "/gone", recursive=True)
    options: dict[str, Any] = {**OPTIONS, "order": order}
    loader = TrainLoader("memory://gone", cache_limit=0, prefetch=0, **options)
    batches = iter(loader)
    next(batches)
    store.rm("/gone/train-00001.bin")
    for _ in range(2):
        with pytest.raises(FileNotFoundError) as raised:
            list(batches)
        assert raised.value.filename == "memory://gone/train-00001.bin"
    store.put(str(local / "train-00001.bin"), "/gone/train-00001.bin")
    expected = rows(TrainLoader(local, epochs=1, **options))
    step = loader.step
    assert rows(loader, 20) == expected[step : step + 20]
    loader.close()
    store.rm("/gone", recursive=True)


def test_what_was_asked_for_in_vain_is_dropped(url: str) -> None:
    loader = TrainLoader(url, cache_limit=0, **OPTIONS)
    batches = iter(loader)
    next(batches)
    assert isinstance(loader.reader, CachedReader)
    asked = loader.reader._ranges._asked
    del batches
    for _ in range(200):
        gc.collect()
        if not asked:
            break
        threading.Event().wait(0.05)
    assert not asked
    loader.close()
