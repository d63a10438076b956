"""The cache's folder: who goes first, what a limit means, and what `tokenriver cache` shows and removes."""

from __future__ import annotations

import json
import os
import threading
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from positions import write_data_set

from tokenriver import TrainLoader, UsageError
from tokenriver.cache.folder import CacheFolder, CacheFullError
from tokenriver.cache.marks import mark_verified, whole_stat
from tokenriver.cache.settings import CacheSettings, cache_settings, parse_bytes
from tokenriver.cli import main
from tokenriver.storage.directory import staging_root

if TYPE_CHECKING:
    from pathlib import Path


SOURCE = {"url": "s3://bucket/web"}


def put(root: Path, key: str, name: str, size: int, needed: float) -> Path:
    """A verified file of zeros, needed last at that second."""
    path = root / key / name
    path.parent.mkdir(parents=True, exist_ok=True)
    (path.parent / "_SOURCE.json").write_text(json.dumps(SOURCE))
    path.write_bytes(bytes(size))
    mark_verified(path, sha256(bytes(size)).hexdigest())
    os.utime(path, ns=(int(needed * 1e9), path.stat().st_mtime_ns))
    return path


def names(folder: CacheFolder) -> list[str]:
    return [entry.path.name for entry in folder.entries()]


@pytest.mark.parametrize(
    ("text", "size"),
    [("200GB", 200 * 10**9), ("1.5 TiB", 3 * 2**39), (12, 12), ("12", 12), ("0", 0), ("3kb", 3000), ("7M", 7 * 10**6)],
)
def test_sizes_are_read(text: Any, size: int) -> None:
    assert parse_bytes(text) == size


@pytest.mark.parametrize("text", ["", "GB", "-1", -1, "1 ZB", "1iB", True, 1.5, "ten"])
def test_what_is_no_size_is_refused(text: Any) -> None:
    with pytest.raises(UsageError, match="a number of bytes such as 200GB"):
        parse_bytes(text)


def test_settings_come_from_arguments_then_environment_then_the_users_cache(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("TOKENRIVER_CACHE_DIR", raising=False)
    assert cache_settings() == CacheSettings(tmp_path / "tokenriver" / "shards", None)
    monkeypatch.setenv("TOKENRIVER_CACHE_DIR", str(tmp_path / "mine"))
    monkeypatch.setenv("TOKENRIVER_CACHE_LIMIT", "5GB")
    assert cache_settings() == CacheSettings(tmp_path / "mine", 5 * 10**9)
    assert cache_settings(tmp_path / "given", 7) == CacheSettings(tmp_path / "given", 7)


def test_what_was_needed_the_longest_time_ago_goes_first(tmp_path: Path) -> None:
    for k, needed in enumerate((30, 10, 20)):
        put(tmp_path, "set", f"{k}.bin", 100, needed)
    folder = CacheFolder(CacheSettings(tmp_path, 350))
    folder.reserve(tmp_path / "set" / "3.bin.100.part", 100, shard_name="3.bin", source=SOURCE)
    assert names(folder) == ["2.bin", "0.bin", "3.bin.100.part"]
    assert sum(entry.bytes for entry in folder.entries()) == 300, "a part counts in full"
    folder.reserve(
        tmp_path / "set" / "4.bin.100.part", 100, shard_name="4.bin", source=SOURCE, keep=[tmp_path / "set" / "2.bin"]
    )
    assert "2.bin" in names(folder)
    assert "0.bin" not in names(folder)


def test_a_part_that_somebody_fetches_is_not_removed(tmp_path: Path) -> None:
    folder = CacheFolder(CacheSettings(tmp_path, 100))
    folder.reserve(tmp_path / "set" / "0.bin.100.part", 100, shard_name="0.bin", source=SOURCE)
    held, done = threading.Event(), threading.Event()

    def hold() -> None:
        with folder.lock("shard", "set", "0.bin"):
            held.set()
            done.wait()

    other = threading.Thread(target=hold)
    other.start()
    held.wait()
    with pytest.raises(CacheFullError):
        folder.reserve(tmp_path / "set" / "1.bin.50.part", 50, shard_name="1.bin", source=SOURCE)
    assert folder.prune() == (0, 0)
    done.set()
    other.join()
    folder.reserve(tmp_path / "set" / "1.bin.50.part", 50, shard_name="1.bin", source=SOURCE)
    assert names(folder) == ["1.bin.50.part"]


def test_a_shard_beyond_the_limit_is_an_error_that_says_what_to_do(tmp_path: Path) -> None:
    folder = CacheFolder(CacheSettings(tmp_path, 100))
    with pytest.raises(OSError, match=r"limit of 100 B has no room for 101 B; make room there, prune the cache"):
        folder.reserve(tmp_path / "set" / "1.bin.101.part", 101, shard_name="1.bin", source=SOURCE)


def test_every_shard_finds_room_whichever_locks_they_share(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tokenriver.cache.folder._STRIPES", 1)
    folder = CacheFolder(CacheSettings(tmp_path, 100))
    for k in range(5):
        with folder.lock("shard", "set", f"{k}.bin"):
            folder.reserve(tmp_path / "set" / f"{k}.bin.100.part", 100, shard_name=f"{k}.bin", source=SOURCE)
        assert names(folder) == [f"{k}.bin.100.part"]


def test_a_file_written_to_is_not_whole(tmp_path: Path) -> None:
    path, digest = put(tmp_path, "set", "0.bin", 100, 10), sha256(bytes(100)).hexdigest()
    assert whole_stat(path, 100, digest)
    assert not whole_stat(path, 101, digest)
    assert not whole_stat(path, 100, "1" * 64)
    with open(path, "r+b") as file:
        file.write(b"x")
    assert not whole_stat(path, 100, digest)
    assert not whole_stat(tmp_path / "none", 100, digest)


@pytest.fixture
def cache(tmp_path: Path) -> Path:
    root = tmp_path / "cache"
    for k in range(3):
        put(root, "web-0123", f"train-0000{k}.bin", 1000, 100.0 + k)
    put(root, "code-4567", "train-00000.bin.5000.part", 400, 50.0)
    (root / "code-4567" / "_SOURCE.json").write_text('{"url": "s3://bucket/code"}')
    return root


def test_the_command_shows_what_is_there(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--cache-dir", str(cache)]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[1].split()[:5] == ["s3://bucket/web", "3", "0", "3.0", "kB"]
    assert lines[2].split()[:5] == ["s3://bucket/code", "0", "1", "400", "B"]
    assert lines[3] == f"3.4 kB of 2 data sets in {cache}"
    assert main(["cache", "--cache-dir", str(cache / "nowhere"), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["data_sets"] == []


def test_the_command_prunes(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--cache-dir", str(cache), "--prune", "--limit", "2kB", "--json"]) == 0
    facts = json.loads(capsys.readouterr().out)
    assert facts["removed"] == {"files": 2, "bytes": 6000}
    assert [one["key"] for one in facts["data_sets"]] == ["web-0123"]
    assert sorted(path.name for path in cache.glob("*/*.bin")) == ["train-00001.bin", "train-00002.bin"]
    assert main(["cache", "--cache-dir", str(cache), "--prune", "--all"]) == 0
    assert "removed 2 files, 2.0 kB" in capsys.readouterr().out
    assert [path.name for path in cache.iterdir() if path.name != ".locks"] == []


def test_the_command_finds_decayed_bits(cache: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--cache-dir", str(cache), "--verify"]) == 0
    path = cache / "web-0123" / "train-00001.bin"
    before = path.stat()
    path.write_bytes(b"x" + bytes(999))
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    capsys.readouterr()
    assert main(["cache", "--cache-dir", str(cache), "--verify"]) == 1
    assert f"{path}: not what was fetched; removed" in capsys.readouterr().out
    assert not path.exists()


@pytest.mark.parametrize(
    "words",
    [["--prune"], ["--prune", "--all", "--limit", "1GB"], ["--limit", "1GB"], ["--all"], ["--prune", "--limit", "x"]],
)
def test_words_that_contradict_are_refused(cache: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["cache", "--cache-dir", str(cache), *words]) == 2
    assert "tokenriver: " in capsys.readouterr().err
    assert len(list(cache.glob("*/*"))) == 6


def test_what_others_keep_beside_the_cache_is_neither_shown_nor_removed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    theirs = [tmp_path / "checkpoints" / "model.pt", tmp_path / "run" / "train-00000.bin", tmp_path / "notes.txt"]
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(bytes(1000))
    (tmp_path / "run" / "_SOURCE.json").write_text("{}")
    (tmp_path / "empty").mkdir()
    ours = put(tmp_path, "web-0123", "0.bin", 100, 10)
    assert main(["cache", "--cache-dir", str(tmp_path), "--verify"]) == 0
    assert f"100 B of 1 data sets in {tmp_path}" in capsys.readouterr().out
    folder = CacheFolder(CacheSettings(tmp_path, 150))
    folder.reserve(tmp_path / "set" / "1.bin.100.part", 100, shard_name="1.bin", source=SOURCE)
    assert not ours.exists(), "the limit is the cache's own"
    assert main(["cache", "--cache-dir", str(tmp_path), "--prune", "--all"]) == 0
    assert all(path.exists() for path in theirs)
    assert sorted(path.name for path in tmp_path.iterdir() if path.is_dir()) == [
        ".locks",
        "checkpoints",
        "empty",
        "run",
    ]


def test_a_size_of_thousands_of_digits_is_refused() -> None:
    with pytest.raises(UsageError, match="a number of bytes"):
        parse_bytes("9" * 5000 + "GB")


def test_a_user_without_a_home_reads_files_of_this_machine_and_is_told_to_name_a_cache_for_others(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("HOME", "XDG_CACHE_HOME", "TOKENRIVER_CACHE_DIR"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "getuid", lambda: 2**31 - 7)  # in no list of users
    monkeypatch.setenv("TOKENRIVER_CACHE_LIMIT", "no size")
    root = write_data_set(tmp_path / "data", [700])
    assert TrainLoader(root, batch_size=2, seq_len=8).n_tokens == 700
    monkeypatch.delenv("TOKENRIVER_CACHE_LIMIT")
    with pytest.raises(UsageError, match=r"no home directory.*cache_dir or TOKENRIVER_CACHE_DIR"):
        cache_settings()
    with pytest.raises(UsageError, match=r"no home directory.*--staging or TOKENRIVER_STAGING"):
        staging_root()
    monkeypatch.setenv("TOKENRIVER_CACHE_DIR", str(tmp_path))
    assert cache_settings().root == tmp_path


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"cache_dir": 1}, "cache_dir is the path of a directory, not 1"),
        ({"cache_dir": "s3://bucket"}, "a URL, but this has to be a path on this machine"),
        ({"cache_limit": "no size"}, "cache_limit is a number of bytes"),
        ({"cache_limit": True}, "cache_limit is a number of bytes"),
    ],
)
def test_a_cache_that_was_given_is_checked_at_once_also_where_none_is_needed(
    tmp_path: Path, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(UsageError, match=message):
        TrainLoader(write_data_set(tmp_path / "data", [700]), batch_size=2, seq_len=8, **options)


def test_numpy_s_numbers_are_sizes_too() -> None:
    assert parse_bytes(np.int64(7)) == 7  # type: ignore[arg-type]
