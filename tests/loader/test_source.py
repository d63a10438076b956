"""Naming data: directories of every layout, manifests, globs and lists, and what is wrong with those that fail."""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from positions import write_data_set

from tokenriver import FormatError, IntegrityError, TrainLoader, UsageError, verify, write_shard
from tokenriver.loader.source import resolve

DataSet = Callable[..., Path]


def shard(path: Path, n: int = 100) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    write_shard(path, np.arange(n))
    return path


def found(source: object, split: str = "train") -> list[str]:
    return [shard.path.name for shard in resolve(source, split=split).shards]  # type: ignore[arg-type]


def test_a_data_set_a_manifest_a_shard_a_glob_and_a_list_name_the_same_tokens(data_set: DataSet) -> None:
    root = data_set([100, 50], val=[70])
    both = ["train-00000.bin", "train-00001.bin"]
    for source in (root, str(root), root / "_MANIFEST.json", f"{root}/train-*.bin", [root / name for name in both]):
        assert found(source) == both
    assert found(root, "val") == ["val-00000.bin"]
    assert found(root / "val-00000.bin", "val") == ["val-00000.bin"]


def test_the_manifest_s_order_counts_and_not_the_directory_s(data_set: DataSet) -> None:
    root = data_set([100, 50, 60])
    manifest = json.loads((root / "_MANIFEST.json").read_text())
    manifest["files"].sort(key=lambda file: file["n_tokens"])
    (root / "_MANIFEST.json").write_text(json.dumps(manifest))
    assert found(root) == ["train-00001.bin", "train-00002.bin", "train-00000.bin"]


def test_llmc_and_golf_directories_are_read_by_name(tmp_path: Path) -> None:
    for k, split in ((2, "train"), (1, "train"), (0, "val")):
        shard(tmp_path / "a" / f"edu_{split}_{k:06d}.bin")
    assert found(tmp_path / "a") == ["edu_train_000001.bin", "edu_train_000002.bin"]
    shard(tmp_path / "b" / "TinyStories_train.bin")
    shard(tmp_path / "b" / "TinyStories_val.bin")
    assert found(tmp_path / "b", "val") == ["TinyStories_val.bin"]
    shard(tmp_path / "a" / "edu_train_000004.bin")
    with pytest.raises(IntegrityError, match="jump from 000002 to 000004"):
        found(tmp_path / "a")
    shard(tmp_path / "b" / "other_val.bin")
    with pytest.raises(UsageError, match=r"several data sets \(TinyStories, other\)"):
        found(tmp_path / "b")


def test_a_build_record_beside_golf_shards_is_followed(tmp_path: Path) -> None:
    shard(tmp_path / "fineweb_train_000000.bin")
    files = [{"name": f"fineweb_train_{k:06d}.bin", "split": "train", "n_tokens": 100, "sha256": "0"} for k in (0, 1)]
    (tmp_path / "fineweb_BUILD.json").write_text(json.dumps({"files": files}))
    with pytest.raises(IntegrityError, match=r"fineweb_train_000001\.bin is missing \(1 of the manifest's 2"):
        found(tmp_path)
    shard(tmp_path / "fineweb_train_000001.bin")
    assert len(found(tmp_path)) == 2
    assert "manifest=-" in str(resolve(tmp_path, split="train").fingerprint())
    record = {"files": files, "tokenizer": {"separator_id": 0, "separator_position": "between"}}
    (tmp_path / "fineweb_BUILD.json").write_text(json.dumps(record))
    with pytest.raises(FormatError, match=r"fineweb_BUILD\.json: separator_position is 'between', neither before nor"):
        found(tmp_path)


def test_what_is_no_data_set_says_why(tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    shard(tmp_path / "half" / "train-00000.bin")
    shard(tmp_path / "stopped" / "x_train_000000.bin")
    (tmp_path / "stopped" / "x_JOURNAL").write_text("{}")
    write_data_set(tmp_path / "root" / "tokens" / "byte" / "web", [100])
    shard(tmp_path / "mixed" / "train-00000.bin")
    shard(tmp_path / "mixed" / "val-00000.bin")
    cases = [
        (tmp_path / "nowhere", "no such data set directory"),
        (tmp_path / "empty", "no _MANIFEST.json and no shards"),
        (tmp_path / "half", "unfinished, shards without"),
        (tmp_path / "stopped", "unfinished, its build stopped"),
        (tmp_path / "root", r"there is one in .*web"),
        (str(tmp_path / "none_*.bin"), "no file matches"),
        (str(tmp_path / "mixed" / "*.bin"), "holds train and val shards"),
        ([], "names no shard"),
        ([tmp_path / "half" / "train-00000.bin"] * 2, "listed twice"),
    ]
    for source, message in cases:
        with pytest.raises(UsageError, match=message):
            found(source)


def test_a_shard_that_is_not_the_manifest_s_is_named(data_set: DataSet) -> None:
    root = data_set([100, 50])
    write_shard(root / "train-00001.bin", np.arange(51))
    with pytest.raises(IntegrityError, match=r"train-00001\.bin: 51 ids, but _MANIFEST.json says 50"):
        found(root)
    (root / "train-00001.bin").write_bytes(b"x" * 2000)
    with pytest.raises(FormatError, match=r"train-00001\.bin"):
        found(root)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("[]", "has a list 'files'"),
        ('{"files": [{"name": "a.bin", "split": "train"}]}', r"files\[0\] has no valid 'n_tokens'"),
        ('{"files": [{"name": "a.bin", "split": "train", "n_tokens": -1}]}', r"files\[0\] has no valid 'n_tokens'"),
        ('{"files": [{"name": "a.bin", "split": "train", "n_tokens": 1, "sha256": 5}]}', "no valid 'sha256'"),
        ('{"files": [{"name": "../a.bin", "split": "train", "n_tokens": 1}]}', "no directory in it"),
        ('{"files": [{"name": "/a.bin", "split": "train", "n_tokens": 1}]}', "no directory in it"),
    ],
)
def test_a_manifest_that_cannot_be_trusted_is_refused(tmp_path: Path, text: str, message: str) -> None:
    (tmp_path / "_MANIFEST.json").write_text(text)
    with pytest.raises(FormatError, match=message):
        found(tmp_path)


def opened(link: Path) -> str:
    """The file that a descriptor is of; "" for one that another thread has closed meanwhile."""
    try:
        return str(link.readlink())
    except FileNotFoundError:
        return ""


def test_ten_thousand_shards_open_in_a_second_and_few_descriptors_stay_open(tmp_path: Path) -> None:
    raw = shard(tmp_path / "x_0.bin", 64).read_bytes()
    for k in range(10_000):
        (tmp_path / f"x_train_{k:06d}.bin").write_bytes(raw)
    (tmp_path / "x_0.bin").unlink()
    spent = []
    for _ in range(3):
        start = time.process_time()
        loader = TrainLoader(tmp_path, batch_size=512, seq_len=16, epochs=1)
        spent.append(time.process_time() - start)
    # The aim is 1 s, which benchmarks/loader.py measures (0.6 s); a machine shared by many tests gets twice that.
    assert min(spent) < 2.0
    assert all(batch.inputs.max() < 64 for batch in islice(loader, 8))
    descriptors = Path("/proc/self/fd")
    if descriptors.exists():
        assert sum(opened(link).startswith(str(tmp_path)) for link in descriptors.iterdir()) <= 128
    loader.close()


@pytest.mark.parametrize("source", [None, 5, b"x", {"a": ("b", 1)}, [5], [None]])
def test_what_is_no_path_is_refused(source: object) -> None:
    with pytest.raises(UsageError, match="a source is a path or URL, a list of them, or a Mixture"):
        TrainLoader(source, batch_size=1, seq_len=1)  # type: ignore[arg-type]


@pytest.mark.parametrize("source", ["", [""]])
def test_an_empty_path_is_not_the_working_directory(
    data_set: DataSet, monkeypatch: pytest.MonkeyPatch, source: str | list[str]
) -> None:
    monkeypatch.chdir(data_set([100]))
    with pytest.raises(UsageError, match="a path is empty"):
        TrainLoader(source, batch_size=1, seq_len=1)


def test_paths_may_come_from_an_iterator(data_set: DataSet) -> None:
    paths = sorted(data_set([100, 50]).glob("*.bin"))
    assert TrainLoader(iter(paths), batch_size=1, seq_len=1).n_tokens == 150  # type: ignore[arg-type]


def test_a_manifest_that_lists_a_shard_twice_or_under_the_other_side_is_refused(data_set: DataSet) -> None:
    root = data_set([100, 50])
    path = root / "_MANIFEST.json"
    manifest = json.loads(path.read_text())
    path.write_text(json.dumps(manifest | {"files": [*manifest["files"], manifest["files"][0]]}))
    with pytest.raises(FormatError, match=r"train-00000\.bin is listed twice"):
        found(root)
    (root / "train-00000.bin").rename(root / "val-00000.bin")
    manifest["files"][0]["name"] = "val-00000.bin"
    path.write_text(json.dumps(manifest))
    with pytest.raises(FormatError, match=r"files\[0\] is of train, but is called val-00000\.bin"):
        found(root)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
@pytest.mark.parametrize("make", [os.mkdir, getattr(os, "mkfifo", None)])
def test_what_is_no_file_in_a_shard_s_place_is_named_and_not_waited_for(
    data_set: DataSet, make: Callable[[Path], None]
) -> None:
    root = data_set([100, 50])
    (root / "train-00001.bin").unlink()
    make(root / "train-00001.bin")
    with pytest.raises(FormatError, match=r"train-00001\.bin: not a regular file"):
        found(root)
    problems = {finding.problem for finding in verify([root]).findings if finding.path.name == "train-00001.bin"}
    assert problems & {"Is a directory", "a named pipe, not a file"}


def test_a_source_may_begin_with_a_tilde_as_other_paths_may(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    write_data_set(tmp_path / "data", [300, 400])
    sources: list[Any] = [
        "~/data",
        Path("~/data"),
        "~/data/train-*.bin",
        ["~/data/train-00000.bin", "~/data/train-00001.bin"],
    ]
    for source in sources:
        assert TrainLoader(source, batch_size=2, seq_len=8).n_tokens == 700


def test_a_path_of_bytes_is_no_source() -> None:
    class InBytes:
        def __fspath__(self) -> bytes:
            return b"data"

    with pytest.raises(UsageError, match=r"a source is a path or URL.* is neither"):
        TrainLoader(InBytes(), batch_size=2, seq_len=8)  # type: ignore[arg-type]


@pytest.mark.parametrize("url", ["s3://", "s3:///", "gs://"])
def test_a_url_that_names_nothing_is_shown_as_it_was_given(url: str) -> None:
    with pytest.raises(UsageError, match=f"^{url}: names no bucket and no path"):
        TrainLoader(url, batch_size=2, seq_len=8)
