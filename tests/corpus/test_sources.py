"""Which files an input names, and in which order."""

from __future__ import annotations

import io
import os
from typing import TYPE_CHECKING

import pytest
from corpus.corpus_cases import read_texts

from tokenriver.corpus.finding import find_sources
from tokenriver.corpus.sources import SourceOptions
from tokenriver.errors import CorpusError, UsageError

if TYPE_CHECKING:
    from pathlib import Path


def put(path: Path, text: str = "x") -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b'{"text":"' + text.encode() + b'"}\n' if "json" in path.name else text.encode())
    return path


def test_inputs_keep_the_order_given_and_directories_are_sorted_by_name(tmp_path: Path) -> None:
    names = ["b.jsonl", "a.jsonl", "sub/c.txt", "10.jsonl", "9.jsonl", "sub.jsonl"]
    for name in names:
        put(tmp_path / "d" / name)
    last = put(tmp_path / "z.jsonl")
    sources = find_sources([last, tmp_path / "d", last])
    assert [source.name for source in sources] == [
        "z.jsonl", "10.jsonl", "9.jsonl", "a.jsonl", "b.jsonl", "sub/c.txt", "sub.jsonl", "z.jsonl",
    ]  # fmt: skip


def test_hidden_files_and_unknown_kinds_are_passed_over_in_a_directory(tmp_path: Path) -> None:
    for name in ("a.jsonl", ".hidden.jsonl", "_SUCCESS.json", "readme.md", ".git/x.jsonl", "a.jsonl.part"):
        put(tmp_path / name)
    assert [source.name for source in find_sources([tmp_path])] == ["a.jsonl"]


def test_records_of_builds_are_no_documents(tmp_path: Path) -> None:
    for name in ("a.jsonl", "x_BUILD.json", "x_CORPUS.json", "fineweb_MANIFEST.json", "x_build.json"):
        put(tmp_path / name)
    assert [source.name for source in find_sources([tmp_path])] == ["a.jsonl", "x_build.json"]
    assert [source.name for source in find_sources([f"{tmp_path}/*.json"])] == ["x_build.json"]
    assert [source.name for source in find_sources([tmp_path / "x_BUILD.json"])] == ["x_BUILD.json"]


def test_a_glob_is_sorted_by_name_and_names_are_relative_to_its_fixed_part(tmp_path: Path) -> None:
    for name in ("2/a.jsonl", "10/a.jsonl", "2/b.jsonl", "2/c.md"):
        put(tmp_path / name)
    found = find_sources([str(tmp_path / "*" / "*")])
    assert [source.name for source in found] == ["10/a.jsonl", "2/a.jsonl", "2/b.jsonl"]
    assert [s.name for s in find_sources([str(tmp_path / "**" / "a.jsonl")])] == ["10/a.jsonl", "2/a.jsonl"]


def test_a_file_whose_name_looks_like_a_glob_is_that_file(tmp_path: Path) -> None:
    put(tmp_path / "a[1].jsonl", "brackets")
    assert read_texts(str(tmp_path / "a[1].jsonl")) == [b"brackets"]


@pytest.mark.parametrize("name", ["missing.jsonl", "no/*.jsonl", "empty"])
def test_an_input_that_matches_nothing_is_an_error_that_names_it(tmp_path: Path, name: str) -> None:
    (tmp_path / "empty").mkdir()
    with pytest.raises(CorpusError, match=r"missing\.jsonl|no/\*\.jsonl|empty"):
        find_sources([str(tmp_path / name)])


def test_no_input_is_an_error() -> None:
    with pytest.raises(CorpusError, match="no input"):
        find_sources([])


def test_a_file_of_unknown_kind_is_an_error_that_lists_the_kinds(tmp_path: Path) -> None:
    with pytest.raises(CorpusError, match=r"x\.csv.*\.jsonl.*\.parquet.*\.txt"):
        find_sources([put(tmp_path / "x.csv")])


def test_a_named_pipe_is_an_error_and_is_not_opened(tmp_path: Path) -> None:
    if not hasattr(os, "mkfifo"):
        pytest.skip("no named pipes here")
    os.mkfifo(tmp_path / "x.jsonl")
    with pytest.raises(CorpusError, match="not a regular file"):
        find_sources([tmp_path / "x.jsonl"])


def test_standard_input_is_read_once(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b'{"text":"a"}\n\n{"text":"b"}')

    monkeypatch.setattr("sys.stdin", Stdin)
    assert read_texts("-", block_bytes=5) == [b"a", b"b"]
    with pytest.raises(UsageError, match="only once"):
        find_sources(["-", "-"])


def test_an_error_in_standard_input_names_the_line(monkeypatch: pytest.MonkeyPatch) -> None:
    class Stdin:
        buffer = io.BytesIO(b'{"text":"a"}\n\n{"text":5}\n')

    monkeypatch.setattr("sys.stdin", Stdin)
    with pytest.raises(CorpusError, match=r"<stdin>:3 \(byte 14\)"):
        read_texts("-", block_bytes=5)


@pytest.mark.parametrize("options", [{"on_bad_record": "ignore"}, {"document_separator": ""}])
def test_options_that_cannot_work_are_refused(options: dict[str, str]) -> None:
    with pytest.raises(UsageError):
        SourceOptions(**options)  # type: ignore[arg-type]


@pytest.mark.parametrize("place", ["b\udcff.jsonl", "d/b\udcff.jsonl", "b\udcff/d.jsonl"])
def test_a_name_that_is_not_utf8_is_refused_before_anything_is_read(tmp_path: Path, place: str) -> None:
    path = tmp_path / place
    try:
        put(path)
    except OSError:
        pytest.skip("the file system takes UTF-8 alone")
    for given in (path, path.parent, str(path.parent / "*")):
        with pytest.raises(CorpusError, match="its name is not UTF-8, so no record can hold it; rename the file"):
            find_sources([given])


@pytest.mark.parametrize("field", ["text_field", "split_field", "id_field", "document_separator", "document_start"])
def test_a_word_that_no_document_can_hold_is_refused(field: str) -> None:
    with pytest.raises(UsageError, match=r"'b\\udcff' is not UTF-8"):
        SourceOptions(**{field: "b\udcff"})


@pytest.mark.parametrize(("given", "words"), [("", "a path is empty"), ("a\0b", "holds a NUL")])
def test_an_empty_input_is_not_the_working_directory(given: str, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        find_sources([given])


def test_the_scheme_of_a_file_url_is_read_in_any_case(tmp_path: Path) -> None:
    put(tmp_path / "d.jsonl")
    for place in ("d.jsonl", "", "*.jsonl"):
        assert [source.name for source in find_sources([f"FILE://{tmp_path}/{place}"])] == ["d.jsonl"]
