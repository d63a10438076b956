"""Checksums of the inputs, taken from the bytes that are read anyway."""

from __future__ import annotations

import gzip
import hashlib
import io
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenriver.corpus.documents import Position, SourceOptions, find_sources, read_blocks
from tokenriver.corpus.hashing import InputHasher
from tokenriver.corpus.inputs import InputFacts
from tokenriver.corpus.shards import write_corpus
from tokenriver.errors import CorpusError, IntegrityError

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS = SourceOptions()
LINES = b"".join(b'{"text":"line %d"}\n' % i for i in range(3000))


@pytest.fixture
def inputs(tmp_path: Path) -> Path:
    (tmp_path / "a.jsonl").write_bytes(LINES)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(LINES) * 2)
    (tmp_path / "c.jsonl").write_bytes(b"")
    pq.write_table(pa.table({"text": ["x"] * 100}), tmp_path / "d.parquet")
    (tmp_path / "e.txt").write_bytes(b"text")
    return tmp_path


def expected(folder: Path) -> list[InputFacts]:
    files = [path.read_bytes() for path in sorted(folder.iterdir())]
    return [InputFacts(len(data), hashlib.sha256(data).hexdigest()) for data in files]


@pytest.mark.parametrize("queue_bytes", [1, 1000, 1 << 20])
def test_every_input_is_hashed_whole(inputs: Path, queue_bytes: int) -> None:
    sources = find_sources([inputs])
    with InputHasher(sources, queue_bytes=queue_bytes) as hasher:
        for _ in read_blocks(sources, OPTIONS, block_bytes=1000, on_raw=hasher.tap):
            pass
        assert hasher.finish() == expected(inputs)


@pytest.mark.parametrize("start", [Position(0, 19), Position(1, 19), Position(3, 0), Position(4, 4)])
def test_a_run_that_begins_in_the_middle_hashes_the_same(inputs: Path, start: Position) -> None:
    sources = find_sources([inputs])
    with InputHasher(sources) as hasher:
        for _ in read_blocks(sources, OPTIONS, start=start, on_raw=hasher.tap):
            pass
        assert hasher.finish() == expected(inputs)


def test_facts_that_are_known_are_not_found_again(inputs: Path) -> None:
    sources = find_sources([inputs])
    known = InputFacts(1, "known")
    with InputHasher(sources, known={0: known}) as hasher:
        for _ in read_blocks(sources, OPTIONS, on_raw=hasher.tap):
            pass
        assert hasher.finish() == [known, *expected(inputs)[1:]]


def test_standard_input_is_hashed(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(LINES)

    monkeypatch.setattr("sys.stdin", Stdin)
    sources = find_sources(["-"])
    with InputHasher(sources) as hasher:
        for _ in read_blocks(sources, OPTIONS, block_bytes=100, on_raw=hasher.tap):
            pass
        assert hasher.finish() == [InputFacts(len(LINES), hashlib.sha256(LINES).hexdigest())]
    with InputHasher(sources) as unread, pytest.raises(CorpusError, match="not read to its end"):
        unread.finish()


def test_an_input_that_changed_before_it_was_hashed_is_an_error(inputs: Path) -> None:
    sources = find_sources([inputs / "d.parquet"])
    with InputHasher(sources) as hasher:
        for _ in read_blocks(sources, OPTIONS):
            pass
        with open(inputs / "d.parquet", "ab") as file:
            file.write(b"more")
        with pytest.raises(IntegrityError, match="changes while it is read"):
            hasher.finish()


def test_an_error_in_the_thread_reaches_the_reader(inputs: Path) -> None:
    sources = find_sources([inputs / "d.parquet"])
    (inputs / "d.parquet").unlink()
    with InputHasher(sources) as hasher:
        hasher.tap(0, b"")
        with pytest.raises(CorpusError, match="cannot be read"):
            hasher.finish()


def test_an_error_in_the_reader_stops_the_thread(inputs: Path) -> None:
    sources = find_sources([inputs])
    hasher = InputHasher(sources)

    def fail() -> None:
        with hasher:
            hasher.tap(0, b"x")
            raise RuntimeError("stop")

    with pytest.raises(RuntimeError, match="stop"):
        fail()
    assert not hasher._thread.is_alive()


def test_a_corpus_file_that_is_not_what_its_manifest_says_is_an_error(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text":"abc"}\n' * 9)
    write_corpus([tmp_path / "a.jsonl"], tmp_path / "corpus", format="parquet")
    shard = tmp_path / "corpus" / "corpus-00000.parquet"
    raw = shard.read_bytes()
    shard.write_bytes(raw.replace(b"parquet-cpp", b"parquet-cqq"))
    assert shard.stat().st_size == len(raw)
    sources = find_sources([tmp_path / "corpus"])
    with InputHasher(sources) as hasher:
        for _ in read_blocks(sources, OPTIONS, on_raw=hasher.tap):
            pass
        with pytest.raises(IntegrityError, match=r"corpus-00000.parquet: sha256 is .* the corpus's manifest says"):
            hasher.finish()
