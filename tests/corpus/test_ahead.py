"""Compressed and Parquet files read before their turn: the same segments in the same order, in bounded memory."""

from __future__ import annotations

import gzip
import hashlib
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from own_threads import threads_left

from tokenriver.corpus import ahead, parquet
from tokenriver.corpus.ahead import FilesAhead, files_ahead
from tokenriver.corpus.documents import Position, SourceOptions, find_sources, parse_block, read_blocks
from tokenriver.corpus.hashing import InputHasher
from tokenriver.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPTIONS = SourceOptions()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    folder = tmp_path / "docs"
    folder.mkdir()
    for i in range(30):
        lines = b"".join(b'{"text":"file %d line %d"}\n' % (i, k) for k in range(i * 4))
        if i % 3 == 0:
            (folder / f"{i:02}.jsonl.gz").write_bytes(gzip.compress(lines))
        elif i % 3 == 1:
            (folder / f"{i:02}.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(lines))
        else:
            (folder / f"{i:02}.jsonl").write_bytes(lines)
    return folder


def texts_of(folder: Path, **words: object) -> list[bytes]:
    blocks = read_blocks(find_sources([folder]), OPTIONS, **words)  # type: ignore[arg-type]
    return [text for raw in blocks for text in parse_block(raw, OPTIONS).texts]


def test_few_workers_read_nothing_ahead() -> None:
    assert files_ahead(4) == (0, 0)
    assert files_ahead(5) == (2, 160 << 20)
    assert files_ahead(32) == (8, 1 << 30)


@pytest.mark.parametrize("block_bytes", [50, 1000, 1 << 20])
@pytest.mark.parametrize("budget", [0, 1000, 1 << 30])
def test_many_workers_read_the_same_documents(
    folder: Path, monkeypatch: pytest.MonkeyPatch, block_bytes: int, budget: int
) -> None:
    monkeypatch.setattr(ahead, "_BYTES_A_WORKER", budget)
    expected = texts_of(folder, block_bytes=block_bytes)
    assert len(expected) == sum(4 * i for i in range(30))
    assert texts_of(folder, block_bytes=block_bytes, workers=16) == expected
    middle, end = Position(3, 50), Position(21, 0)
    whole = texts_of(folder, block_bytes=block_bytes, start=middle, stop=end)
    assert texts_of(folder, block_bytes=block_bytes, start=middle, stop=end, workers=16) == whole
    assert threads_left() == []


def test_files_read_ahead_are_hashed_each_by_itself(folder: Path) -> None:
    sources = find_sources([folder])
    with InputHasher(sources, keep_marks=True) as hasher:
        for raw in read_blocks(sources, OPTIONS, block_bytes=100, on_raw=hasher.tap, workers=16):
            _, mark = hasher.state(raw.start, raw.end)
            assert mark is None or mark.source_index % 3 == 2
        facts = hasher.finish()
    assert [one.sha256 for one in facts] == [hashlib.sha256(s.path.read_bytes()).hexdigest() for s in sources]


def test_a_damaged_file_is_named_when_its_turn_comes_and_not_before(folder: Path) -> None:
    damaged = folder / "13.jsonl.zst"
    damaged.write_bytes(damaged.read_bytes()[:-3])
    texts: list[bytes] = []

    def read() -> None:
        for raw in read_blocks(find_sources([folder]), OPTIONS, block_bytes=50, workers=16):
            texts.extend(parse_block(raw, OPTIONS).texts)

    with pytest.raises(CorpusError, match=r"13\.jsonl\.zst: cut short"):
        read()
    assert texts[-1].startswith((b"file 12", b"file 13"))
    assert threads_left() == []


def test_a_reader_that_stops_ends_the_threads(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ahead, "_BYTES_A_WORKER", 10)  # the threads wait for room
    blocks = read_blocks(find_sources([folder]), OPTIONS, block_bytes=50, workers=16)
    while next(blocks).start.source_index < 3:
        pass
    assert threads_left()
    blocks.close()  # type: ignore[attr-defined]
    assert threads_left() == []


def test_what_waits_is_bounded_and_the_file_whose_turn_it_is_goes_on(folder: Path) -> None:
    sources = [source for source in find_sources([folder]) if source.n_bytes]

    class Piece:
        n_bytes = 10

    held: list[int] = []

    def parts(_: int) -> list[Callable[[], list[Piece]]]:
        return [lambda: [Piece()] * 20, lambda: [Piece()] * 30]

    files = FilesAhead(range(len(sources)), parts, n_threads=3, n_bytes=100)  # type: ignore[arg-type]
    for index in range(len(sources)):
        held += [files._held for _ in files.segments(index)]
    files.close()
    assert len(held) == 50 * len(sources)
    assert max(held) <= 110
    assert threads_left() == []


@pytest.fixture
def tables(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Parquet files of 0 to 6 row groups of 4 rows, in parts of one or two groups; every third row begins a page."""
    monkeypatch.setattr(parquet, "_PART_BYTES", 150)
    folder = tmp_path / "tables"
    folder.mkdir()
    for i in range(7):
        texts = [f"{'# ' if k % 3 == 0 else ''}table {i} row {k}" for k in range(4 * i)]
        pq.write_table(pa.table({"text": pa.array(texts, pa.string())}), folder / f"{i}.parquet", row_group_size=4)
    return folder


@pytest.mark.parametrize("document_start", [None, "^# "])
@pytest.mark.parametrize("block_bytes", [1, 100, 1 << 20])
@pytest.mark.parametrize("budget", [0, 1 << 30])
def test_many_workers_read_the_same_rows(
    tables: Path, monkeypatch: pytest.MonkeyPatch, document_start: str | None, block_bytes: int, budget: int
) -> None:
    monkeypatch.setattr(ahead, "_BYTES_A_WORKER", budget)
    options = SourceOptions(document_start=document_start)
    sources = find_sources([tables])
    assert len(parquet.parquet_parts(sources[6], 6, options, block_bytes=block_bytes)) > 2

    def runs(workers: int, start: Position) -> list[tuple[Position, Position, list[bytes]]]:
        blocks = read_blocks(sources, options, block_bytes=block_bytes, start=start, workers=workers)
        return [(raw.start, raw.end, list(parse_block(raw, options).texts)) for raw in blocks]

    whole = runs(1, Position(0, 0))
    assert sum(len(texts) for _, _, texts in whole) == (
        84 if document_start is None else sum(-(-4 * i // 3) for i in range(7))
    )
    assert runs(16, Position(0, 0)) == whole
    middle = whole[len(whole) // 2][1]
    assert runs(16, middle) == runs(1, middle) == whole[len(whole) // 2 + 1 :]
    assert threads_left() == []


def test_a_damaged_table_is_named_when_its_turn_comes_and_not_before(tables: Path) -> None:
    (tables / "4.parquet").write_bytes((tables / "4.parquet").read_bytes()[:-1])
    texts: list[bytes] = []

    def read() -> None:
        for raw in read_blocks(find_sources([tables]), OPTIONS, block_bytes=1, workers=16):
            texts.extend(parse_block(raw, OPTIONS).texts)

    with pytest.raises(CorpusError, match=r"4\.parquet: not a whole Parquet file"):
        read()
    assert texts[-1].endswith(b"table 3 row 11")
    assert threads_left() == []
