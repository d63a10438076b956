"""Ranges of the sources hold every record once, whatever their size, and hash what they read."""

from __future__ import annotations

import hashlib
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenriver.corpus.documents import find_sources, parse_block, read_blocks
from tokenriver.corpus.range_reader import RangeReader, hash_parts
from tokenriver.corpus.ranges import cut_ranges
from tokenriver.corpus.sources import SourceOptions


def texts_of(raws, options):
    return [text for raw in raws for text in parse_block(raw, options).texts.texts()]


def check(folder, options, range_bytes):
    """All texts, read range by range, are those read at once, in order; and so are the hashes."""
    sources = find_sources([folder])
    ranges = list(cut_ranges(sources, options, range_bytes=range_bytes))
    found, facts, parts = [], {}, {}
    for part in ranges:
        reader = RangeReader([sources[i] for i in part.sources], part, options, 1 << 20)
        found += texts_of(reader.blocks(), options)
        facts |= {i: one.sha256 for i, one in reader.facts.items()}
        if not part.whole(part.sources[0]):
            parts.setdefault(part.sources[0], []).append((part.begin[1], reader.crc))
    assert found == texts_of(read_blocks(sources, options), options)
    for i, read in parts.items():
        hashed, crcs = hash_parts(sources[i], options, [begin for begin, _ in read])
        facts[i] = hashed.sha256
        assert not crcs or [crc for _, crc in read if crc is not None] == [
            c for c, (_, crc) in zip(crcs, read, strict=True) if crc is not None
        ]
    assert facts == {i: hashlib.sha256(s.path.read_bytes()).hexdigest() for i, s in enumerate(sources)}
    return ranges


@given(
    lines=st.lists(st.text("ab\u00e4", max_size=40), max_size=30),
    range_bytes=st.integers(1, 300),
    final=st.booleans(),
    bom=st.booleans(),
)
@settings(max_examples=60)
def test_lines_are_in_one_range_each(tmp_path_factory, lines, range_bytes, final, bom):
    folder = tmp_path_factory.mktemp("in")
    raw = b"\n".join(json.dumps({"text": line}, ensure_ascii=False).encode() for line in lines)
    (folder / "a.jsonl").write_bytes((b"\xef\xbb\xbf" if bom else b"") + raw + (b"\n" if final else b""))
    (folder / "b.jsonl").write_bytes(b'{"text": "last"}\n')
    check(folder, SourceOptions(), range_bytes)


@given(
    pieces=st.lists(st.text("ab-<>", max_size=12), max_size=30),
    separator=st.sampled_from(["<->", "ab", "\n\n", "-", "aba"]),
    range_bytes=st.integers(1, 60),
)
@settings(max_examples=100)
def test_texts_are_in_one_range_each_whatever_separates_them(tmp_path_factory, pieces, separator, range_bytes):
    folder = tmp_path_factory.mktemp("in")
    (folder / "a.txt").write_bytes(separator.join(pieces).encode())
    check(folder, SourceOptions(document_separator=separator), range_bytes)


@pytest.mark.parametrize("range_bytes", [1, 50, 400, 3000, 10**9])
def test_row_groups_are_in_one_range_each(tmp_path, range_bytes):
    for name, rows in (("a", 100), ("b", 0), ("c", 7)):
        table = pa.table({"text": [f"{name}{i}" for i in range(rows)]}, pa.schema([("text", pa.string())]))
        pq.write_table(table, tmp_path / f"{name}.parquet", row_group_size=9)
    ranges = check(tmp_path, SourceOptions(), range_bytes)
    assert len(ranges) == 1 or range_bytes < 10**9


def test_small_files_share_a_range_and_large_ones_are_cut_evenly(tmp_path):
    for i in range(20):
        (tmp_path / f"{i:02d}.jsonl").write_bytes(b'{"text": "small"}\n')
    (tmp_path / "99.jsonl").write_bytes(b'{"text": "x"}\n' * 1000)
    sources = find_sources([tmp_path])
    ranges = list(cut_ranges(sources, SourceOptions(), range_bytes=2000))
    assert [(r.begin, r.end) for r in ranges[:2]] == [((0, 0), (20, 0)), ((20, 0), (20, 2000))]
    assert len(ranges) == 1 + 7
    assert sum(r.file_bytes(sources) for r in ranges) == sum(s.n_bytes for s in sources)
