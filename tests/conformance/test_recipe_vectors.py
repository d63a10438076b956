"""`tokenriver recipe` writes llm.c's own files, byte for byte, from the sources as they are published."""

from __future__ import annotations

import functools
import hashlib
import json

import pytest
from hub_fixtures import hub
from recipe_sources import parquet, publish, records, stories, tar
from shared_folder import SHARED, load

from tokenriver.cli import main
from tokenriver.recipes import engine

__all__ = ["hub"]


@pytest.fixture(autouse=True)
def loaded_once(monkeypatch):
    monkeypatch.setattr(engine, "load_tokenizer", lambda word, **_: load(word.removeprefix(f"{SHARED}/data/")))
    monkeypatch.setattr("tokenriver.recipes.plan._SAMPLE_BYTES", 1 << 14)


@functools.cache
def vector(path):
    return json.loads(path.read_bytes())


def written(directory):
    return {
        p.name: (p.stat().st_size, hashlib.sha256(p.read_bytes()).hexdigest()) for p in sorted(directory.glob("*.bin"))
    }


def variant(shared, model):
    """What chooses a model's variant and its tokenizer on the command line."""
    path = {"gpt-2": "data/gpt2", "llama-3": "data/hf/llama3.tokenizer.json.gz"}[model]
    return ["--model-desc", model, "--tokenizer", str(shared / path)]


def run(*words):
    assert main(["recipe", *map(str, words), "--quiet"]) == 0


def test_tinyshakespeare(shared, hub, tmp_path):
    [case] = vector(shared / "vectors/tinyshakespeare.json")["cases"]
    name = publish(hub, "tinyshakespeare", tmp_path)
    run(name, "--out", tmp_path / "out", *variant(shared, "gpt-2"))
    assert written(tmp_path / "out") == {f["name"]: (f["bytes"], f["sha256"]) for f in case["files"]}


def test_tinyshakespeare_in_the_llama_3_variant(shared, tmp_path):
    local = shared / "data/tinyshakespeare/input.txt"
    run("tinyshakespeare", "--input", local, "--out", tmp_path, *variant(shared, "llama-3"))
    sizes = {name: size for name, (size, _) in written(tmp_path).items()}
    # llm.c itself says 276,224 tokens of train
    assert sizes == {"tiny_shakespeare_train.bin": 1024 + 276_224 * 4, "tiny_shakespeare_val.bin": 1024 + 32_768 * 4}


def test_tinystories(shared, hub, tmp_path):
    rows = records("tinystories_sample.jsonl.gz")
    padded = [{"text": f"  {r['text']}\n\n" if i % 3 == 0 else r["text"]} for i, r in enumerate(rows[:50])]
    padded_train = [{"text": f"  {r['text']}\n\n" if i % 3 == 0 else r["text"]} for i, r in enumerate(rows[50:150])]
    first, second = vector(shared / "vectors/tinystories.json")["cases"]
    for k, (case, val, train) in enumerate(((first, rows[:100], rows[100:400]), (second, padded, padded_train))):
        archive = tar({"./data01.json": stories(train), "./data00.json": stories(val)})
        hub.add("roneneldan/TinyStories", {"TinyStories_all_data.tar.gz": archive})
        folder = tmp_path / f"in{k}"
        folder.mkdir()
        (folder / "data00.json").write_bytes(stories(val))
        (folder / "data01.json").write_bytes(stories(train))
        (tmp_path / f"{k}.tar.gz").write_bytes(archive)
        expected = {f["name"]: (f["bytes"], f["sha256"]) for f in case["files"]}
        for local in ([], ["--input", folder], ["--input", tmp_path / f"{k}.tar.gz"]):
            run("tinystories", *local, "--out", tmp_path / "out", "--overwrite", *variant(shared, "gpt-2"))
            assert written(tmp_path / "out") == expected


def test_fineweb(shared, hub, tmp_path):
    n_compared = 0
    for i, case in enumerate(vector(shared / "vectors/fineweb_shards.json")["cases"]):
        rows = [{"text": r["text"], "id": str(k)} for k, r in enumerate(records(case["docs"].rpartition("/")[2]))]
        name, repo = {"classic": ("fineweb", "fineweb"), "edu": ("fineweb-edu", "fineweb-edu")}[case["type"]]
        half = max(1, len(rows) // 2)
        files = {
            f"sample/10BT/{k:03d}_00000.parquet": parquet(part) for k, part in enumerate((rows[:half], rows[half:]))
        }
        hub.add(f"HuggingFaceFW/{repo}", files)
        limit = [] if case["max_docs"] is None else ["--max-docs", case["max_docs"]]
        words = ["--shard-tokens", case["shard_size"], *limit, *variant(shared, case["model"])]
        run(name, "--version", "10B", "--out", tmp_path / str(i), *words)
        found = written(tmp_path / str(i))
        expected = case.get("guarded", {}).get("files") or case["files"]
        for file, _, size, sha256 in expected:
            assert found[file] == (size, sha256), (i, file)
            n_compared += 1
        if case["status"] == "ok":
            assert len(found) == case["n_files"]
    assert n_compared > 100


def test_hellaswag(shared, tmp_path):
    facts = vector(shared / "vectors/evalloader.json")["hellaswag_full_file"]
    local = shared / "data/eval/hellaswag_val.jsonl.gz"
    run("hellaswag", "--input", local, "--out", tmp_path, *variant(shared, "gpt-2"))
    assert written(tmp_path)["hellaswag_val.bin"] == (facts["size"], facts["sha256"])


def test_mmlu_by_subject(shared, tmp_path):
    for case in vector(shared / "vectors/mmlu_eval.json")["cases"][:3]:
        csv = shared / "data/eval/mmlu/test" / case["csv"]
        run("mmlu", "--input", csv, "--out", tmp_path, "--overwrite", *variant(shared, "gpt-2"))
        plain = case["cells_as_plain_text"]
        assert written(tmp_path)["mmlu_test.bin"] == (plain["size"], plain["sha256"])
