"""Encoding in other processes: the same bytes, the same errors, and nobody left behind."""

from __future__ import annotations

import gzip
import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from build_helpers import hashes
from made_documents import make_texts, write_jsonl

import tokenriver
from tokenriver.building import lanes
from tokenriver.building.lane_messages import pack_block, unpack_block
from tokenriver.building.lanes import share_of_processes
from tokenriver.corpus.documents import SourceOptions, find_sources, parse_block, read_blocks

SRC = str(Path(tokenriver.__file__).parents[1])
WORDS = {"tokenizer": "byte", "shard_tokens": 9000, "block_bytes": 4000, "split": "hash:0.2", "dataset": "docs"}


@pytest.fixture
def elsewhere(monkeypatch):
    """Two workers are two of another process."""
    monkeypatch.setattr(lanes, "_ALONE", 1)
    monkeypatch.setattr(lanes, "_HERE", 0)
    monkeypatch.setattr(lanes, "_LEAST_BYTES", 0)


@pytest.fixture
def folder(tmp_path):
    """Documents of every kind, with a few bad records."""
    folder = tmp_path / "docs"
    folder.mkdir()
    lines = write_jsonl(folder / "a.jsonl", make_texts(200)).read_bytes()
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(lines + b'{"other":1}\n'))
    (folder / "c.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(b"{}\n" + lines))
    pq.write_table(pa.table({"text": make_texts(200, seed=3)}), folder / "d.parquet", row_group_size=20)
    (folder / "e.txt").write_text("one document")
    return folder


def everything(out):
    return hashes(out / "tokens" / "byte" / "docs")


def test_few_workers_and_little_text_stay_in_one_process():
    assert share_of_processes(8, 1 << 40) == (8, [])
    assert share_of_processes(64, (2 << 30) - 1) == (64, [])
    for workers in range(9, 200):
        here, there = share_of_processes(workers, 2 << 30)
        assert here == 2
        assert here + sum(there) == workers
        assert max(there) <= 8
        assert max(there) - min(there) <= 1
    assert share_of_processes(32, 0) == (2, [8, 8, 7, 7])


@pytest.mark.usefixtures("elsewhere")
def test_another_process_makes_the_same_bytes_and_counts_the_same(tmp_path, folder, monkeypatch):
    with monkeypatch.context() as patch:
        patch.setattr(lanes, "_Process", None)  # none begins where all work here
        alone = tokenriver.build([folder], out=tmp_path / "alone", workers=1, on_bad_record="skip", **WORDS)
    summary = tokenriver.build([folder], out=tmp_path / "out", workers=2, on_bad_record="skip", **WORDS)
    assert everything(tmp_path / "out") == everything(tmp_path / "alone")
    assert summary.documents == 801
    assert summary.skipped == alone.skipped == {"missing": 2}
    assert (summary.sampled, summary.text_bytes) == (alone.sampled, alone.text_bytes)


@pytest.mark.usefixtures("elsewhere")
def test_an_error_in_another_process_is_the_error_of_the_build(tmp_path, folder):
    with pytest.raises(tokenriver.CorpusError, match=r"b\.jsonl\.gz:201 \(byte .* decompressed\): no field 'text'"):
        tokenriver.build([folder], out=tmp_path / "out", workers=2, **WORDS)


@pytest.mark.usefixtures("elsewhere")
def test_a_process_that_ends_too_early_is_named_and_a_rerun_completes(tmp_path, folder, monkeypatch):
    words = {**WORDS, "on_bad_record": "skip"}
    with monkeypatch.context() as patch:
        dies = "import tokenriver.building.lane_process as p; p.encode_block = lambda *_: __import__('os')._exit(3)\n"
        dies += "import sys; p.serve([int(word) for word in sys.argv[1:]])\n"
        patch.setattr(lanes, "_BEGIN", "import sys, json; sys.path[:] = json.loads(sys.argv.pop(1))\n" + dies)
        with pytest.raises(tokenriver.ClusterError, match="ended with code 3: perhaps"):
            tokenriver.build([folder], out=tmp_path / "out", workers=2, **words)
    tokenriver.build([folder], out=tmp_path / "out", workers=2, **words)
    tokenriver.build([folder], out=tmp_path / "alone", workers=1, **words)
    assert everything(tmp_path / "out") == everything(tmp_path / "alone")


@pytest.mark.usefixtures("elsewhere")
def test_work_is_done_here_where_no_process_begins(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(50))
    monkeypatch.setattr(lanes, "_BEGIN", "raise SystemExit(1)")
    with pytest.warns(RuntimeWarning, match="could not begin"):
        tokenriver.build([source], out=tmp_path / "out", workers=2, **WORDS)
    tokenriver.build([source], out=tmp_path / "alone", workers=1, **WORDS)
    assert everything(tmp_path / "out") == everything(tmp_path / "alone")


def test_a_killed_build_leaves_no_process_behind(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(2000))
    code = f"""
import os, signal, sys
import tokenriver
from tokenriver.building import lanes
from tokenriver.shards import writer
lanes._ALONE, lanes._HERE, lanes._LEAST_BYTES = 1, 0, 0
begin = lanes.subprocess.Popen
def started(*args, **words):
    process = begin(*args, **words)
    print(process.pid, flush=True)
    return process
lanes.subprocess.Popen = started
writer.ShardWriter.publish = lambda self: os.kill(os.getpid(), signal.SIGKILL)
tokenriver.build([{str(source)!r}], out={str(tmp_path / "out")!r}, workers=2, **{WORDS!r})
"""
    killed = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, "PYTHONPATH": SRC},
        stdout=subprocess.PIPE,
        text=True,
        check=False,
    )
    assert killed.returncode == -signal.SIGKILL
    pid = int(killed.stdout)
    for _ in range(2000):
        if not _lives(pid):
            break
        time.sleep(0.005)
    assert not _lives(pid)


def _lives(pid):
    try:
        return Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[0] != "Z"
    except OSError:
        return False


def test_a_block_comes_over_as_it_was(folder):
    options = SourceOptions(on_bad_record="skip")
    sources = pickle.loads(pickle.dumps(find_sources([folder])))
    for block_bytes in (100, 1 << 20):
        for raw in read_blocks(sources, options, block_bytes=block_bytes):
            message, beside = pack_block(raw)
            same = unpack_block(pickle.loads(pickle.dumps(message)), [bytearray(one) for one in beside], sources)
            assert (same.start, same.end, same.n_bytes) == (raw.start, raw.end, raw.n_bytes)
            before, after = parse_block(raw, options), parse_block(same, options)
            assert list(before.texts) == list(after.texts)
            assert before.offsets.tolist() == after.offsets.tolist()


def test_standard_input_is_known_as_such_in_another_process():
    (source,) = pickle.loads(pickle.dumps(find_sources(["-"])))
    assert str(source) == "<stdin>"
    assert source.stream.read(1) == b""
