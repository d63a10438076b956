"""What there is below a URL, and putting objects there: names with every character, one whole object or none."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from s3_server import Fault

from tokenriver.errors import StorageError
from tokenriver.storage import uploading
from tokenriver.storage.objects import below, find_object, glob_objects, remove_objects
from tokenriver.storage.seeking import open_url
from tokenriver.storage.uploading import abort_uploads, upload_bytes, upload_whole, whole_object

if TYPE_CHECKING:
    from pathlib import Path

    from s3_server import Bucket

NAMES = ["a b.bin", "x#y.bin", "p%2Fq.bin", "ü/河.bin", "[1].bin", "d/e/f.bin", "q?v=1.bin", "+&=.bin"]


def test_objects_are_found_by_exactly_their_names(s3: Bucket) -> None:
    for i, name in enumerate(NAMES):
        s3.put(f"in/{name}", b"x" * (i + 1))
    assert {name: file.n_bytes for name, file in below(f"{s3.url}/in").items()} == {
        name: i + 1 for i, name in enumerate(NAMES)
    }
    for i, name in enumerate(NAMES):
        file = find_object(f"{s3.url}/in/{name}")
        assert file is not None
        assert file.n_bytes == i + 1
    assert list(below(f"{s3.url}/in/", deep=False)) == sorted(n for n in NAMES if "/" not in n)


def test_a_prefix_that_is_also_an_object_is_both(s3: Bucket) -> None:
    s3.put("pre", b"1")
    s3.put("pre/", b"")
    s3.put("pre/a", b"22")
    s3.put("pre-other", b"333")
    file = find_object(f"{s3.url}/pre")
    assert file is not None
    assert file.n_bytes == 1
    assert find_object(f"{s3.url}/pre/") is None
    assert list(below(f"{s3.url}/pre/")) == ["a"]


def test_nothing_below_a_prefix_is_nothing_and_no_bucket_is_an_error(s3: Bucket) -> None:
    assert below(f"{s3.url}/none") == {}
    assert below(s3.url) == {}
    with pytest.raises(FileNotFoundError) as error:
        below("s3://no-such-bucket-here/x")
    assert error.value.filename == "s3://no-such-bucket-here/x"


def test_what_is_new_is_seen_at_once(s3: Bucket) -> None:
    assert below(s3.url) == {}
    s3.put("a", b"1")
    assert list(below(s3.url)) == ["a"]
    s3.put("a", b"22")
    file = find_object(f"{s3.url}/a")
    assert file is not None
    assert file.n_bytes == 2


def test_a_pattern_matches_in_the_order_of_names(s3: Bucket) -> None:
    for name in ("in/b.jsonl", "in/a.jsonl", "in/c.txt", "in/d/e.jsonl"):
        s3.put(name, b"1")
    assert [f.url.removeprefix(s3.url) for f in glob_objects(f"{s3.url}/in/*.jsonl")] == ["/in/a.jsonl", "/in/b.jsonl"]
    assert len(glob_objects(f"{s3.url}/in/**/*.jsonl")) == 3
    assert glob_objects(f"{s3.url}/none/*") == []


def test_an_upload_in_parts_appears_whole(s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "PART_BYTES", 5 << 20)
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(range(256)) * (12 << 12))
    assert upload_whole(path, f"{s3.url}/a.bin").n_bytes == 12 << 20
    assert s3.get("a.bin") == path.read_bytes()
    assert len([r for r in s3.server.requests("a.bin", "PUT") if "partNumber" in r.query]) == 3


def test_a_failed_upload_leaves_nothing(impatient: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(uploading, "PART_BYTES", 5 << 20)
    path = tmp_path / "a.bin"
    path.write_bytes(bytes(12 << 20))
    impatient.server.fail("a.bin", Fault(status=500), method="PUT", query="partNumber=2", always=True)
    with pytest.raises(StorageError, match=r"a\.bin: the store failed"):
        upload_whole(path, f"{impatient.url}/a.bin")
    assert impatient.names() == []
    assert impatient.server.uploads_under_way(impatient.name) == []


def test_a_refused_upload_leaves_the_old_object(impatient: Bucket) -> None:
    impatient.put("a.bin", b"old")
    impatient.server.fail("a.bin", Fault(status=403), method="PUT", always=True)
    with pytest.raises(PermissionError, match="the store refuses access"):
        upload_bytes(b"new", f"{impatient.url}/a.bin")
    assert impatient.get("a.bin") == b"old"


def test_why_an_object_cannot_be_opened_is_said_once(impatient: Bucket) -> None:
    impatient.put("a.bin", b"old")
    impatient.server.fail("a.bin", Fault(status=403), method="HEAD", always=True)
    with pytest.raises(PermissionError, match="the store refuses access") as caught:
        open_url(f"{impatient.url}/a.bin")
    assert str(caught.value).count("check the credentials") == 1


def test_an_upload_goes_through_what_passes(s3: Bucket) -> None:
    s3.server.fail("a.bin", Fault(status=503), Fault(reset=0), method="PUT")
    upload_bytes(b"x" * 1000, f"{s3.url}/a.bin")
    assert s3.get("a.bin") == b"x" * 1000


def test_what_is_written_in_a_failing_block_never_appears(s3: Bucket) -> None:
    def write() -> None:
        with whole_object(f"{s3.url}/a.bin") as file:
            file.write(b"half")
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        write()
    assert s3.names() == []


def test_uploads_of_a_killed_process_are_aborted_and_others_left(s3: Bucket) -> None:
    for key in ("out/train-00000.bin", "out/other", "elsewhere/train-00000.bin"):
        s3.server.client.create_multipart_upload(Bucket=s3.name, Key=key)
    assert abort_uploads(f"{s3.url}/out", names=lambda name: name.endswith(".bin")) == 1
    assert sorted(s3.server.uploads_under_way(s3.name)) == ["elsewhere/train-00000.bin", "out/other"]


def test_removing_what_is_not_there_is_no_error(s3: Bucket) -> None:
    s3.put("a", b"1")
    remove_objects([f"{s3.url}/a", f"{s3.url}/b"])
    assert s3.names() == []
