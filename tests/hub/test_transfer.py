"""Everything that goes wrong with a body on its way: the file is right in the end, or an error names it."""

from __future__ import annotations

import errno
import hashlib
import threading
import time
from email.utils import formatdate
from typing import TYPE_CHECKING

import local_hub
import pytest
from local_hub import Fault, LocalHub

from tokenriver import write_shard
from tokenriver.errors import FormatError, HubError, IntegrityError, UsageError
from tokenriver.hub import crew
from tokenriver.hub.checks import Expected
from tokenriver.hub.client import list_tree
from tokenriver.hub.repository import Repository, open_repository
from tokenriver.hub.transfer import FetchJob, fetch_file

if TYPE_CHECKING:
    from pathlib import Path

REPO = "me/tales"
NAME = "data/train-00000.bin"


@pytest.fixture
def body(tmp_path: Path) -> bytes:
    write_shard(tmp_path / "made.bin", [i % 251 for i in range(40_000)])
    return (tmp_path / "made.bin").read_bytes()


def fetch(tmp_path: Path, name: str = NAME, **changes: object) -> bool:
    repository = open_repository(REPO)
    job = FetchJob(name, tmp_path / "out" / name, repository.expected(name))
    return fetch_file(repository, job, **changes)  # type: ignore[arg-type]


def assert_right(tmp_path: Path, body: bytes, name: str = NAME) -> None:
    folder = (tmp_path / "out" / name).parent
    assert (tmp_path / "out" / name).read_bytes() == body
    assert [p.name for p in folder.iterdir()] == [name.rsplit("/", 1)[-1]], "nothing but the file is left"


@pytest.mark.parametrize(
    "faults",
    [
        [],
        [Fault(cut=1000)],
        [Fault(cut=0), Fault(cut=5), Fault(cut=70_000)],
        [Fault(cut=50_000), Fault(ignore_range=True)],
        [Fault(cut=50_000), Fault(status=416)],
        [Fault(reset=30_000)],
        [Fault(flip=40_000)],
        [Fault(cut=50_000), Fault(flip=60_000)],
        [Fault(status=500), Fault(status=500)],
        [Fault(status=429, headers={"Retry-After": "2"}), Fault(status=503)],
    ],
    ids=[
        "well",
        "cut",
        "cut thrice",
        "range ignored",
        "416",
        "reset",
        "flip",
        "flip after cut",
        "500 twice",
        "429, 503",
    ],
)
@pytest.mark.usefixtures("waits")
def test_a_body_that_fails_on_its_way_is_right_in_the_end(
    hub: LocalHub, tmp_path: Path, body: bytes, faults: list[Fault]
) -> None:
    hub.add(REPO, {NAME: body})
    hub.fail(NAME, *faults)
    assert fetch(tmp_path)
    assert_right(tmp_path, body)
    assert not hub.faults[NAME], "every fault was met"


def test_what_is_there_is_not_sent_again(hub: LocalHub, tmp_path: Path, body: bytes) -> None:
    hub.add(REPO, {NAME: body})
    hub.fail(NAME, Fault(cut=50_000), Fault(cut=20_000))
    assert fetch(tmp_path)
    sent = hub.bodies(NAME)
    assert [r.range for r in sent] == [None, "bytes=50000-", "bytes=70000-"]
    assert sum(r.sent for r in sent) == len(body)
    assert not fetch(tmp_path)
    assert len(hub.bodies(NAME)) == 3
    assert all(r.authorized for r in hub.log if not r.path.startswith("/lfs/"))
    assert not any(r.authorized for r in hub.log if r.path.startswith("/lfs/")), "the token stays with the Hub"


def test_a_rate_limit_is_waited_for_as_long_as_the_server_asks(
    hub: LocalHub, tmp_path: Path, body: bytes, waits: list[float]
) -> None:
    hub.add(REPO, {NAME: body})
    hub.fail(NAME, *[Fault(status=429, headers={"Retry-After": "2"})] * 2)
    assert fetch(tmp_path)
    assert len(waits) == 2
    assert min(waits) >= 2
    assert [r.status for r in hub.requests(NAME)] == [429, 429, 200]


@pytest.mark.parametrize("status", [429, 503])
def test_a_date_to_come_back_at_is_waited_for(
    hub: LocalHub, tmp_path: Path, body: bytes, waits: list[float], status: int
) -> None:
    hub.add(REPO, {NAME: body})
    then = formatdate(time.time() + 90, usegmt=True)
    hub.fail(NAME, Fault(status=status, headers={"Retry-After": then}), Fault(status=status))
    assert fetch(tmp_path)
    assert len(waits) == 2
    assert 85 < waits[0] < 95
    assert waits[1] < 10, "the second answer names no time"


def test_the_hub_s_listing_is_asked_for_again_at_the_date_that_it_names(hub: LocalHub, waits: list[float]) -> None:
    hub.add(REPO, {"a.json": b"{}"})
    late = Fault(status=429, headers={"Retry-After": formatdate(time.time() + 300, usegmt=True)})
    hub.api_faults.append(late)
    assert open_repository(REPO).files
    assert 295 < waits[0] < 305
    commit = open_repository(REPO).commit
    hub.api_faults.extend([late] * 6)  # as often as the library asks
    waits.clear()
    assert list_tree(REPO, revision=commit)
    assert 295 < waits[-1] < 305


@pytest.mark.usefixtures("waits")
@pytest.mark.parametrize(
    ("fault", "error", "words"),
    [
        (Fault(flip=40_000), IntegrityError, ["arrived 2 times", "sha256"]),
        (Fault(cut=0), HubError, ["broke off 5 times", "run the same command again"]),
        (Fault(status=500), HubError, ["HTTP 500"]),
        (Fault(status=404, headers={"X-Error-Code": "EntryNotFound"}), HubError, ["HTTP 404"]),
    ],
    ids=["always flipped", "always cut", "always 500", "gone"],
)
def test_a_body_that_never_comes_right_is_an_error_that_names_the_file(
    hub: LocalHub, tmp_path: Path, body: bytes, fault: Fault, error: type[Exception], words: list[str]
) -> None:
    hub.add(REPO, {NAME: body})
    hub.fail(NAME, *[fault] * 12)
    with pytest.raises(error) as raised:
        fetch(tmp_path)
    assert "train-00000.bin" in str(raised.value)
    for word in words:
        assert word in str(raised.value)
    assert not (tmp_path / "out" / NAME).exists()


def test_a_file_that_vanishes_between_tree_and_get_is_named(hub: LocalHub, tmp_path: Path, body: bytes) -> None:
    hub.add(REPO, {NAME: body})
    repository = open_repository(REPO)
    hub.vanished.add(NAME)
    job = FetchJob(NAME, tmp_path / "a.bin", repository.expected(NAME))
    with pytest.raises(HubError, match=f"{NAME} in me/tales"):
        fetch_file(repository, job)
    assert not job.path.exists()


def test_a_part_of_another_file_is_replaced(hub: LocalHub, tmp_path: Path, body: bytes) -> None:
    hub.add(REPO, {NAME: body})
    part = tmp_path / "out" / (NAME + ".part")
    part.parent.mkdir(parents=True)
    for left in (b"x" * 1000, b"x" * len(body), b"x" * (len(body) + 1), body[:70_000]):
        part.write_bytes(left)
        assert fetch(tmp_path)
        assert_right(tmp_path, body)
        (tmp_path / "out" / NAME).unlink()


def test_a_wrong_file_of_the_right_size_is_fetched_again(hub: LocalHub, tmp_path: Path, body: bytes) -> None:
    hub.add(REPO, {NAME: body})
    assert fetch(tmp_path)
    path = tmp_path / "out" / NAME
    path.write_bytes(body[:-1] + b"\xff")
    assert fetch(tmp_path)
    assert_right(tmp_path, body)


def test_links_in_the_place_of_a_file(hub: LocalHub, tmp_path: Path, body: bytes) -> None:
    hub.add(REPO, {NAME: body})
    path = tmp_path / "out" / NAME
    path.parent.mkdir(parents=True)
    elsewhere = tmp_path / "elsewhere.bin"
    elsewhere.write_bytes(b"something of the user's")
    for target in (elsewhere, tmp_path / "nowhere"):
        path.symlink_to(target)
        assert fetch(tmp_path)
        assert not path.is_symlink()
        assert path.read_bytes() == body
        path.unlink()
    part = path.with_name(path.name + ".part")
    part.symlink_to(elsewhere)
    assert fetch(tmp_path)
    assert elsewhere.read_bytes() == b"something of the user's"
    path.unlink()
    path.mkdir()
    with pytest.raises(IntegrityError, match="a folder stands where"):
        fetch(tmp_path)


def test_a_file_that_is_no_shard_gets_no_name(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(REPO, {NAME: b"not a shard"})
    with pytest.raises(FormatError, match="11 bytes, but a token shard begins"):
        fetch(tmp_path)
    assert not list((tmp_path / "out" / "data").iterdir())


def test_small_files_are_checked_by_gits_own_hash(hub: LocalHub, tmp_path: Path) -> None:
    hub.add(REPO, {"_CORPUS.json": b'{"files": []}\n'})
    hub.fail("_CORPUS.json", Fault(flip=3))
    assert fetch(tmp_path, "_CORPUS.json")
    assert (tmp_path / "out" / "_CORPUS.json").read_bytes() == b'{"files": []}\n'
    hub.fail("_CORPUS.json", Fault(flip=3), Fault(flip=3))
    (tmp_path / "out" / "_CORPUS.json").unlink()
    with pytest.raises(IntegrityError, match="git object id"):
        fetch(tmp_path, "_CORPUS.json")


def test_the_cache_serves_without_the_network_and_files_stay_real(
    hub: LocalHub, tmp_path: Path, body: bytes, monkeypatch: pytest.MonkeyPatch
) -> None:
    import huggingface_hub

    hub.add(REPO, {NAME: body, "_CORPUS.json": b"{}\n"})
    for name in (NAME, "_CORPUS.json"):
        huggingface_hub.hf_hub_download(REPO, name, repo_type="dataset")
    n_requests = len(hub.log)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    assert fetch(tmp_path)
    assert fetch(tmp_path, "_CORPUS.json")
    assert len(hub.log) == n_requests
    path = tmp_path / "out" / NAME
    assert not path.is_symlink()
    assert path.read_bytes() == body
    assert path.stat().st_nlink == 2, "a hard link, no second copy"
    with pytest.raises(HubError, match="HF_HUB_OFFLINE is set, and the cache holds nothing of main"):
        open_repository("me/other")


def test_damage_in_the_cache_does_not_spread(hub: LocalHub, tmp_path: Path, body: bytes) -> None:
    import huggingface_hub

    hub.add(REPO, {NAME: body})
    with open(huggingface_hub.hf_hub_download(REPO, NAME, repo_type="dataset"), "r+b") as file:
        file.seek(5000)
        file.write(b"\xff\xfe")
    assert fetch(tmp_path)
    assert_right(tmp_path, body)


def test_a_manifest_and_a_repository_that_disagree_are_told_before_anything_is_sent(body: bytes) -> None:
    expected = Expected(len(body), hashlib.sha256(body).hexdigest())
    assert expected.with_sha256(expected.sha256 or "", name="a.bin", source="_MANIFEST.json") == expected
    with pytest.raises(
        IntegrityError, match=r"a\.bin: the repository holds a file with sha256 .*_MANIFEST\.json says 00"
    ):
        expected.with_sha256("0" * 64, name="a.bin", source="_MANIFEST.json")


@pytest.mark.usefixtures("waits")
def test_repositories_that_cannot_be_read_are_named(hub: LocalHub) -> None:
    hub.add("me/secret", {"a.json": b"{}"}, private=True)
    hub.token = "another"
    for repo_id in ("me/none", "me/secret"):
        with pytest.raises(HubError, match=f"repository {repo_id}: there is no such .* or it is private") as raised:
            open_repository(repo_id)
        assert "hf_secret" not in str(raised.value)
    hub.add(REPO, {"a.json": b"{}"})
    with pytest.raises(HubError, match="no such revision"):
        open_repository(REPO, revision="v9")
    hub.api_faults.extend([Fault(status=500)] * 20)
    with pytest.raises(HubError, match="HTTP 500"):
        open_repository(REPO)
    hub.api_faults.clear()
    hub.api_faults.extend([Fault(status=429, headers={"Retry-After": "1"}), Fault(status=502)])
    assert open_repository(REPO).files
    for bad in ("../x", "a/b/c", "", "a b/c"):
        with pytest.raises(UsageError, match="no repository id"):
            open_repository(bad)


@pytest.mark.parametrize("size", ["x", -1, None])
def test_a_listing_without_sizes_is_no_listing(hub: LocalHub, monkeypatch: pytest.MonkeyPatch, size: object) -> None:
    hub.add(REPO, {"a.json": b"{}"})
    real = local_hub._entry
    monkeypatch.setattr(local_hub, "_entry", lambda name, body: {**real(name, body), "size": size})
    with pytest.raises(IntegrityError, match=r"the Hub lists a\.json with .* bytes"):
        open_repository(REPO)


def test_an_answer_that_is_no_listing_is_not_called_none(hub: LocalHub, monkeypatch: pytest.MonkeyPatch) -> None:
    hub.add(REPO, {"a.json": b"{}"})
    monkeypatch.setattr(local_hub, "_entry", lambda _name, _body: {})
    with pytest.raises(HubError, match=r"repository me/tales: the Hub gave an answer that cannot be read \(KeyError"):
        open_repository(REPO)


def test_ctrl_c_ends_the_transfers_under_way(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    begun, told = threading.Event(), []

    def fetch_slowly(_repository: object, job: FetchJob, *, progress: crew.Stoppable) -> bool:
        if job.name == "first":
            begun.wait(60)
            raise KeyboardInterrupt
        for n in range(20_000_000):  # far more than come before the other ends
            progress(job.name, n, 1 << 40)
            told.append(n) if n < 3 else begun.set()
        told.append(-1)
        return True

    monkeypatch.setattr(crew, "fetch_file", fetch_slowly)
    jobs = [FetchJob(name, tmp_path / name, Expected()) for name in ("first", "second")]
    with pytest.raises(KeyboardInterrupt):
        crew.fetch_files(Repository(REPO, "0" * 40, {}), jobs)
    assert told == [0, 1, 2], "it was under way, and did not come to its end"


def test_a_full_disk_is_told_with_the_name_of_the_file(
    hub: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, body: bytes
) -> None:
    hub.add(REPO, {NAME: body})

    def full(_body: object, _chunk: bytes) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tokenriver.hub.body.Body._write", full)
    with pytest.raises(OSError, match="No space left") as caught:
        fetch(tmp_path)
    assert caught.value.filename == str(tmp_path / "out" / NAME)


@pytest.mark.usefixtures("waits")
def test_a_body_that_never_begins_leaves_no_part(hub: LocalHub, tmp_path: Path, body: bytes) -> None:
    hub.add(REPO, {NAME: body})
    hub.vanished.add(NAME)
    with pytest.raises(HubError, match="HTTP 404"):
        fetch(tmp_path)
    assert list((tmp_path / "out/data").iterdir()) == []


def test_a_tree_of_several_pages_is_read_whole(hub: LocalHub) -> None:
    hub.page = 3
    hub.add(REPO, {f"d/{i}.json": b"%d" % i for i in range(10)})
    repository = open_repository(REPO)
    assert len(repository.files) == 10
    assert repository.expected("d/7.json").n_bytes == 1


@pytest.mark.parametrize(
    "name", ["../up.json", "/etc/x", "a/../../x", "C:\\x.bin", "C:x", "a\\b", "a//b", "nul", "a/con.txt"]
)
def test_a_server_that_names_files_outside_is_refused(hub: LocalHub, name: str) -> None:
    hub.add(REPO, {name: b"x"})
    with pytest.raises(IntegrityError, match="may not lead out of its folder"):
        open_repository(REPO)
