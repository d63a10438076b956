"""Builds of many files with many workers: files hashed apart, killed and resumed, changed and missing."""

from __future__ import annotations

import gzip
import json
import os

import forked
import pytest
from build_helpers import hashes
from made_documents import make_texts, write_jsonl
from own_threads import threads_left

import tokenriver
from tokenriver.corpus import apart

WORDS = {"tokenizer": "byte260", "shard_tokens": 3000, "block_bytes": 1500, "split": "hash:0.2"}
KILLED = """
from tokenriver.corpus import apart
from tokenriver.shards import writer
apart._LEAST_BYTES, apart._READ_BYTES, apart._MARK_BYTES = 1000, 1000, 1000
"""


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setattr(apart, "_LEAST_BYTES", 1000)
    monkeypatch.setattr(apart, "_READ_BYTES", 1000)
    monkeypatch.setattr(apart, "_MARK_BYTES", 1000)
    folder = tmp_path / "docs"
    folder.mkdir()
    for i in range(8):
        path = write_jsonl(folder / f"{i}.jsonl", make_texts(30, seed=i))
        if i in (2, 5):
            path.with_suffix(".jsonl.gz").write_bytes(gzip.compress(path.read_bytes()))
            path.unlink()
    write_jsonl(folder / "small.jsonl", ["one"])
    return folder


def directory_of(out):
    return out / "tokens" / "byte260" / "docs"


def killed_build(folder, out, count):
    call = f"tokenriver.build([{str(folder)!r}], out={str(out)!r}, workers=16, **{WORDS!r})"
    forked.killed(f"{KILLED}kill_at(writer.ShardWriter, 'publish', {count})\n{call}")


def no_thread_is_left():
    return not threads_left()


@pytest.mark.parametrize("count", [1, 9, 17])
def test_many_workers_and_files_killed_in_the_middle_give_what_one_worker_gives(tmp_path, folder, count):
    tokenriver.build([folder], out=tmp_path / "whole", workers=1, **WORDS)
    killed_build(folder, tmp_path / "out", count)
    assert tokenriver.build([folder], out=tmp_path / "out", workers=16, **WORDS).resumed
    assert hashes(directory_of(tmp_path / "out")) == hashes(directory_of(tmp_path / "whole"))
    assert no_thread_is_left()


def test_a_file_that_changed_behind_its_size_and_time_after_a_kill_is_refused(tmp_path, folder):
    killed_build(folder, tmp_path / "out", 9)
    lines = [json.loads(line) for line in (directory_of(tmp_path / "out") / "_JOURNAL").read_bytes().splitlines()]
    mark = next(line["mark"] for line in reversed(lines) if line.get("mark"))
    changed = sorted(folder.iterdir())[mark["source_index"]]
    raw, times = changed.read_bytes(), changed.stat()
    changed.write_bytes(raw.replace(b"0 ", b"X ", 1))
    os.utime(changed, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(tokenriver.ResumeError, match=rf"{changed.name}: its first .* the input changed"):
        tokenriver.build([folder], out=tmp_path / "out", workers=16, **WORDS)
    assert not list((tmp_path / "out").rglob("_MANIFEST.json"))
    assert no_thread_is_left()


@pytest.mark.parametrize("change", ["shorter", "other", "gone"])
@pytest.mark.parametrize("name", ["4.jsonl", "5.jsonl.gz"])
def test_a_file_that_changes_while_many_are_read_is_named(tmp_path, folder, monkeypatch, change, name):
    original = tokenriver.building.passes._stream
    path = folder / name

    def change_and_stream(*args):
        if change == "gone":
            path.unlink()
        elif change == "shorter":
            os.truncate(path, path.stat().st_size - 3)
        else:
            raw = path.read_bytes()
            path.write_bytes(raw[:-60] + raw[-60:].replace(b"a", b"b"))
            os.utime(path, ns=(0, 1))
        return original(*args)

    monkeypatch.setattr(tokenriver.building.passes, "_stream", change_and_stream)
    with pytest.raises(tokenriver.TokenRiverError, match=name):
        tokenriver.build([folder], out=tmp_path / "out", workers=16, **WORDS)
    assert not list((tmp_path / "out").rglob("_MANIFEST.json"))
    assert no_thread_is_left()


def test_an_interrupt_leaves_no_thread_and_a_build_that_goes_on(tmp_path, folder, monkeypatch):
    tokenriver.build([folder], out=tmp_path / "whole", workers=1, **WORDS)

    def interrupt(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(tokenriver.building.dataset.DatasetWriter, "finish", interrupt)
        with pytest.raises(KeyboardInterrupt):
            tokenriver.build([folder], out=tmp_path / "out", workers=16, **WORDS)
    assert no_thread_is_left()
    assert tokenriver.build([folder], out=tmp_path / "out", workers=16, **WORDS).resumed
    assert hashes(directory_of(tmp_path / "out")) == hashes(directory_of(tmp_path / "whole"))
