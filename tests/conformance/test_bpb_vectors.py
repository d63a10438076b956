"""Byte tables, byte counts and val_bpb against Parameter Golf's own; and the invariant of text_bytes over all data."""

from __future__ import annotations

import functools
import gzip
import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from shared_folder import load

from tokenriver import BitsPerByte, build, load_tokenizer, open_shard, text_bytes
from tokenriver.batches import TextBatch
from tokenriver.bpb.audit import Claim, audit
from tokenriver.bpb.golf import bpb_of, byte_tables, eval_bpb
from tokenriver.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.tokenizers.base import Tokenizer

pytestmark = pytest.mark.filterwarnings("ignore:.*encoding with:UserWarning")


@pytest.fixture(scope="module")
def vectors(shared: Path) -> dict[str, Any]:
    return json.loads((shared / "vectors/golf_bpb.json").read_bytes())


@pytest.fixture(scope="module")
def models(vectors: dict[str, Any]) -> dict[str, Tokenizer]:
    return {t["model"]: load(t["file"].partition("data/")[2]) for t in vectors["tables"]}


@functools.cache
def texts(path: Path) -> list[str]:
    raw = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return [json.loads(line)["text"] for line in raw.decode().split("\n") if line.strip()]


def sha256(array: np.ndarray) -> str:
    return hashlib.sha256(np.ascontiguousarray(array).tobytes()).hexdigest()


def test_tables_are_the_original_s(vectors: dict[str, Any], models: dict[str, Tokenizer]) -> None:
    for facts in vectors["tables"]:
        table = byte_tables(models[facts["model"]])
        assert sha256(table.base_bytes) == facts["base_bytes_sha256_i16le"]
        assert sha256(table.has_leading_space.astype(np.uint8)) == facts["has_leading_space_sha256_u8"]
        assert sha256(table.is_boundary.astype(np.uint8)) == facts["is_boundary_sha256_u8"]
        assert np.flatnonzero(table.is_boundary).tolist() == facts["boundary_ids"]


def test_documents_count_the_recorded_bytes(
    vectors: dict[str, Any], models: dict[str, Tokenizer], shared: Path
) -> None:
    for facts in vectors["documents"]:
        tokenizer = models[facts["model"]]
        table, documents = byte_tables(tokenizer), texts(shared.parent / facts["docs_file"])
        counted = 0
        for i, ids in enumerate(tokenizer.encode_batch(documents)):
            stream = np.concatenate([[tokenizer.bos_id], ids]).astype(np.int64)
            n = int(table.target_bytes(stream[1:], stream[:-1]).sum())
            counted += n
            if i < 12:
                raw = len(documents[i].encode())
                assert [len(stream), n, raw] == facts["first_docs"][i][:3]
        assert counted == facts["counted_bytes"]


def test_val_bpb_is_the_recorded_one(vectors: dict[str, Any], models: dict[str, Tokenizer], shared: Path) -> None:
    exports = {c["id"]: c for c in json.loads((shared / "vectors/golf_export.json").read_bytes())["cases"]}
    streams: dict[str, np.ndarray] = {}
    for case in vectors["validation"]:
        source = case["source"]
        if source not in streams:
            export = exports[vectors["sources"][source][0].split()[2].rstrip(",")]
            streams[source] = val_ids(export, models[case["model"]], shared)
        check_validation(case, streams[source], models[case["model"]])


def val_ids(export: dict[str, Any], tokenizer: Tokenizer, shared: Path) -> np.ndarray:
    documents = texts(shared.parent / export["docs"])[: export["num_val_docs"]]
    batch = tokenizer.encode_batch(TextBatch.from_texts(documents))
    return np.concatenate([np.concatenate([[tokenizer.bos_id], ids]) for ids in batch]).astype(np.int64)


def check_validation(case: dict[str, Any], ids: np.ndarray, tokenizer: Tokenizer) -> None:
    settings = {
        "seq_len": case["seq_len"],
        "batch_tokens": case["val_batch_size"],
        "world_size": case["world_size"],
        "grad_accum_steps": case["grad_accum_steps"],
    }
    usable = ids[: (len(ids) - 1) // case["seq_len"] * case["seq_len"] + 1]

    def model(x: np.ndarray, y: np.ndarray) -> float:
        return 2.0 if case["loss"] == "two" else 1.5 + ((31 * int(x.sum()) + int(y.sum())) % 1000) / 1000

    if case["status"] != "ok":
        with pytest.raises(UsageError, match="at least one sequence per rank"):
            eval_bpb(model, usable, tokenizer, **settings)
        return
    assert len(usable) == case["usable_ids"]
    assert sha256(usable.astype("<i4")) == case["usable_sha256_i32le"]
    total = np.zeros(2, np.int64)
    for facts in case["ranks"]:
        nats, targets, n_bytes = eval_bpb(model, usable, tokenizer, rank=facts["rank"], **settings)
        assert (targets, n_bytes) == (facts["tokens"], facts["bytes"])
        val_loss, val_bpb = bpb_of(nats, targets, n_bytes)
        assert val_loss == pytest.approx(facts["val_loss"], rel=1e-14)
        assert val_bpb == pytest.approx(facts["val_bpb"], rel=1e-14)
        total += [targets, n_bytes]
    if len(case["ranks"]) == case["world_size"]:
        assert total.tolist() == [case["tokens_all_ranks"], case["bytes_all_ranks"]]


def test_bits_per_byte_golf_is_val_bpb(vectors: dict[str, Any], models: dict[str, Tokenizer], shared: Path) -> None:
    case = vectors["validation"][0]
    exports = {c["id"]: c for c in json.loads((shared / "vectors/golf_export.json").read_bytes())["cases"]}
    ids = val_ids(exports["fineweb_val20"], models["sp1024"], shared)[: case["usable_ids"]]
    bits = BitsPerByte(models["sp1024"])
    bits.add(np.full(len(ids) - 1, 2.0), ids[1:], ids[:-1])
    assert bits.golf_bytes == case["bytes_all_ranks"]
    assert bits.bits_per_byte("golf") == pytest.approx(case["ranks"][0]["val_bpb"], rel=1e-14)


LOSSLESS = ["byte", "byte260", "data/gpt2", "data/hf/gpt2.tokenizer.json.gz", "data/hf/llama3.tokenizer.json.gz",
            "data/hf/mistral_v1.tokenizer.json.gz", "data/sentencepiece/mistral_32000.model"]  # fmt: skip


@pytest.mark.parametrize("name", LOSSLESS)
def test_bytes_of_ids_are_the_utf8_length_for_all_documents(name: str, shared: Path) -> None:
    tokenizer = load(name.removeprefix("data/")) if "/" in name else load_tokenizer(name)
    for path in sorted((shared / "data/docs").iterdir()):
        batch = TextBatch.from_texts(texts(path))
        for i, ids in enumerate(tokenizer.encode_batch(batch)):
            assert text_bytes(tokenizer, ids) == len(batch[i]), (path.name, i)


@pytest.mark.parametrize("name", ["data/gpt2", "data/sentencepiece/mistral_32000.model"])
def test_a_stream_with_separators_counts_all_its_documents(name: str, shared: Path, tmp_path: Path) -> None:
    tokenizer = load(name.removeprefix("data/"))
    source = shared / "data/docs/edge_basic.jsonl"
    build([source], tokenizer=tokenizer, out=tmp_path, dataset="edge", layout="llmc", split="train", keep_empty=True)
    (shard,) = tmp_path.glob("*.bin")
    assert text_bytes(tokenizer, open_shard(shard).ids) == sum(len(t.encode()) for t in texts(source))


def test_smollm_s_bytes_are_those_of_the_text_but_for_the_bytes_it_lacks(shared: Path) -> None:
    tokenizer = load("hf/smollm2.tokenizer.json.gz")
    n_same = 0
    for path in sorted((shared / "data/docs").iterdir()):
        batch = TextBatch.from_texts(texts(path))
        for i, ids in enumerate(tokenizer.encode_batch(batch)):
            is_lossless = tokenizer.decode_bytes(ids) == batch[i]
            n_same += is_lossless
            assert (text_bytes(tokenizer, ids) == len(batch[i])) == is_lossless
    assert n_same > 1700


def test_qwen_s_bytes_are_those_of_the_text_it_composes(shared: Path) -> None:
    import unicodedata

    tokenizer = load("hf/qwen3.tokenizer.json.gz")
    for text in texts(shared / "data/docs/multilingual_udhr.jsonl.gz")[-5:]:
        assert text_bytes(tokenizer, tokenizer.encode(text)) == len(unicodedata.normalize("NFC", text).encode())


@pytest.mark.parametrize("layout", ["golf", "llmc", "tokens"])
@pytest.mark.parametrize("name", ["sp1024", "mistral"])
def test_the_audit_proves_a_data_set_and_shows_what_normalising_changed(
    layout: str, name: str, models: dict[str, Tokenizer], shared: Path, tmp_path: Path
) -> None:
    tokenizer = models[name]
    docs = [shared / "data/docs/code_sample.jsonl", shared / "data/docs/edge_basic.jsonl"]
    split = {"golf": "first-docs:13", "llmc": None, "tokens": "hash:0.4"}[layout]
    build(docs, tokenizer=tokenizer, out=tmp_path, dataset="d", layout=layout, split=split, shard_tokens=1000)  # type: ignore[arg-type]
    folder = next(tmp_path.rglob("*.bin")).parent
    result = audit(folder, tokenizer=tokenizer, docs=docs)
    assert result.ok, result.problems
    by_ids = sum(one.counts.text_bytes for one in result.splits.values())
    recorded = sum(one.recorded_bytes or 0 for one in result.splits.values())
    assert recorded == sum(len(text.encode()) for path in docs for text in texts(path))
    if name == "mistral":
        assert by_ids == recorded
    else:
        assert by_ids == 5484 + 526  # counted_bytes of both files in the vectors
        assert layout == "llmc" or any("the tokenizer changes the text" in line for line in result.proofs)


def test_a_bpb_that_counts_three_bytes_for_a_part_of_a_character_is_disproved(
    models: dict[str, Tokenizer], shared: Path, tmp_path: Path
) -> None:
    """The usual mistake: the bytes of each id taken from its decoded text, in which a lone byte is U+FFFD."""
    docs, tokenizer = shared / "data/docs/multilingual_udhr.jsonl.gz", models["sp1024"]
    build([docs], tokenizer=tokenizer, out=tmp_path, layout="golf", split="first-docs:4", shard_tokens=10**8)
    (shard,) = tmp_path.glob("*val*.bin")
    ids = open_shard(shard).ids.astype(np.int64)
    wrong = sum(len(piece.decode(errors="replace").encode()) for piece in map(tokenizer.decode_bytes, ids[1:, None]))
    table = byte_tables(tokenizer)
    right = int(table.target_bytes(ids[1:], ids[:-1]).sum())
    assert wrong > 2 * right
    claims = [Claim(2.0, bpb_of(2.0 * (len(ids) - 1), len(ids) - 1, n)[1]) for n in (right, wrong)]
    assert audit(tmp_path, tokenizer=tokenizer, claim=claims[0]).ok
    assert not audit(tmp_path, tokenizer=tokenizer, claim=claims[1]).ok
