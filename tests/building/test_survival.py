"""Real kills, full disks, locks and changed inputs: nothing is lost, nothing is repeated, no half file has a name."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import forked
import pytest
from build_helpers import hashes
from made_documents import make_texts, write_jsonl

import tokenriver
from tokenriver.corpus import hashing
from tokenriver.shards.record import read_record
from tokenriver.shards.verify import verify

STEPS = "from tokenriver.building import index_part, job, journal, records\nfrom tokenriver.shards import writer\n"

PHASES = {
    "before the first byte": "writer.ShardWriter, 'append_all', before=True",
    "before the first shard is sealed": "writer.ShardWriter, 'complete', before=True",
    "between sealing and the journal": "journal.Journal, 'record', 2, before=True",
    "between the journal and the rename": "writer.ShardWriter, 'publish', 3, before=True",
    "between the names of the index and of the shard": "index_part.IndexPart, 'publish', 2",
    "between the index's end and the journal": "index_part.IndexPart, 'seal', 2",
    "right after a rename": "writer.ShardWriter, 'publish', 3",
    "in the middle of an append": "writer.ShardWriter, 'append_all', 9",
    "before the records": "job, 'write_records', before=True",
    "before the manifest": "records, 'write_manifest', before=True",
    "after the manifest, before the journal goes": "job, 'write_records'",
}
FOUR_SHARDS = "writer.ShardWriter, 'publish', 4"


def build(source, out, **words):
    """A build here, of small shards."""
    return tokenriver.build([source], out=out, **{"tokenizer": "byte260", "shard_tokens": 2000, **words})


def killed_build(source, out, step, *, stdin=os.devnull, **words):
    """A build in a process of its own that SIGKILL ends at that step."""
    words = {"tokenizer": "byte260", "shard_tokens": 2000, **words}
    call = f"tokenriver.build([{str(source)!r}], out={str(out)!r}, **{words!r})"
    forked.killed(f"{STEPS}kill_at({step})\n{call}", stdin=stdin)


def directory_of(out, layout):
    return out / "tokens" / "byte260" / "docs" if layout == "tokens" else out


PHASE_WORDS = {"split": "hash:0.3", "block_bytes": 1500}


@pytest.fixture(scope="module")
def finished_build(tmp_path_factory):
    """By layout: the input of the phases, and the hashes of what a build makes of it that nobody kills."""
    folder = tmp_path_factory.mktemp("whole")
    source = write_jsonl(folder / "docs.jsonl", make_texts(120))

    @functools.cache
    def finished(layout):
        build(source, folder / layout, layout=layout, **PHASE_WORDS)
        return source, hashes(directory_of(folder / layout, layout))

    return finished


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
def test_a_kill_in_any_phase_costs_nothing(tmp_path, finished_build, phase, layout):
    source, whole = finished_build(layout)
    killed_build(source, tmp_path / "out", PHASES[phase], layout=layout, **PHASE_WORDS)
    directory = directory_of(tmp_path / "out", layout)
    finished = {p.name: (p.stat().st_mtime_ns, p.stat().st_ino) for p in directory.glob("*.bin")}
    build(source, tmp_path / "out", layout=layout, **{**PHASE_WORDS, "block_bytes": 700, "workers": 3})
    assert hashes(directory) == whole
    (record,) = directory.glob("*_BUILD.json")
    assert read_record(record).indexes == {name: sha256 for name, sha256 in whole.items() if name.endswith(".index")}
    for name, facts in finished.items():
        stat = (directory / name).stat()
        assert (stat.st_mtime_ns, stat.st_ino) == facts


def test_many_kills_at_random_moments_of_one_build(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(6_000, words=60))
    words = {"tokenizer": "byte260", "split": "hash:0.1", "shard_tokens": 20_000, "block_bytes": 10_000}
    tokenriver.build([source], out=tmp_path / "whole", **words)
    expected = hashes(directory_of(tmp_path / "whole", "tokens"))
    directory = directory_of(tmp_path / "out", "tokens")
    rng = random.Random(5)
    for _ in range(25):
        workers = rng.choice([1, 2, 4])
        code = f"tokenriver.build([{str(source)!r}], out={str(tmp_path / 'out')!r}, workers={workers}, **{words!r})"
        with forked.start(f"import tokenriver\n{code}") as process:
            goal = len(list(directory.glob("*.bin"))) + rng.choice([0, 0, 1, 2])
            while process.poll() is None and len(list(directory.glob("*.bin"))) < goal:
                time.sleep(0.001)
            time.sleep(rng.random() * 0.05)
            process.kill()
            assert process.wait() == -signal.SIGKILL, process.stderr
        final = {p.name for p in directory.glob("*.bin")}
        assert {n: h for n, h in hashes(directory).items() if n in final}.items() <= expected.items()
        if len(final) > 0.8 * sum(name.endswith(".bin") for name in expected):
            break  # it got further each time than elsewhere: a build that is whole cannot be killed
    assert len(final) > 10
    assert tokenriver.build([source], out=tmp_path / "out", **words).resumed
    assert hashes(directory) == expected


@pytest.fixture
def build_of_stdin(monkeypatch):
    """A build here that reads a file as its standard input."""

    def run(given, out, **words):
        with monkeypatch.context() as patches, open(given, "rb") as raw:
            patches.setattr(sys, "stdin", type("Stdin", (), {"buffer": raw, "fileno": raw.fileno}))
            return build("-", out, dataset="docs", **words)

    return run


def test_standard_input_is_gone_on_with_and_another_one_is_refused(tmp_path, build_of_stdin):
    texts = make_texts(400)
    source = write_jsonl(tmp_path / "docs.jsonl", texts)
    words = {"block_bytes": 1500, "split": "train"}
    killed_build("-", tmp_path / "out", FOUR_SHARDS, stdin=source, dataset="docs", **words)
    directory = directory_of(tmp_path / "out", "tokens")
    journal = (directory / "_JOURNAL").read_bytes()
    # The first has records of the same length, so nothing but the bytes differs; the last ends too early.
    first = write_jsonl(tmp_path / "first.jsonl", ["X" + texts[0][1:], *texts[1:]])
    other = write_jsonl(tmp_path / "other.jsonl", make_texts(400, seed=2, words=50))
    short = write_jsonl(tmp_path / "short.jsonl", texts[:3])
    for wrong in (first, other, short, Path(os.devnull)):
        with pytest.raises(tokenriver.ResumeError, match="<stdin>: its first"):
            build_of_stdin(wrong, tmp_path / "out", **words)
        assert (directory / "_JOURNAL").read_bytes() == journal
    assert build_of_stdin(source, tmp_path / "out", **words).resumed
    build_of_stdin(source, tmp_path / "whole", **words)
    assert hashes(directory) == hashes(directory_of(tmp_path / "whole", "tokens"))


def test_standard_input_need_not_come_again_when_only_the_records_are_missing(tmp_path, build_of_stdin):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(50))
    killed_build("-", tmp_path / "out", PHASES["before the manifest"], stdin=source, dataset="docs")
    assert build_of_stdin(os.devnull, tmp_path / "out").resumed
    build_of_stdin(source, tmp_path / "whole")
    assert hashes(directory_of(tmp_path / "out", "tokens")) == hashes(directory_of(tmp_path / "whole", "tokens"))


def test_bytes_that_changed_behind_size_and_time_never_get_a_manifest(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(400))
    words = {"block_bytes": 1500, "split": "train"}
    killed_build(source, tmp_path, FOUR_SHARDS, **words)
    raw, times = source.read_bytes(), source.stat()
    source.write_bytes(raw.replace(b"0 ", b"X ", 1))
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    for _ in range(2):
        with pytest.raises(tokenriver.ResumeError, match=r"docs\.jsonl: its first.*the input changed"):
            build(source, tmp_path, **words)
        assert not (directory_of(tmp_path, "tokens") / "_MANIFEST.json").exists()
    source.write_bytes(raw)
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    build(source, tmp_path, **words)
    build(source, tmp_path / "whole", **words)
    assert hashes(directory_of(tmp_path, "tokens")) == hashes(directory_of(tmp_path / "whole", "tokens"))


def test_inputs_behind_the_journal_are_not_read_again_and_keep_the_hash_of_what_was_read(tmp_path, monkeypatch):
    folder = tmp_path / "docs"
    folder.mkdir()
    for i in range(4):
        write_jsonl(folder / f"{i}.jsonl", make_texts(100, seed=i))
    words = {"block_bytes": 1500, "split": "train"}
    build(folder, tmp_path / "whole", **words)
    killed_build(folder, tmp_path / "out", "writer.ShardWriter, 'publish', 30", **words)
    original, hashed = hashing.hash_source, []
    monkeypatch.setattr(hashing, "hash_source", lambda one, *mark: (hashed.append(one.name), original(one, *mark))[1])
    build(folder, tmp_path / "out", **words)
    assert hashed
    assert not {"0.jsonl", "1.jsonl"} & set(hashed), "only the current one"
    assert hashes(directory_of(tmp_path / "out", "tokens")) == hashes(directory_of(tmp_path / "whole", "tokens"))


def test_a_changed_input_option_or_tokenizer_is_refused_by_name(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(120))
    words = {"tokenizer": "byte260", "shard_tokens": 2000}
    killed_build(source, tmp_path, "writer.ShardWriter, 'publish', 2")
    for change, named in [({"shard_tokens": 3000}, "shard_tokens"), ({"split": "train"}, "split")]:
        with pytest.raises(tokenriver.ResumeError, match=named):
            tokenriver.build([source], out=tmp_path, **{**words, **change})
    write_jsonl(source, make_texts(120, seed=2))
    with pytest.raises(tokenriver.ResumeError, match=r"docs\.jsonl"):
        tokenriver.build([source], out=tmp_path, **words)
    tokenriver.build([source], out=tmp_path, restart=True, **words)
    tokenriver.build([source], out=tmp_path / "whole", **words)
    assert hashes(directory_of(tmp_path, "tokens")) == hashes(directory_of(tmp_path / "whole", "tokens"))


def test_inputs_that_are_new_missing_or_in_another_order_are_called_that(tmp_path):
    folder = tmp_path / "in"
    folder.mkdir()
    for name in ("b", "d"):
        write_jsonl(folder / f"{name}.jsonl", make_texts(60, seed=ord(name)))
    killed_build(folder, tmp_path / "out", "writer.ShardWriter, 'publish', 2", dataset="docs")

    def refused():
        with pytest.raises(tokenriver.ResumeError) as caught:
            build(folder, tmp_path / "out", dataset="docs")
        return str(caught.value)

    for name in ("a", "c", "e"):
        write_jsonl(folder / f"{name}.jsonl", ["one more"])
        assert f"made otherwise: input {name}.jsonl is new; give" in refused()
        (folder / f"{name}.jsonl").unlink()
    (folder / "b.jsonl").rename(folder / "x.jsonl")
    assert "made otherwise: input b.jsonl is not given any more; give" in refused()
    (folder / "x.jsonl").rename(folder / "b.jsonl")
    files = [folder / "d.jsonl", folder / "b.jsonl"]
    with pytest.raises(tokenriver.ResumeError, match=r"input 0 \(counted from 0\) was b\.jsonl and is now d\.jsonl"):
        tokenriver.build(files, tokenizer="byte260", shard_tokens=2000, dataset="docs", out=tmp_path / "out")
    assert build(folder, tmp_path / "out", dataset="docs").resumed


def test_shards_that_a_damaged_journal_does_not_name_are_not_mixed_with_others(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(120))
    killed_build(source, tmp_path / "out", FOUR_SHARDS)
    directory = directory_of(tmp_path / "out", "tokens")
    (directory / "_JOURNAL").write_bytes(b"")
    there = {path: path.read_bytes() for path in directory.glob("*.bin")}
    with pytest.raises(
        tokenriver.IntegrityError, match=r"a journal that names none and no record.*--overwrite replaces"
    ):
        build(source, tmp_path / "out", shard_tokens=1_000_000)
    assert {path: path.read_bytes() for path in directory.glob("*.bin")} == there
    build(source, tmp_path / "out", shard_tokens=1_000_000, overwrite=True)
    assert verify(directory).ok


def test_a_part_that_is_shorter_than_the_journal_says_is_told_with_what_to_do(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(120))
    words = {"split": "hash:0.3", "shard_tokens": 3000}
    killed_build(source, tmp_path / "out", FOUR_SHARDS, **words)
    directory = directory_of(tmp_path / "out", "tokens")
    lines = [json.loads(line) for line in (directory / "_JOURNAL").read_bytes().splitlines()]
    parts = [line for line in lines if "checkpoint" in line][-1]["checkpoint"]["parts"]
    kept = [name for name, n in parts.items() if n]
    assert {Path(name).suffix for name in kept} == {".bin", ".index"}
    for name in kept:
        part = directory / f"{name}.part"
        whole = part.read_bytes()
        part.write_bytes(whole[:7])
        with pytest.raises(tokenriver.FormatError, match=r"part: shorter than .* recorded; build with --restart"):
            build(source, tmp_path / "out", **words)
        part.write_bytes(whole)


def test_a_second_build_in_the_same_directory_is_told_so(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(20))
    code = f"""
import pathlib, time, tokenriver
import tokenriver.building.passes as passes
passes._stream = lambda *_: (pathlib.Path({str(tmp_path / "locked")!r}).touch(), time.sleep(60))
tokenriver.build([{str(source)!r}], tokenizer='byte', out={str(tmp_path)!r})
"""
    with forked.start(code) as process:
        while not (tmp_path / "locked").exists():
            assert process.poll() is None, process.stderr
            time.sleep(0.001)
        with pytest.raises(tokenriver.ResumeError, match="another build"):
            tokenriver.build([source], tokenizer="byte", out=tmp_path)
    assert tokenriver.build([source], tokenizer="byte", out=tmp_path).documents == 20


@pytest.mark.parametrize(("signal_number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_stops_the_command_cleanly_and_says_how_to_go_on(tmp_path, signal_number, code):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(10_000))
    words = ["build", source, "--tokenizer", "byte260", "--out", tmp_path, "--workers", "1"]
    command = forked.command(*words, "--shard-tokens", "30000", "--block-bytes", "20000")
    directory = directory_of(tmp_path, "tokens")
    with forked.start(command) as process:
        while not list(directory.glob("*.bin")) and process.poll() is None:
            time.sleep(0.001)
        process.send_signal(signal_number)
        assert process.wait() == code
        assert "goes on" in process.stderr
        assert "Traceback" not in process.stderr
    assert (directory / "_JOURNAL").exists()
    assert forked.run(command).returncode == 0
    assert not (directory / "_JOURNAL").exists()


def test_a_signal_while_the_last_shard_is_written_waits_for_the_thread_that_writes_it(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(60))
    words = ["build", str(source), "--tokenizer", "byte260", "--out", str(tmp_path / "out"), "--split", "hash:0.3"]
    code = f"""
import os, signal, sys, threading, time
from tokenriver.building import passes, writing
from tokenriver.cli import main
from tokenriver.shards import writer
complete, abandon, join = writer.ShardWriter.complete, passes.OpenJob.abandon, writing.WriterThread.join
joining, abandoned = threading.Event(), threading.Event()
def waiting(self):
    joining.set()
    join(self)
def interrupted(self):
    joining.wait()
    time.sleep(0.1)
    os.kill(os.getpid(), signal.SIGINT)
    abandoned.wait(0.5)
    complete(self)
    writer.ShardWriter.complete = complete
def told(self):
    abandon(self)
    print("still there:", [one.name for one in threading.enumerate() if one.name == "tokenriver-writer"])
    abandoned.set()
writer.ShardWriter.complete, passes.OpenJob.abandon, writing.WriterThread.join = interrupted, told, waiting
sys.exit(main({words!r}))
"""
    with forked.start(code) as process:
        assert process.wait() == 130, process.stderr
        assert "interrupted; the same command goes on" in process.stderr
        assert "still there: []" in process.stdout
    directory = directory_of(tmp_path / "out", "tokens")
    assert (directory / "_JOURNAL").exists() or not list(directory.glob("*.bin"))
    build(source, tmp_path / "out", split="hash:0.3", shard_tokens=100_000_000)
    build(source, tmp_path / "whole", split="hash:0.3", shard_tokens=100_000_000)
    assert hashes(directory) == hashes(directory_of(tmp_path / "whole", "tokens"))


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

    def __init__(self, foreign=False):
        self._bytes = tokenriver.load_tokenizer("byte")
        self._foreign = foreign

    def __getattr__(self, name):
        return getattr(self._bytes, name)

    def encode_batch(self, texts, *, parallel=True):
        for i in range(len(texts)):
            if b"unspeakable" in texts[i]:
                if self._foreign:
                    raise ValueError("of the tokenizer's own")
                error = tokenriver.TokenizerError(f"document {i} cannot be encoded")
                error.document = i
                raise error
        return self._bytes.encode_batch(texts, parallel=parallel)


@pytest.mark.parametrize("foreign", [False, True])
def test_an_encoder_that_fails_on_one_document_names_it_and_a_rerun_completes(tmp_path, foreign):
    texts = make_texts(100)
    texts[70] = "unspeakable"
    source = write_jsonl(tmp_path / "docs.jsonl", texts)
    words = {"out": tmp_path, "shard_tokens": 2000, "block_bytes": 1000, "split": "train"}
    with pytest.raises(tokenriver.TokenizerError, match=r"docs\.jsonl:71 \(byte"):
        tokenriver.build([source], tokenizer=OddTokenizer(foreign), **words)
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


def test_a_directory_that_cannot_be_written_is_one_error(tmp_path, monkeypatch):
    if is_root := os.geteuid() == 0:
        (tmp_path / "out").write_text("a file where a directory is needed")
    else:
        (tmp_path / "out").mkdir(mode=0o555)
    source = write_jsonl(tmp_path / "docs.jsonl", ["a"])
    monkeypatch.chdir(tmp_path)
    result = forked.run(forked.command("build", source, "--tokenizer", "byte", "--out", "out"))
    assert result.returncode == (2 if is_root else 1)
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
        build(source, whole, **words)
        killed_build(source, out, "journal.Journal, 'record', 3", **words)
        build(source, out, **words)
        found = {p.relative_to(out): p.read_bytes() for p in out.rglob("*.index")}
        assert len(found) > 3
        assert found == {p.relative_to(whole): p.read_bytes() for p in whole.rglob("*.index")}
        assert verify(out).findings == []
