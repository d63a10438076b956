"""Progress: a line now and then without a terminal, a bar on one, nothing when quiet."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from tokenriver.cli import main
from tokenriver.cli.progress import Progress, human_duration
from tokenriver.corpus import finding

if TYPE_CHECKING:
    from pathlib import Path


class Clock:
    """Time that passes when told."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_without_a_terminal_there_is_at_most_one_line_every_ten_seconds_and_a_last_one() -> None:
    clock, out = Clock(), io.StringIO()
    with Progress(1_000_000, label="building", stream=out, clock=clock) as progress:
        for step in range(1, 101):
            clock.now += 0.25
            progress.update(step * 10_000, step, step * 2500)
    lines = out.getvalue().splitlines()
    assert lines == [
        "building: 40 % · 400.0 kB · 40 documents · 100,000 tokens · 0.0 MB/s · 15 s left",
        "building: 80 % · 800.0 kB · 80 documents · 200,000 tokens · 0.0 MB/s · 5.0 s left",
        "building: 100 % · 1.0 MB · 100 documents · 250,000 tokens · 0.0 MB/s · 25 s",
    ]


def test_a_short_piece_of_work_prints_its_last_line_alone() -> None:
    clock, out = Clock(), io.StringIO()
    with Progress(500, label="reading", stream=out, clock=clock) as progress:
        clock.now += 0.5
        progress.update(500)
    assert out.getvalue() == "reading: 100 % · 500 B · 0.0 MB/s · 0.5 s\n"


def test_an_unknown_total_has_neither_share_nor_time_left() -> None:
    clock, out = Clock(), io.StringIO()
    with Progress(None, label="reading", stream=out, clock=clock) as progress:
        clock.now += 20
        progress.update(80_000_000, 7)
    assert out.getvalue().splitlines()[0] == "reading: 80.0 MB · 7 documents · 4.0 MB/s"


def test_only_the_end_is_called_100_percent() -> None:
    clock, out = Clock(), io.StringIO()
    with Progress(1000, label="reading", stream=out, clock=clock) as progress:
        clock.now += 20
        progress.update(1200)
        assert "reading: 99 %" in out.getvalue()


def test_nothing_is_called_done_when_an_error_ends_the_work() -> None:
    out = io.StringIO()

    def work() -> None:
        with Progress(1000, label="reading", stream=out) as progress:
            progress.update(10)
            raise RuntimeError

    with pytest.raises(RuntimeError):
        work()
    assert out.getvalue() == ""


@pytest.mark.parametrize("stream", [io.StringIO(), Terminal()])
def test_quiet_prints_nothing_anywhere(stream: io.StringIO) -> None:
    clock = Clock()
    with Progress(1000, label="reading", quiet=True, stream=stream, clock=clock) as progress:
        clock.now += 100
        progress.update(1000)
    assert stream.getvalue() == ""


@pytest.mark.parametrize("total", [1000, None])
def test_a_terminal_gets_a_bar_that_ends_at_100_percent(total: int | None) -> None:
    clock, out = Clock(), Terminal()
    with Progress(total, label="building", stream=out, clock=clock) as progress:
        clock.now += 1
        progress.update(400, 3, 100)
    shown = out.getvalue()
    assert "building" in shown
    assert "100%" in shown
    assert "3 documents" in shown


@pytest.mark.parametrize("terminal", [False, True])
def test_how_much_there_is_may_be_said_when_it_is_known(*, terminal: bool) -> None:
    clock, out = Clock(), Terminal() if terminal else io.StringIO()
    with Progress(None, label="building", stream=out, clock=clock) as progress:
        assert out.getvalue() == ""  # what is wrong before the work begins is not told below a bar
        progress.expect(1000)
        clock.now += 20
        progress(250, 3)
        assert ("building" if terminal else "building: 25 %") in out.getvalue()


@pytest.mark.parametrize(
    "words",
    [
        ["build", "--tokenizer", "byte"],
        ["corpus"],
        ["golf", "select", "--docs", "3", "--docs-val", "1", "--seed", "1"],
    ],
)
def test_inputs_are_looked_for_once(words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path / "in"
    folder.mkdir()
    for k in range(20):
        (folder / f"{k}.jsonl").write_text('{"text": "a document"}\n')
    looked: list[Path] = []
    real = finding._directory_files
    monkeypatch.setattr(finding, "_directory_files", lambda path: looked.append(path) or real(path))
    assert main([*words, str(folder), "--out", str(tmp_path / "out")]) == 0
    assert looked == [folder]


def test_durations_are_written_for_people() -> None:
    assert [human_duration(s) for s in (2.54, 59.4, 95, 4000)] == ["2.5 s", "59 s", "1 min 35 s", "1 h 06 min"]
