"""The Hub on one side, an object store on the other: the bytes of a local run, each object whole, the manifest last."""

from __future__ import annotations

import hashlib
import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest
import shard_sets
from hub_fixtures import hub_environment
from local_hub import Fault as HubFault
from s3_server import Fault, environment

import tokenriver
from tokenriver.cli import main
from tokenriver.errors import IntegrityError, StorageError, UsageError
from tokenriver.hub.download import download
from tokenriver.hub.publish import publish
from tokenriver.shards.verify import verify
from tokenriver.storage import uploading

if TYPE_CHECKING:
    from local_hub import LocalHub
    from s3_server import Bucket

REPO = "me/tales"
TOKENS = "tokens/toy/tales"
SHARDS = [f"{TOKENS}/{name}" for name in ("train-00000.bin", "train-00001.bin", "val-00000.bin")]


pytestmark = pytest.mark.usefixtures("staging")


@pytest.fixture
def published(hub: LocalHub, tmp_path: Path) -> LocalHub:
    """A data set on the Hub, and the same fetched by us into tmp_path/local."""
    publish(shard_sets.make_tokens_set(tmp_path / "made"), REPO)
    download(REPO, out=tmp_path / "local")
    hub.log.clear()
    return hub


def local(tmp_path: Path) -> dict[str, bytes]:
    root = tmp_path / "local"
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def stored(s3: Bucket, prefix: str = "got") -> dict[str, bytes]:
    return {key.removeprefix(f"{prefix}/"): s3.get(key) for key in s3.names(prefix)}


def put(s3: Bucket) -> list[str]:
    """The keys in the order in which they were put."""
    return [r.path.partition("/got/")[2] for r in s3.server.log if r.method == "PUT" and r.status == 200]


def test_a_download_to_a_store_is_the_local_one_with_the_manifest_last(
    published: LocalHub, s3: Bucket, tmp_path: Path, staging: Path
) -> None:
    done = download(REPO, out=f"{s3.url}/got/")
    assert stored(s3) == local(tmp_path)
    assert put(s3)[-1] == f"{TOKENS}/_MANIFEST.json"
    assert [str(d) for d in done.directories] == [f"{s3.url}/got/{TOKENS}"]
    assert verify(done.directories[0]).ok
    assert list(staging.iterdir()) == []
    published.log.clear()
    s3.server.log.clear()
    assert download(REPO, out=f"{s3.url}/got").fetched == 0
    assert not any(published.bodies(name) for name in SHARDS)
    assert put(s3) == [], "what is there and right stays"


@pytest.mark.usefixtures("published")
def test_a_part_comes_first_and_the_rest_is_added(s3: Bucket, tmp_path: Path) -> None:
    assert main(["download", REPO, "--out", f"{s3.url}/got", "--shards", "1", "--quiet"]) == 0
    assert SHARDS[1] not in stored(s3)
    assert verify(f"{s3.url}/got").ok
    assert download(REPO, out=f"{s3.url}/got").fetched == 1
    assert stored(s3) == local(tmp_path)


@pytest.mark.usefixtures("published")
def test_an_object_that_is_wrong_is_replaced_and_its_manifest_goes_first(s3: Bucket, tmp_path: Path) -> None:
    right = local(tmp_path)
    for name, body in right.items():
        s3.put(f"got/{name}", body)
    s3.put(f"got/{SHARDS[0]}", right[SHARDS[0]][:-1] + b"\x07")
    assert download(REPO, out=f"{s3.url}/got").fetched == 1
    assert put(s3)[-1:] == [SHARDS[0]]
    assert stored(s3) == right


ONE = "from tokenriver.hub.download import download; download({repo!r}, out={out!r}, connections=1)"


def test_a_killed_download_left_nothing_half_and_goes_on_where_it_was(
    published: LocalHub, s3: Bucket, tmp_path: Path, staging: Path
) -> None:
    held, cut = threading.Event(), 1200
    published.fail(SHARDS[1], HubFault(cut=cut, hang=held))
    variables = {**os.environ, **hub_environment(published, tmp_path), **environment(s3.server.url)}
    variables["PYTHONPATH"] = str(Path(tokenriver.__file__).parents[1])
    code = ONE.format(repo=REPO, out=f"{s3.url}/got")
    process = subprocess.Popen([sys.executable, "-c", code], env=variables)
    for _ in range(2000):
        parts = list(staging.rglob("*.part"))
        if parts and parts[0].name == "train-00001.bin.part" and parts[0].stat().st_size == cut:
            break
        held.wait(0.02)
    process.send_signal(signal.SIGKILL)
    process.wait()
    held.set()
    right = local(tmp_path)
    assert stored(s3) == {name: right[name] for name in (f"{TOKENS}/_CORPUS.json", SHARDS[0])}
    s3.server.log.clear()
    (notes,) = staging.rglob("_UPLOADED")
    with open(notes, "ab") as file:
        file.write(b'["half a line of a no')
    assert download(REPO, out=f"{s3.url}/got").fetched == 2
    assert [r.range for r in published.bodies(SHARDS[1])] == [None, f"bytes={cut}-"]
    assert len(published.bodies(SHARDS[0])) == 1
    assert s3.server.requests(SHARDS[0]) == [], "known by its note, not read again"
    assert stored(s3) == right
    assert list(staging.iterdir()) == []


def test_an_upload_that_fails_is_aborted_and_the_file_not_fetched_again(
    published: LocalHub, impatient: Bucket, tmp_path: Path, staging: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    s3, big = impatient, np.arange(6 << 20) % 1000
    monkeypatch.setattr(uploading, "PART_BYTES", 5 << 20)
    tokenriver.write_shard(tmp_path / "big.bin", big, vocab_size=1000)
    repo = published.repos[REPO]
    files = dict(repo.commits[-1][1])
    files[SHARDS[0]] = (tmp_path / "big.bin").read_bytes()  # large enough for several parts
    files[f"{TOKENS}/_MANIFEST.json"] = _with_shard(files[f"{TOKENS}/_MANIFEST.json"], files[SHARDS[0]], len(big))
    published.commit(repo, files)
    s3.server.fail("train-00000.bin", Fault(status=500), method="PUT", query="partNumber=2", always=True)
    with pytest.raises(StorageError, match=r"train-00000\.bin: the store failed"):
        download(REPO, out=f"{s3.url}/got", split="train", shards=1, connections=1)
    assert f"{TOKENS}/_MANIFEST.json" not in stored(s3)
    assert SHARDS[0] not in stored(s3)
    assert s3.server.uploads_under_way(s3.name) == []
    s3.server.mend()
    s3.server.client.create_multipart_upload(Bucket=s3.name, Key=f"got/{SHARDS[0]}")  # as a kill leaves one
    download(REPO, out=f"{s3.url}/got", split="train", shards=1)
    assert s3.get(f"got/{SHARDS[0]}") == files[SHARDS[0]]
    assert len(published.bodies(SHARDS[0])) == 1
    assert s3.server.uploads_under_way(s3.name) == []
    assert list(staging.iterdir()) == []


def _with_shard(manifest: bytes, shard: bytes, n_tokens: int) -> bytes:
    value = json.loads(manifest)
    value["files"][0] |= {"sha256": hashlib.sha256(shard).hexdigest(), "n_tokens": n_tokens}
    return json.dumps(value).encode()


def test_publishing_from_a_store_commits_what_publishing_from_a_folder_does(
    hub: LocalHub, s3: Bucket, tmp_path: Path, staging: Path
) -> None:
    made = shard_sets.make_tokens_set(tmp_path / "made")
    s3.put_folder(tmp_path / "made", "made")
    there = publish(made, "me/local")
    dry = publish(f"{s3.url}/made", REPO, dry_run=True)
    assert dry.files == there.files
    assert not any(REPO in r.path for r in hub.log)
    s3.server.log.clear()
    done = publish(f"{s3.url}/made", REPO)
    assert len(s3.server.requests(SHARDS[0])) == 2, "its header, then all of it, once"
    assert done.files == there.files
    one, other = (hub.repos[name] for name in ("me/local", REPO))
    card = {name: repo.commits[-1][1].pop("README.md") for name, repo in (("one", one), ("other", other))}
    assert card["other"].replace(REPO.encode(), b"me/local").replace(b"# tales", b"# local") == card["one"]
    assert other.commits[-1][1] == one.commits[-1][1]
    assert other.messages == one.messages
    assert list(staging.iterdir()) == []
    s3.server.log.clear()
    publish(f"{s3.url}/made", REPO)
    assert len(s3.server.requests(SHARDS[0])) == 1, "of a shard that the repository holds only its header is looked at"


def test_a_damaged_shard_in_a_store_is_not_published(hub: LocalHub, s3: Bucket, tmp_path: Path, staging: Path) -> None:
    shard_sets.make_tokens_set(tmp_path / "made")
    s3.put_folder(tmp_path / "made", "made")
    body = s3.get(f"made/{SHARDS[1]}")
    s3.put(f"made/{SHARDS[1]}", body[:-1] + b"\x01")
    with pytest.raises(IntegrityError, match=r"train-00001\.bin: sha256 is .*nothing was published"):
        publish(f"{s3.url}/made", REPO)
    assert not hub.repos[REPO].messages
    assert list(staging.iterdir()) == []
    s3.delete(f"made/{TOKENS}/_MANIFEST.json")
    with pytest.raises(IntegrityError, match="unfinished"):
        publish(f"{s3.url}/made", REPO)


@pytest.mark.usefixtures("published")
def test_the_store_in_memory_and_file_urls_work_too(tmp_path: Path) -> None:
    memory = fsspec.filesystem("memory")
    download(REPO, out="memory://hub/got")
    got: dict[str, Any] = {name.removeprefix("/hub/got/"): memory.cat_file(name) for name in memory.find("/hub/got")}
    assert got == local(tmp_path)
    assert publish("memory://hub/got", "me/again").files.keys() == got.keys()
    memory.rm("/hub", recursive=True)
    assert download(REPO, out=f"file://{tmp_path}/local").fetched == 0
    assert publish(f"file://{tmp_path}/local", REPO, dry_run=True).files.keys() == got.keys()


def test_nothing_is_downloaded_to_where_nothing_can_be_written(hub: LocalHub, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="nothing can be written to http://"):
        download(REPO, out=f"{hub.url}/x")
    assert not hub.log
    assert not (tmp_path / "staging").exists()
