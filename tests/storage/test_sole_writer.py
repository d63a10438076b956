"""One file that several processes write: each waits for the one before, and every file is whole and one of theirs."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from tokenriver import files, load_tokenizer, make_eval_file, open_shard, write_shard
from tokenriver.evals.make import record_path
from tokenriver.files import PART_SUFFIX, atomic_write, sole_writer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

A_WHILE = 0.5
"""Seconds in which whoever does not wait would be done."""

WRITER = """
import sys
from pathlib import Path
from tokenriver.files import atomic_write
with atomic_write(Path(sys.argv[1])) as file:
    file.write(b"theirs" * 10_000)
    file.flush()
    print("begun", flush=True)
    sys.stdin.read()
"""


@contextmanager
def another_writer(path: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process that has begun to write a file, and ends it when its standard input is closed."""
    words = [sys.executable, "-c", WRITER, str(path)]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        try:
            assert process.stdout.readline() == b"begun\n"
            yield process
        finally:
            process.kill()


def part_of(path: Path) -> Path:
    return path.with_name(path.name + PART_SUFFIX)


def names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir()]


def test_of_two_processes_that_write_one_file_the_second_waits(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"

    def write() -> None:
        with atomic_write(path) as file:
            file.write(b"ours")

    mine = threading.Thread(target=write)
    with another_writer(path) as theirs:
        mine.start()
        mine.join(A_WHILE)
        assert mine.is_alive()
        assert not path.exists()
        theirs.communicate()
        assert theirs.returncode == 0
    mine.join()
    assert path.read_bytes() == b"ours"
    assert names(tmp_path) == ["x.bin"]


def test_what_a_killed_process_left_is_written_over(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    with another_writer(path) as theirs:
        theirs.kill()
        theirs.wait()
    assert names(tmp_path) == ["x.bin.part"]
    with atomic_write(path) as file:
        file.write(b"ours")
    assert path.read_bytes() == b"ours"
    assert names(tmp_path) == ["x.bin"]


def test_whoever_is_stopped_while_he_waits_leaves_the_other_s_part(tmp_path: Path) -> None:
    path = tmp_path / "x.bin"
    with another_writer(path) as theirs:
        ours = [sys.executable, "-c", WRITER, str(path)]
        with subprocess.Popen(ours, stdout=subprocess.PIPE, stdin=subprocess.PIPE, stderr=subprocess.DEVNULL) as second:
            with pytest.raises(subprocess.TimeoutExpired):
                second.wait(2 * A_WHILE)
            second.send_signal(2)
        assert names(tmp_path) == ["x.bin.part"]
        theirs.communicate()
        assert theirs.returncode == 0
    assert path.read_bytes() == b"theirs" * 10_000


@pytest.mark.parametrize("what", ["hard link", "pipe"])
def test_a_part_that_is_something_else_too_is_not_written_into(tmp_path: Path, what: str) -> None:
    path, other = tmp_path / "x.bin", tmp_path / "other"
    other.write_bytes(b"precious")
    if what == "pipe":
        os.mkfifo(part_of(path))
    else:
        os.link(other, part_of(path))
    with atomic_write(path) as file:
        file.write(b"ours")
    assert other.read_bytes() == b"precious"
    assert path.is_file()
    assert path.read_bytes() == b"ours"


def write_while_held(path: Path) -> None:
    """A shard, by a thread that finds another writer there."""
    mine = threading.Thread(target=write_shard, args=(path, [1, 2, 3]))
    with sole_writer(part_of(path)):
        mine.start()
        mine.join(A_WHILE)
        assert not path.exists()
    mine.join()


def test_a_shard_is_waited_for_too(tmp_path: Path) -> None:
    write_while_held(tmp_path / "x.bin")
    assert open_shard(tmp_path / "x.bin").tolist() == [1, 2, 3]
    assert names(tmp_path) == ["x.bin"]


def test_an_evaluation_file_and_its_record_are_of_one_process(tmp_path: Path) -> None:
    source, out = tmp_path / "piqa.jsonl", tmp_path / "x.bin"
    source.write_text(json.dumps({"goal": "boil", "sol1": "heat", "sol2": "cool", "label": 0}) + "\n")
    words = {"tokenizer": load_tokenizer("byte"), "out": out}
    mine = threading.Thread(target=make_eval_file, args=("piqa", source), kwargs=words)
    with sole_writer(part_of(record_path(out))):
        mine.start()
        mine.join(A_WHILE)
        assert not out.exists(), "whose record would be another's"
    mine.join()
    record = json.loads(record_path(out).read_bytes())
    assert record["file"]["sha256"] == hashlib.sha256(out.read_bytes()).hexdigest()


def test_who_waits_for_long_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "_SILENT_LOOKS", 2)
    with pytest.warns(UserWarning, match=r"x\.bin\.part: another process is writing this file; waiting for it"):
        write_while_held(tmp_path / "x.bin")
