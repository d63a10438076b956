"""Text files: one document a file, or cut at a separator from left to right."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from corpus.corpus_cases import count_skipped, read_all, read_texts
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenriver.errors import CorpusError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def write(tmp_path: Path):
    def put(data: bytes) -> Path:
        (tmp_path / "d.txt").write_bytes(data)
        return tmp_path / "d.txt"

    return put


def test_a_file_is_one_document_untouched(write) -> None:
    data = b" \r\n a\n\n\x00b\x0b\xe2\x80\xa8 \n"
    assert read_texts(write(data)) == [data]
    assert read_texts(write(data), block_bytes=2) == [data]


def test_a_bom_at_the_start_is_no_text(write) -> None:
    assert read_texts(write(b"\xef\xbb\xbfa\xef\xbb\xbf")) == [b"a\xef\xbb\xbf"]


@pytest.mark.parametrize("block_bytes", [1, 3, 5, 100])
def test_the_separator_is_dropped_and_everything_else_kept(write, block_bytes: int) -> None:
    path = write(b" a \n\n\n b\n\n\n\nc")
    assert read_texts(path, document_separator="\n\n", block_bytes=block_bytes) == [b" a ", b"\n b", b"c"]
    assert count_skipped(path, document_separator="\n\n", block_bytes=block_bytes) == {"empty": 1}
    assert read_texts(path, document_separator="\n\n", block_bytes=block_bytes, keep_empty=True) == [
        b" a ", b"\n b", b"", b"c",
    ]  # fmt: skip


def test_a_separator_at_the_end_opens_no_further_document(write) -> None:
    assert read_texts(write(b"a<|>b<|>"), document_separator="<|>", keep_empty=True) == [b"a", b"b"]
    assert read_texts(write(b"a<|>b<|>\n"), document_separator="<|>", keep_empty=True) == [b"a", b"b", b"\n"]


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    data=st.text("ab\n", max_size=40),
    separator=st.sampled_from(["\n", "\n\n", "aba", "ab", "aab"]),
    size=st.integers(1, 20),
)
def test_any_block_size_cuts_as_python_splits(write, data: str, separator: str, size: int) -> None:
    expected = data.split(separator)
    if expected[-1] == "":
        expected.pop()
    found = read_texts(write(data.encode()), document_separator=separator, block_bytes=size, keep_empty=True)
    assert found == [text.encode() for text in expected]


def test_invalid_utf8_is_an_error_at_its_line_and_byte(write) -> None:
    path = write(b"a\nb||c\n\xffd||e")
    with pytest.raises(CorpusError, match=r"d\.txt:3 \(byte 7\): invalid UTF-8"):
        read_texts(path, document_separator="||")
    assert read_texts(path, document_separator="||", on_bad_record="skip") == [b"a\nb", b"e"]
    assert count_skipped(path, document_separator="||", on_bad_record="skip") == {"invalid_utf8": 1}


def test_a_text_file_has_no_split_column(write) -> None:
    with pytest.raises(CorpusError, match="split"):
        read_texts(write(b"a"), split_field="split")
    (block,) = read_all(write(b"a"), id_field="id")
    assert block.ids == [None]
