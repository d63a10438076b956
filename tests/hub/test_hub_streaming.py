"""Data sets in a repository of the Hub: built into it, verified and streamed by hf:// URLs."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from huggingface_hub import HfFileSystem
from local_hub import Fault
from positions import write_data_set

from tokenriver import IntegrityError, TrainLoader
from tokenriver.cache import objects
from tokenriver.cli import main
from tokenriver.storage import failures

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from local_hub import LocalHub, Request

URL = "hf://datasets/own/set"
OPTIONS: dict[str, Any] = {"batch_size": 8, "seq_len": 64, "epochs": 1}


@pytest.fixture(autouse=True)
def hurried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[None]:
    """Fresh clients, hardly a wait, and a cache of the test's own."""
    monkeypatch.setattr(failures, "RETRY_SECONDS", ())
    monkeypatch.setattr(objects, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(objects, "LONGEST_WAIT", 0.05)
    for name in ("CACHE_DIR", "STAGING"):
        monkeypatch.setenv(f"TOKENRIVER_{name}", str(tmp_path / name))
    HfFileSystem.clear_instance_cache()
    yield
    HfFileSystem.clear_instance_cache()


@pytest.fixture
def local(tmp_path: Path, hub: LocalHub) -> Path:
    folder = write_data_set(tmp_path / "data", [1500, 2500, 1000, 0, 2000], val=[700])
    hub.add_folder("own/set", folder)
    hub.log.clear()
    return folder


def of_shards(hub: LocalHub, method: str) -> list[Request]:
    return [r for r in hub.log if r.method == method and r.path.startswith(("/lfs/", "/datasets/own/set/resolve"))]


def assert_streams_as(local: Path, url: str, **options: Any) -> None:
    here, there = TrainLoader(local, **OPTIONS, **options), TrainLoader(url, cache_limit=0, **OPTIONS, **options)
    try:
        assert there.fingerprint == here.fingerprint
        for one, other in zip(here, there, strict=True):
            assert np.array_equal(one.inputs, other.inputs)
    finally:
        there.close()  # or its threads would go on through the tests behind this one


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_a_repository_is_streamed_by_ranges(local: Path, hub: LocalHub, order: str) -> None:
    assert_streams_as(local, URL, order=order)
    ranges = [r for r in of_shards(hub, "GET") if r.path.startswith("/lfs/")]
    assert ranges
    assert not any(r.authorized for r in ranges), "no token for the host to which the Hub sends"
    assert all(r.range for r in ranges)
    asked = [r.path for r in of_shards(hub, "HEAD")]
    assert len(asked) == len(set(asked)) == 5, "the Hub is asked once for each shard, an empty one too"


def test_a_repository_is_streamed_through_the_cache_at_a_revision(local: Path, hub: LocalHub, tmp_path: Path) -> None:
    commit = hub.repos["own/set"].commits[-1][0]
    hub.add("own/set", {"train-00000.bin": b"other"})
    loader = TrainLoader(f"{URL}@{commit}", order="sequential", **OPTIONS)
    for step, (one, other) in enumerate(zip(TrainLoader(local, order="sequential", **OPTIONS), loader, strict=True)):
        assert np.array_equal(one.inputs, other.inputs)
        deadline = time.monotonic() + 30
        while not step and len(whole := list(tmp_path.glob("CACHE_DIR/*/train-*.bin"))) < 5:
            assert time.monotonic() < deadline, f"fetched ahead: {whole}"
            time.sleep(0.01)
    loader.close()


@pytest.mark.parametrize(
    "fault", [Fault(status=503), Fault(status=403), Fault(cut=10), Fault(reset=10), Fault(ignore_range=True)]
)
def test_a_hub_that_fails_is_asked_again(local: Path, hub: LocalHub, fault: Fault) -> None:
    hub.fail("train-00001.bin", *[fault] * 3)
    assert_streams_as(local, URL, order="shuffled")


def test_a_whole_body_is_never_taken_for_a_range(local: Path, hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    """What the signed reads refuse is not asked for in ranges of the Hub's client, which would take it."""
    monkeypatch.setattr(objects.SignedReads, "ranges", lambda _self, wanted, **_: [None] * len(wanted))
    hub.fail("train-00001.bin", *[Fault(ignore_range=True)] * 9)
    raw = (local / "train-00001.bin").read_bytes()
    read = objects.Objects(URL)
    assert read.ranges([("train-00001.bin", 1100, 1200)]) == [raw[1100:1200]]
    monkeypatch.setattr(objects, "_SENT_WHOLE", 100)
    stopped = threading.Event()
    stopped.set()
    with pytest.raises((OSError, objects.StoppedError)):
        read.ranges([("train-00001.bin", 1100, 1200)], stopped=stopped)


def test_a_shard_of_another_commit_is_noticed_when_its_url_is_asked_for_anew(local: Path, hub: LocalHub) -> None:
    loader = TrainLoader(URL, cache_limit=0, prefetch=0, **{**OPTIONS, "epochs": 9})
    batches = (np.array_equal(batch.targets, batch.inputs + 1) for batch in loader)
    assert next(batches)
    assert (local / "train-00001.bin").exists()
    hub.add("own/set", {"train-00001.bin": bytes(1024 + 2 * 2500)})
    hub.fail("train-00001.bin", Fault(status=403))  # as when the URL of before has ended
    with pytest.raises(IntegrityError, match=r"own/set/train-00001\.bin: changed on the store"):
        assert not all(batches), "no batch of other bytes"
    loader.close()


def test_a_data_set_is_built_into_a_repository_verified_and_looked_into(
    hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    hub.add("own/out", {})
    (tmp_path / "x.jsonl").write_text('{"text": "abc def"}\n' * 1000)
    build = ["build", str(tmp_path / "x.jsonl"), "--tokenizer", "byte", "--out"]
    assert main([*build, "hf://datasets/own/out"]) == 0
    where = "hf://datasets/own/out/tokens/byte/x"
    files = [name for commit in hub.repos["own/out"].messages for name in commit]
    assert files[-1] == "tokens/byte/x/_MANIFEST.json"
    assert main(["verify", where]) == 0
    assert main(["inspect", f"{where}/train-00000.bin"]) == 0
    assert "7,000 tokens" in capsys.readouterr().out
    assert main([*build, str(tmp_path)]) == 0
    assert_streams_as(tmp_path / "tokens/byte/x", where)


@pytest.mark.parametrize("url", ["hf://datasets/own/none", "hf://datasets/own"])
def test_a_repository_that_is_not_there_is_said_before_anything_is_encoded(
    hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], url: str
) -> None:
    assert hub.url
    (tmp_path / "x.jsonl").write_text('{"text": "abc def"}\n')
    assert main(["build", str(tmp_path / "x.jsonl"), "--tokenizer", "byte", "--out", url]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1
    assert "tokenriver publish" in said
    assert main(["verify", url]) in (1, 2)
    assert capsys.readouterr().err.count("\n") <= 1
    assert not (tmp_path / "STAGING").exists()
