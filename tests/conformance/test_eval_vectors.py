"""Evaluation files and llm.c's loader against what the original programs wrote and served."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from shared_folder import load

from tokenriver.errors import FormatError, TokenRiverError
from tokenriver.evals.encode import encode_questions
from tokenriver.evals.examples import Completion, EvalExample
from tokenriver.evals.file import open_eval_file
from tokenriver.evals.make import make_eval_file
from tokenriver.evals.tasks import Answer, Question, mmlu_question
from tokenriver.evals.write import render_eval_file
from tokenriver.llmc import EvalLoader

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.tokenizers.base import Tokenizer


@pytest.fixture(scope="module")
def vectors(shared: Path) -> dict[str, Any]:
    return json.loads((shared / "vectors/evalloader.json").read_bytes())


@pytest.fixture(scope="module")
def gpt2(shared: Path) -> Tokenizer:  # noqa: ARG001
    return load("gpt2")


def sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def synthetic(rule: dict[str, int]) -> list[EvalExample]:
    """The examples of the rule stated in the vectors."""
    n, s, c_limit, e_limit = (rule[k] for k in ("N", "s", "C", "E"))
    examples = []
    for e in range(n):
        context = [(7919 * e + 31 * j + s) % 50257 for j in range(1 + (5 * e + s) % c_limit)]
        endings = [
            Completion(
                [(7919 * e + 104729 * c + 37 * j + 1 + s) % 50257 for j in range(1 + (3 * e + 7 * c + s) % e_limit)]
            )
            for c in range(4)
        ]
        examples.append(EvalExample(context, endings, (7 * e + 3 + s) % 4))
    return examples


def losses(kind: str, n: int) -> np.ndarray:
    i = np.arange(n, dtype=np.int64)
    if kind == "zero":
        return np.zeros(n, np.float32)
    if kind == "thirds":
        return ((48271 * i + 11) % 100003).astype(np.float32) / np.float32(3)
    return ((7919 * i + {"exact0": 0, "exact5": 523645}[kind]) % 8192 / 1024).astype(np.float32)


def test_files_of_the_stated_rule_are_written_byte_for_byte(vectors: dict[str, Any], shared: Path) -> None:
    for name in ("synth_13.bin", "synth_29.bin"):
        facts = vectors["files"][name]
        rendered = render_eval_file(synthetic(facts), version=1)
        assert (len(rendered), sha256(rendered)) == (facts["size"], facts["sha256"])
        assert rendered == (shared / "vectors/eval" / name).read_bytes()


def test_both_versions_hold_the_same_examples(vectors: dict[str, Any], shared: Path, tmp_path: Path) -> None:
    for name in vectors["files"]:
        path = shared / "vectors/eval" / name
        second = tmp_path / name
        second.write_bytes(render_eval_file(list(open_eval_file(path)), version=2, vocab_size=50257))
        assert render_eval_file(list(open_eval_file(second)), version=1) == path.read_bytes()


def test_every_batch_of_llmc_s_loader_is_the_same_bit_for_bit(vectors: dict[str, Any], shared: Path) -> None:
    n_batches = 0
    for case in vectors["cases"]:
        path = shared / "vectors/eval" / case["file"]
        arguments = (case["B"], case["T"], case["rank"], case["num_processes"])
        if case["status"] != "ok":
            with pytest.raises(TokenRiverError):
                EvalLoader(path, *arguments)
            continue
        loader = EvalLoader(path, *arguments)
        assert loader.num_batches == case["num_batches"]
        batches = iter(case["batches"])
        for _ in range(2):
            for _ in range(loader.num_batches):
                check_batch(loader, next(batches), case["id"])
                n_batches += 1
            loader.reset()
        assert next(batches, None) is None
    assert n_batches == 516


def check_batch(loader: EvalLoader, batch: dict[str, Any], case: str) -> None:
    loader.next_batch()
    assert sha256(loader.inputs.tobytes()) == batch["inputs_sha256_i32le"], case
    assert sha256(loader.targets.tobytes()) == batch["targets_sha256_i32le"], case
    assert sha256(loader.mask.tobytes()) == batch["mask_sha256_u8"], case
    assert int(loader.mask.sum()) == batch["mask_ones"]
    assert sha256(loader.targets[loader.mask != 0].tobytes()) == batch["masked_targets_sha256_i32le"], case
    assert loader.label[: batch["n_examples"]].tolist() == batch["labels"]
    for kind, (n_correct, predictions) in batch["stat_losses"].items():
        assert loader.stat_losses(losses(kind, loader.B * loader.T)) == n_correct, (case, kind)
        assert loader.predictions == predictions, (case, kind)


def test_what_llmc_refuses_is_refused(vectors: dict[str, Any], shared: Path) -> None:
    for case in vectors["refusals"]:
        arguments = (case["B"], case["T"], case["rank"], case["num_processes"])
        path = shared / "vectors/eval" / case["file"]
        if case["status"] == "ok":
            assert EvalLoader(path, *arguments).num_batches == case["num_batches"]
        else:
            with pytest.raises(TokenRiverError):
                EvalLoader(path, *arguments)


def test_small_files_are_written_and_refused_as_recorded(shared: Path) -> None:
    cases = json.loads((shared / "vectors/file_writing.json").read_bytes())["evalfile"]
    for case in cases:
        if case["name"] == "too_long":
            given = [{**cases[0]["examples"][0], "ctx_tokens": [1] * 32760}]
        else:
            given = case["examples"]
        examples = [
            EvalExample(e["ctx_tokens"], [Completion(ids) for ids in e["ending_tokens"]], e["label"]) for e in given
        ]
        if case["llmc"]["status"] == "ok":
            rendered = render_eval_file(examples, version=1, allow_empty=True)
            assert (len(rendered), sha256(rendered)) == (case["llmc"]["size"], case["llmc"]["sha256"]), case["name"]
        else:
            with pytest.raises(FormatError):
                render_eval_file(examples, version=1, allow_empty=True)
        if case["name"].startswith("empty"):
            with pytest.raises(FormatError, match="example 0"):
                render_eval_file(examples, version=1)


def test_hellaswag_is_llmc_s_file_byte_for_byte(
    vectors: dict[str, Any], shared: Path, gpt2: Tokenizer, tmp_path: Path
) -> None:
    source = shared / "data/eval/hellaswag_val.jsonl.gz"
    summary = make_eval_file("hellaswag", source, tokenizer=gpt2, out=tmp_path / "hellaswag_val.bin")
    raw = summary.path.read_bytes()
    facts = vectors["hellaswag_full_file"]
    assert (len(raw), sha256(raw), summary.examples) == (facts["size"], facts["sha256"], facts["num_examples"])
    record = json.loads(summary.record.read_bytes())
    assert record["rendering"] == "llmc"
    assert record["tokenizer"]["sha256"] == gpt2.sha256
    assert record["inputs"][0]["sha256"] == sha256(source.read_bytes())
    assert record["file"]["sha256"] == facts["sha256"]


def test_mmlu_files_are_those_of_llmc_s_prompt(shared: Path, gpt2: Tokenizer, tmp_path: Path) -> None:
    for case in json.loads((shared / "vectors/mmlu_eval.json").read_bytes())["cases"]:
        source = shared / "data/eval/mmlu/test" / case["csv"]
        out = tmp_path / "mmlu.bin"
        assert make_eval_file("mmlu", source, tokenizer=gpt2, out=out).examples == case["rows"]
        assert sha256(out.read_bytes()) == case["cells_as_plain_text"]["sha256"], case["csv"]


def test_the_two_mmlu_rows_that_pandas_changes_are_the_only_difference(
    shared: Path, gpt2: Tokenizer, tmp_path: Path
) -> None:
    """The original reads the choice "None" as a missing value and renders it as "nan"; here it stays a word."""
    cases = json.loads((shared / "vectors/mmlu_eval.json").read_bytes())["cases"]
    case = next(c for c in cases if c["rows_that_differ"])
    out = tmp_path / "mmlu.bin"
    make_eval_file("mmlu", shared / "data/eval/mmlu/test" / case["csv"], tokenizer=gpt2, out=out)
    examples = list(open_eval_file(out))
    none, nan = (
        encode_questions([Question("x", (Answer(f" {w}"),) * 2, 0)], gpt2).examples[0] for w in ("None", "nan")
    )
    assert isinstance(none, EvalExample)
    assert isinstance(nan, EvalExample)
    for row in case["rows_that_differ"]:
        changed = [
            nan.completions[0] if list(c.ids) == list(none.completions[0].ids) else c for c in examples[row].completions
        ]
        examples[row] = EvalExample(examples[row].context, changed, examples[row].label)
    assert sha256(render_eval_file(examples, version=1)) == case["as_mmlu_py"]["sha256"]


def test_letters_after_answer_are_the_tokens_with_a_space(gpt2: Tokenizer) -> None:
    question = mmlu_question(["Why?", "a", "b", "c", "d", "C"], "harness", subject="logic", examples=[])
    (example,) = encode_questions([question], gpt2).examples
    assert isinstance(example, EvalExample)
    assert list(example.context[-2:]) == [33706, 25]
    assert [list(c.ids) for c in example.completions] == [[317], [347], [327], [360]]
    assert example.label == 2


def test_a_token_over_the_border_leaves_a_scored_token(gpt2: Tokenizer) -> None:
    question = Question("hello wor", (Answer("ld"), Answer("k")), 0)
    (apart,) = encode_questions([question], gpt2).examples
    assert isinstance(apart, EvalExample)
    assert (list(apart.context), list(apart.completions[0].ids)) == ([31373, 476], [335])
    (joint,) = encode_questions([question], gpt2, boundary="joint").examples
    assert isinstance(joint, EvalExample)
    assert (list(joint.context), list(joint.completions[0].ids)) == ([31373], [995])
