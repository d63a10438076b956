"""The main job end to end with the byte tokenizers: what is written, and what is refused."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import os

import numpy as np
import pytest
from build_helpers import hashes, ids_of
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from made_documents import make_texts, write_jsonl

import tokenriver
from tokenriver import train_tokenizer, write_corpus
from tokenriver.building.options import BuildOptions
from tokenriver.building.pipeline import in_order, read_ahead
from tokenriver.cpus import available_cpus


def build(source, out, **words):
    return tokenriver.build([source], tokenizer=words.pop("tokenizer", "byte"), out=out, **words)


def test_the_tokens_layout_holds_whole_documents_under_the_names_of_the_manifest(tmp_path):
    texts = make_texts(200)
    source = write_jsonl(tmp_path / "docs.jsonl", texts)
    summary = build(source, tmp_path / "out", shard_tokens=5000, split="train")
    directory = tmp_path / "out" / "tokens" / "byte" / "docs"
    assert summary.directory == directory
    manifest = json.loads((directory / "_MANIFEST.json").read_bytes())
    assert list(manifest) == [
        "tokenizer_id", "tokenizer_sha256", "vocab_size", "doc_sep_id", "dataset", "version",
        "corpus_manifest_sha256", "files",
    ]  # fmt: skip
    assert manifest["doc_sep_id"] is None
    assert manifest["vocab_size"] == 256
    facts = (directory / "_CORPUS.json").read_bytes()
    assert manifest["corpus_manifest_sha256"] == hashlib.sha256(facts).hexdigest()
    assert ids_of(directory, "train-*.bin") == list("".join(texts).encode())
    done = 0
    for file in manifest["files"]:
        shard = tokenriver.open_shard(directory / file["name"])
        part = texts[done : done + file["n_docs"]]
        assert shard.tolist() == list("".join(part).encode())
        assert shard.n_tokens == file["n_tokens"] <= 5000
        assert hashlib.sha256(shard.path.read_bytes()).hexdigest() == file["sha256"]
        done += file["n_docs"]
    assert done == 200


def test_a_document_longer_than_a_shard_stands_alone(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", ["a" * 10, "b" * 500, "c" * 10, "d" * 10])
    build(source, tmp_path, shard_tokens=25, split="train")
    directory = tmp_path / "tokens" / "byte" / "docs"
    sizes = [tokenriver.open_shard(p).n_tokens for p in sorted(directory.glob("train-*.bin"))]
    assert sizes == [10, 500, 20]


def test_exact_layouts_cut_at_the_size_and_number_their_files(tmp_path):
    texts = make_texts(50)
    source = write_jsonl(tmp_path / "docs.jsonl", texts)
    expected = [t for text in texts for t in [1, *(4 + b for b in text.encode())]]
    build(source, tmp_path / "g", tokenizer="byte260", layout="golf", shard_tokens=1000, split="first-docs:7")
    n_val = sum(1 + len(t.encode()) for t in texts[:7])
    assert ids_of(tmp_path / "g", "fineweb_val_*.bin") == expected[:n_val]
    assert ids_of(tmp_path / "g", "fineweb_train_*.bin") == expected[n_val:]
    assert (tmp_path / "g" / "fineweb_val_000000.bin").exists()
    assert (tmp_path / "g" / "fineweb_train_000000.bin").exists()
    build(source, tmp_path / "l", tokenizer="byte260", layout="llmc", shard_tokens=1000, dataset="d")
    names = sorted(p.name for p in (tmp_path / "l").glob("*.bin"))
    assert names[-1] == "d_val_000000.bin"
    assert names[0] == "d_train_000001.bin"
    assert ids_of(tmp_path / "l", "d_val_*.bin") == expected[:1000]
    assert ids_of(tmp_path / "l", "d_train_*.bin") == expected[1000:]
    assert {tokenriver.open_shard(p).vocab_size for p in (tmp_path / "l").glob("*.bin")} == {0}


def test_the_last_shard_is_partial_and_that_is_no_failure(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", ["x" * 250])
    summary = build(source, tmp_path, layout="llmc", dataset="d", shard_tokens=100)
    assert [f.n_tokens for f in sorted(summary.files, key=lambda f: f.name[-10:])] == [100, 100, 50]
    assert sorted(p.stat().st_size for p in tmp_path.glob("*.bin")) == [1124, 1224, 1224]


@settings(max_examples=25, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    workers=st.sampled_from([1, 2, 8]),
    block=st.sampled_from([1, 300, 5000, 1 << 20]),
    layout=st.sampled_from(["tokens", "llmc", "golf"]),
    split=st.sampled_from([None, "hash:0.3", "first-docs:5", "first-tokens:777", "first-shard", "train"]),
)
def test_any_worker_count_and_block_size_gives_the_same_bytes(tmp_path_factory, workers, block, layout, split):
    tmp_path = tmp_path_factory.mktemp("same")
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(60))
    words = {"layout": layout, "split": split, "shard_tokens": 1500, "tokenizer": "byte260"}
    one = build(source, tmp_path / "a", **words)
    two = build(source, tmp_path / "b", workers=workers, block_bytes=block, **words)
    assert hashes(one.directory) == hashes(two.directory)
    assert one.tokens == two.tokens == sum(f.n_tokens for f in one.files)
    assert one.documents == sum(f.n_docs for f in one.files) == 60


def test_equal_texts_fall_on_one_side_and_both_sides_get_all(tmp_path):
    texts = make_texts(300) * 2
    source = write_jsonl(tmp_path / "docs.jsonl", texts)
    summary = build(source, tmp_path, split="hash:0.2")
    assert 2 * 20 < summary.documents_by_split["val"] < 2 * 120
    assert summary.documents_by_split["val"] % 2 == 0
    assert sum(summary.documents_by_split.values()) == 600


def test_the_split_column_is_taken_where_records_have_one(tmp_path):
    texts = ["one", "two", "three"]
    source = write_jsonl(tmp_path / "docs.jsonl", texts, split=["train", "val", "train"])
    summary = build(source, tmp_path)
    assert bytes(ids_of(summary.directory, "val-*.bin")) == b"two"
    assert bytes(ids_of(summary.directory, "train-*.bin")) == b"onethree"


def test_separators_can_be_named_moved_and_left_out(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", ["ab", "c"])
    a, b, c = 4 + ord("a"), 4 + ord("b"), 4 + ord("c")
    for words, expected in [
        ({}, [1, a, b, 1, c]),
        ({"separator_position": "after"}, [a, b, 1, c, 1]),
        ({"separator": "none"}, [a, b, c]),
        ({"separator": 2}, [2, a, b, 2, c]),
    ]:
        summary = build(source, tmp_path, tokenizer="byte260", split="train", overwrite=True, **words)
        assert ids_of(summary.directory, "*.bin") == expected
    with pytest.raises(tokenriver.TokenRiverError, match="260"):
        build(source, tmp_path / "no", tokenizer="byte260", separator=260)
    assert not (tmp_path / "no").exists()


@pytest.mark.parametrize("position", ["before", "after"])
def test_a_text_that_gives_the_separators_own_id_is_named_and_refused(tmp_path, position):
    path = write_jsonl(tmp_path / "d.jsonl", ["a", "b\0\0c", "d"])
    with pytest.raises(tokenriver.TokenizerError, match=r"d\.jsonl:2 .* gives id 0, the separator"):
        tokenriver.build(path, tokenizer="byte", separator=0, separator_position=position, out=tmp_path / "out")
    assert not list(tmp_path.rglob("*.bin"))


def test_bad_records_stop_the_build_or_are_counted(tmp_path):
    lines = ['{"text":"a"}', '{"txt":"b"}', '{"text":null}', '{"text":5}', '"context"', "[1]", "{bad", ""]
    source = tmp_path / "docs.jsonl"
    source.write_text("\n".join(lines) + "\n")
    with pytest.raises(tokenriver.CorpusError, match=r"docs\.jsonl:2"):
        build(source, tmp_path / "out")
    assert not (tmp_path / "out").exists()
    summary = build(source, tmp_path / "out", on_bad_record="skip", split="train")
    expected = {"blank": 1, "malformed": 1, "missing": 1, "non_object": 2, "non_string": 1, "null": 1}
    assert summary.documents == 1
    assert summary.skipped == expected
    assert json.loads((summary.directory / "_BUILD.json").read_bytes())["skipped"] == expected


def test_inputs_without_a_document_are_an_error_and_leave_nothing(tmp_path):
    empty = tmp_path / "empty.jsonl"
    empty.write_text('{"text":""}\n\n')
    with pytest.raises(tokenriver.CorpusError, match="no document"):
        build(empty, tmp_path / "out")
    with pytest.raises(tokenriver.CorpusError):
        build(tmp_path / "nothing*.jsonl", tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_finished_data_set_is_kept_unless_overwritten(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(20))
    first = build(source, tmp_path / "out", shard_tokens=300)
    before = hashes(first.directory)
    with pytest.raises(tokenriver.IntegrityError, match="--overwrite"):
        build(source, tmp_path / "out", shard_tokens=3000)
    assert hashes(first.directory) == before
    second = build(source, tmp_path / "out", shard_tokens=3000, overwrite=True)
    assert len(second.files) < len(first.files)
    assert len(list(second.directory.glob("*.bin"))) == len(second.files)


@pytest.mark.parametrize("tokens", [0, 2**31, -1])
def test_a_shard_size_that_no_header_can_count_is_refused_before_any_file(tmp_path, tokens):
    source = write_jsonl(tmp_path / "docs.jsonl", ["a"])
    with pytest.raises(ValueError, match="shard-tokens"):
        build(source, tmp_path / "out", shard_tokens=tokens)
    assert not (tmp_path / "out").exists()
    assert build(source, tmp_path / "out", shard_tokens=2**31 - 1).tokens == 1


def test_unknown_words_and_choices_are_refused_by_name(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", ["a"])
    for words, named in [
        ({"layuot": "tokens"}, "layuot"),
        ({"layout": "flat"}, "flat"),
        ({"split": "half"}, "half"),
        ({"dataset": "../x"}, "dataset"),
        ({"workers": 0}, "workers"),
    ]:
        with pytest.raises(tokenriver.UsageError, match=named):
            build(source, tmp_path / "out", **words)


def test_special_texts_are_counted_and_encoded_as_text(tmp_path):
    source = write_jsonl(tmp_path / "docs.jsonl", ["a</s>b", "<s>"])
    summary = build(source, tmp_path, tokenizer="byte260", split="train")
    ids = ids_of(summary.directory, "*.bin")
    assert bytes(i - 4 for i in ids if i > 3) == b"a</s>b<s>"
    assert ids.count(1) == 2


def test_the_manifest_of_a_corpus_is_the_one_that_is_named(tmp_path):
    pytest.importorskip("tokenriver.corpus.shards")
    from tokenriver.corpus.shards import write_corpus

    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(30))
    write_corpus([source], tmp_path / "corpus", name="c", split="hash:0.2")
    summary = build(tmp_path / "corpus", tmp_path / "out")
    manifest = json.loads(summary.record.read_bytes())
    expected = hashlib.sha256((tmp_path / "corpus" / "_MANIFEST.json").read_bytes()).hexdigest()
    assert manifest["corpus_manifest_sha256"] == expected
    assert not (summary.directory / "_CORPUS.json").exists()


def test_the_bytes_do_not_depend_on_where_the_inputs_lie(tmp_path, monkeypatch):
    for place in ("here", "there"):
        (tmp_path / place).mkdir()
        write_jsonl(tmp_path / place / "docs.jsonl", make_texts(30))
    monkeypatch.chdir(tmp_path / "here")
    one = build("docs.jsonl", tmp_path / "a")
    two = build(tmp_path / "there" / "docs.jsonl", tmp_path / "b")
    assert hashes(one.directory) == hashes(two.directory)


def test_no_environment_and_no_start_method_is_changed(tmp_path):
    import multiprocessing

    before = dict(os.environ), multiprocessing.get_start_method(allow_none=True)
    build(write_jsonl(tmp_path / "docs.jsonl", ["a"]), tmp_path)
    assert (dict(os.environ), multiprocessing.get_start_method(allow_none=True)) == before


def test_results_come_in_order_with_bounded_work_under_way():
    taken = []

    def items():
        for i in range(50):
            taken.append(i)
            yield i

    given_back = []
    for result in in_order(lambda box: box[0] ** 2, items(), workers=3, weight=lambda _: 10, budget=20):
        given_back.append(result)
        assert len(taken) - len(given_back) <= 2
    assert given_back == [i * i for i in range(50)]


def test_errors_of_the_reader_and_of_a_worker_come_through():
    def items():
        yield 1
        raise ValueError("reader")

    with pytest.raises(ValueError, match="reader"):
        list(read_ahead(items(), depth=1))
    with pytest.raises(ZeroDivisionError):
        list(in_order(lambda box: 1 // box[0], [1, 0], workers=2, weight=lambda _: 1, budget=9))
    assert available_cpus() >= 1


def test_uint32_is_taken_where_the_vocabulary_needs_it(tmp_path):
    path = tmp_path / "wide.bin"
    tokenriver.write_shard(path, np.array([70000]), vocab_size=70001)
    assert tokenriver.open_shard(path).variant == "uint32"


def test_the_sample_is_about_as_large_as_asked_for_whatever_the_input_is(tmp_path, monkeypatch):
    texts = make_texts(3000)
    plain = write_jsonl(tmp_path / "docs.jsonl", texts)
    raw = plain.read_bytes()
    (tmp_path / "docs.jsonl.gz").write_bytes(gzip.compress(raw))
    write_corpus([plain], tmp_path / "corpus", format="parquet")
    for i, name in enumerate(("docs.jsonl", "docs.jsonl.gz", "corpus")):
        sampled = build(tmp_path / name, tmp_path / f"out{i}", verify_sample=100).sampled
        assert 60 <= sampled <= 250, name
    # Nobody knows how long standard input is: each block's share is of what has come so far.
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(raw)))
    sampled = build("-", tmp_path / "piped", verify_sample=100, block_bytes=len(raw) // 20).sampled
    assert 100 <= sampled <= 500
    assert build(plain, tmp_path / "none", verify_sample=0).sampled == 0


def test_the_llama_3_variant_takes_the_end_of_text_where_there_is_no_begin(tmp_path):
    train_tokenizer(make_texts(50), kind="byte-bpe", vocab_size=300, out=tmp_path / "bpe")
    source = write_jsonl(tmp_path / "docs.jsonl", ["a", "b"])
    words = {"tokenizer": tmp_path / "bpe", "layout": "llmc", "format": "llama-3"}
    summary = build(source, tmp_path / "out", **words)
    ids = tokenriver.load_tokenizer(tmp_path / "bpe").encode("ab").tolist()
    assert summary.separator_id == 0
    assert ids_of(tmp_path / "out", "*.bin") == [0, ids[0], 0, ids[1]]


@pytest.mark.parametrize("split", ["train", "hash:0.5", "first-docs:3", "first-tokens:4"])
@pytest.mark.parametrize("layout", ["tokens", "llmc"])
def test_a_kept_document_without_a_token_is_counted_and_the_counts_agree(tmp_path, split, layout):
    texts = ["", "ab", "", "", "c", "def", ""]
    source = write_jsonl(tmp_path / "docs.jsonl", texts)
    summary = build(source, tmp_path, layout=layout, split=split, keep_empty=True, block_bytes=40, dataset="d")
    assert summary.documents == sum(f.n_docs for f in summary.files) == 3
    assert summary.skipped == {"no_token": 4}
    assert summary.text_bytes == 6
    assert tokenriver.verify([summary.directory]).findings == []
    kept = build(source, tmp_path / "sep", tokenizer="byte260", layout=layout, keep_empty=True, dataset="d")
    assert kept.documents == sum(f.n_docs for f in kept.files) == 7
    assert tokenriver.verify([kept.directory]).findings == []


def test_a_version_that_no_record_can_hold_is_refused() -> None:
    for version, problem in (("", "is empty"), ("v\udcff", "is not UTF-8")):
        with pytest.raises(tokenriver.UsageError, match=f"--dataset-version {problem}"):
            BuildOptions(dataset_version=version)
