"""`--overwrite`: the data set that is there stays whole until the new one is, whatever happens in between."""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

import pytest
from build_helpers import hashes
from made_documents import make_texts, write_jsonl

import tokenriver
from tokenriver.building.target import Target


def build(source: Path, out: Path, **words: object) -> tokenriver.BuildSummary:
    return tokenriver.build([source], tokenizer="byte260", out=out, dataset="d", **{"shard_tokens": 500, **words})


@pytest.mark.parametrize("layout", ["tokens", "llmc", "golf"])
def test_a_bad_record_in_the_new_input_leaves_the_old_data_set(tmp_path: Path, layout: str) -> None:
    first = build(write_jsonl(tmp_path / "a.jsonl", make_texts(60)), tmp_path / "out", layout=layout)
    before = hashes(first.directory)
    bad = tmp_path / "b.jsonl"
    bad.write_bytes(write_jsonl(tmp_path / "c.jsonl", make_texts(80)).read_bytes() + b"no json\n")
    with pytest.raises(tokenriver.CorpusError):
        build(bad, tmp_path / "out", layout=layout, overwrite=True)
    assert hashes(first.directory) == before
    assert tokenriver.verify(first.directory).ok


@pytest.mark.parametrize("layout", ["tokens", "llmc", "golf"])
def test_the_new_data_set_is_what_a_fresh_build_makes(tmp_path: Path, layout: str) -> None:
    new = write_jsonl(tmp_path / "new.jsonl", make_texts(30))
    fresh = build(new, tmp_path / "fresh", layout=layout)
    build(write_jsonl(tmp_path / "old.jsonl", make_texts(90)), tmp_path / "out", layout=layout)
    second = build(new, tmp_path / "out", layout=layout, overwrite=True)
    assert hashes(second.directory) == hashes(fresh.directory)
    assert second.record.is_file()
    assert second.record.parent == second.directory
    assert [p.name for p in second.directory.iterdir() if p.is_dir()] == []


@pytest.mark.parametrize("fails_at", range(9))
@pytest.mark.parametrize("again", [{}, {"overwrite": True}])
def test_a_swap_that_is_interrupted_anywhere_is_ended_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int, again: dict[str, bool]
) -> None:
    new = write_jsonl(tmp_path / "new.jsonl", make_texts(30))
    fresh = build(new, tmp_path / "fresh", shard_tokens=1500)
    build(write_jsonl(tmp_path / "old.jsonl", make_texts(90)), tmp_path / "out")
    real_swap, steps = Target.swap, [0]

    def power_cut(real):
        def step(*words, **more):
            steps[0] += 1
            if steps[0] > fails_at:
                raise KeyboardInterrupt
            return real(*words, **more)

        return step

    def swap(self):
        with monkeypatch.context() as patches:
            patches.setattr(Path, "replace", power_cut(Path.replace))
            patches.setattr(Path, "unlink", power_cut(Path.unlink))
            patches.setattr(Path, "touch", power_cut(Path.touch))
            real_swap(self)

    with monkeypatch.context() as patches:
        patches.setattr(Target, "swap", swap)
        with pytest.raises(KeyboardInterrupt):
            build(new, tmp_path / "out", shard_tokens=1500, overwrite=True)
    if again:
        build(new, tmp_path / "out", shard_tokens=1500, **again)
    else:
        with pytest.raises(tokenriver.IntegrityError, match="finished data set already"):
            build(new, tmp_path / "out", shard_tokens=1500)
    there = tmp_path / "out" / "tokens" / "byte260" / "d"
    assert hashes(there) == hashes(fresh.directory)
    assert tokenriver.verify(there).ok


STOPPED = """
import os, pathlib, time, tokenriver
class Stop:
    def update(self, bytes_done, documents, tokens):
        if documents < 60:
            return
        while not any(path.read_bytes().count(b"\\n") > 5 for path in pathlib.Path({out!r}).rglob("*_JOURNAL*")):
            time.sleep(0.01)
        os.kill(os.getpid(), {number})
tokenriver.build([{source!r}], tokenizer="byte260", out={out!r}, dataset="d", layout={layout!r}, shard_tokens=500,
                 block_bytes=300, overwrite=True, progress=Stop())
"""


def stopped(source: Path, out: Path, layout: str, number: int) -> None:
    """An overwriting build that a signal stops in the middle."""
    code = STOPPED.format(source=str(source), out=str(out), layout=layout, number=number)
    assert subprocess.run([sys.executable, "-c", code], stderr=subprocess.DEVNULL, check=False).returncode != 0


@pytest.mark.parametrize("layout", ["tokens", "llmc"])
@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGINT])
def test_stopped_in_the_middle_the_old_data_set_stays_and_the_same_command_goes_on(
    tmp_path: Path, layout: str, number: int
) -> None:
    old, new = (write_jsonl(tmp_path / f"{n}.jsonl", make_texts(90, seed=n)) for n in (1, 2))
    fresh = build(new, tmp_path / "fresh", layout=layout)
    first = build(old, tmp_path / "out", layout=layout)
    before = hashes(first.directory)
    stopped(new, tmp_path / "out", layout, number)
    made = sorted(first.directory.glob("*_OVERWRITE/*.bin"))
    assert made
    assert {name: found for name, found in hashes(first.directory).items() if not name.endswith("_LOCK")} == before
    assert tokenriver.verify(first.directory).ok
    with pytest.raises(tokenriver.IntegrityError, match="finished data set already"):
        build(new, tmp_path / "out", layout=layout)
    places = [path.stat().st_ino for path in made]
    done = build(new, tmp_path / "out", layout=layout, overwrite=True)
    assert done.resumed
    assert [(first.directory / path.name).stat().st_ino for path in made] == places
    assert hashes(done.directory) == hashes(fresh.directory)
    assert [path.name for path in done.directory.iterdir() if path.is_dir()] == []


@pytest.mark.parametrize("words", [{"split": "train"}, {"restart": True}])
def test_other_options_or_restart_begin_anew_after_a_stop(tmp_path: Path, words: dict[str, object]) -> None:
    old, new = (write_jsonl(tmp_path / f"{n}.jsonl", make_texts(90, seed=n)) for n in (1, 2))
    fresh = build(new, tmp_path / "fresh", **words)
    build(old, tmp_path / "out")
    stopped(new, tmp_path / "out", "tokens", signal.SIGKILL)
    done = build(new, tmp_path / "out", overwrite=True, **words)
    assert not done.resumed
    assert hashes(done.directory) == hashes(fresh.directory)


def test_overwriting_nothing_yet_goes_on_as_well(tmp_path: Path) -> None:
    new = write_jsonl(tmp_path / "new.jsonl", make_texts(90))
    fresh = build(new, tmp_path / "fresh")
    stopped(new, tmp_path / "out", "tokens", signal.SIGKILL)
    done = build(new, tmp_path / "out", overwrite=True)
    assert done.resumed
    assert hashes(done.directory) == hashes(fresh.directory)
    stopped(new, tmp_path / "again", "tokens", signal.SIGKILL)
    assert not build(new, tmp_path / "again", overwrite=True, split="train").resumed
