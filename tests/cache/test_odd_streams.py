"""Streams of odd data sets, and caches that others hold, change or cannot be written to."""

from __future__ import annotations

import errno
import json
import os
import shutil
import threading
from itertools import islice
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest
from positions import write_data_set

from tokenriver import FormatError, TrainLoader, UsageError, write_shard
from tokenriver.cache import fetch as fetching
from tokenriver.cache.fetch import CachedShard, fetch
from tokenriver.cache.folder import CacheFolder, CacheFullError
from tokenriver.cache.keeper import Keeper
from tokenriver.cache.settings import CacheSettings, cache_settings
from tokenriver.loader.source import resolve
from tokenriver.shards.index import index_shard

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.usefixtures("hurried")

OPTIONS: dict[str, Any] = {"batch_size": 4, "seq_len": 16}


def put(folder: Path, where: str) -> str:
    """A folder's files in the process's own memory store, and their URL."""
    url = f"memory://{where}"
    for path in folder.iterdir():
        fsspec.filesystem("memory").pipe_file(f"/{where}/{path.name}", path.read_bytes())
    return url


def remove_while_in_use(folder: Path) -> None:
    """Remove a folder to which others write meanwhile: what they made while it was walked goes in the next round."""
    while folder.exists():
        shutil.rmtree(folder, ignore_errors=True)


def same(folder: Any, url: Any, **options: Any) -> None:
    mine, theirs = TrainLoader(folder, **OPTIONS, **options), TrainLoader(url, **OPTIONS, **options)
    assert mine.fingerprint == theirs.fingerprint
    for one, other in islice(zip(mine, theirs, strict=True), 20):
        assert np.array_equal(one.inputs, other.inputs)
        assert np.array_equal(one.targets, other.targets)


@pytest.mark.parametrize("sizes", [[0, 500, 1, 300], [0, 0, 400], [300, 0]])
def test_a_set_whose_first_shard_is_empty_is_streamed(tmp_path: Path, sizes: list[int]) -> None:
    local = write_data_set(tmp_path / "data", sizes, variants=("uint32", "uint16"))
    url = put(local, f"empty-{len(sizes)}-{sizes[0]}")
    for order in ("sequential", "shuffled", "block-shuffled"):
        same(local, url, order=order)


def test_two_sets_with_one_manifest_that_tells_no_hashes_are_two_in_the_cache(tmp_path: Path) -> None:
    urls = []
    for k in range(2):
        folder = write_data_set(tmp_path / f"{k}" / "data", [600, 600])
        for path in folder.glob("train-*.bin"):
            ids = np.arange(600) + 1000 * k
            write_shard(path, ids, variant="uint16")
        manifest = json.loads((folder / "_MANIFEST.json").read_text())
        for file in manifest["files"]:
            del file["sha256"]
        (folder / "_MANIFEST.json").write_text(json.dumps(manifest))
        urls.append((folder, put(folder, f"unhashed-{k}/data")))
    for folder, url in urls:
        same(folder, url, order="sequential")


def test_a_prefix_with_a_patterns_characters_is_a_data_set(tmp_path: Path) -> None:
    local = write_data_set(tmp_path / "set[1]?*", [500, 600])
    url = put(local, "odd/set[1]?*")
    same(local, url)


@pytest.mark.parametrize("name", ["_00000.bin", ".hidden.bin", "a b%20#+é.bin"])
def test_every_name_in_a_manifest_is_counted_in_the_cache(tmp_path: Path, name: str) -> None:
    local = write_data_set(tmp_path / "data", [600, 600])
    (local / "train-00000.bin").rename(local / name)
    text = (local / "_MANIFEST.json").read_text().replace("train-00000.bin", name)
    (local / "_MANIFEST.json").write_text(text)
    url = put(local, f"odd-names-{abs(hash(name))}")
    same(local, url, order="sequential")
    folder = CacheFolder(cache_settings())
    assert sum(e.bytes for e in folder.entries()) == 2 * (1024 + 1200)


def test_a_folder_among_the_shards_is_left_alone(tmp_path: Path) -> None:
    local = write_data_set(tmp_path / "data", [600, 600])
    url = put(local, "with-folder")
    list(islice(TrainLoader(url, **OPTIONS, order="sequential"), 3))
    (key,) = (path for path in (tmp_path / "cache").iterdir() if not path.name.startswith("."))
    (key / "mine").mkdir()
    (key / "mine" / "file").write_text("x")
    folder = CacheFolder(cache_settings())
    assert not folder.damaged()
    folder.prune()
    assert (key / "mine" / "file").exists()


def test_a_cache_that_is_removed_while_a_shard_is_fetched_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = write_data_set(tmp_path / "data", [600, 600])
    url = put(local, "removed")
    fill, times = fetching._fill, iter(range(100))

    def removed(*words: Any) -> str:
        found = fill(*words)
        if not next(times):
            remove_while_in_use(tmp_path / "cache")
        return found

    monkeypatch.setattr(fetching, "_fill", removed)
    same(local, url, order="sequential")


@pytest.mark.parametrize("order", ["sequential", "shuffled"])
def test_a_cache_whose_files_are_another_users_is_read(
    tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    local = write_data_set(tmp_path / "data", [600, 600])
    url = put(local, f"others-{order}")
    same(local, url, order="sequential")

    def refuse(path: Path, **_: Any) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(os, "utime", refuse)
    same(local, url, order=order)


@pytest.mark.parametrize("order", ["sequential", "shuffled", "block-shuffled"])
def test_what_a_read_only_cache_lacks_is_read_by_ranges(
    tmp_path: Path, order: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    local = write_data_set(tmp_path / "data", [600, 600, 600])
    url = put(local, f"read-only-{order}")
    same(local, url, order="sequential")
    (cached,) = (tmp_path / "cache").rglob("train-00001.bin")
    cached.unlink()

    def refuse(self: CacheFolder, *names: str, **_: Any) -> None:
        raise OSError(errno.EROFS, "Read-only file system", str(self.root / ".locks" / "-".join(names)))

    monkeypatch.setattr(CacheFolder, "lock", refuse)
    same(local, url, order=order)
    assert "not cached, read by ranges: [Errno 30] Read-only file system" in caplog.text
    assert not cached.exists()


@pytest.mark.parametrize("name", ["x.bin.1234.part", "_SOURCE.json"])
def test_a_shard_called_like_a_file_of_the_caches_own_is_refused(tmp_path: Path, name: str) -> None:
    local = write_data_set(tmp_path / "data", [600])
    (local / "train-00000.bin").rename(local / name)
    text = (local / "_MANIFEST.json").read_text().replace("train-00000.bin", name)
    (local / "_MANIFEST.json").write_text(text)
    with pytest.raises(FormatError, match="the cache keeps files of its own under such names"):
        TrainLoader(put(local, f"own-names-{len(name)}"), **OPTIONS)


def test_a_shard_that_goes_before_anything_was_fetched_is_fetched_and_waited_for(tmp_path: Path) -> None:
    url = put(write_data_set(tmp_path / "data", [600]), "all-here")
    shard = resolve(url, split="train").shards[0]
    assert shard.origin is not None
    cached = CachedShard(shard.origin, shard.path.name, shard.header.file_bytes, shard.sha256)
    assert fetch(cached, stopped=threading.Event())
    keeper = Keeper([cached])
    assert keeper.found(0)
    keeper.want([0], must=True)
    cached.path.unlink()
    keeper.lost(0)
    keeper.wait(0)
    assert cached.is_whole()
    keeper.close()


def test_room_that_other_fetches_will_take_is_not_given_twice(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = CacheFolder(CacheSettings(tmp_path, 10**9))
    usage = type("Usage", (), {"total": 10**9, "free": 150})
    monkeypatch.setattr("tokenriver.cache.folder.shutil.disk_usage", lambda _: usage)
    parts = [tmp_path / "set" / f"{k}.bin.100.part" for k in range(2)]
    folder.reserve(parts[0], 100, shard_name="0.bin", source={"url": "s3://b"})
    with pytest.raises(CacheFullError):
        folder.reserve(parts[1], 100, shard_name="1.bin", source={"url": "s3://b"}, keep=parts[:1])


def test_a_disk_that_fills_up_meanwhile_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = TrainLoader(put(write_data_set(tmp_path / "data", [600, 600]), "full"), **OPTIONS, order="sequential")

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr("tokenriver.cache.fetch.os.write", full)
    with pytest.raises(OSError, match=r"No space left on device; make room there, prune the cache .*\.part"):
        next(iter(loader))


@pytest.mark.parametrize("index", [True, False])
def test_packing_needs_no_cache_that_can_be_written_to(tmp_path: Path, index: bool) -> None:
    local = write_data_set(tmp_path / "data", [600], separator=0)
    if index:
        index_shard(local / "train-00000.bin", separator_id=0)
    url = put(local, f"no-cache-{index}")
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / ".locks").write_bytes(b"a file, where no folder can be made")
    for limit in (None, 0):
        same(local, url, packing="best-fit", order="shuffled", cache_limit=limit)


def test_a_disk_that_was_full_before_the_reader_closed_its_files_is_tried_once_more(tmp_path: Path) -> None:
    url = put(write_data_set(tmp_path / "data", [600]), "was-full")
    shard = resolve(url, split="train").shards[0]
    assert shard.origin is not None
    cached = CachedShard(shard.origin, shard.path.name, shard.header.file_bytes, shard.sha256)
    keeper = Keeper([cached])
    keeper._errors[0] = OSError(errno.ENOSPC, "full", "a.part")
    keeper.want([0], must=True)
    keeper.wait(0)
    assert cached.is_whole()
    keeper.close()


def test_a_file_in_the_caches_place_is_refused(tmp_path: Path) -> None:
    (tmp_path / "cache").write_bytes(b"")
    with pytest.raises(UsageError, match=r"the cache is a directory, and .*cache is none"):
        cache_settings()
