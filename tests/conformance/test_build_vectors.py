"""Files that llm.c's scripts and Parameter Golf's exporter wrote from real documents, byte for byte."""

from __future__ import annotations

import gzip
import hashlib
import json
import random
from functools import cache

import pytest
from shared_folder import load

import tokenriver


@cache
def vectors(path):
    return json.loads(path.read_bytes())


@cache
def texts_of(shared, name):
    path = shared.parent / name
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line)["text"] for line in raw.decode().split("\n") if line]


def jsonl(path, texts):
    path.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    return path


@pytest.fixture(scope="session")
def tokenizers(shared):  # noqa: ARG001
    return {
        "gpt-2": load("gpt2"),
        "llama-3": load("hf/llama3.tokenizer.json.gz"),
        "byte260": tokenriver.load_tokenizer("byte260"),
        "sp1024": load("sentencepiece/fineweb_1024_bpe.model"),
        "sp8192": load("sentencepiece/fineweb_8192_bpe.model"),
    }


def written(directory):
    return {
        p.name: (p.stat().st_size, hashlib.sha256(p.read_bytes()).hexdigest()) for p in sorted(directory.glob("*.bin"))
    }


def test_llmc_fineweb_files_are_equal(shared, tokenizers, tmp_path):
    n_compared = 0
    for i, case in enumerate(vectors(shared / "vectors/fineweb_shards.json")["cases"]):
        stop = None if case["max_docs"] is None else case["first_doc"] + case["max_docs"]
        texts = texts_of(shared, case["docs"])[case["first_doc"] : stop]
        source = jsonl(tmp_path / f"{i}.jsonl", texts)
        tokenriver.build(
            [source],
            tokenizer=tokenizers[case["model"]],
            out=tmp_path / str(i),
            layout="llmc",
            dataset="edu_fineweb" if case["type"] == "edu" else "fineweb",
            shard_tokens=case["shard_size"],
            format="llama-3" if case["model"] == "llama-3" else "auto",
            keep_empty=True,
        )
        found = written(tmp_path / str(i))
        expected = case.get("guarded", {}).get("files") or case["files"]
        for name, _, size, sha256 in expected:
            assert found[name] == (size, sha256), (i, name)
            n_compared += 1
        if case["status"] == "ok":
            assert len(found) == case["n_files"]
    assert n_compared > 100


def test_tinyshakespeare_files_are_equal(shared, tokenizers, tmp_path):
    text = (shared / "data/tinyshakespeare/input.txt").read_text(encoding="utf-8")
    pieces = text.split("\n\n")
    source = jsonl(tmp_path / "t.jsonl", [p + "\n\n" for p in pieces[:-1]] + [pieces[-1]])
    for case in vectors(shared / "vectors/tinyshakespeare.json")["cases"]:
        out = tmp_path / case["model"]
        tokenriver.build(
            [source],
            tokenizer=tokenizers[case["model"]],
            out=out,
            layout="llmc",
            dataset="tiny_shakespeare",
            split="first-tokens:32768",
            format="llama-3" if case["model"] == "llama-3" else "auto",
        )
        found = [facts for name, facts in sorted(written(out).items(), reverse=True)]
        assert found == [(f["bytes"], f["sha256"]) for f in case["files"]]


def test_tinystories_files_are_equal(shared, tokenizers, tmp_path):
    rows = texts_of(shared, "shared/data/docs/tinystories_sample.jsonl.gz")
    first, second = vectors(shared / "vectors/tinystories.json")["cases"]
    padded = [f"  {t}\n\n" if i % 3 == 0 else t for i, t in enumerate(rows[:50])]
    padded_train = [f"  {t}\n\n" if i % 3 == 0 else t for i, t in enumerate(rows[50:150])]
    for case, val, train in ((first, rows[:100], rows[100:400]), (second, padded, padded_train)):
        out = tmp_path / hashlib.sha256(case["val"].encode()).hexdigest()[:8]
        stories = {"val": list(val), "train": list(train)}
        records = []
        for split, texts in stories.items():
            random.Random(1337).shuffle(texts)
            records += [{"text": t.strip(), "split": split} for t in texts]
        source = tmp_path / "stories.jsonl"
        source.write_text("".join(json.dumps(r) + "\n" for r in records))
        tokenriver.build(
            [source], tokenizer=tokenizers["gpt-2"], out=out, layout="llmc", dataset="TinyStories", split="column"
        )
        found = [facts for name, facts in sorted(written(out).items(), reverse=True)]
        assert found == [(f["bytes"], f["sha256"]) for f in case["files"]]


def test_parameter_golf_export_files_are_equal(shared, tokenizers, tmp_path):
    n_compared = 0
    for i, case in enumerate(vectors(shared / "vectors/golf_export.json")["cases"]):
        if case["status"] != "ok":
            continue
        source = jsonl(tmp_path / f"{i}.jsonl", texts_of(shared, case["docs"]))
        n_val = case["num_val_docs"] if case["num_val_docs"] is not None else case["sidecar"]["docs_val"]
        for name, files in case["datasets"].items():
            out = tmp_path / f"{i}-{name}"
            tokenriver.build(
                [source],
                tokenizer=tokenizers[name.removeprefix("fineweb10B_")],
                out=out,
                layout="golf",
                shard_tokens=case["chunk_tokens"],
                split=f"first-docs:{n_val}",
                keep_empty=True,
            )
            assert written(out) == {n: (size, sha256) for n, _, size, sha256 in files}, (case["id"], name)
            n_compared += len(files)
    assert n_compared > 50
