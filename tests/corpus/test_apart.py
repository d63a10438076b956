"""Files that are hashed by reads of their own, several at a time, beside whoever reads the documents."""

from __future__ import annotations

import gzip
import hashlib
import os
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from own_threads import threads_left

from tokenriver.corpus import apart
from tokenriver.corpus.apart import ApartHasher, files_apart, threads_apart
from tokenriver.corpus.documents import Position, SourceOptions, find_sources, read_blocks
from tokenriver.corpus.hashing import InputHasher
from tokenriver.corpus.inputs import InputFacts, InputMark
from tokenriver.errors import CorpusError, IntegrityError, ResumeError

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = SourceOptions()
LINES = b"".join(b'{"text":"line %d"}\n' % i for i in range(3000))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Files and places are as small as these tests'."""
    monkeypatch.setattr(apart, "_LEAST_BYTES", 1000)
    monkeypatch.setattr(apart, "_READ_BYTES", 1000)
    monkeypatch.setattr(apart, "_MARK_BYTES", 1000)


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for name in "adfg":
        (folder / f"{name}.jsonl").write_bytes(LINES + name.encode() + b"\n")
    (folder / "b.jsonl.gz").write_bytes(gzip.compress(LINES) * 2)
    (folder / "c.jsonl").write_bytes(b'{"text":"small"}\n')
    pq.write_table(pa.table({"text": [str(i * i) for i in range(1000)]}), folder / "e.parquet")
    return folder


def expected(folder: Path) -> list[InputFacts]:
    files = [path.read_bytes() for path in sorted(folder.iterdir())]
    return [InputFacts(len(data), hashlib.sha256(data).hexdigest()) for data in files]


def test_files_are_hashed_apart_where_many_workers_read_several_large_ones(inputs: Path) -> None:
    sources = find_sources([inputs])
    assert files_apart(sources, workers=8) == []
    assert files_apart(sources, workers=9) == [0, 1, 3, 4, 5, 6]
    assert files_apart(sources[:1], workers=64) == [], "one file's hash is one thread's work"
    assert files_apart([*find_sources(["-"]), *sources[2:4]], workers=64) == []
    assert [threads_apart(n) for n in (9, 16, 32, 33)] == [2, 2, 4, 5]


@pytest.mark.parametrize("start", [Position(0, 0), Position(0, 19), Position(1, 19), Position(4, 0), Position(5, 19)])
def test_every_input_is_hashed_whole_wherever_reading_begins(inputs: Path, start: Position) -> None:
    sources = find_sources([inputs])
    with InputHasher(sources, workers=16) as hasher:
        for _ in read_blocks(sources, OPTIONS, block_bytes=1000, start=start, on_raw=hasher.tap):
            pass
        assert hasher.finish() == expected(inputs)
    assert threads_left() == []


def test_a_journal_is_told_facts_of_what_was_read_and_a_mark_of_what_is_being_read(inputs: Path) -> None:
    sources, facts = find_sources([inputs]), expected(inputs)
    with InputHasher(sources, workers=16, keep_marks=True) as hasher:
        state, told = hasher.teller(), {}
        for raw in read_blocks(sources, OPTIONS, block_bytes=1000, on_raw=hasher.tap):
            new, mark = state(raw.start, raw.end)
            told |= new
            assert told == dict(enumerate(facts[: raw.start.source_index]))
            source = sources[raw.end.source_index]
            if source.kind == "parquet" or source.compression:
                assert mark is None
                continue
            assert mark is not None
            assert (mark.source_index, mark.n_bytes >= raw.end.offset) == (raw.end.source_index, True)
            assert mark.sha256 == hashlib.sha256(source.path.read_bytes()[: mark.n_bytes]).hexdigest()


def test_no_file_is_hashed_long_before_it_is_read(inputs: Path) -> None:
    sources = find_sources([inputs])

    def never(index: int) -> Exception:
        return AssertionError(index)

    hasher = ApartHasher(sources, [0, 1, 3, 4, 5, 6], threads=2, heads={}, changed=never)
    hasher.start()
    hasher.whole(1)
    assert set(hasher._left) >= {4, 5, 6}
    hasher.whole(5)
    hasher.stop()
    assert threads_left() == []


def test_another_beginning_than_the_journal_says_is_refused(inputs: Path) -> None:
    sources = find_sources([inputs])
    right = InputMark(3, 2500, hashlib.sha256(LINES[:2500]).hexdigest())
    with InputHasher(sources, workers=16, marks=[right]) as hasher:
        assert hasher.finish() == expected(inputs)
    for wrong in (InputMark(3, 2500, right.sha256[::-1]), InputMark(3, 1 << 30, right.sha256)):
        with InputHasher(sources, workers=16, marks=[wrong]) as hasher, pytest.raises(ResumeError, match=r"d\.jsonl"):
            hasher.finish()


def test_bytes_that_change_without_the_size_are_noticed(inputs: Path) -> None:
    sources = find_sources([inputs])
    path = inputs / "f.jsonl"
    with InputHasher(sources, workers=16) as hasher:
        for raw in read_blocks(sources, OPTIONS, block_bytes=1000, on_raw=hasher.tap):
            if raw.start.source_index == 3:
                path.write_bytes(path.read_bytes().replace(b"line 7", b"line 8"))
                os.utime(path, ns=(0, 1))
        with pytest.raises(IntegrityError, match=r"f\.jsonl: .*changes while it is read"):
            hasher.finish()
    assert threads_left() == []


@pytest.mark.parametrize("is_folder", [False, True])
def test_a_file_that_cannot_be_read_is_named_by_whoever_reads_or_asks(inputs: Path, is_folder: bool) -> None:
    sources = find_sources([inputs])
    (inputs / "d.jsonl").unlink()
    if is_folder:
        (inputs / "d.jsonl").mkdir()
    with (
        InputHasher(sources, workers=16) as hasher,
        pytest.raises(CorpusError, match=r"d\.jsonl: .*(No such|Is a dir)"),
    ):
        hasher.finish()
    with InputHasher(sources, workers=16) as hasher, pytest.raises(CorpusError, match=r"d\.jsonl"):
        for _ in read_blocks(sources, OPTIONS, block_bytes=1000, on_raw=hasher.tap):
            pass
    assert threads_left() == []


def test_files_are_let_go_of_when_the_reader_stops(inputs: Path) -> None:
    sources = find_sources([inputs])

    def stop() -> None:
        with InputHasher(sources, workers=16):
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        stop()
    assert threads_left() == []
