"""`tokenriver corpus` on the command line: words, exit codes, what it prints."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING

import pytest

from tokenriver.cli import main
from tokenriver.corpus.manifest import CORPUS_MANIFEST, read_corpus_manifest

if TYPE_CHECKING:
    from pathlib import Path

MIXED = b'{"text":"a"}\n{"txt":"b"}\n{"text":null}\n{"text":5}\n"context"\n[1]\n{bad\n\n'


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    path = tmp_path / "raw.jsonl"
    path.write_bytes(MIXED)
    return path


def test_a_bad_record_is_one_line_on_stderr_and_exit_1_and_leaves_nothing(
    tmp_path: Path, raw: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["corpus", str(raw), "--out", str(tmp_path / "c")]) == 1
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert "raw.jsonl:2 (byte 13)" in lines[0]
    assert not (tmp_path / "c").exists()


def test_bad_records_are_skipped_and_counted_on_request(
    tmp_path: Path, raw: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    out = str(tmp_path / "c")
    assert main(["corpus", str(raw), "--out", out, "--on-bad-record", "skip", "--split", "train", "--json"]) == 0
    summary = json.loads(capsys.readouterr().out)
    assert summary["manifest"]["documents"] == {"train": 1, "val": 0}
    assert summary["skipped"] == {
        "missing": 1, "null": 1, "non_string": 1, "non_object": 2, "malformed": 1, "blank": 1,
    }  # fmt: skip
    assert main(["corpus", str(raw), "--out", out, "--on-bad-record", "skip", "--overwrite"]) == 0
    assert "left out: 1 blank, 1 malformed, 1 missing, 2 non_object, 1 non_string, 1 null" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words", [["--format", "csv"], ["--split", "first-shard"], ["--on-bad-record", "no"], ["--workers", "0"]]
)
def test_words_that_cannot_work_are_exit_2(tmp_path: Path, raw: Path, words: list[str]) -> None:
    assert main(["corpus", str(raw), "--out", str(tmp_path / "c"), *words]) == 2
    assert not (tmp_path / "c").exists()


def test_a_finished_corpus_is_exit_1_without_overwrite(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.txt").write_bytes(b"one||two")
    words = ["corpus", str(tmp_path / "*.txt"), "--out", str(tmp_path / "c"), "--document-separator", "||", "-q"]
    assert main([*words, "--name", "n", "--version", "v3", "--format", "parquet"]) == 0
    assert capsys.readouterr().out == ""
    manifest = read_corpus_manifest(tmp_path / "c")
    assert (manifest.name, manifest.version, manifest.files[0].name) == ("n", "v3", "corpus-00000.parquet")
    assert manifest.files[0].n_docs == 2
    before = (tmp_path / "c" / CORPUS_MANIFEST).read_bytes()
    assert main(words) == 1
    assert "--overwrite" in capsys.readouterr().err
    assert (tmp_path / "c" / CORPUS_MANIFEST).read_bytes() == before


def test_standard_input_becomes_a_corpus(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b'{"text":"a"}\n{"text":"b"}\n')

    monkeypatch.setattr("sys.stdin", Stdin)
    assert main(["corpus", "-", "--out", str(tmp_path / "c"), "--split", "train", "-q"]) == 0
    assert read_corpus_manifest(tmp_path / "c").documents == {"train": 2, "val": 0}
