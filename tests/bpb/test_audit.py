"""The audit proves what is right and disproves what is not, in every layout."""

from __future__ import annotations

import json
import math
import random
import re
import shutil
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tokenriver import BitsPerByte, build, load_tokenizer, open_shard
from tokenriver.bpb.audit import Claim, audit
from tokenriver.bpb.source import open_token_set, split_bytes
from tokenriver.cli import main
from tokenriver.errors import IntegrityError, UsageError
from tokenriver.shards.header import HEADER_BYTES

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [f"document {k} " + "x" * (k % 17) + " é" * (k % 3) for k in range(60)]


@pytest.fixture
def corpus(tmp_path: Path) -> Path:
    rng = random.Random(1)
    path = tmp_path / "docs.jsonl"
    records = [{"text": t, "split": "val" if rng.random() < 0.3 else "train"} for t in TEXTS]
    path.write_text("".join(json.dumps(r) + "\n" for r in records))
    return path


LAYOUTS: list[dict[str, Any]] = [
    {"layout": "golf", "split": "first-docs:7", "shard_tokens": 100},
    {"layout": "llmc", "shard_tokens": 100},
    {"layout": "llmc", "split": "hash:0.3", "shard_tokens": 100},
    {"layout": "tokens", "split": "column"},
    {"layout": "tokens", "split": "hash:0.3", "shard_tokens": 200},
    {"layout": "tokens", "split": "first-tokens:150"},
    {"layout": "tokens", "split": "train"},
]


def made(corpus: Path, tmp_path: Path, options: dict[str, Any]) -> Path:
    build([corpus], tokenizer="byte260", out=tmp_path / "out", dataset="d", **options)
    return next((tmp_path / "out").rglob("*.bin")).parent


@pytest.mark.parametrize("options", LAYOUTS, ids=str)
def test_a_data_set_is_proven_from_its_documents(corpus: Path, tmp_path: Path, options: dict[str, Any]) -> None:
    result = audit(made(corpus, tmp_path, options), tokenizer=load_tokenizer("byte260"), docs=[corpus])
    assert result.problems == []
    assert result.proofs[0] == "all 60 source documents, encoded again, give exactly the ids in the shards"
    total = sum(len(t.encode()) for t in TEXTS)
    assert sum(one.counts.text_bytes for one in result.splits.values()) == total
    assert sum(one.source_bytes or 0 for one in result.splits.values()) == total
    assert sum(one.counts.separators for one in result.splits.values()) == 60


def test_who_asks_is_told_how_far_the_documents_are(
    corpus: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = made(corpus, tmp_path, {"layout": "tokens", "split": "train"})
    n_ids = sum(len(t.encode()) for t in TEXTS)
    command = ["bpb-audit", str(folder), "--tokenizer", "byte260", "--docs", str(corpus)]
    monkeypatch.setattr("tokenriver.cli.progress.LINE_SECONDS", 0.0)
    assert main(command) == 0
    first, last = capsys.readouterr().err.splitlines()
    assert re.match(rf"encoding again: 99 % · .* · 60 documents · {n_ids:,} tokens · ", first)
    assert re.match(rf"encoding again: 100 % · .* · 60 documents · {n_ids:,} tokens · ", last)
    assert main([*command, "-q"]) == 0
    assert capsys.readouterr().err == ""


def test_published_shards_without_a_record_are_proven_too(corpus: Path, tmp_path: Path) -> None:
    for layout in ("golf", "llmc"):
        folder = made(corpus, tmp_path / layout, {"layout": layout, "shard_tokens": 100} | (
            {"split": "first-docs:7"} if layout == "golf" else {}
        ))  # fmt: skip
        for record in folder.glob("*.json"):
            record.unlink()
        result = audit(folder, tokenizer=load_tokenizer("byte260"), docs=[corpus])
        assert result.ok, result.problems
        assert result.splits["val"].recorded_bytes is None
        assert open_token_set(folder, load_tokenizer("byte260")).joined == (layout == "llmc")


def test_one_changed_id_is_found_and_named(corpus: Path, tmp_path: Path) -> None:
    folder = made(corpus, tmp_path, LAYOUTS[0])
    shard = sorted(folder.glob("*train*.bin"))[1]
    raw = bytearray(shard.read_bytes())
    raw[HEADER_BYTES + 20] += 1
    shard.write_bytes(raw)
    result = audit(folder, tokenizer=load_tokenizer("byte260"), docs=[corpus])
    assert not result.ok
    (problem,) = result.problems
    assert "token 110 of train: the shards hold" in problem
    assert any(line.startswith("disproved: the source text does not give these ids") for line in result.lines())


def test_another_corpus_is_disproved(corpus: Path, tmp_path: Path) -> None:
    folder = made(corpus, tmp_path, LAYOUTS[0])
    lines = corpus.read_text().splitlines(keepends=True)
    for changed, words in (
        (lines[:-1], "the sources end after document 58"),
        ([*lines, lines[0]], "the sources go on"),
    ):
        corpus.write_text("".join(changed))
        (problem,) = audit(folder, tokenizer=load_tokenizer("byte260"), docs=[corpus]).problems
        assert words in problem


def test_a_record_that_says_other_bytes_is_disproved(corpus: Path, tmp_path: Path) -> None:
    folder = made(corpus, tmp_path, LAYOUTS[0])
    path = folder / "fineweb_BUILD.json"
    record = json.loads(path.read_bytes())
    record["splits"]["val"]["text_bytes"] += 3
    path.write_text(json.dumps(record))
    (problem,) = audit(folder, tokenizer=load_tokenizer("byte260"), docs=[corpus]).problems
    assert problem.startswith("val: the record says")


def test_a_reported_figure_is_compared_with_what_follows_from_its_loss(corpus: Path, tmp_path: Path) -> None:
    folder = made(corpus, tmp_path, LAYOUTS[0])
    tokenizer = load_tokenizer("byte260")
    ids = np.concatenate([open_shard(p).ids for p in sorted(folder.glob("*val*.bin"))]).astype(np.int64)
    usable = ids[: (len(ids) - 1) // 16 * 16 + 1]
    bits = BitsPerByte(tokenizer)
    bits.add(np.full(len(usable) - 1, 1.5), usable[1:], usable[:-1])
    true = bits.bits_per_byte("golf")
    assert audit(folder, tokenizer=tokenizer, claim=Claim(1.5, round(true, 5), 16)).ok
    wrong = audit(folder, tokenizer=tokenizer, claim=Claim(1.5, 1.5 / math.log(2) / 3, 16))
    assert f"is bits per byte {true:.6f} by golf's tables" in wrong.problems[0]
    with pytest.raises(UsageError, match="less than one sequence of 100000"):
        audit(folder, tokenizer=tokenizer, claim=Claim(1.5, 1.0, 100_000))


def test_another_tokenizer_is_disproved(corpus: Path, tmp_path: Path) -> None:
    folder = made(corpus, tmp_path, {"layout": "tokens"})
    result = audit(folder, tokenizer=load_tokenizer("byte260", separator="2"))
    assert result.ok  # the same artifact
    build([corpus], tokenizer="byte", out=tmp_path / "b", dataset="d")
    folder = next((tmp_path / "b").rglob("*.bin")).parent
    assert (
        audit(folder, tokenizer=load_tokenizer("byte260")).problems[0].startswith("the data set was built with another")
    )


def test_source_bytes_of_a_split_come_from_the_build(corpus: Path, tmp_path: Path) -> None:
    folder = made(corpus, tmp_path, {"layout": "tokens", "split": "column"})
    records = [json.loads(line) for line in corpus.read_text().splitlines()]
    true = sum(len(r["text"].encode()) for r in records if r["split"] == "val")
    assert split_bytes(folder, load_tokenizer("byte260"), "val").source == true
    assert split_bytes(folder, load_tokenizer("byte260"), "val").ids == true
    (folder / "_BUILD.json").unlink()
    with pytest.raises(UsageError, match="no build record"):
        split_bytes(folder, load_tokenizer("byte260"))


@pytest.mark.parametrize("split", ["val", "train"])
def test_a_document_that_the_border_cuts_makes_no_difference_of_bytes(corpus: Path, tmp_path: Path, split: str) -> None:
    folder = made(corpus, tmp_path, {"layout": "llmc", "shard_tokens": 112})
    tokenizer = load_tokenizer("byte260")
    result = audit(folder, tokenizer=tokenizer, docs=[corpus])
    one = result.splits[split]
    assert one.source_bytes == one.recorded_bytes != one.counts.text_bytes, "a document lies in both splits"
    found = split_bytes(folder, tokenizer, split)
    assert (found.source, found.ratio) == (sum(len(t.encode()) for t in TEXTS), 1.0)
    targets = one.counts.tokens - 1
    per_byte = targets / one.counts.golf_bytes / math.log(2)
    claims = {one.counts.golf_bytes: True, one.counts.golf_bytes * one.source_bytes // one.counts.text_bytes: False}
    for n_bytes, is_right in claims.items():
        claim = Claim(1.0, per_byte * one.counts.golf_bytes / n_bytes)
        for docs in ([], [corpus]):
            assert audit(folder, tokenizer=tokenizer, docs=docs, claim=claim, claim_split=split).ok == is_right


def test_what_is_no_data_set_is_refused(corpus: Path, tmp_path: Path) -> None:
    tokenizer = load_tokenizer("byte260")
    folder = made(corpus, tmp_path, {"layout": "tokens"})
    shutil.copytree(tmp_path / "out/tokens/byte260/d", tmp_path / "out/tokens/byte260/e")
    with pytest.raises(UsageError, match="2 data sets here"):
        open_token_set(tmp_path / "out", tokenizer)
    (folder / "_MANIFEST.json").unlink()
    with pytest.raises(IntegrityError, match="unfinished"):
        open_token_set(folder, tokenizer)
