"""The commands eval, tokenizer-file and bpb-audit: what they print, and one line with the right code on a mistake."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tokenriver.cli import main

if TYPE_CHECKING:
    from pathlib import Path

RECORDS = [
    {"goal": "To open a jar,", "sol1": "turn the lid.", "sol2": "eat\tit.", "label": 0},
    {"goal": "To sleep,", "sol1": "run.", "sol2": "lie down.", "label": 1},
]
MODEL = """
import numpy as np
def likes_short(inputs):
    return np.zeros((*inputs.shape, 256))
not_a_model = 5
"""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    (tmp_path / "piqa.jsonl").write_text("".join(json.dumps(r) + "\n" for r in RECORDS))
    (tmp_path / "cli_eval_model.py").write_text(MODEL)
    return tmp_path


def test_make_show_and_run(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "make", "piqa", "piqa.jsonl", "--tokenizer", "byte", "--out", "piqa.bin"]) == 0
    assert capsys.readouterr().out == "2 examples, 60 ids, version 2 in piqa.bin\nwrote piqa.bin.json\n"
    assert main(["eval", "show", "piqa.bin", "0", "--tokenizer", "byte"]) == 0
    assert capsys.readouterr().out.splitlines() == [
        "example 0, label 0",
        'context (14 ids): "To open a jar,"',
        '* 0 (14 ids): " turn the lid."',
        '  1 (8 ids): " eat\\tit."',
    ]
    assert main(["eval", "show", "piqa.bin", "1", "--tokenizer", "byte", "--json"]) == 0
    shown = json.loads(capsys.readouterr().out)
    assert (shown["label"], shown["context"], shown["completions"][0]["text"]) == (1, "To sleep,", " run.")
    assert main(["eval", "run", "piqa.bin", "--model", "cli_eval_model:likes_short", "--seq-len", "40"]) == 0
    streams = capsys.readouterr()
    assert streams.out.splitlines()[:2] == ["2 examples", "acc              0.0000 ± 0.0000"]
    assert streams.err.startswith("evaluating: 100 %")
    assert (
        main(["eval", "run", "piqa.bin", "--model", "cli_eval_model:likes_short", "--seq-len", "40", "--json", "-q"])
        == 0
    )
    assert json.loads(capsys.readouterr().out)["acc"] == 0
    assert here.joinpath("piqa.bin.json").is_file()


def test_rows_that_do_not_fit_can_be_left_out(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["eval", "make", "piqa", "piqa.jsonl", "--tokenizer", "byte", "--out", "piqa.bin", "-q"]) == 0
    run = ["eval", "run", "piqa.bin", "--model", "cli_eval_model:likes_short", "--seq-len", "20", "-q"]
    assert main(run) == 2
    assert "example 0: its longest row has 28 ids" in capsys.readouterr().err
    assert main([*run, "--too-long", "skip"]) == 0
    assert capsys.readouterr().out.endswith("1 example left out: longer than 20 ids\n")
    del here


@pytest.mark.parametrize(
    ("arguments", "code", "words"),
    [
        (["eval", "make", "boolq", "piqa.jsonl", "--tokenizer", "byte", "--out", "o"], 2, "task 'boolq' is unknown"),
        (["eval", "make", "piqa", "no.jsonl", "--tokenizer", "byte", "--out", "o"], 1, "no.jsonl: no such file"),
        (
            ["eval", "make", "piqa", "piqa.jsonl", "--tokenizer", "byte", "--out", "o", "--file-version", "1"],
            1,
            "2 completions; version 1 holds 4",
        ),
        (
            ["eval", "make", "piqa", "piqa.jsonl", "--tokenizer", "byte", "--out", "o", "--file-version", "3"],
            2,
            "choose auto, 1 or 2",
        ),
        (["eval", "show", "cli_eval_model.py", "0", "--tokenizer", "byte"], 1, "has a header of 1,024"),
        (["eval", "run", "missing.bin", "--model", "a:b"], 1, "missing.bin"),
        (["bpb-audit", ".", "--tokenizer", "byte"], 1, "no token shards"),
        (["bpb-audit", ".", "--tokenizer", "byte", "--loss", "1"], 2, "--loss and --bpb belong together"),
        (["tokenizer-file", "--tokenizer", "byte", "--out", "t.bin"], 1, "--eot"),
    ],
)
def test_a_mistake_is_one_line_and_a_code(
    here: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], code: int, words: str
) -> None:
    assert main(arguments) == code
    error = capsys.readouterr().err
    assert words in error
    assert error.count("\n") == 1
    del here


@pytest.mark.parametrize(
    ("model", "words"),
    [
        ("nothing", "expected module:callable"),
        ("no_such_module_here:x", "no module 'no_such_module_here'"),
        ("cli_eval_model:x", "cli_eval_model has no 'x'"),
        ("cli_eval_model:not_a_model", "it is int, not something to call"),
    ],
)
def test_a_model_that_is_none_is_named(here: Path, capsys: pytest.CaptureFixture[str], model: str, words: str) -> None:
    main(["eval", "make", "piqa", str(here / "piqa.jsonl"), "--tokenizer", "byte", "--out", "piqa.bin", "-q"])
    assert main(["eval", "run", "piqa.bin", "--model", model]) == 2
    assert words in capsys.readouterr().err


def test_tokenizer_file_writes_llmc_s_table(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["tokenizer-file", "--tokenizer", "byte260", "--out", "t.bin"]) == 0
    assert capsys.readouterr().out == "wrote t.bin: 260 ids, 1.6 kB\n"
    assert (here / "t.bin").stat().st_size == 1024 + 2 * 256 + 4 * 6


def test_bpb_audit_prints_one_page_and_its_verdict(here: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (here / "d.jsonl").write_text('{"text": "abc"}\n{"text": "é"}\n')
    build = [
        "build",
        "d.jsonl",
        "--tokenizer",
        "byte260",
        "--layout",
        "golf",
        "--split",
        "first-docs:1",
        "--out",
        "g",
        "-q",
    ]
    assert main(build) == 0
    assert main(["bpb-audit", "g", "--tokenizer", "byte260", "--docs", "d.jsonl"]) == 0
    page = capsys.readouterr().out.splitlines()
    assert page[:4] == [
        "g, tokenizer byte260",
        "val: 4 ids, 3 of text, 1 separators, 0 unknown",
        "  bytes by ids (text)                    3",
        "  bytes by golf's tables                 3  the same",
    ]
    assert "proven: all 2 source documents, encoded again, give exactly the ids in the shards" in page
    assert main(["bpb-audit", "g", "--tokenizer", "byte260", "--loss", "2", "--bpb", "2", "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["splits"]["val"]["counts"]["text_bytes"]) == (False, 3)
    # 3 targets, all text, 3 bytes: bits per byte = 2 / ln 2
    assert main(["bpb-audit", "g", "--tokenizer", "byte260", "--loss", "2", "--bpb", "2.8854"]) == 0
