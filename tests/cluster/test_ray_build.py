"""The same bytes from a cluster: three nodes, all layouts and rules, a node killed, a driver killed, wrong inputs."""

from __future__ import annotations

import gzip
import json
import os
import re
import socket
import time
import warnings

import forked
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from cluster_cases import SlowTokenizer, deterministic, note_node
from made_documents import make_texts, write_jsonl
from plain_server import files_over_http

import tokenriver
from tokenriver.building.ray_engine import build_log
from tokenriver.cluster import pool, session
from tokenriver.corpus.sources import SourceOptions
from tokenriver.errors import ClusterError, CorpusError, TokenizerError
from tokenriver.golfing.select import select_golf

pytestmark = [pytest.mark.slow, pytest.mark.usefixtures("ray_cluster")]

RULES = ["hash:0.3", "column", "first-docs:70", "first-tokens:3000", "first-files:1", "first-shard", "train"]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory):
    """A folder with every kind of input, one of them large enough to be read in parts, one record of it bad."""
    folder = tmp_path_factory.mktemp("in") / "docs"
    folder.mkdir()
    sides = [["train", "val"][i % 5 == 0] for i in range(600)]
    plain = write_jsonl(folder / "a.jsonl", make_texts(600), split=sides)
    with open(plain, "ab") as file:
        file.write(b'{"text": 5}\n')
    packed = write_jsonl(folder / "b", make_texts(60, seed=2), split=sides[:60])
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(packed.read_bytes()))
    packed.unlink()
    rows = pa.table({"text": make_texts(300, seed=3), "split": sides[:300]})
    pq.write_table(rows, folder / "c.parquet", row_group_size=40)
    return folder


def build(source, out, engine, **words):
    words = {"tokenizer": "byte260", "dataset": "docs", "block_bytes": 4000, "shard_tokens": 20_000, **words}
    return tokenriver.build(source, out=out, engine=engine, on_bad_record="skip", **words)


@pytest.mark.parametrize("layout", ["tokens", "llmc", "golf"])
def test_a_cluster_makes_the_same_files_under_every_rule(tmp_path, mixed, layout):
    for rule in RULES:
        made = {}
        for engine in ("local", "ray"):
            summary = build(mixed, tmp_path / engine / rule.replace(":", "-"), engine, layout=layout, split=rule)
            made[engine] = (deterministic(summary.directory), summary.skipped, summary.tokens_by_split)
        assert made["ray"] == made["local"], rule
        assert made["ray"][1] == {"non_string": 1}


def test_a_node_that_dies_in_the_middle_costs_nothing(ray_cluster, tmp_path, mixed):
    class KillsOne:
        """Progress that takes a node away when the first range is done."""

        node = None

        def update(self, bytes_done, *_more):
            if self.node is None and bytes_done:
                self.node = next(iter(ray_cluster.worker_nodes))
                ray_cluster.remove_node(self.node, allow_graceful=False)

    killer = KillsOne()
    words = {"split": "hash:0.1", "block_bytes": 1500}
    done = build(mixed, tmp_path / "ray", "ray", progress=killer, **words)
    assert killer.node is not None
    ray_cluster.add_node(num_cpus=1)
    assert deterministic(done.directory) == deterministic(build(mixed, tmp_path / "local", "local", **words).directory)


KILLED = """
from tokenriver.building.ray_engine import build_log
kill_at(build_log.BuildLog, {method!r}, {count})
tokenriver.build({source!r}, out={out!r}, engine="ray", ray_address={address!r}, **{words!r})
"""


def test_drivers_that_were_killed_go_on_from_what_is_finished(ray_cluster, tmp_path, mixed, monkeypatch):
    words = {"split": "hash:0.1", "block_bytes": 3000, "tokenizer": "byte260", "dataset": "docs"}
    words |= {"shard_tokens": 20_000, "on_bad_record": "skip"}
    places = {"source": str(mixed), "out": str(tmp_path / "ray"), "address": ray_cluster.address, "words": words}
    directory = tmp_path / "ray" / "tokens" / "byte260" / "docs"

    def finished(kind):
        entries = [json.loads(line) for line in (directory / "_JOURNAL").read_bytes().splitlines()]
        return [json.dumps(entry[kind]) for entry in entries if kind in entry]

    for method, count in (("segment", 4), ("shard", 2)):
        forked.killed(KILLED.format(method=method, count=count, **places))
        assert len(finished("segment")) >= 4
    assert len(finished("shard")) >= 2
    assert len(set(finished("segment"))) == len(finished("segment")), "none is encoded twice"
    names = [json.loads(shard)["name"] for shard in finished("shard")]
    stamps = [(directory / name).stat() for name in names]
    encoded, original, before = set(), build_log.BuildLog.segment, set(finished("segment"))
    monkeypatch.setattr(build_log.BuildLog, "segment", lambda self, k, f: (encoded.add(str(k)), original(self, k, f)))
    summary = tokenriver.build(mixed, out=tmp_path / "ray", engine="ray", **words)
    assert summary.resumed
    assert not encoded & before
    local = tokenriver.build(mixed, out=tmp_path / "local", **words)
    assert deterministic(directory) == deterministic(local.directory)
    for name, before_it in zip(names, stamps, strict=True):
        assert os.path.samestat((directory / name).stat(), before_it), "finished shards are not made again"
    assert not (directory / "_SEGMENTS").exists()


def test_the_first_bad_record_is_named_as_on_one_machine(tmp_path):
    texts = make_texts(400)
    source = write_jsonl(tmp_path / "docs.jsonl", texts)
    lines = source.read_bytes().splitlines(keepends=True)
    for k in (390, 300, 200):
        lines[k] = b'{"text": null}\n'
    source.write_bytes(b"".join(lines))
    messages = []
    for engine in ("local", "ray"):
        with pytest.raises(CorpusError, match=r"docs\.jsonl:201 \(byte \d+\)") as caught:
            tokenriver.build(source, tokenizer="byte260", out=tmp_path / engine, engine=engine, block_bytes=4000)
        messages.append(str(caught.value))
        assert not (tmp_path / engine).exists()
    assert messages[0] == messages[1]


def test_a_corpus_and_a_selection_are_the_same_on_a_cluster(tmp_path, mixed):
    for engine in ("local", "ray"):
        words = {"engine": engine, "name": "docs", "shard_bytes": 20_000, "block_bytes": 4000}
        tokenriver.write_corpus([mixed], tmp_path / engine, options=SourceOptions(on_bad_record="skip"), **words)
        words = {"engine": engine, "bucket_bytes": 9000, "block_bytes": 4000, "on_bad_record": "skip"}
        select_golf([str(mixed)], docs=300, seed=7, out=tmp_path / engine / "golf", **words)
    assert deterministic(tmp_path / "ray" / "golf") == deterministic(tmp_path / "local" / "golf")
    (tmp_path / "ray" / "golf").rename(tmp_path / "golf-ray")
    (tmp_path / "local" / "golf").rename(tmp_path / "golf-local")
    assert deterministic(tmp_path / "ray") == deterministic(tmp_path / "local")


def test_a_corpus_and_a_selection_go_from_a_cluster_to_an_object_store(tmp_path, mixed, s3):
    staging = tmp_path / "staging"
    for engine, out in (("local", str(tmp_path / "local")), ("ray", s3.url)):
        words = {"engine": engine, "name": "docs", "shard_bytes": 20_000, "block_bytes": 4000, "staging": staging}
        tokenriver.write_corpus([mixed], f"{out}/corpus", options=SourceOptions(on_bad_record="skip"), **words)
        words = {"engine": engine, "bucket_bytes": 9000, "block_bytes": 4000, "on_bad_record": "skip"}
        select_golf([str(mixed)], docs=300, seed=7, out=f"{out}/golf", staging=staging, **words)
    for name in ("corpus", "golf"):
        made = {path.name: path.read_bytes() for path in (tmp_path / "local" / name).iterdir()}
        assert {key.rpartition("/")[2]: s3.get(key) for key in s3.names(name)} == made
        assert s3.server.requests(f"/{name}/", "PUT")[-1].path.endswith(".json")
    assert not list(staging.glob("*"))


def test_a_corpus_whose_driver_was_killed_goes_on_in_the_store(ray_cluster, tmp_path, mixed, s3):
    words = {"engine": "ray", "name": "docs", "shard_bytes": 9000, "staging": str(tmp_path / "staging")}
    call = f"tokenriver.write_corpus([{str(mixed)!r}], {s3.url + '/c'!r}, options=SourceOptions(on_bad_record='skip'),"
    call += f" ray_address={ray_cluster.address!r}, **{words!r})"
    steps = "from tokenriver.corpus import log\nfrom tokenriver.corpus.sources import SourceOptions\n"
    forked.killed(f"{steps}kill_at(log.CorpusLog, 'shard', 3)\n{call}")
    journal = next((tmp_path / "staging").glob("*/_JOURNAL")).read_bytes()
    finished = {json.loads(line)["file"]["name"] for line in journal.splitlines()[1:]}
    assert len(finished) == 3
    s3.server.mend()
    options = SourceOptions(on_bad_record="skip")
    assert tokenriver.write_corpus([mixed], f"{s3.url}/c", options=options, **words).resumed
    puts = {request.path.rpartition("/")[2] for request in s3.server.requests("/c/", "PUT")}
    assert puts
    assert not puts & finished
    tokenriver.write_corpus([mixed], tmp_path / "c", options=options, name="docs", shard_bytes=9000)
    made = {path.name: path.read_bytes() for path in (tmp_path / "c").iterdir()}
    assert {key.removeprefix("c/"): s3.get(key) for key in s3.names()} == made
    assert not list((tmp_path / "staging").glob("*"))


def test_what_is_overwritten_stays_until_the_cluster_is_done(tmp_path, mixed):
    first = build(mixed, tmp_path / "out", "local", shard_tokens=9000)
    before = deterministic(first.directory)
    with pytest.raises(CorpusError, match="field"):
        tokenriver.build(
            mixed, tokenizer="byte260", dataset="docs", out=tmp_path / "out", engine="ray", overwrite=True, workers=1
        )
    assert deterministic(first.directory) == before
    second = build(mixed, tmp_path / "out", "ray", overwrite=True)
    fresh = build(mixed, tmp_path / "fresh", "local")
    assert deterministic(second.directory) == deterministic(fresh.directory)
    assert [path.name for path in second.directory.iterdir() if path.is_dir()] == []


def test_what_a_cluster_built_goes_on_to_an_object_store(tmp_path, mixed):
    local = build(mixed, tmp_path / "local", "local", staging=tmp_path / "staging")
    there = build(mixed, "memory://ray-out", "ray", staging=tmp_path / "staging")
    assert sorted(there.directory.iterdir(), key=str)
    for name in [path.name for path in local.directory.iterdir() if not path.name.endswith("_BUILD.json")]:
        assert (there.directory / name).read_bytes() == (local.directory / name).read_bytes(), name
    assert tokenriver.verify(str(there.directory)).ok
    local = build(mixed, tmp_path / "local", "local", overwrite=True, shard_tokens=9000)
    build(mixed, "memory://ray-out", "ray", staging=tmp_path / "staging", overwrite=True, shard_tokens=9000)
    names = {path.name for path in local.directory.iterdir()}
    assert {path.name for path in there.directory.iterdir() if path.is_file()} == names
    for name in [name for name in names if not name.endswith("_BUILD.json")]:
        assert (there.directory / name).read_bytes() == (local.directory / name).read_bytes(), name
    assert not [path for path in (tmp_path / "staging").rglob("*") if path.is_file()]


def test_a_straggler_is_named_with_its_file_and_its_node(tmp_path, monkeypatch):
    source = tmp_path / "in"
    source.mkdir()
    for i in range(12):
        write_jsonl(source / f"{i:02d}.jsonl", make_texts(60, seed=i))
    write_jsonl(source / "slow.jsonl", ["a text that takes its time", *make_texts(20, seed=99)])
    said, go = [], tmp_path / "go"

    def hear(message, *_more, **_words):
        said.append(str(message))
        if "slow.jsonl" in said[-1]:
            go.touch()

    monkeypatch.setattr(pool, "_SLOW_SECONDS", 0.3)
    monkeypatch.setattr(pool, "_LOOK_EVERY_SECONDS", 0.1)
    tokenizer = SlowTokenizer(tokenriver.load_tokenizer("byte260"), "takes its time", go)
    words = {"dataset": "docs", "block_bytes": 3000, "split": "train"}
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        monkeypatch.setattr(warnings, "showwarning", hear)
        done = tokenriver.build(source, tokenizer=tokenizer, out=tmp_path / "ray", engine="ray", **words)
    named = [line for line in said if "slow.jsonl" in line]
    assert len(named) == 1, "once"
    pattern = (
        rf"encoding .*slow\.jsonl has taken \d+ s on node {socket.gethostname()}, where the others took \d+\.\d s; wait"
    )
    assert re.match(pattern, named[0])
    local = tokenriver.build(source, tokenizer="byte260", out=tmp_path / "local", **words)
    assert deterministic(done.directory) == deterministic(local.directory)


def test_the_nodes_read_inputs_behind_urls(tmp_path, mixed):
    with files_over_http(mixed) as web:
        urls = [f"{web}/{name}" for name in ("a.jsonl", "b.jsonl.gz")]
        made = {e: build(urls, tmp_path / e, e, split="hash:0.2", block_bytes=1500) for e in ("local", "ray")}
    assert deterministic(made["ray"].directory) == deterministic(made["local"].directory)


def test_a_folder_that_a_node_does_not_see_is_named(tmp_path, monkeypatch):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(20))
    monkeypatch.setattr(session, "place_probe", lambda _folder: "probe-that-nobody-wrote")
    monkeypatch.setattr(session, "_LOOK_SECONDS", 0.1)
    with pytest.raises(ClusterError, match=r"node .* does not see the file that was written there"):
        tokenriver.build(source, tokenizer="byte260", out=tmp_path / "out", engine="ray")
    assert not (tmp_path / "out").exists()


def test_every_worker_gets_ready_while_the_driver_does(tmp_path):
    with session.open_session(None, cpus=1) as connected:
        with connected.beforehand(note_node, tmp_path / "all", most=None):
            _wait_for(lambda: len(list((tmp_path / "all").glob("*"))) == 3)
        with connected.beforehand(note_node, tmp_path / "few", most=1):
            _wait_for(lambda: list((tmp_path / "few").glob("*")))
    assert len(list((tmp_path / "few").iterdir())) == 1


def test_a_tokenizer_that_is_not_there_is_one_error_whoever_looked_first(tmp_path, mixed):
    with pytest.raises(TokenizerError, match=r"no tokenizer at .*nowhere\.json"):
        build(mixed, tmp_path / "out", "ray", tokenizer=tmp_path / "nowhere.json")
    assert not (tmp_path / "out").exists()


def _wait_for(there):
    deadline = time.monotonic() + 300
    while not there():
        assert time.monotonic() < deadline
        time.sleep(0.01)
