"""Whole exports as Parameter Golf's exporter wrote them: every file, the manifest and the byte tokenizer's JSON."""

from __future__ import annotations

import gzip
import hashlib
import json
import shutil
from functools import cache
from pathlib import Path

import pytest

from tokenriver.errors import TokenRiverError
from tokenriver.golfing.export import export_golf
from tokenriver.golfing.fetch import GolfSource, plan_files
from tokenriver.golfing.score import score_golf
from tokenriver.shards.golf_manifest import read_golf_manifest, read_golf_sidecar
from tokenriver.shards.verify import verify

CASES = [
    "fineweb_val20", "fineweb_val0", "fineweb_all_val", "fineweb_sp8192", "tinystories_val50", "code_small_shards",
    "edge_basic", "multilingual", "dclm_sidecar", "sidecar_wrong_count", "too_many_val",
]  # fmt: skip


@cache
def cases(path: Path) -> dict:
    return {case["id"]: case for case in json.loads(path.read_bytes())["cases"]}


def test_every_recorded_export_is_compared(shared: Path) -> None:
    assert sorted(CASES) == sorted(cases(shared / "vectors/golf_export.json"))


def place(shared: Path, case: dict, root: Path) -> dict:
    """The documents, sidecar, models and specs of a case; the words of the export."""
    (root / "in").mkdir(parents=True)
    source = shared.parent / case["docs"]
    raw = gzip.decompress(source.read_bytes()) if source.suffix == ".gz" else source.read_bytes()
    assert hashlib.sha256(raw).hexdigest() == case["docs_sha256"]
    (root / "docs_selected.jsonl").write_bytes(raw)
    if case["sidecar"] is not None:
        (root / "docs_selected.source_manifest.json").write_text(json.dumps(case["sidecar"]))
    models = {}
    for size, model in case["models"].items():
        models[int(size)] = root / "in" / Path(model).name
        shutil.copy(shared.parent / model, models[int(size)])
    (root / "in" / "specs.json").write_text(json.dumps({"tokenizers": case["tokenizer_specs"]}))
    return {
        "docs": root / "docs_selected.jsonl",
        "source": GolfSource("local/docs", "exports"),
        "tokenizer_config": root / "in" / "specs.json",
        "output_root": root,
        "num_val_docs": case["num_val_docs"],
        "chunk_tokens": case["chunk_tokens"],
        "reuse_sp_models": models,
    }


@pytest.mark.parametrize("name", CASES)
def test_an_export_equals_the_recorded_one(shared: Path, tmp_path: Path, name: str) -> None:
    case = cases(shared / "vectors/golf_export.json")[name]
    words = place(shared, case, tmp_path)
    if case["status"] == "error":
        wanted = {"sidecar_wrong_count": r"expected 21 docs.*found 20", "too_many_val": r"must be in \[0, 20\], got 21"}
        with pytest.raises(TokenRiverError, match=wanted[name]):
            export_golf(**words)
        assert not (tmp_path / "datasets").exists(), "refused before anything is made"
        return
    export_golf(**words)
    for dataset, files in case["datasets"].items():
        found = {
            p.name: [p.stat().st_size, hashlib.sha256(p.read_bytes()).hexdigest()]
            for p in (tmp_path / "datasets" / dataset).glob("*.bin")
        }
        assert found == {file: [size, sha256] for file, _, size, sha256 in files}
    raw = (tmp_path / "manifest.json").read_bytes()
    assert json.loads(raw) == case["manifest"]
    assert hashlib.sha256(raw).hexdigest() == case["manifest_sha256"]
    if "byte_tokenizer_json_sha256" in case:
        byte_json = (tmp_path / "tokenizers" / "fineweb_pure_byte_260.json").read_bytes()
        assert hashlib.sha256(byte_json).hexdigest() == case["byte_tokenizer_json_sha256"]
    assert verify(tmp_path / "datasets").ok


def test_a_score_over_the_export_is_the_recorded_one(shared: Path, tmp_path: Path) -> None:
    words = place(shared, cases(shared / "vectors/golf_export.json")["fineweb_val20"], tmp_path)
    export_golf(**words, skip_byte=True)
    losses = {"two": lambda _x, _y: 2.0, "hash": lambda x, y: 1.5 + ((31 * int(x.sum()) + int(y.sum())) % 1000) / 1000}
    n_compared = 0
    for case in json.loads((shared / "vectors/golf_bpb.json").read_bytes())["validation"]:
        if case["source"] != "fw_sp1024_val" or case["status"] != "ok" or case["world_size"] > 1:
            continue
        score = score_golf(
            losses[case["loss"]],
            val=tmp_path / "datasets/fineweb10B_sp1024",
            tokenizer=tmp_path / "tokenizers/fineweb_1024_bpe.model",
            seq_len=case["seq_len"],
            val_batch_size=case["val_batch_size"],
            grad_accum_steps=case["grad_accum_steps"],
        )
        (rank,) = case["ranks"]
        assert (score.targets, score.n_bytes) == (rank["tokens"], rank["bytes"])
        assert score.val_loss == pytest.approx(rank["val_loss"], rel=1e-12)
        assert score.val_bpb == pytest.approx(rank["val_bpb"], rel=1e-12)
        n_compared += 1
    assert n_compared == 2


def test_the_published_manifest_plans_eighty_train_shards(shared: Path) -> None:
    manifest = read_golf_manifest(shared / "data/golf/published_manifest_sp1024.json")
    files = plan_files(manifest, variant="sp1024", with_docs=True)
    folder = "datasets/fineweb10B_sp1024"
    assert files == [
        f"{folder}/fineweb_val_000000.bin",
        *(f"{folder}/fineweb_train_{i:06d}.bin" for i in range(80)),
        "tokenizers/fineweb_1024_bpe.model",
        "tokenizers/fineweb_1024_bpe.vocab",
        "docs_selected.jsonl",
        "docs_selected.source_manifest.json",
    ]
    assert len(plan_files(manifest, variant="sp1024", train_shards=None)) == 196 + 2
    for words, error in (
        ({"variant": "sp1024", "train_shards": 196}, "published with 195 train shards"),
        ({"variant": "sp4096"}, "not in the manifest; there are: sp1024"),
    ):
        with pytest.raises(TokenRiverError, match=error):
            plan_files(manifest, **words)
    sidecar, _ = read_golf_sidecar(shared / "data/golf/docs_selected.source_manifest.json")
    assert sidecar.docs_val == 50_000
    assert sidecar.docs_sha256 == "84386dfa7b339a5d4831d5273c4a2028b78b60670d3a235633a8520545d19bc7"
