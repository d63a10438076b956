"""Shards that are hashed while the next ones are written: journalled first, never made again, errors not lost."""

from __future__ import annotations

import errno
import json

import forked
import pytest
from build_helpers import hashes
from made_documents import make_texts, write_jsonl
from own_threads import threads_left

import tokenriver
from tokenriver.building import sealing
from tokenriver.building.sealing import sealing_threads

WORDS = {"tokenizer": "byte260", "shard_tokens": 2000, "block_bytes": 1500, "split": "hash:0.3"}

LATE = """
import threading
from tokenriver.building import index_part, journal, sealing
from tokenriver.shards import writer
recorded, record, sha256_file = threading.Semaphore(0), journal.Journal.record, sealing.sha256_file
def record_and_tell(self, *args, **words):
    record(self, *args, **words)
    recorded.release()
def hash_after_the_journal(path):
    recorded.acquire()
    return sha256_file(path)
journal.Journal.record = record_and_tell
sealing.sha256_file = hash_after_the_journal
"""

PHASES = {
    "before its SHA-256 is in the journal": "journal.Journal, 'record_sha256'",
    "between the SHA-256 and the name of the index": "index_part.IndexPart, 'publish'",
    "between the SHA-256 and the name": "writer.ShardWriter, 'publish'",
}


def directory_of(out):
    return out / "tokens" / "byte260" / "docs"


@pytest.mark.parametrize("phase", PHASES)
def test_a_journalled_shard_is_not_made_again_whatever_happens_while_it_is_hashed(tmp_path, phase):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(120))
    tokenriver.build([source], out=tmp_path / "whole", **WORDS)
    call = f"tokenriver.build([{str(source)!r}], out={str(tmp_path / 'out')!r}, **{WORDS!r})"
    forked.killed(f"{LATE}kill_at({PHASES[phase]}, 3, before=True)\n{call}")
    directory = directory_of(tmp_path / "out")
    lines = [json.loads(line) for line in (directory / "_JOURNAL").read_bytes().splitlines()]
    journalled = [line["file"]["name"] for line in lines if "file" in line]
    assert len(journalled) >= 3
    assert {line["file"]["sha256"] for line in lines if "file" in line} == {""}
    there = {name: next(p for p in (directory / name, directory / f"{name}.part") if p.exists()) for name in journalled}
    facts = {name: (path.stat().st_ino, path.stat().st_mtime_ns) for name, path in there.items()}
    assert any(path.suffix == ".part" for path in there.values())
    assert tokenriver.build([source], out=tmp_path / "out", **{**WORDS, "workers": 3}).resumed
    assert hashes(directory) == hashes(directory_of(tmp_path / "whole"))
    for name, before in facts.items():
        assert ((directory / name).stat().st_ino, (directory / name).stat().st_mtime_ns) == before


@pytest.mark.parametrize("workers", [1, 16])
def test_a_shard_that_cannot_be_hashed_ends_the_build_and_a_rerun_completes(tmp_path, monkeypatch, workers):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(120))
    original, calls = sealing.sha256_file, []

    def fail_on_the_third(path):
        calls.append(path)
        if len(calls) == 3:
            raise OSError(errno.EIO, "Input/output error", str(path))
        return original(path)

    with monkeypatch.context() as patch:
        patch.setattr(sealing, "sha256_file", fail_on_the_third)
        with pytest.raises(OSError, match="Input/output error") as failed:
            tokenriver.build([source], out=tmp_path / "out", workers=workers, **WORDS)
    assert failed.value.filename == str(calls[2])
    assert threads_left() == []
    tokenriver.build([source], out=tmp_path / "out", **WORDS)
    tokenriver.build([source], out=tmp_path / "whole", **WORDS)
    assert hashes(directory_of(tmp_path / "out")) == hashes(directory_of(tmp_path / "whole"))


def test_a_build_that_is_stopped_while_a_shard_is_hashed_goes_on_with_it(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(120))
    tokenriver.build([source], out=tmp_path / "whole", **WORDS)

    def stop(*_):
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(sealing.ShardSealing, "wait", stop)
        with pytest.raises(KeyboardInterrupt):
            tokenriver.build([source], out=tmp_path / "out", workers=16, **WORDS)
    assert threads_left() == []
    assert tokenriver.build([source], out=tmp_path / "out", **WORDS).resumed
    assert hashes(directory_of(tmp_path / "out")) == hashes(directory_of(tmp_path / "whole"))


def test_as_many_shards_are_hashed_at_a_time_as_the_workers_fill():
    assert [sealing_threads(n) for n in (1, 2, 4, 8, 32, 100)] == [1, 1, 1, 2, 8, 25]
