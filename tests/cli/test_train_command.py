"""`tokenriver train-tokenizer`: documents in, an artifact out that loads, and what was left out is said."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from tokenriver.cli import main
from tokenriver.tokenizers.load import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path


def write_documents(path: Path, *extra: str) -> Path:
    lines = [
        json.dumps({"text": f"the river number {i} runs to the sea, and {i * i} boats ride on it"}) for i in range(60)
    ]
    path.write_text("\n".join([*lines, *extra]) + "\n", encoding="utf-8")
    return path


@pytest.mark.parametrize(("kind", "file"), [("sp-bpe", "tokenizer.model"), ("byte-bpe", "tokenizer.json")])
def test_a_trained_tokenizer_loads_and_is_the_same_on_every_run(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str, file: str
) -> None:
    documents = write_documents(tmp_path / "a.jsonl")
    words = ["train-tokenizer", str(documents), "--type", kind, "--vocab-size", "280"]
    assert main([*words, "--out", str(tmp_path / "one")]) == 0
    assert f"wrote {tmp_path / 'one' / file}: 280 ids from 60 documents" in capsys.readouterr().out
    assert main([*words, "--out", str(tmp_path / "two"), "--quiet"]) == 0
    captured = capsys.readouterr()
    assert captured.out + captured.err == ""
    assert (tmp_path / "one" / file).read_bytes() == (tmp_path / "two" / file).read_bytes()
    tokenizer = load_tokenizer(str(tmp_path / "one"))
    text = "the river runs to the sea é"
    assert tokenizer.decode(tokenizer.encode(text)) == text


def test_what_was_skipped_is_said(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    documents = write_documents(tmp_path / "a.jsonl", "{bad", '{"txt": "x"}', '{"text": ""}', '{"text": " \\n"}')
    words = ["train-tokenizer", str(documents), "--type", "byte-bpe", "--vocab-size", "270", "--out", str(tmp_path)]
    assert main([*words, "--on-bad-record", "skip"]) == 0
    out = capsys.readouterr().out
    assert "skipped: 1 empty, 1 malformed, 1 missing" in out
    assert "1 documents hold white space alone" in out
    assert main([*words, "--on-bad-record", "skip", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert (summary["documents"], summary["empty"]) == (61, 1)
    assert summary["skipped"] == {"empty": 1, "malformed": 1, "missing": 1}


@pytest.mark.parametrize("kind", ["sp-bpe", "byte-bpe"])
def test_a_bad_record_stops_the_training_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], kind: str
) -> None:
    documents = write_documents(tmp_path / "a.jsonl", "{bad")
    words = ["train-tokenizer", str(documents), "--type", kind, "--vocab-size", "280", "--out", str(tmp_path / "out")]
    assert main(words) == 1
    assert f"{documents}:61 (byte " in capsys.readouterr().err
    assert not (tmp_path / "out").exists()


def test_no_documents_is_an_error(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.jsonl").write_text('{"text": ""}\n')
    words = ["train-tokenizer", str(tmp_path / "a.jsonl"), "--type", "byte-bpe", "--vocab-size", "270"]
    assert main([*words, "--out", str(tmp_path / "out")]) == 1
    assert "no documents to train on" in capsys.readouterr().err


def test_an_unknown_type_is_a_mistake_on_the_command_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["train-tokenizer", "a.jsonl", "--type", "wordpiece", "--vocab-size", "270", "--out", str(tmp_path)]
    assert main(words) == 2
    assert "--type" in capsys.readouterr().err
