"""Blocks hold so many records at most, wherever they come from; what comes out of them is the same."""

from __future__ import annotations

import io
import itertools
from typing import TYPE_CHECKING

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from tokenriver.corpus import density, parquet
from tokenriver.corpus import documents as reading
from tokenriver.corpus.blocks import Segment
from tokenriver.corpus.documents import find_sources, parse_block, read_blocks
from tokenriver.corpus.sources import SourceOptions
from tokenriver.errors import CorpusError

if TYPE_CHECKING:
    from pathlib import Path

LIMIT = 50
TEXTS = [f"{i}" if i % 7 else f"{i} " * 40 for i in range(3000)]
SEPARATORS = ["\n\n", "|", "aba"]


def write(folder: Path, kind: str, separator: str) -> SourceOptions:
    """The texts as files of a kind, one large and some small."""
    parts = [TEXTS[:2000], TEXTS[2000:2010], TEXTS[2010:2800], TEXTS[2800:]]
    for k, part in enumerate(parts):
        if kind == "txt":
            (folder / f"{k}.txt").write_text("".join(text + separator for text in part))
        elif kind == "jsonl":
            (folder / f"{k}.jsonl").write_text("".join(f'{{"text":"{text}"}}\n' for text in part))
        else:
            pq.write_table(pa.table({"text": part}), folder / f"{k}.parquet")
    return SourceOptions(document_separator=separator if kind == "txt" else None)


@pytest.mark.parametrize("kind", ["txt", "jsonl", "parquet"])
@pytest.mark.parametrize("separator", SEPARATORS)
def test_no_block_has_many_times_the_records(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, kind: str, separator: str
) -> None:
    for module in (density, reading, parquet):
        monkeypatch.setattr(module, "MOST_RECORDS", LIMIT)
    options = write(tmp_path, kind, separator)
    blocks = list(read_blocks(find_sources([tmp_path]), options))
    found = [parse_block(raw, options) for raw in blocks]
    assert [text for block in found for text in block.texts.texts()] == TEXTS
    assert max(len(block) for block in found) <= 3 * LIMIT  # by samples, so about
    assert all(earlier.end <= later.start for earlier, later in itertools.pairwise(blocks))


def test_reading_goes_on_from_every_border(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (density, reading):
        monkeypatch.setattr(module, "MOST_RECORDS", LIMIT)
    options = write(tmp_path, "txt", "\n\n")
    sources = find_sources([tmp_path])
    blocks = list(read_blocks(sources, options))
    for raw in blocks[::9]:
        rest = [parse_block(one, options) for one in read_blocks(sources, options, start=raw.start)]
        texts = [text for block in rest for text in block.texts.texts()]
        assert texts == TEXTS[len(TEXTS) - len(texts) :]
        assert rest[0].source_indices[0] == raw.start.source_index


def test_a_bad_line_of_standard_input_keeps_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    for module in (density, reading):
        monkeypatch.setattr(module, "MOST_RECORDS", LIMIT)
    lines = [b'{"text":"%d"}\n' % i for i in range(1000)]
    lines[700] = b"{bad\n"
    monkeypatch.setattr("sys.stdin", type("Stdin", (), {"buffer": io.BytesIO(b"".join(lines))}))
    blocks = list(read_blocks(find_sources(["-"]), SourceOptions()))
    assert len(blocks) > 10
    with pytest.raises(CorpusError, match=":701 "):
        [parse_block(raw, SourceOptions()) for raw in blocks]


def test_a_long_document_before_a_few_short_ones_is_not_taken_for_many(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text":"' + b"x" * 8_000_000 + b'"}\n' + b'{"text":"a"}\n' * 9_000)
    (source,) = find_sources([path])
    payload = path.read_bytes()
    (only,) = density.cut_dense(Segment(0, source, 0, len(payload), payload), SourceOptions())
    assert only[0].payload is payload
    assert only[1] == 9_001
