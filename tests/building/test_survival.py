"""Real kills, full disks, locks and changed inputs: nothing is lost, nothing is repeated, no half file has a name."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest
from build_helpers import hashes
from made_documents import make_texts, write_jsonl

import tokenriver
from tokenriver.shards.verify import verify

SRC = str(Path(tokenriver.__file__).parents[1])

KILL_AT = """
import os, signal, sys
from tokenriver.building import dataset, index_part, journal, records
from tokenriver.shards import writer
import tokenriver.building.job as job_module

def kill_after(owner, name, count, before):
    original = getattr(owner, name)
    calls = [0]
    def patched(*args, **kwargs):
        calls[0] += 1
        if before and calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        result = original(*args, **kwargs)
        if calls[0] == count:
            os.kill(os.getpid(), signal.SIGKILL)
        return result
    setattr(owner, name, patched)
"""

PHASES = {
    "before the first byte": "kill_after(writer.ShardWriter, 'append_all', 1, True)",
    "before the first shard is sealed": "kill_after(writer.ShardWriter, 'complete', 1, True)",
    "between sealing and the journal": "kill_after(journal.Journal, 'record', 2, True)",
    "between the journal and the rename": "kill_after(writer.ShardWriter, 'publish', 3, True)",
    "between the names of the index and of the shard": "kill_after(index_part.IndexPart, 'publish', 2, False)",
    "between the index's end and the journal": "kill_after(index_part.IndexPart, 'seal', 2, False)",
    "right after a rename": "kill_after(writer.ShardWriter, 'publish', 3, False)",
    "in the middle of an append": "kill_after(writer.ShardWriter, 'append_all', 9, False)",
    "before the records": "kill_after(job_module, 'write_records', 1, True)",
    "before the manifest": "kill_after(records, 'write_manifest', 1, True)",
    "after the manifest, before the journal goes": "kill_after(job_module, 'write_records', 1, False)",
}


def run_build(source, out, *, prelude="", stdin=None, **words):
    """A build in a process of its own, with `prelude` run before it."""
    words = {"tokenizer": "byte260", "shard_tokens": 2000, **words}
    code = f"{prelude}\nimport tokenriver\ntokenriver.build([{str(source)!r}], out={str(out)!r}, **{words!r})\n"
    with open(stdin or os.devnull, "rb") as given:
        return subprocess.run(
            [sys.executable, "-c", textwrap.dedent(code)],
            env={**os.environ, "PYTHONPATH": SRC},
            stdin=given,
            capture_output=True,
            text=True,
            check=False,
        )


def directory_of(out, layout):
    return out / "tokens" / "byte260" / "docs" if layout == "tokens" else out


@pytest.mark.parametrize(
    ("layout", "phase"),
    [
        *(("tokens", phase) for phase in PHASES),
        ("llmc", "between the journal and the rename"),
        ("golf", "between the journal and the rename"),
        ("llmc", "in the middle of an append"),
        ("golf", "before the records"),
    ],
)
def test_a_kill_in_any_phase_costs_nothing(tmp_path, phase, layout):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(120))
    words = {"layout": layout, "split": "hash:0.3", "block_bytes": 1500}
    assert run_build(source, tmp_path / "whole", **words).returncode == 0
    killed = run_build(source, tmp_path / "out", prelude=KILL_AT + PHASES[phase], **words)
    assert killed.returncode == -signal.SIGKILL, killed.stderr
    directory = directory_of(tmp_path / "out", layout)
    finished = {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in directory.glob("*.bin")}
    again = run_build(source, tmp_path / "out", **{**words, "block_bytes": 700, "workers": 3})
    assert again.returncode == 0, again.stderr
    assert hashes(directory) == hashes(directory_of(tmp_path / "whole", layout))
    for name, facts in finished.items():
        stat = (directory / name).stat()
        assert (stat.st_mtime_ns, stat.st_ino) == facts


def test_many_kills_at_random_moments_of_one_build(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(20_000, words=60))
    words = {"layout": "tokens", "split": "hash:0.1", "shard_tokens": 60_000, "block_bytes": 30_000}
    assert run_build(source, tmp_path / "whole", **words).returncode == 0
    expected = hashes(directory_of(tmp_path / "whole", "tokens"))
    directory = directory_of(tmp_path / "out", "tokens")
    rng = random.Random(5)
    kills = 0
    while kills < 25:
        code = f"import tokenriver\ntokenriver.build([{str(source)!r}], out={str(tmp_path / 'out')!r}, **{words!r},"
        code += f"tokenizer='byte260', workers={rng.choice([1, 2, 4])})"
        process = subprocess.Popen([sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SRC})
        goal = len(list(directory.glob("*.bin"))) + rng.choice([0, 0, 1, 2])
        while process.poll() is None and len(list(directory.glob("*.bin"))) < goal:
            time.sleep(0.001)
        time.sleep(rng.random() * (0.6 if goal == 0 else 0.05))
        process.kill()
        code = process.wait()
        if code == 0:
            break
        kills += 1
        final = {p.name for p in directory.glob("*.bin")}
        assert {n: h for n, h in hashes(directory).items() if n in final}.items() <= expected.items()
    assert run_build(source, tmp_path / "out", **words).returncode == 0 or kills < 25
    assert hashes(directory) == expected
    assert kills >= 10


FOUR_SHARDS = KILL_AT + "kill_after(writer.ShardWriter, 'publish', 4, False)"


def test_standard_input_is_gone_on_with_and_another_one_is_refused(tmp_path):
    texts = make_texts(400)
    source = write_jsonl(tmp_path / "docs.jsonl", texts)
    words = {"block_bytes": 1500, "split": "train", "dataset": "docs"}
    assert run_build("-", tmp_path / "whole", stdin=source, **words).returncode == 0
    assert run_build("-", tmp_path / "out", stdin=source, prelude=FOUR_SHARDS, **words).returncode == -signal.SIGKILL
    directory = directory_of(tmp_path / "out", "tokens")
    journal = (directory / "_JOURNAL").read_bytes()
    # The first has records of the same length, so nothing but the bytes differs; the last ends too early.
    first = write_jsonl(tmp_path / "first.jsonl", ["X" + texts[0][1:], *texts[1:]])
    other = write_jsonl(tmp_path / "other.jsonl", make_texts(400, seed=2, words=50))
    short = write_jsonl(tmp_path / "short.jsonl", texts[:3])
    for wrong in (first, other, short, Path(os.devnull)):
        refused = run_build("-", tmp_path / "out", stdin=wrong, **words)
        assert refused.returncode == 1, wrong
        assert "ResumeError: <stdin>: its first" in refused.stderr, (wrong, refused.stderr)
        assert (directory / "_JOURNAL").read_bytes() == journal
    assert run_build("-", tmp_path / "out", stdin=source, **words).returncode == 0
    assert hashes(directory) == hashes(directory_of(tmp_path / "whole", "tokens"))


def test_standard_input_need_not_come_again_when_only_the_records_are_missing(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(50))
    words = {"dataset": "docs"}
    killed = run_build("-", tmp_path / "out", stdin=source, prelude=KILL_AT + PHASES["before the manifest"], **words)
    assert killed.returncode == -signal.SIGKILL
    assert run_build("-", tmp_path / "out", stdin=os.devnull, **words).returncode == 0
    assert run_build("-", tmp_path / "whole", stdin=source, **words).returncode == 0
    assert hashes(directory_of(tmp_path / "out", "tokens")) == hashes(directory_of(tmp_path / "whole", "tokens"))


def test_bytes_that_changed_behind_size_and_time_never_get_a_manifest(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(400))
    words = {"block_bytes": 1500, "split": "train"}
    assert run_build(source, tmp_path, prelude=FOUR_SHARDS, **words).returncode == -signal.SIGKILL
    raw, times = source.read_bytes(), source.stat()
    source.write_bytes(raw.replace(b"0 ", b"X ", 1))
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    for _ in range(2):
        refused = run_build(source, tmp_path, **words)
        assert "docs.jsonl: its first" in refused.stderr
        assert "the input changed" in refused.stderr
        assert not (directory_of(tmp_path, "tokens") / "_MANIFEST.json").exists()
    source.write_bytes(raw)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    assert run_build(source, tmp_path, **words).returncode == 0
    assert run_build(source, tmp_path / "whole", **words).returncode == 0
    assert hashes(directory_of(tmp_path, "tokens")) == hashes(directory_of(tmp_path / "whole", "tokens"))


def test_inputs_behind_the_journal_are_not_read_again_and_keep_the_hash_of_what_was_read(tmp_path):
    sources = [write_jsonl(tmp_path / f"{i}.jsonl", make_texts(100, seed=i)) for i in range(4)]
    folder = tmp_path / "docs"
    folder.mkdir()
    for source in sources:
        source.rename(folder / source.name)
    words = {"block_bytes": 1500, "split": "train"}
    assert run_build(folder, tmp_path / "whole", **words).returncode == 0
    thirtieth = KILL_AT + "kill_after(writer.ShardWriter, 'publish', 30, False)"
    assert run_build(folder, tmp_path / "out", prelude=thirtieth, **words).returncode == -signal.SIGKILL
    no_reading = """
        from tokenriver.corpus import hashing
        original = hashing.hash_source
        def only_the_current(source, *mark):
            assert source.name not in ("0.jsonl", "1.jsonl"), source
            return original(source, *mark)
        hashing.hash_source = only_the_current
    """
    again = run_build(folder, tmp_path / "out", prelude=textwrap.dedent(no_reading), **words)
    assert again.returncode == 0, again.stderr
    assert hashes(directory_of(tmp_path / "out", "tokens")) == hashes(directory_of(tmp_path / "whole", "tokens"))


def test_a_changed_input_option_or_tokenizer_is_refused_by_name(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(120))
    prelude = KILL_AT + "kill_after(writer.ShardWriter, 'publish', 2, False)"
    words = {"tokenizer": "byte260", "shard_tokens": 2000}
    assert run_build(source, tmp_path, prelude=prelude).returncode == -signal.SIGKILL
    for change, named in [({"shard_tokens": 3000}, "shard_tokens"), ({"split": "train"}, "split")]:
        with pytest.raises(tokenriver.ResumeError, match=named):
            tokenriver.build([source], out=tmp_path, **{**words, **change})
    write_jsonl(source, make_texts(120, seed=2))
    with pytest.raises(tokenriver.ResumeError, match=r"docs\.jsonl"):
        tokenriver.build([source], out=tmp_path, **words)
    tokenriver.build([source], out=tmp_path, restart=True, **words)
    tokenriver.build([source], out=tmp_path / "whole", **words)
    assert hashes(directory_of(tmp_path, "tokens")) == hashes(directory_of(tmp_path / "whole", "tokens"))


def test_a_second_build_in_the_same_directory_is_told_so(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(20))
    prelude = """
import time, pathlib, tokenriver.building.passes as b
original = b._stream
def slow(*args):
    print("locked", flush=True)
    time.sleep(60)
b._stream = slow
"""
    code = f"{prelude}\nimport tokenriver\ntokenriver.build([{str(source)!r}], tokenizer='byte', out={str(tmp_path)!r})"
    process = subprocess.Popen(
        [sys.executable, "-c", code], env={**os.environ, "PYTHONPATH": SRC}, stdout=subprocess.PIPE, text=True
    )
    try:
        assert process.stdout is not None
        assert process.stdout.readline() == "locked\n"
        with pytest.raises(tokenriver.ResumeError, match="another build"):
            tokenriver.build([source], tokenizer="byte", out=tmp_path)
    finally:
        process.kill()
        process.wait()
        if process.stdout is not None:
            process.stdout.close()
    assert tokenriver.build([source], tokenizer="byte", out=tmp_path).documents == 20


@pytest.mark.parametrize(("signal_number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_command_cleanly_and_says_how_to_go_on(tmp_path, signal_number, code):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(30_000))
    command = [sys.executable, "-m", "tokenriver", "build", str(source), "--tokenizer", "byte260"]
    command += ["--out", str(tmp_path), "--shard-tokens", "50000", "--block-bytes", "20000", "--workers", "1"]
    process = subprocess.Popen(command, env={**os.environ, "PYTHONPATH": SRC}, stderr=subprocess.PIPE, text=True)
    directory = directory_of(tmp_path, "tokens")
    while not list(directory.glob("*.bin")) and process.poll() is None:
        time.sleep(0.001)
    process.send_signal(signal_number)
    _, errors = process.communicate()
    assert process.returncode == code
    assert "goes on" in errors
    assert "Traceback" not in errors
    assert (directory / "_JOURNAL").exists()
    assert (
        subprocess.run(command, env={**os.environ, "PYTHONPATH": SRC}, capture_output=True, check=False).returncode == 0
    )
    assert not (directory / "_JOURNAL").exists()


def test_a_full_disk_is_one_error_and_a_rerun_completes(tmp_path):
    mount = tmp_path / "small"
    mount.mkdir()
    if (
        os.geteuid()
        or subprocess.run(["mount", "-t", "tmpfs", "-o", "size=256k", "tmpfs", mount], check=False).returncode
    ):
        pytest.skip("a tmpfs of a chosen size needs root and mount")
    try:
        source = write_jsonl(tmp_path / "docs.jsonl", make_texts(1000, words=60))
        words = {"tokenizer": "byte260", "shard_tokens": 20_000, "block_bytes": 20_000, "split": "hash:0.1"}
        with pytest.raises(OSError, match="No space left") as full:
            tokenriver.build([source], out=mount / "out", **words)
        assert str(full.value.filename).startswith(str(mount)), "the error names the file"
        directory = directory_of(mount / "out", "tokens")
        for path in directory.glob("*.bin"):
            tokenriver.open_shard(path)
        subprocess.run(["mount", "-o", "remount,size=16m", mount], check=True)
        summary = tokenriver.build([source], out=mount / "out", **words)
        assert summary.resumed
        tokenriver.build([source], out=tmp_path / "whole", **words)
        assert hashes(directory) == hashes(directory_of(tmp_path / "whole", "tokens"))
    finally:
        subprocess.run(["umount", mount], check=True)


def test_the_journal_is_on_disk_before_the_rename_and_the_shards_before_the_manifest(tmp_path, monkeypatch):
    """The order of durable steps, as docs/determinism.md argues it."""
    steps = []
    real_fsync, real_replace = os.fsync, Path.replace

    def name_of(fd):
        return Path(f"/proc/self/fd/{fd}").readlink().name

    monkeypatch.setattr(os, "fsync", lambda fd: (steps.append(("fsync", name_of(fd))), real_fsync(fd))[1])
    monkeypatch.setattr(
        Path, "replace", lambda self, to: (steps.append(("rename", Path(to).name)), real_replace(self, to))[1]
    )
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(50))
    summary = tokenriver.build([source], tokenizer="byte260", out=tmp_path / "out", shard_tokens=2000)
    for file in json.loads(summary.record.read_bytes())["files"]:
        sealed = steps.index(("fsync", file["name"] + ".part"))
        renamed = steps.index(("rename", file["name"]))
        assert any(step == ("fsync", "_JOURNAL") for step in steps[sealed:renamed])
        assert ("fsync", summary.directory.name) in steps[renamed : steps.index(("rename", "_MANIFEST.json"))]


class OddTokenizer:
    """The byte tokenizer, but it fails on one word."""

    def __init__(self):
        self._bytes = tokenriver.load_tokenizer("byte")

    def __getattr__(self, name):
        return getattr(self._bytes, name)

    def encode_batch(self, texts, *, parallel=True):
        for i in range(len(texts)):
            if b"unspeakable" in texts[i]:
                error = tokenriver.TokenizerError(f"document {i} cannot be encoded")
                error.document = i
                raise error
        return self._bytes.encode_batch(texts, parallel=parallel)


def test_an_encoder_that_fails_on_one_document_names_it_and_a_rerun_completes(tmp_path):
    texts = make_texts(100)
    texts[70] = "unspeakable"
    source = write_jsonl(tmp_path / "docs.jsonl", texts)
    words = {"out": tmp_path, "shard_tokens": 2000, "block_bytes": 1000, "split": "train"}
    with pytest.raises(tokenriver.TokenizerError, match=r"docs\.jsonl:71 \(byte"):
        tokenriver.build([source], tokenizer=OddTokenizer(), **words)
    directory = tmp_path / "tokens" / "byte" / "docs"
    before = {p.name: p.stat().st_mtime_ns for p in directory.glob("*.bin")}
    assert before
    summary = tokenriver.build([source], tokenizer="byte", **words)
    assert summary.resumed
    assert summary.documents == 100
    assert {name: (directory / name).stat().st_mtime_ns for name in before} == before


def test_a_fast_encoder_that_differs_from_its_reference_stops_the_build_with_the_place(tmp_path):
    class Wrong(OddTokenizer):
        backend_version = "fast 1"

        def reference_encode_batch(self, texts):
            batch = self._bytes.encode_batch(texts)
            batch.ids[3] += 1
            return batch

    source = write_jsonl(tmp_path / "docs.jsonl", ["abcdef"])
    with pytest.raises(tokenriver.TokenizerError, match=r"docs\.jsonl:1 .*token 3: 100 instead of 101.*reference"):
        tokenriver.build([source], tokenizer=Wrong(), out=tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_directory_that_cannot_be_written_is_one_error(tmp_path):
    if os.geteuid() == 0:
        (tmp_path / "out").write_text("a file where a directory is needed")
    else:
        (tmp_path / "out").mkdir(mode=0o555)
    source = write_jsonl(tmp_path / "docs.jsonl", ["a"])
    command = [sys.executable, "-m", "tokenriver", "build", str(source), "--tokenizer", "byte", "--out", "out"]
    result = subprocess.run(
        command, cwd=tmp_path, env={**os.environ, "PYTHONPATH": SRC}, capture_output=True, text=True, check=False
    )
    assert result.returncode == 1
    assert "out" in result.stderr
    assert "Traceback" not in result.stderr


def test_an_input_that_shrinks_while_it_is_read_is_named(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(2000))
    original = tokenriver.building.build.find_origin

    def find_and_cut(words):
        found = original(words)
        os.truncate(source, source.stat().st_size - 10)
        return found

    monkeypatch.setattr(tokenriver.building.build, "find_origin", find_and_cut)
    with pytest.raises(tokenriver.TokenRiverError, match=r"docs\.jsonl"):
        tokenriver.build([source], tokenizer="byte", out=tmp_path / "out")
    assert not list((tmp_path / "out").rglob("_MANIFEST.json"))


def test_the_index_survives_kills_also_where_only_the_build_knows_the_documents(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(90))
    for layout, tokenizer in [("tokens", "byte"), ("golf", "byte260")]:
        words = {"layout": layout, "tokenizer": tokenizer, "split": "hash:0.3", "block_bytes": 700}
        words |= {"doc_index": True}
        whole, out = tmp_path / layout / "whole", tmp_path / layout / "out"
        assert run_build(source, whole, **words).returncode == 0
        prelude = KILL_AT + "kill_after(journal.Journal, 'record', 3, False)"
        assert run_build(source, out, prelude=prelude, **words).returncode == -signal.SIGKILL
        assert run_build(source, out, **words).returncode == 0
        found = {p.relative_to(out): p.read_bytes() for p in out.rglob("*.index")}
        assert len(found) > 3
        assert found == {p.relative_to(whole): p.read_bytes() for p in whole.rglob("*.index")}
        assert verify(out).findings == []
