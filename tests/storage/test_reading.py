"""Objects are read whole or not at all: by ranges, through every fault, on the real client stack."""

from __future__ import annotations

import io
import pickle
import random
import tracemalloc
from typing import TYPE_CHECKING

import fsspec
import pytest
from s3_server import Fault

from tokenriver.errors import IntegrityError, StorageError
from tokenriver.storage import failures, reading
from tokenriver.storage.failures import StorageWarning
from tokenriver.storage.objects import RemoteFile, find_object
from tokenriver.storage.reading import read_from, read_whole
from tokenriver.storage.seeking import RemoteReader, open_url

if TYPE_CHECKING:
    from s3_server import Bucket

BODY = random.Random(1).randbytes(3_000_000)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Objects of some megabytes in several pieces."""
    monkeypatch.setattr(reading, "PIECE_BYTES", 400_000)


def found(url: str) -> RemoteFile:
    file = find_object(url)
    assert file is not None
    return file


@pytest.mark.parametrize("start", [0, 1, 1_234_567, len(BODY) - 1, len(BODY)])
def test_reading_from_anywhere_asks_for_no_byte_before(s3: Bucket, start: int) -> None:
    file = found(s3.put("a.bin", BODY))
    assert b"".join(read_from(file, start=start)) == BODY[start:]
    ranges = [r.range for r in s3.server.requests("a.bin") if r.range]
    assert all(int(r.removeprefix("bytes=").split("-")[0]) >= start for r in ranges)


def test_whoever_stops_early_is_not_sent_the_rest(s3: Bucket) -> None:
    chunks = read_from(found(s3.put("a.bin", BODY)))
    next(chunks)
    chunks.close()
    assert sum(r.sent for r in s3.server.requests("a.bin")) < 300_000


@pytest.mark.parametrize(
    "faults",
    [
        [Fault(status=503), Fault(status=503)],
        [Fault(status=500)],
        [Fault(cut=1000), Fault(cut=0)],
        [Fault(reset=1000)],
    ],
    ids=["503 twice", "500", "cut twice", "reset"],
)
def test_a_fault_that_passes_costs_no_byte(s3: Bucket, faults: list[Fault]) -> None:
    file = found(s3.put("a.bin", BODY))
    s3.server.fail("a.bin", *faults)
    assert read_whole(file) == BODY
    assert sum(r.failed for r in s3.server.requests("a.bin")) == len(faults)


def test_a_slow_body_is_waited_for(s3: Bucket) -> None:
    file = found(s3.put("a.bin", BODY[:300_000]))
    s3.server.bytes_per_second = 1_000_000
    assert read_whole(file) == BODY[:300_000]


def test_a_store_that_keeps_failing_is_an_error_that_names_url_and_byte(impatient: Bucket) -> None:
    file = found(impatient.put("a.bin", BODY))
    impatient.server.fail("a.bin", Fault(status=500), always=True)
    with pytest.raises(
        StorageError, match=rf"^{file.url}: the store failed at byte 0 \(.*; look at the address and the network"
    ):
        read_whole(file)


def test_a_body_that_is_always_cut_is_an_error_and_never_short(impatient: Bucket) -> None:
    file = found(impatient.put("a.bin", BODY[:1000]))
    impatient.server.fail("a.bin", Fault(cut=10), always=True)
    with pytest.raises(StorageError, match=r"at byte 0"):
        read_whole(file)


def test_our_own_tries_come_after_the_clients_and_say_so(impatient: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "RETRY_SECONDS", (0.0, 0.0))
    file = found(impatient.put("a.bin", BODY[:1000]))
    impatient.server.fail("a.bin", Fault(status=500), Fault(cut=3))
    with pytest.warns(StorageWarning, match=r"a\.bin: the store failed at byte 0 .*trying again"):
        assert read_whole(file) == BODY[:1000]


@pytest.mark.parametrize("new", [BODY[:-1], BODY + b"x", BODY[::-1]], ids=["shorter", "longer", "other"])
def test_an_object_that_changes_after_it_was_found_is_refused(s3: Bucket, new: bytes) -> None:
    file = found(s3.put("a.bin", BODY))
    s3.put("a.bin", new)
    with pytest.raises(IntegrityError, match=r"a\.bin: .*it changes while it is read"):
        read_whole(file)


def test_an_object_that_goes_while_it_is_read_is_named(s3: Bucket) -> None:
    file = found(s3.put("a.bin", BODY))
    s3.delete("a.bin")
    with pytest.raises(FileNotFoundError) as error:
        read_whole(file)
    assert error.value.filename == file.url


def test_a_reader_reads_as_a_file_does(s3: Bucket) -> None:
    file = found(s3.put("a.bin", BODY))
    for ahead in (False, True):
        rng, plain = random.Random(2), io.BytesIO(BODY)
        with RemoteReader(file, ahead=ahead) as opened:
            for _ in range(30):
                if rng.random() < 0.4:
                    place = (rng.randrange(len(BODY)), 0) if rng.random() < 0.8 else (-rng.randrange(1000), 2)
                    assert opened.seek(*place) == plain.seek(*place)
                n = rng.choice([0, 1, 1000, 500_000, -1])
                assert opened.read(n) == plain.read(n)
                assert opened.tell() == plain.tell()


def test_reading_ahead_takes_the_memory_of_a_few_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 100_000)
    fsspec.filesystem("memory").pipe_file("/memory-test/a.bin", BODY)
    into, peaks = bytearray(50_000), []
    for _ in range(3):  # the server of other tests may still be at an answer, which counts as ours
        with open_url("memory://memory-test/a.bin", ahead=True) as opened:
            opened.readinto(into)
            tracemalloc.start()
            while opened.readinto(into):
                pass
            peaks.append(tracemalloc.get_traced_memory()[1])
            tracemalloc.stop()
    assert min(peaks) < 1_000_000


def test_an_error_of_a_store_survives_pickling() -> None:
    error = pickle.loads(pickle.dumps(StorageError("the store failed", "s3://a/b", ("try again",))))
    assert str(error) == "s3://a/b: the store failed; try again"
    assert error.filename == "s3://a/b"


@pytest.mark.parametrize("fault", [Fault(status=503), Fault(cut=1000), Fault(reset=1000)], ids=["503", "cut", "reset"])
def test_a_plain_web_server_is_read_by_ranges_and_tried_again(
    s3: Bucket, monkeypatch: pytest.MonkeyPatch, fault: Fault
) -> None:
    monkeypatch.setattr(failures, "RETRY_SECONDS", (0.0,))
    s3.server.client.put_object(Bucket=s3.name, Key="a.bin", Body=BODY, ACL="public-read")
    file = found(f"{s3.server.url}/{s3.name}/a.bin")
    s3.server.fail("a.bin", Fault(), Fault(), fault)  # after what asks whether it knows ranges
    with pytest.warns(StorageWarning, match=r"a\.bin: the store failed at byte \d"):
        assert read_whole(file) == BODY
    asked = [r for r in s3.server.requests("a.bin") if r.range]
    assert len(asked) > 5
    assert sum(r.sent for r in asked) < 1.5 * len(BODY)
