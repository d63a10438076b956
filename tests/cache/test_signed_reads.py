"""Ranges past the client: by signed URLs, through the client where that fails, and never of another object."""

from __future__ import annotations

import logging
import pickle
import random
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from positions import write_data_set
from s3_server import Fault

from tokenriver import IntegrityError, TrainLoader
from tokenriver.cache.objects import Objects

if TYPE_CHECKING:
    from pathlib import Path

    from s3_server import Bucket, Request

BODY = random.Random(1).randbytes(50_000)
WANTED = [("a.bin", 100 * k, 100 * k + 50) for k in range(20)]
RIGHT = [BODY[start:stop] for _, start, stop in WANTED]
SIZES = [1500, 2500, 1000, 0, 2000]
OPTIONS: dict[str, Any] = {"batch_size": 8, "seq_len": 64}


pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture
def below(s3: Bucket) -> Objects:
    s3.put("a.bin", BODY)
    found = Objects(s3.url)
    found.listing()
    return found


def signed(requests: list[Request]) -> list[bool]:
    return ["X-Amz-Signature=" in request.query for request in requests]


def test_ranges_are_asked_for_by_signed_urls(below: Objects, s3: Bucket) -> None:
    assert below.ranges(WANTED) == RIGHT
    asked = s3.server.requests(r"a\.bin")
    assert len(asked) == 20
    assert all(signed(asked))
    assert {request.range for request in asked} == {f"bytes={start}-{stop - 1}" for _, start, stop in WANTED}


def test_an_expired_signature_is_made_anew(below: Objects, s3: Bucket) -> None:
    s3.server.fail(r"a\.bin", Fault(status=403))
    assert below.ranges(WANTED) == RIGHT
    asked = s3.server.requests(r"a\.bin")
    assert len(asked) == 21
    assert all(signed(asked))
    assert sum(request.failed for request in asked) == 1


def test_what_is_refused_signed_anew_too_is_asked_of_the_client(
    below: Objects, s3: Bucket, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG, "tokenriver")
    s3.server.fail(r"a\.bin", Fault(status=403), always=True, query="X-Amz-Signature")
    assert below.ranges(WANTED) == RIGHT
    assert "a.bin: not to be read by signed URLs (the server answered 403)" in caplog.text
    s3.server.mend()
    assert below.ranges(WANTED) == RIGHT, "and for a while everything is"
    assert not any(signed(s3.server.requests(r"a\.bin")))


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(cut=10), Fault(reset=10)], ids=["503", "cut", "reset"])
def test_a_range_that_fails_is_asked_of_the_client_and_the_others_are_not(
    below: Objects, s3: Bucket, fault: Fault
) -> None:
    s3.server.fail(r"a\.bin", Fault(), fault, Fault(), fault)
    assert below.ranges(WANTED) == RIGHT
    asked = s3.server.requests(r"a\.bin")
    assert signed(asked).count(True) == 20
    assert signed(asked).count(False) == 2


def test_a_refusal_that_stays_is_the_clients_error(below: Objects, s3: Bucket) -> None:
    s3.server.fail(r"a\.bin", Fault(status=403), always=True)
    with pytest.raises(PermissionError, match=r"a\.bin"):
        below.ranges(WANTED)


def test_a_signature_is_in_no_message(below: Objects, s3: Bucket, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG)
    s3.server.fail(r"a\.bin", *[Fault(status=503), Fault(cut=10), Fault(status=403)] * 2)
    assert below.ranges(WANTED) == RIGHT
    s3.server.fail(r"a\.bin", Fault(status=404), always=True)
    with pytest.raises(FileNotFoundError) as error:
        below.ranges(WANTED)
    ours = "".join(record.getMessage() for record in caplog.records if record.name.startswith("tokenriver"))
    for text in (ours, str(error.value), repr(error.value.__cause__)):
        assert "Signature" not in text
    assert "its client is asked" in ours


@pytest.mark.parametrize("query", [None, "X-Amz-Signature"], ids=["signed", "through the client"])
def test_an_object_that_was_written_anew_since_it_was_listed_is_refused(
    below: Objects, s3: Bucket, query: str | None
) -> None:
    if query:
        s3.server.fail(r"a\.bin", Fault(status=503), always=True, query=query)
    assert below.ranges(WANTED) == RIGHT
    s3.put("a.bin", BODY)
    assert below.ranges(WANTED) == RIGHT, "the same bytes are the same version"
    s3.put("a.bin", BODY[::-1])
    again = pickle.loads(pickle.dumps(below))
    with pytest.raises(IntegrityError, match=r"a\.bin: changed on the store since the loader opened"):
        again.ranges(WANTED)
    assert again.ranges(WANTED[:1], any_version=True) == [BODY[::-1][:50]]


def test_a_store_whose_listings_tell_other_versions_than_its_answers_is_held_to_the_answers(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    import s3fs

    def strange(fs: Any, *words: Any, **options: Any) -> Any:
        return [{**one, "ETag": f"of-the-listing-{one['ETag']}"} for one in plain(fs, *words, **options)]

    plain = s3fs.S3FileSystem.ls
    s3.put("a.bin", BODY)
    s3.put("b.bin", BODY)
    monkeypatch.setattr(s3fs.S3FileSystem, "ls", strange)
    below = Objects(s3.url)
    below.listing()
    assert below.ranges(WANTED) == RIGHT
    assert below.ranges([("b.bin", 0, 50)]) == RIGHT[:1]
    s3.put("b.bin", BODY[::-1])
    with pytest.raises(IntegrityError, match=r"b\.bin: changed on the store"):
        below.ranges([("b.bin", 0, 50)])


def test_a_shard_that_changes_under_a_shuffled_reader_is_named(tmp_path: Path, s3: Bucket) -> None:
    local = write_data_set(tmp_path / "data", SIZES)
    url = s3.put_folder(local, "sets/positions")
    loader = TrainLoader(url, epochs=9, cache_limit=0, prefetch=0, **OPTIONS)
    batches = (np.array_equal(batch.targets, batch.inputs + 1) for batch in loader)
    assert all(islice(batches, 3))
    raw = (local / "train-00001.bin").read_bytes()
    s3.put("sets/positions/train-00001.bin", raw[:1024] + raw[1026:] + b"xx")
    with pytest.raises(IntegrityError, match=r"positions/train-00001\.bin: changed on the store"):
        assert not all(batches), "no batch of other bytes"
    loader.close()


def test_a_store_that_cannot_sign_is_read_as_ever(tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    memory.pipe_file(f"/{tmp_path.name}/a.bin", BODY)
    assert Objects(f"memory://{tmp_path.name}").ranges(WANTED) == RIGHT


def test_a_web_server_is_read_and_a_changed_object_of_it_noticed(s3: Bucket) -> None:
    s3.server.client.put_object(Bucket=s3.name, Key="a.bin", Body=BODY, ACL="public-read")
    below = Objects(f"{s3.server.url}/{s3.name}")
    assert below.ranges(WANTED) == RIGHT
    s3.server.client.put_object(Bucket=s3.name, Key="a.bin", Body=BODY[::-1], ACL="public-read")
    with pytest.raises(IntegrityError, match=r"a\.bin: changed on the store"):
        below.ranges(WANTED)


def test_an_epoch_of_a_shuffled_order_fetches_each_byte_once_or_twice(
    tmp_path: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tokenriver.loader.ranges._GAP", 0)
    url = s3.put_folder(write_data_set(tmp_path / "data", [5_000] * 10), "set")
    loader = TrainLoader(url, epochs=3, **OPTIONS)
    s3.server.mend()
    assert len(list(loader)) == 3 * loader.steps_per_epoch
    size = sum(path.stat().st_size for path in (tmp_path / "data").glob("train-*.bin"))
    sent = sum(request.sent for request in s3.server.requests(r"\.bin$"))
    assert size <= sent <= 2.1 * size, "whole, and by rows what was needed before; the later epochs nothing"
    loader.close()
