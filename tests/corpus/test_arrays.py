"""JSON arrays, files as sides, rows joined into documents, kept separators: the rules that recipes are made of."""

from __future__ import annotations

import gzip
import json
import random

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenriver
from tokenriver.corpus.documents import Position, SourceOptions, find_sources, parse_block, read_blocks
from tokenriver.corpus.sources import split_by_file
from tokenriver.errors import CorpusError, UsageError

ARRAYS = SourceOptions(json_arrays=True, text_field="story")


def texts(sources, options, **where):
    blocks = [parse_block(raw, options) for raw in read_blocks(sources, options, **where)]
    return [text for block in blocks for text in block.texts.texts()]


def array(path, stories):
    path.write_text(json.dumps([{"story": s, "words": [1, {"a": None}]} for s in stories]), encoding="utf-8")
    return path


def test_an_array_gives_its_records_in_order_or_in_the_order_of_its_seed(tmp_path):
    stories = [f"story {i} ä" for i in range(50)]
    array(tmp_path / "a.json", stories)
    (tmp_path / "b.json.gz").write_bytes(gzip.compress((tmp_path / "a.json").read_bytes()))
    sources = find_sources([tmp_path], ARRAYS)
    assert texts(sources, ARRAYS) == stories * 2
    first, second = list(stories), list(stories)
    random.Random(7).shuffle(first)
    random.Random(8).shuffle(second)
    assert texts(split_by_file(sources, None, 7), ARRAYS) == first + second
    random.Random(7).shuffle(again := list(stories))
    assert texts(split_by_file(sources, 1, 7), ARRAYS) == again + again  # file 0 of val, file 0 of train


@pytest.mark.parametrize(
    ("body", "message"),
    [
        (b'{"story": "x"}', "not one JSON array of records, but dict"),
        (b'[{"story": "x"}', "not one JSON array of records"),
        (b'[{"story": "x"}, {"text": "y"}]', r"record 1 .*no field 'story'; the fields are 'text'"),
        (b'[{"story": 5}]', r"record 0 .*is int, not a text"),
        (b'[{"story": null}]', r"record 0 .*is null"),
        (b'["x"]', r"record 0 .*expected a JSON object, found str"),
        (b"\xff\xfe[]", "not one JSON array"),
        (b"", "not one JSON array"),
    ],
)
def test_what_is_no_array_of_texts_is_named(tmp_path, body, message):
    (tmp_path / "a.json").write_bytes(body)
    with pytest.raises(CorpusError, match=rf"a\.json.*{message}"):
        texts(find_sources([tmp_path / "a.json"], ARRAYS), ARRAYS)


def test_bad_records_of_an_array_are_counted_and_do_not_change_the_order_of_the_others(tmp_path):
    values = [{"story": str(i)} if i % 3 else {"story": None} for i in range(20)]
    (tmp_path / "a.json").write_text(json.dumps(values))
    options = SourceOptions(json_arrays=True, text_field="story", on_bad_record="skip")
    order = list(range(20))
    random.Random(1).shuffle(order)
    sources = split_by_file(find_sources([tmp_path], options), None, 1)
    [block] = [parse_block(raw, options) for raw in read_blocks(sources, options)]
    assert block.texts.texts() == [str(i) for i in order if i % 3]
    assert block.skipped == {"null": 7}


def test_strip_takes_white_space_as_python_does(tmp_path):
    array(tmp_path / "a.json", [" \u00a0\u2003x y\n\t ", "\u200bz", "  "])
    options = SourceOptions(json_arrays=True, text_field="story", strip=True)
    assert texts(find_sources([tmp_path], options), options) == ["x y", "\u200bz"]


@settings(max_examples=60)
@given(
    pieces=st.lists(st.sampled_from(["a", "\n", "\n\n", "bc", "\n\n\n"]), max_size=12), block_bytes=st.integers(1, 9)
)
def test_kept_separators_give_what_splitting_and_putting_back_gives(tmp_path_factory, pieces, block_bytes):
    text = "".join(pieces)
    path = tmp_path_factory.mktemp("t") / "t.txt"
    path.write_bytes(text.encode())
    options = SourceOptions(document_separator="\n\n", keep_document_separator=True, keep_empty=True)
    parts = text.split("\n\n")
    expected = [part + "\n\n" for part in parts[:-1]] + parts[-1:]
    sources = find_sources([path])
    assert texts(sources, options, block_bytes=block_bytes) == (expected if text else [])


ROWS = [" \n", " = A = \n", "x\n", " = = A.1 = = \n", "y\n", " = B = \n", " = C = \n", "z\n", "", "z\n"]


@settings(max_examples=60)
@given(picks=st.lists(st.sampled_from(ROWS), max_size=30), block_bytes=st.integers(1, 60), group=st.integers(1, 9))
def test_rows_are_joined_alike_in_any_blocks_and_from_any_border(tmp_path_factory, picks, block_bytes, group):
    path = tmp_path_factory.mktemp("p") / "p.parquet"
    pq.write_table(pa.table({"text": pa.array(picks, pa.string())}), path, row_group_size=group)
    options = SourceOptions(document_start="^ = [^=]+ = \n?$", keep_empty=True)
    expected: list[str] = []
    for i, row in enumerate(picks):
        if i == 0 or row in (" = A = \n", " = B = \n", " = C = \n"):
            expected.append("")
        expected[-1] += row
    sources = find_sources([path])
    assert texts(sources, options, block_bytes=block_bytes) == expected
    borders = [raw.end for raw in read_blocks(sources, options, block_bytes=block_bytes)]
    for border in borders:
        before = texts(sources, options, stop=border)
        assert before + texts(sources, options, start=border, block_bytes=7) == expected


def test_reading_stops_at_any_border_and_goes_on_from_it(tmp_path):
    for name in ("a.jsonl", "b.jsonl"):
        (tmp_path / name).write_text("".join(f'{{"text": "{name}{i}"}}\n' for i in range(40)))
    pq.write_table(pa.table({"text": [f"p{i}" for i in range(40)]}), tmp_path / "c.parquet", row_group_size=7)
    options = SourceOptions()
    sources = find_sources([tmp_path])
    whole = texts(sources, options)
    for raw in read_blocks(sources, options, block_bytes=100):
        for place in (raw.start, raw.end):
            asked: list[int] = []
            first = texts(sources, options, stop=place, on_source=asked.append)
            assert first + texts(sources, options, start=place) == whole
            assert all(Position(i, 0) < place for i in asked)


def test_the_first_files_are_val_in_every_layout(tmp_path):
    for i, name in enumerate(("a", "b", "c")):
        (tmp_path / f"{name}.jsonl").write_text("".join(f'{{"text": "{name}{k}"}}\n' for k in range(3 + i)))
    for layout in ("tokens", "llmc", "golf"):
        made = tokenriver.build(
            [tmp_path / f"{n}.jsonl" for n in "abc"],
            tokenizer="byte260",
            out=tmp_path / layout,
            layout=layout,
            dataset="d",
            split="first-files:2",
        )
        assert made.documents_by_split == {"train": 5, "val": 7}
        assert tokenriver.verify([made.directory]).findings == []
    with pytest.raises(UsageError, match="first-files"):
        tokenriver.build([tmp_path / "a.jsonl"], tokenizer="byte", out=tmp_path / "x", split="first-files:x")


def test_a_document_start_that_is_no_regular_expression_is_refused():
    with pytest.raises(UsageError, match="no regular expression"):
        SourceOptions(document_start="(")
