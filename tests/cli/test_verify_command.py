"""`tokenriver verify`: findings by line or as JSON, and an exit code that scripts can trust."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from shard_sets import make_cut_set, make_tokens_set

from tokenriver.cli import main
from tokenriver.shards.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_a_sound_data_set_is_exit_0_and_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tokens_set(tmp_path)
    make_cut_set(tmp_path / "d", "llmc")
    assert main(["verify", str(tmp_path), "--inputs"]) == 0
    out = capsys.readouterr().out
    assert out.startswith("all good: 8 shards, 570 tokens, ")
    assert out.count("\n") == 1


def test_every_finding_is_a_line_and_the_exit_code_is_1(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_tokens_set(tmp_path)
    (directory / "train-00001.bin").unlink()
    (directory / "val-00000.bin").write_bytes(b"")
    assert main(["verify", str(directory), "--workers", "1"]) == 1
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{directory / 'train-00001.bin'}: missing: _MANIFEST.json lists it"
    assert lines[1].startswith(f"{directory / 'val-00000.bin'}: an empty file")
    assert lines[2].startswith("2 findings: 1 shard, ")


def test_json_names_the_same_findings(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    directory = make_tokens_set(tmp_path)
    assert main(["verify", str(directory), "--json"]) == 0
    report = json.loads(capsys.readouterr().out)
    assert (report["ok"], report["files_checked"], report["findings"]) == (True, 3, [])
    assert report["tokens"] == 340
    (directory / "train-00001.bin").unlink()
    assert main(["verify", str(directory), "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False
    assert report["findings"] == [
        {"path": str(directory / "train-00001.bin"), "problem": "missing: _MANIFEST.json lists it"}
    ]


def test_a_changed_input_is_exit_1_only_with_inputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    make_tokens_set(tmp_path)
    (tmp_path / "in" / "a.jsonl").write_bytes(b'{"text":"A.jsonl"}\n')
    assert main(["verify", str(tmp_path)]) == 0
    assert main(["verify", str(tmp_path), "--inputs"]) == 1
    assert "a.jsonl: input changed" in capsys.readouterr().out


def test_progress_comes_after_each_shard_and_input_and_ends_where_it_said(tmp_path: Path) -> None:
    class Seen(list[tuple[int, int, int]]):
        total = 0

        def expect(self, total_bytes: int) -> None:
            self.total = total_bytes

        def __call__(self, n_bytes: int, documents: int, tokens: int) -> None:
            self.append((n_bytes, documents, tokens))

    make_tokens_set(tmp_path)
    make_cut_set(tmp_path / "d", "llmc")
    seen, shards_alone = Seen(), Seen()
    report = verify([tmp_path], inputs=True, progress=seen)
    verify([tmp_path], progress=shards_alone)
    assert shards_alone[-1] == (report.bytes, 0, report.tokens) == (shards_alone.total, 0, 570)
    assert len(shards_alone) == 8
    assert seen[-1][0] == seen.total > report.bytes
    assert [n for n, _, _ in seen] == sorted(n for n, _, _ in seen)


def test_progress_goes_to_standard_error_and_quiet_says_only_what_is_wrong(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = make_tokens_set(tmp_path)
    assert main(["verify", str(tmp_path)]) == 0
    assert capsys.readouterr().err.startswith("verifying: 100 % · ")
    assert main(["verify", str(tmp_path), "--quiet"]) == 0
    assert capsys.readouterr() == ("", "")
    (directory / "train-00001.bin").unlink()
    assert main(["verify", str(directory), "-q"]) == 1
    missing = f"{directory / 'train-00001.bin'}: missing: _MANIFEST.json lists it\n"
    assert capsys.readouterr() == (missing, "")
