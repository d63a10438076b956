"""What the cluster's engines do, without a cluster: the tasks are the real ones, run here in any order."""

from __future__ import annotations

import gzip
import os
import random

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cluster_cases import deterministic
from inline_pool import InlinePool, inline_session
from made_documents import make_texts, write_jsonl

import tokenriver
from tokenriver.building.ray_engine import build_log, run, segments
from tokenriver.cluster import work
from tokenriver.corpus.sources import SourceOptions
from tokenriver.errors import ClusterError, CorpusError, IntegrityError, ResumeError, UsageError


@pytest.fixture(autouse=True)
def no_cluster(monkeypatch):
    """Tasks run in this process, in an order that the test may draw."""
    monkeypatch.setattr(run, "open_session", inline_session)
    monkeypatch.setattr(run, "TaskPool", InlinePool)
    monkeypatch.setattr(work, "open_session", inline_session)
    monkeypatch.setattr(work, "TaskPool", InlinePool)
    monkeypatch.setattr(InlinePool, "seed", 0)
    monkeypatch.setattr(InlinePool, "stop_after", None)


def inputs(folder, seed):
    """Files of several kinds with records of every sort, drawn by a seed."""
    rng = random.Random(seed)
    folder.mkdir()
    for i in range(rng.randint(1, 4)):
        texts = make_texts(rng.choice([1, 20, 150]), seed=100 * seed + i, words=rng.choice([1, 20]))
        sides = rng.choices(["train", "val"], [4, 1], k=len(texts))
        kind = rng.choice(["jsonl", "jsonl", "gz", "parquet"])
        if kind == "parquet":
            table = pa.table({"text": texts, "split": sides})
            pq.write_table(table, folder / f"{i}.parquet", row_group_size=rng.choice([4, 30]))
            continue
        raw = write_jsonl(folder / f"{i}.jsonl", texts, split=sides).read_bytes()
        if rng.random() < 0.3:
            raw += rng.choice([b'{"text": 1}\n', b"[]", b"\n\n", b'{"text": "", "split": "train"}'])
        (folder / f"{i}.jsonl").write_bytes(raw)
        if kind == "gz":
            (folder / f"{i}.jsonl").unlink()
            (folder / f"{i}.jsonl.gz").write_bytes(gzip.compress(raw))
    return folder


RULES = [
    "hash:0.3", "column", "first-docs:30", "first-tokens:2500", "first-tokens:0", "first-files:1",
    "first-shard", "train",
]  # fmt: skip


def outcome(engine, source, out, words):
    """What a build leaves, or its error."""
    try:
        summary = tokenriver.build(
            source, tokenizer="byte260", dataset="docs", out=out / engine, engine=engine, **words
        )
    except CorpusError as error:
        return type(error), str(error)
    return (
        deterministic(summary.directory),
        summary.documents_by_split,
        summary.text_bytes_by_split,
        summary.input_bytes,
    )


@pytest.mark.parametrize("seed", range(24))
def test_both_engines_leave_the_same_files_or_the_same_error(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    source = inputs(tmp_path / "in", seed)
    words = {
        "layout": ["tokens", "llmc", "golf"][seed % 3],
        "split": RULES[seed % len(RULES)],
        "shard_tokens": rng.choice([700, 3000, 100_000]),
        "block_bytes": rng.choice([400, 2000, 1 << 20]),
        "on_bad_record": rng.choice(["error", "skip"]),
        "doc_index": rng.choice([None, True]),
        "separator_position": rng.choice(["before", "after"]),
    }
    monkeypatch.setattr(InlinePool, "seed", seed)
    monkeypatch.setattr(segments, "_CHUNK_BYTES", rng.choice([500, 3000, 1 << 20]))
    assert outcome("ray", source, tmp_path, words) == outcome("local", source, tmp_path, words)


@pytest.mark.parametrize("limit", [{"max_documents": 70}, {"max_tokens": 4000}, {"max_documents": 1}])
def test_limits_fall_on_the_same_document(tmp_path, limit):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(300))
    words = {"split": "hash:0.3", "block_bytes": 2000, "shard_tokens": 1000, **limit}
    ray, local = (outcome(engine, source, tmp_path, words) for engine in ("ray", "local"))
    assert ray == local


def test_inputs_behind_a_url_are_read_in_parts_too(tmp_path):
    import fsspec

    raw = write_jsonl(tmp_path / "docs.jsonl", make_texts(200)).read_bytes()
    fsspec.filesystem("memory").pipe("/cluster/docs.jsonl", raw)
    words = {"split": "hash:0.3", "block_bytes": 2000, "shard_tokens": 1000}
    ray, local = (outcome(engine, "memory://cluster/docs.jsonl", tmp_path, words) for engine in ("ray", "local"))
    assert ray == local


def test_text_files_are_read_in_parts_and_wide_ids_are_kept(tmp_path):
    texts = make_texts(300)
    source = tmp_path / "docs.txt"
    source.write_text("<|end|>".join(texts), encoding="utf-8")
    words = {"document_separator": "<|end|>", "block_bytes": 1000, "format": "llama-3", "layout": "llmc"}
    assert outcome("ray", source, tmp_path, words) == outcome("local", source, tmp_path, words)
    ids = np.concatenate([tokenriver.open_shard(p).ids for p in sorted((tmp_path / "ray").glob("*.bin"))])
    assert ids.dtype == np.uint32


def build_in_steps(source, out, monkeypatch, **words):
    """Builds that are interrupted after every third task, until one comes through; how many there were."""
    monkeypatch.setattr(InlinePool, "stop_after", 3)
    for n in range(1, 200):
        try:
            return n, tokenriver.build(source, tokenizer="byte260", out=out, engine="ray", **words)
        except KeyboardInterrupt:
            continue
    raise AssertionError("no progress")


def test_a_build_interrupted_after_every_third_task_is_the_same(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(300))
    words = {"split": "hash:0.2", "block_bytes": 1500, "shard_tokens": 2000}
    n, summary = build_in_steps(source, tmp_path / "ray", monkeypatch, **words)
    assert n > 5
    assert summary.resumed
    local = tokenriver.build(source, tokenizer="byte260", out=tmp_path / "local", **words)
    assert deterministic(summary.directory) == deterministic(local.directory)


def interrupted(source, out, monkeypatch, *, after=9, **words):
    """A build that was stopped after so many tasks; its directory."""
    monkeypatch.setattr(InlinePool, "stop_after", after)
    with pytest.raises(KeyboardInterrupt):
        tokenriver.build(source, tokenizer="byte260", out=out, engine="ray", **words)
    monkeypatch.setattr(InlinePool, "stop_after", None)
    return out / "tokens" / "byte260" / "docs"


STEPS = {"block_bytes": 1500, "shard_tokens": 2000, "split": "train"}


def test_another_engine_other_options_and_other_inputs_are_refused_by_name(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(300))
    directory = interrupted(source, tmp_path / "out", monkeypatch, **STEPS)
    journal = (directory / "_JOURNAL").read_bytes()
    for words, message in (
        ({"engine": "local"}, "begun with --engine ray"),
        ({"engine": "ray", "shard_tokens": 500}, "shard_tokens was 2000 and is now 500"),
    ):
        with pytest.raises(ResumeError, match=message):
            tokenriver.build(source, tokenizer="byte260", out=tmp_path / "out", **{**STEPS, **words})
    source.write_bytes(source.read_bytes() + b'{"text": "more"}\n')
    with pytest.raises(ResumeError, match=r"input docs\.jsonl was"):
        tokenriver.build(source, tokenizer="byte260", out=tmp_path / "out", engine="ray", **STEPS)
    assert (directory / "_JOURNAL").read_bytes() == journal
    done = tokenriver.build(source, tokenizer="byte260", out=tmp_path / "out", restart=True, **STEPS)
    assert not (done.directory / "_SEGMENTS").exists()


def test_the_cluster_does_not_go_on_with_a_local_build(tmp_path, monkeypatch):
    from tokenriver.building.journal import Journal

    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(300))
    real, calls = Journal.record, []

    def stop_at_second(self, *args, **words):
        calls.append(args)
        if len(calls) == 2:
            raise KeyboardInterrupt
        real(self, *args, **words)

    monkeypatch.setattr(Journal, "record", stop_at_second)
    with pytest.raises(KeyboardInterrupt):
        tokenriver.build(source, tokenizer="byte260", out=tmp_path / "out", **STEPS)
    with pytest.raises(ResumeError, match="begun with --engine local"):
        tokenriver.build(source, tokenizer="byte260", out=tmp_path / "out", engine="ray", **STEPS)


def test_segments_that_the_storage_lost_are_made_again(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(300))
    directory = interrupted(source, tmp_path / "out", monkeypatch, after=7, **STEPS)
    lost = sorted((directory / "_SEGMENTS").glob("*.train"))
    assert len(lost) > 2
    lost[0].unlink()
    lost[1].write_bytes(lost[1].read_bytes()[:-2])
    done = tokenriver.build(source, tokenizer="byte260", out=tmp_path / "out", engine="ray", **STEPS)
    local = tokenriver.build(source, tokenizer="byte260", out=tmp_path / "local", **STEPS)
    assert deterministic(done.directory) == deterministic(local.directory)


def test_a_shard_that_is_not_there_whole_is_named(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(300))
    directory = interrupted(source, tmp_path / "out", monkeypatch, after=20, **STEPS)
    shard = sorted(directory.glob("*.bin"))[0]
    shard.write_bytes(shard.read_bytes()[:-2])
    with pytest.raises(ResumeError, match=rf"{shard.name}: the journal names it, but it is not there whole") as caught:
        tokenriver.build(source, tokenizer="byte260", out=tmp_path / "out", engine="ray", **STEPS)
    assert caught.value.advice == ("build with --restart to begin anew",)


def test_a_damaged_segment_never_gets_into_a_shard(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(300))
    directory = interrupted(source, tmp_path / "out", monkeypatch, after=7, **STEPS)
    for path in (directory / "_SEGMENTS").glob("*.train"):
        raw = bytearray(path.read_bytes())
        raw[len(raw) // 2] ^= 1
        path.write_bytes(raw)
    with pytest.raises(IntegrityError, match="are not those that were written"):
        tokenriver.build(source, tokenizer="byte260", out=tmp_path / "out", engine="ray", **STEPS)


def test_an_input_that_changes_behind_its_size_and_time_gets_no_manifest(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(300))
    directory = interrupted(source, tmp_path / "out", monkeypatch, after=4, **STEPS)
    lines = (directory / "_JOURNAL").read_bytes().splitlines(keepends=True)
    (directory / "_JOURNAL").write_bytes(b"".join(line for line in lines if not line.startswith(b'{"input"')))
    raw, times = source.read_bytes(), source.stat()
    source.write_bytes(raw.replace(b"river", b"rover"))
    os.utime(source, ns=(times.st_atime_ns, times.st_mtime_ns))
    with pytest.raises(IntegrityError, match="the input changed"):
        tokenriver.build(source, tokenizer="byte260", out=tmp_path / "out", engine="ray", **STEPS)
    assert not (directory / "_MANIFEST.json").exists()


def test_what_a_cluster_cannot_read_or_run_is_refused_before_anything_is_made(tmp_path, monkeypatch):
    with pytest.raises(UsageError, match="cannot read standard input"):
        tokenriver.build("-", tokenizer="byte260", out=tmp_path / "out", engine="ray", split="train")
    with pytest.raises(UsageError, match="goes with --engine ray"):
        tokenriver.build("x", tokenizer="byte260", out=tmp_path / "out", ray_address="auto")
    with pytest.raises(UsageError, match="--engine is 'spark'; it must be one of local, ray"):
        tokenriver.build("x", tokenizer="byte260", out=tmp_path / "out", engine="spark")
    monkeypatch.undo()
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(3))
    with pytest.raises(ClusterError, match=r"no Ray cluster at --ray-address 127\.0\.0\.1:1 "):
        tokenriver.build(source, tokenizer="byte260", out=tmp_path / "out", engine="ray", ray_address="127.0.0.1:1")
    with pytest.raises(UsageError, match="Ray Client is not for this"):
        tokenriver.build(source, tokenizer="byte260", out=tmp_path / "out", engine="ray", ray_address="ray://host:1")
    monkeypatch.setitem(__import__("sys").modules, "ray", None)
    with pytest.raises(UsageError, match=r"pip install 'tokenriver\[ray\]'"):
        tokenriver.build(source, tokenizer="byte260", out=tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


@pytest.mark.parametrize("seed", range(12))
def test_corpus_shards_are_the_same(tmp_path, monkeypatch, seed):
    rng = random.Random(seed)
    source = inputs(tmp_path / "in", seed)
    words = {
        "format": ["jsonl.zst", "parquet"][seed % 2],
        "split": rng.choice(["hash:0.3", "first-docs:20", "first-files:1", "train"]),
        "shard_bytes": rng.choice([100, 2000, 50_000]),
        "block_bytes": rng.choice([300, 2000, 1 << 20]),
        "options": SourceOptions(on_bad_record="skip", keep_empty=rng.random() < 0.5),
        "name": "docs",
    }
    monkeypatch.setattr(InlinePool, "seed", seed)
    made = {}
    for engine in ("local", "ray"):
        summary = tokenriver.write_corpus([source], tmp_path / engine, engine=engine, **words)
        made[engine] = deterministic(tmp_path / engine), summary.text_bytes, summary.skipped
    assert made["ray"] == made["local"]


def test_a_corpus_interrupted_after_every_other_shard_is_the_same(tmp_path, monkeypatch):
    from tokenriver.corpus.log import CorpusLog

    source = inputs(tmp_path / "in", 3)
    write_jsonl(source / "z.jsonl", make_texts(100), split=["train"] * 100)
    words = {"split": "first-docs:20", "shard_bytes": 2000, "name": "docs", "block_bytes": 700}
    words["options"] = SourceOptions(on_bad_record="skip")
    whole = tokenriver.write_corpus([source], tmp_path / "whole", **words)
    real, told = CorpusLog.shard, []

    def stop_at_every_third(self, file, **more):
        told.append(file.name)
        if len(told) % 3 == 0:
            raise KeyboardInterrupt
        real(self, file, **more)

    monkeypatch.setattr(CorpusLog, "shard", stop_at_every_third)
    for seed in range(50):
        monkeypatch.setattr(InlinePool, "seed", seed)
        try:
            done = tokenriver.write_corpus([source], tmp_path / "c", engine="ray", **words)
        except KeyboardInterrupt:
            continue
        break
    assert seed > 3
    assert done.resumed
    assert len(told) <= len(whole.manifest.files) + seed
    assert (done.manifest, done.text_bytes, done.skipped) == (whole.manifest, whole.text_bytes, whole.skipped)
    assert deterministic(tmp_path / "c") == deterministic(tmp_path / "whole")


@pytest.fixture
def store():
    """fsspec's store in memory, for what is made below memory://engines."""
    import fsspec

    memory = fsspec.filesystem("memory")
    yield memory
    memory.rm("/engines", recursive=True)


@pytest.mark.parametrize("layout", ["tokens", "llmc"])
def test_what_a_cluster_replaces_in_a_store_stays_until_the_new_is_there(tmp_path, monkeypatch, store, layout):
    from tokenriver.resuming import swap

    old, new = (write_jsonl(tmp_path / f"{i}.jsonl", make_texts(300, seed=i)) for i in (1, 2))
    words = {"tokenizer": "byte260", "dataset": "d", "layout": layout, **STEPS}
    there = {**words, "out": "memory://engines/out", "engine": "ray", "staging": tmp_path / "staging"}
    first = tokenriver.build(old, **there)
    names = {file.name for file in first.files}
    before = {name: (first.directory / name).read_bytes() for name in names}

    def stopped(owner, name, count, **more):
        real, calls = getattr(owner, name), []

        def step(*args, **kwargs):
            calls.append(name)
            if len(calls) > count:
                raise KeyboardInterrupt
            return real(*args, **kwargs)

        with monkeypatch.context() as patches:
            patches.setattr(owner, name, step)
            patches.setattr(swap, "_AT_ONCE", 1)
            with pytest.raises(KeyboardInterrupt):
                tokenriver.build(new, **there, **more)

    stopped(build_log.BuildLog, "shard", 3, overwrite=True)
    stopped(build_log.BuildLog, "upload", 3, overwrite=True)
    assert {name: (first.directory / name).read_bytes() for name in names} == before
    assert tokenriver.verify(str(first.directory)).ok
    stopped(swap, "copy_object", 3, overwrite=True)
    assert not first.record.exists()
    assert tokenriver.build(new, **there).resumed
    local = tokenriver.build(new, out=tmp_path / "local", **words)
    found = {path.removeprefix("/engines/out/"): store.cat_file(path) for path in store.find("/engines/out")}
    want = {path.name: path.read_bytes() for path in local.directory.iterdir()}
    assert {name.rpartition("/")[2] for name in found} == set(want)
    assert [n for n in found if found[n] != want[n.rpartition("/")[2]] and not n.endswith("_BUILD.json")] == []
    assert not list((tmp_path / "staging").glob("*"))


@pytest.mark.parametrize("seed", range(8))
def test_selections_are_the_same(tmp_path, monkeypatch, seed):
    from tokenriver.golfing import select_on_ray
    from tokenriver.golfing.select import select_golf

    rng = random.Random(seed)
    source = inputs(tmp_path / "in", seed)
    write_jsonl(source / "z.jsonl", make_texts(100, seed=50 + seed))
    monkeypatch.setattr(InlinePool, "seed", seed)
    monkeypatch.setattr(select_on_ray, "_RUN_BYTES", rng.choice([300, 1 << 20]))
    words = {"docs": rng.choice([1, 40, 100]), "seed": seed, "on_bad_record": "skip", "block_bytes": 700}
    made = {}
    for engine in ("local", "ray"):
        bucket_bytes = rng.choice([1000, 1 << 20])
        chosen = select_golf([str(source)], out=tmp_path / engine, engine=engine, bucket_bytes=bucket_bytes, **words)
        made[engine] = deterministic(tmp_path / engine), chosen.documents_read, chosen.skipped
    assert made["ray"] == made["local"]


def test_a_corpus_and_a_selection_go_from_store_to_store(tmp_path, store):
    from tokenriver.golfing.select import select_golf

    raw = write_jsonl(tmp_path / "docs.jsonl", make_texts(200)).read_bytes()
    store.pipe("/engines/docs.jsonl", raw)
    url, staging = "memory://engines/docs.jsonl", tmp_path / "staging"
    for engine, out in (("local", str(tmp_path / "local")), ("ray", "memory://engines")):
        words = {"engine": engine, "block_bytes": 1500, "staging": staging}
        tokenriver.write_corpus([url], f"{out}/corpus", shard_bytes=5000, **words)
        select_golf([url], docs=90, seed=3, out=f"{out}/golf", bucket_bytes=2000, **words)
    for name in ("corpus", "golf"):
        made = {path.name: path.read_bytes() for path in (tmp_path / "local" / name).iterdir()}
        assert {p.rpartition("/")[2]: store.cat_file(p) for p in store.find(f"/engines/{name}")} == made
        assert len(made) > 1
    assert not list(staging.glob("*"))


def test_a_selection_of_more_than_there_is_leaves_nothing(tmp_path):
    from tokenriver.golfing.select import select_golf

    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(20))
    with pytest.raises(UsageError, match="the inputs hold 20 documents"):
        select_golf(str(source), docs=21, seed=1, out=tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()
