"""Blocks: the same documents and places whatever the block size; reading begins again at any block border."""

from __future__ import annotations

import gzip
import io
import json
import os
import subprocess
import sys
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import zstandard
from corpus.corpus_cases import read_texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

import tokenriver
from tokenriver.corpus.documents import (
    Position,
    SourceOptions,
    find_sources,
    parse_block,
    peek_fields,
    read_blocks,
)
from tokenriver.errors import CorpusError, UsageError

if TYPE_CHECKING:
    from tokenriver.corpus.sources import Source

TEXTS = ["one", "", "two\n\nlines", "\u2028", "\ufeffbom", "x" * 300, "é" * 40, "last"]
START = Position(0, 0)
SKIP = SourceOptions(on_bad_record="skip", document_separator="\n\n")


def jsonl(texts: list[str], ending: str = "\n") -> bytes:
    return "".join(json.dumps({"id": i, "text": text}) + ending for i, text in enumerate(texts)).encode()


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory of every kind of input."""
    root = tmp_path_factory.mktemp("mixed")
    lines = jsonl(TEXTS)
    (root / "a.jsonl").write_bytes(b"\xef\xbb\xbf" + lines + b'\n{"text":null}\nbroken\n' + lines.rstrip(b"\n"))
    (root / "b.jsonl.gz").write_bytes(gzip.compress(lines[:40]) + gzip.compress(lines[40:]))
    (root / "c.jsonl.zst").write_bytes(b"".join(map(zstandard.ZstdCompressor().compress, (lines[:33], lines[33:]))))
    pq.write_table(
        pa.table({"id": [1, 2, 3, 4, 5], "text": ["p", None, "q" * 50, "", "r"]}), root / "d.parquet", row_group_size=2
    )
    (root / "e.txt").write_bytes(b"t one\n\nt two\n\n\n\n\nt three\n\n")
    (root / "f.jsonl").write_bytes(b"")
    for i in range(20):
        (root / f"g{i:02}.jsonl").write_bytes(jsonl([f"small {i}"], ""))
    return root


def everything(sources: list[Source], block_bytes: int, start: Position = START):
    documents = []
    borders = []
    skipped = 0
    for raw in read_blocks(sources, SKIP, block_bytes=block_bytes, start=start):
        block = parse_block(raw, SKIP)
        places = zip(block.source_indices.tolist(), block.offsets.tolist(), strict=True)
        documents += list(zip(block.texts, places, strict=True))
        borders += [raw.start, raw.end]
        skipped += block.skipped.total()
    return documents, borders, skipped


@pytest.mark.parametrize("block_bytes", [1, 7, 64, 1000, 1 << 20])
def test_documents_places_and_counts_do_not_depend_on_the_block_size(mixed: Path, block_bytes: int) -> None:
    sources = find_sources([mixed])
    documents, _, skipped = everything(sources, 8 << 20)
    found, _, counted = everything(sources, block_bytes)
    assert found == documents
    assert counted == skipped
    assert len(documents) == 7 * 4 + 3 + 3 + 20


@pytest.mark.parametrize("block_bytes", [1, 50, 400])
def test_reading_begins_again_at_any_block_border_with_another_block_size(mixed: Path, block_bytes: int) -> None:
    sources = find_sources([mixed])
    documents, _, _ = everything(sources, 8 << 20)
    _, borders, _ = everything(sources, block_bytes)
    for border in dict.fromkeys(borders):
        rest, _, _ = everything(sources, 333, border)
        assert rest == [one for one in documents if one[1] >= (border.source_index, border.offset)]


def test_borders_of_consecutive_blocks_leave_nothing_between_them(mixed: Path) -> None:
    sources = find_sources([mixed])
    raws = list(read_blocks(sources, SKIP, block_bytes=100))
    for before, after in pairwise(raws):
        assert before.end == after.start or after.start.offset == 0


def test_many_small_files_share_a_block(tmp_path: Path) -> None:
    for i in range(500):
        (tmp_path / f"{i:04}.jsonl").write_bytes(jsonl([f"text {i}"]))
    sources = find_sources([tmp_path])
    raws = list(read_blocks(sources, SourceOptions()))
    assert len(raws) == 1
    block = parse_block(raws[0], SourceOptions())
    assert list(block.texts) == [f"text {i}".encode() for i in range(500)]
    assert block.source_indices.tolist() == list(range(500))
    assert block.where(499, sources).startswith(f"{tmp_path / '0499.jsonl'}:1 (byte 0)")


def test_small_files_fill_a_block_and_no_more(tmp_path: Path) -> None:
    for i in range(60):
        (tmp_path / f"{i:04}.jsonl").write_bytes(jsonl(["x" * (7 * i % 400)], ["", "\n"][i % 2]))
    sources = find_sources([tmp_path])
    raws = list(read_blocks(sources, SourceOptions(), block_bytes=1000))
    for before, after in pairwise(raws):
        assert before.n_bytes <= 1000 < before.n_bytes + after.segments[0].n_bytes
    blocks = [parse_block(raw, SourceOptions(keep_empty=True)) for raw in raws]
    assert [text for one in blocks for text in one.texts] == [b"x" * (7 * i % 400) for i in range(60)]
    assert [i for one in blocks for i in one.source_indices] == list(range(60))
    assert not any(one.offsets.any() for one in blocks)


def test_a_place_names_file_line_and_byte(mixed: Path) -> None:
    sources = find_sources([mixed])
    for raw in read_blocks(sources, SKIP, block_bytes=40):
        block = parse_block(raw, SKIP)
        for i in range(len(block)):
            where = block.where(i, sources)
            source = sources[block.source_indices[i]]
            if source.name == "a.jsonl":
                line = int(where.split(":")[1].split(" ")[0])
                body = source.path.read_bytes().removeprefix(b"\xef\xbb\xbf").split(b"\n")[line - 1]
                assert json.loads(body)["text"].encode() == block.texts[i]
            elif source.kind == "parquet":
                assert "row" in where


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=30)
@given(
    texts=st.lists(st.text(max_size=30), max_size=12),
    block_bytes=st.integers(1, 200),
    blanks=st.booleans(),
    close=st.booleans(),
)
def test_any_texts_come_back_as_they_went_in(
    tmp_path: Path, texts: list[str], block_bytes: int, blanks: bool, close: bool
) -> None:
    data = jsonl(texts, "\r\n\n" if blanks else "\n")
    path = tmp_path / "d.jsonl"
    path.write_bytes(data if close else data.rstrip(b"\r\n"))
    assert read_texts(path, block_bytes=block_bytes, keep_empty=True) == [text.encode() for text in texts]


@pytest.mark.parametrize("name", ["d.jsonl", "d.jsonl.gz", "d.jsonl.zst"])
def test_a_record_far_larger_than_a_block_is_read_whole(tmp_path: Path, name: str) -> None:
    texts = ["small", "y" * 3_000_000, "small again"]
    pack = {"gz": gzip.compress, "zst": zstandard.ZstdCompressor().compress}.get(name.split(".")[-1], bytes)
    (tmp_path / name).write_bytes(pack(jsonl(texts)))
    assert read_texts(tmp_path / name, block_bytes=1000) == [text.encode() for text in texts]


def test_fields_can_be_looked_at_without_losing_standard_input(monkeypatch: pytest.MonkeyPatch, mixed: Path) -> None:
    class Stdin:
        buffer = io.BytesIO(b'\n \n{"text":"a","split":"val"}\n{"text":"b"}\n')

    monkeypatch.setattr("sys.stdin", Stdin)
    sources = find_sources(["-"])
    assert peek_fields(sources) == ["text", "split"]
    texts = [t for raw in read_blocks(sources, SourceOptions()) for t in parse_block(raw, SourceOptions()).texts]
    assert texts == [b"a", b"b"]
    assert peek_fields(find_sources([mixed / "a.jsonl"])) == ["id", "text"]
    assert peek_fields(find_sources([mixed / "f.jsonl", mixed / "d.parquet"])) == ["id", "text"]
    assert peek_fields(find_sources([mixed / "e.txt"])) == []
    assert peek_fields(find_sources([mixed / "c.jsonl.zst"])) == ["id", "text"]


@pytest.mark.parametrize("first", [b"{bad\n", b"[1]\n", b"\n\n", b'{"text":"a\x0bb","split":"val"}\n'])
def test_fields_are_those_of_the_first_record_that_is_one(tmp_path: Path, first: bytes) -> None:
    (tmp_path / "d.jsonl").write_bytes(first + b'{"text":"c","split":"train"}\n')
    assert peek_fields(find_sources([tmp_path / "d.jsonl"])) == ["text", "split"]


def test_a_real_pipe_is_read_in_binary() -> None:
    code = (
        "from tokenriver.corpus.documents import *\n"
        "o = SourceOptions(); s = find_sources(['-'])\n"
        "print([t for raw in read_blocks(s, o, block_bytes=16) for t in parse_block(raw, o).texts])"
    )
    env = {**os.environ, "PYTHONPATH": str(Path(tokenriver.__file__).parents[1])}
    data = '{"text":"a\u0085b\\r\\n"}\r\n{"text":"\U0001f600"}'.encode()
    done = subprocess.run([sys.executable, "-c", code], input=data, capture_output=True, check=True, env=env)
    assert eval(done.stdout) == ["a\u0085b\r\n".encode(), "\U0001f600".encode()]


def test_every_kind_of_file_gives_the_same_texts(tmp_path: Path) -> None:
    texts = [text for text in TEXTS if text]
    data = jsonl(texts)
    (tmp_path / "a.jsonl").write_bytes(data)
    (tmp_path / "b.jsonl.gz").write_bytes(gzip.compress(data))
    (tmp_path / "c.jsonl.zst").write_bytes(zstandard.ZstdCompressor().compress(data))
    pq.write_table(pa.table({"text": texts}), tmp_path / "d.parquet")
    (tmp_path / "e.txt").write_bytes("<|doc|>".join(texts).encode())
    for path in sorted(tmp_path.iterdir()):
        assert read_texts(path, document_separator="<|doc|>") == [text.encode() for text in texts]


def test_a_block_of_no_bytes_is_refused(mixed: Path) -> None:
    with pytest.raises(UsageError, match="block size"):
        next(read_blocks(find_sources([mixed]), SKIP, block_bytes=0))


def test_a_wrong_text_field_lists_the_fields(mixed: Path) -> None:
    with pytest.raises(CorpusError, match=r"no field 'content'; the fields are 'id', 'text'.*--text-field"):
        read_texts(mixed / "a.jsonl", text_field="content")
