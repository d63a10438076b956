"""`tokenriver inspect`: what a shard holds, its documents, and text whose token borders are visible."""

from __future__ import annotations

import json
import warnings
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from shard_sets import make_cut_set, make_tokens_set

from tokenriver import UsageError, write_shard
from tokenriver.cli import inspect as inspect_module
from tokenriver.cli import main
from tokenriver.cli.inspect import parse_range, token_texts
from tokenriver.shards import documents as documents_module
from tokenriver.shards.documents import Separator, count_documents, document_bounds

if TYPE_CHECKING:
    from pathlib import Path


def show(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["inspect", *words]) == 0
    return capsys.readouterr().out


def show_json(capsys: pytest.CaptureFixture[str], *words: str) -> dict[str, Any]:
    shown: dict[str, Any] = json.loads(show(capsys, *words, "--json"))
    return shown


def test_the_header_and_counts_are_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = make_tokens_set(tmp_path) / "train-00000.bin"
    out = show(capsys, str(shard))
    assert out.splitlines()[:4] == [
        str(shard),
        "  uint16 · 1.5 kB · vocabulary 1,000",
        "  230 tokens · 20 documents (separator 0)",
        "tokens 0:230:",
    ]
    assert out.splitlines()[4].startswith("0 1 0 2 3 0 3 4 5 0")


def test_a_shard_without_a_manifest_shows_ids_and_knows_no_documents(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shard(tmp_path / "a.bin", range(300))
    out = show(capsys, str(tmp_path / "a.bin"))
    assert "vocabulary not recorded" in out
    assert "documents" not in out
    assert "tokens 0:256:" in out
    assert main(["inspect", str(tmp_path / "a.bin"), "--document", "0"]) == 2
    assert "--document needs to know the separator" in capsys.readouterr().err


def test_a_directory_is_told_from_a_shard(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_tokens_set(tmp_path)
    assert main(["inspect", str(directory)]) == 2
    assert "inspect looks into one shard; give one of its shards, such as train-00000.bin" in capsys.readouterr().err
    (tmp_path / "empty").mkdir()
    assert main(["inspect", str(tmp_path / "empty")]) == 2
    assert capsys.readouterr().err.endswith("inspect looks into one shard\n")


def test_an_empty_shard_can_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shard(tmp_path / "a.bin", [])
    assert "  0 tokens" in show(capsys, str(tmp_path / "a.bin"))
    assert main(["inspect", str(tmp_path / "a.bin"), "--tokens", "0:5"]) == 2


def test_a_document_is_found_by_its_number(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = str(make_tokens_set(tmp_path) / "train-00000.bin")
    assert show_json(capsys, shard, "--document", "0")["tokens"]["ids"] == [0, 1]
    assert show_json(capsys, shard, "--document", "2")["tokens"] == {"start": 5, "stop": 9, "ids": [0, 3, 4, 5]}
    assert show_json(capsys, shard, "--document", "19")["tokens"]["stop"] == 230
    assert main(["inspect", shard, "--document", "20"]) == 2
    assert "there is no document 20: the shard has 20" in capsys.readouterr().err


def test_json_holds_all_facts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    shard = make_cut_set(tmp_path / "d", "golf") / "fineweb_train_000000.bin"
    facts = show_json(capsys, str(shard), "--tokens", ":3")
    assert facts == {
        "path": str(shard),
        "variant": "uint16",
        "bytes": 1124,
        "n_tokens": 50,
        "vocab_size": 0,
        "separator_id": 0,
        "documents": 9,
        "tokens": {"start": 0, "stop": 3, "ids": [0, 10, 0]},
    }


def test_text_is_decoded_with_a_bar_at_every_border(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_shard(tmp_path / "a.bin", list("aé\n\x1b[31m".encode()), vocab_size=256)
    out = show(capsys, str(tmp_path / "a.bin"), "--tokenizer", "byte")
    assert out.splitlines()[3:] == ["tokens 0:9:", "a|\\xc3|\\xa9|", "|\\x1b|[|3|1|m"]
    shown = show_json(capsys, str(tmp_path / "a.bin"), "--tokenizer", "byte")
    assert shown["tokens"]["text"] == "aé\n\x1b[31m"


def test_the_tokenizer_tells_the_separator_where_no_manifest_does(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    write_shard(tmp_path / "a.bin", [1, 4 + 97, 1, 4 + 98, 4 + 99])
    out = show(capsys, str(tmp_path / "a.bin"), "--tokenizer", "byte260", "--document", "1")
    assert "2 documents (separator 1)" in out
    assert out.splitlines()[-2:] == ["document 1, tokens 2:5:", "<1>|b|c"]


def test_a_damaged_shard_can_still_be_looked_at(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = tmp_path / "a.bin"
    write_shard(path, [1, 2, 3], vocab_size=256)
    raw = bytearray(path.read_bytes())
    raw[1025] = 1
    path.write_bytes(raw)
    assert "<257>|\\x02|\\x03" in show(capsys, str(path), "--tokenizer", "byte")


def test_colours_alternate_on_a_terminal_only(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shard(tmp_path / "a.bin", list(b"abc"), vocab_size=256)
    monkeypatch.setenv("FORCE_COLOR", "1")
    monkeypatch.setenv("TERM", "xterm-256color")
    monkeypatch.delenv("NO_COLOR", raising=False)
    out = show(capsys, str(tmp_path / "a.bin"), "--tokenizer", "byte")
    coloured = out.splitlines()[-1]
    assert coloured.count("\x1b[30;106m") == 2
    assert coloured.count("\x1b[30;103m") == 1
    assert "|" not in coloured


@pytest.mark.parametrize(
    ("text", "expected"),
    [("0:5", (0, 5)), (":5", (0, 5)), ("7:", (7, 10)), (":", (0, 10)), ("-3:", (7, 10)), ("2:99", (2, 10))],
)
def test_ranges_follow_python(text: str, expected: tuple[int, int]) -> None:
    assert parse_range(text, 10) == expected


@pytest.mark.parametrize("text", ["5", "a:b", "5:5", "7:3", "10:", "1:2:3", ""])
def test_a_range_that_holds_nothing_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="--tokens"):
        parse_range(text, 10)


def test_an_id_beyond_the_table_is_shown_as_a_number() -> None:
    assert token_texts([0, 1, 2, 9], [b"", b"a", "é".encode()]) == ["<0>", "a", "é", "<9>"]


@pytest.mark.parametrize("step", [1, 2, 3, 1000])
def test_documents_are_found_whatever_the_step(step: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(documents_module, "_STEP", step)
    ids = np.array([5, 9, 1, 2, 9, 9, 3], np.uint16)
    before = Separator(9)
    assert count_documents(ids, before) == 3
    assert [document_bounds(ids, before, k) for k in range(3)] == [(1, 4), (4, 5), (5, 7)]
    after = Separator(9, "after")
    assert [document_bounds(ids, after, k) for k in range(3)] == [(0, 2), (2, 5), (5, 6)]
    for separator in (before, after):
        with pytest.raises(UsageError, match="there is no document 3: the shard has 3"):
            document_bounds(ids, separator, 3)


def test_the_default_excerpt_is_bounded() -> None:
    assert inspect_module.SHOWN_TOKENS == 256


def test_a_tokenizer_that_did_not_make_the_ids_is_said_and_the_right_one_is_not(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "a.txt").write_text("one document")
    words = [str(tmp_path / "a.txt"), "--out", str(tmp_path / "out"), "--split", "train", "--quiet"]
    assert main(["build", *words, "--tokenizer", "byte260"]) == 0
    made = tmp_path / "out" / "tokens" / "byte260" / "a"
    shard = str(made / "train-00000.bin")
    trace = ["trace", str(made), "--step", "0", "--batch-size", "1", "--seq-len", "4"]
    for command in (["inspect", shard], trace):
        capsys.readouterr()
        with warnings.catch_warnings():
            warnings.simplefilter("default")
            assert main([*command, "--tokenizer", "byte"]) == 0
            told = capsys.readouterr().err
            assert main([*command, "--tokenizer", "byte260"]) == 0
            assert capsys.readouterr().err == ""
        assert told.startswith(f"tokenriver: warning: {command[1]}: made with the tokenizer byte260 (SHA-256 ")
        assert told.count("\n") == 1
