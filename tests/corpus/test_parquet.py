"""Parquet: column types, nulls, bad bytes, row groups, and files that are not whole."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from corpus.corpus_cases import count_skipped, read_all, read_texts

from tokenriver.corpus.documents import SourceOptions, find_sources, read_blocks
from tokenriver.errors import CorpusError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def write(tmp_path: Path):
    def put(columns: dict[str, Any], **options: Any) -> Path:
        path = tmp_path / "d.parquet"
        pq.write_table(pa.table(columns), path, **options)
        return path

    return put


@pytest.mark.parametrize(
    "kind",
    [
        pa.string(),
        pa.large_string(),
        pa.binary(),
        pa.large_binary(),
        pa.dictionary(pa.int32(), pa.string()),
        pa.dictionary(pa.int8(), pa.binary()),
        pa.string_view(),
        pa.binary_view(),
    ],
    ids=str,
)
def test_every_kind_of_text_column_is_read(write, kind: pa.DataType) -> None:
    texts = ["a", "é\u2028", "", "  b\n", "a"]
    path = write({"text": pa.array(texts).cast(kind) if "dict" not in str(kind) else _dictionary(texts, kind)})
    assert read_texts(path, keep_empty=True) == [text.encode() for text in texts]
    assert read_texts(path, keep_empty=True, block_bytes=1) == [text.encode() for text in texts]


def _dictionary(texts: list[str], kind: pa.DataType) -> pa.Array:
    return pa.array(texts).cast(kind.value_type).dictionary_encode().cast(kind)


def test_nulls_are_an_error_or_counted(write) -> None:
    path = write({"id": [1, 2, 3, 4], "text": ["a", None, "b", None]}, row_group_size=3)
    assert read_texts(path, on_bad_record="skip") == [b"a", b"b"]
    assert count_skipped(path, on_bad_record="skip", block_bytes=1) == {"null": 2}
    with pytest.raises(CorpusError, match=r"d\.parquet: row 1 .*null"):
        read_texts(path)


@pytest.mark.parametrize("kind", [pa.string_view(), pa.binary_view()], ids=str)
def test_rows_of_view_columns_are_left_out_and_joined_like_others(write, kind: pa.DataType) -> None:
    sides = pa.array(["val", "train", "train", "val"], pa.string_view())
    path = write({"text": pa.array(["= a", None, "b", "= c"]).cast(kind), "split": sides}, row_group_size=3)
    for block_bytes in (1, 1 << 20):
        options = {"on_bad_record": "skip", "split_field": "split", "block_bytes": block_bytes}
        assert read_texts(path, **options) == [b"= a", b"b", b"= c"]
        assert [s for b in read_all(path, **options) for s in b.splits.tolist()] == [1, 0, 1]
        assert read_texts(path, document_start="^= ", **options) == [b"= ab", b"= c"]


def test_a_column_of_nulls_alone_is_a_column_of_bad_records(write) -> None:
    assert count_skipped(write({"text": pa.nulls(3)}), on_bad_record="skip") == {"null": 3}


@pytest.mark.parametrize("kind", [pa.binary(), pa.string(), pa.dictionary(pa.int32(), pa.binary())], ids=str)
def test_bytes_that_are_not_utf8_are_bad_records(write, kind: pa.DataType) -> None:
    raw = pa.array([b"ok", b"\xff", b"\xe2\x82", b"fine"], pa.binary())
    column = raw.view(kind) if kind == pa.string() else raw if kind == pa.binary() else raw.dictionary_encode()
    path = write({"text": column})
    assert read_texts(path, on_bad_record="skip") == [b"ok", b"fine"]
    assert count_skipped(path, on_bad_record="skip") == {"invalid_utf8": 2}
    with pytest.raises(CorpusError, match=r"row 1 .*UTF-8"):
        read_texts(path)


def test_a_wrong_column_lists_the_columns_and_their_types(write) -> None:
    path = write({"id": [1], "content": ["a"]})
    with pytest.raises(
        CorpusError, match=r"no column 'text'; the columns are 'id' \(int64\), 'content' \(string\).*--text-field"
    ):
        read_texts(path)
    assert read_texts(path, text_field="content") == [b"a"]
    with pytest.raises(CorpusError, match="column 'id' is int64, not text"):
        read_texts(path, text_field="id", on_bad_record="skip")
    with pytest.raises(CorpusError, match="no split column"):
        read_texts(path, text_field="content", split_field="split")


def test_row_groups_are_sliced_so_that_a_block_stays_small(write) -> None:
    path = write({"text": [f"{i:04}" * 250 for i in range(2000)], "other": ["z" * 100] * 2000}, row_group_size=1000)
    options = SourceOptions()
    raws = list(read_blocks(find_sources([path]), options, block_bytes=50_000))
    assert len(raws) > 20
    assert max(raw.n_bytes for raw in raws) < 200_000
    assert [raw.start.offset for raw in raws][1:] == [raw.end.offset for raw in raws][:-1]


def test_splits_and_ids_are_read(write) -> None:
    path = write({"text": ["a", None, "c"], "split": ["val", "val", "train"], "id": [5, 6, None]})
    (block,) = read_all(path, split_field="split", id_field="id", on_bad_record="skip")
    assert block.splits is not None
    assert block.splits.tolist() == [1, 0]
    assert block.ids == ["5", None]
    (block,) = read_all(path, id_field="uuid", on_bad_record="skip")
    assert block.ids == [None, None]
    with pytest.raises(CorpusError, match=r"row 1 .*'test'"):
        read_texts(write({"text": ["a", "b"], "split": ["val", "test"]}), split_field="split", on_bad_record="skip")


def test_a_file_that_is_not_whole_is_an_error(write) -> None:
    path = write({"text": ["a" * 1000] * 100})
    data = path.read_bytes()
    for damaged in (data[:-10], data[:20], b"", b"PAR1", data[: len(data) // 2]):
        path.write_bytes(damaged)
        with pytest.raises(CorpusError, match=r"d\.parquet: not a whole Parquet file"):
            read_texts(path)


def test_damage_inside_a_row_group_is_an_error(write) -> None:
    path = write({"text": [f"{i}" * 100 for i in range(1000)]}, compression="zstd", use_dictionary=False)
    data = bytearray(path.read_bytes())
    data[100:2000] = bytes(1900)
    path.write_bytes(data)
    with pytest.raises(CorpusError, match="row group 0 is damaged"):
        read_texts(path)


def test_a_file_without_rows_gives_nothing(write) -> None:
    assert read_texts(write({"text": pa.array([], pa.string())})) == []


@pytest.mark.parametrize("field", ["text", "split"])
def test_two_columns_of_one_name_are_refused(tmp_path: Path, field: str) -> None:
    names = ["text", "split", field]
    pq.write_table(pa.Table.from_arrays([pa.array(["a"])] * 3, names=names), tmp_path / "d.parquet")
    with pytest.raises(CorpusError, match=f"2 columns are called '{field}'; rename one of them"):
        read_all(tmp_path / "d.parquet", split_field="split" if field == "split" else None)


def test_a_split_that_is_a_list_is_named(write) -> None:
    path = write({"text": ["a"], "split": [["train"]]})
    with pytest.raises(CorpusError, match=r"the split field 'split' is \['train'\]; expected 'train' or 'val'"):
        read_all(path, split_field="split")
