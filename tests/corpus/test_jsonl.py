"""JSON lines: what is a line, what is a text, what is a bad record; the fast parser against the careful one."""

from __future__ import annotations

import json
from collections import Counter
from typing import TYPE_CHECKING

import pytest
from corpus.corpus_cases import count_skipped, read_all, read_texts
from hypothesis import given
from hypothesis import strategies as st

from tokenriver.corpus.blocks import DocumentBlock, Segment
from tokenriver.corpus.jsonl_careful import parse_careful
from tokenriver.corpus.jsonl_fast import parse_fast
from tokenriver.corpus.sources import Source, SourceOptions
from tokenriver.errors import CorpusError

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def write(tmp_path: Path):
    def put(data: bytes, name: str = "d.jsonl") -> Path:
        path = tmp_path / name
        path.write_bytes(data)
        return path

    return put


@pytest.mark.parametrize("mark", ["\u2028", "\u2029", "\u0085", "\x7f", "\u00a0"])
def test_a_raw_unicode_line_break_inside_a_record_is_text(write, mark: str) -> None:
    path = write(f'{{"text":"A{mark}B"}}\n'.encode())
    assert read_texts(path) == [f"A{mark}B".encode()]


@pytest.mark.parametrize("mark", ["\v", "\f", "\x1c", "\x1d", "\x1e", "\r", "\t", "\0"])
def test_a_raw_control_character_inside_a_record_is_text_and_no_line_end(write, mark: str) -> None:
    path = write(f'{{"text":"A{mark}B"}}\n{{"text":"C"}}\n'.encode())
    assert read_texts(path) == [f"A{mark}B".encode(), b"C"]
    assert read_texts(path, block_bytes=1) == [f"A{mark}B".encode(), b"C"]


@pytest.mark.parametrize("escape", ["\\u000b", "\\f", "\\u0000", "\\r\\n", "\\u001c"])
def test_an_escaped_control_character_is_text(write, escape: str) -> None:
    path = write(f'{{"text":"A{escape}B"}}\n'.encode())
    assert read_texts(path) == [json.loads(f'"A{escape}B"').encode()]


def test_crlf_ends_a_line_as_lf_does(write) -> None:
    assert read_texts(write(b'{"text":"a"}\r\n{"text":"b\\r\\n"}\r\n')) == [b"a", b"b\r\n"]


def test_a_last_line_without_a_newline_is_read(write) -> None:
    assert read_texts(write(b'{"text":"a"}\n{"text":"b"}')) == [b"a", b"b"]


def test_a_bom_at_the_start_of_a_file_is_dropped_and_one_inside_a_text_is_kept(write) -> None:
    path = write(b'\xef\xbb\xbf{"text":"Hello world"}\n{"text":"\xef\xbb\xbfHello"}\n')
    assert read_texts(path) == [b"Hello world", b"\xef\xbb\xbfHello"]
    assert read_texts(path, block_bytes=1) == [b"Hello world", b"\xef\xbb\xbfHello"]


def test_a_bom_at_the_start_of_a_later_line_is_broken_json(write) -> None:
    path = write(b'{"text":"a"}\n\xef\xbb\xbf{"text":"b"}\n')
    for size in (1, 100):
        assert count_skipped(path, block_bytes=size, on_bad_record="skip") == {"malformed": 1}


def test_texts_are_neither_stripped_nor_normalised(write) -> None:
    texts = ["  a \n", "\t", "e\u0301", "\ufb01", "\u00a0", "a\x00b", "a\r\nb"]
    path = write("".join(json.dumps({"text": text}) + "\n" for text in texts).encode())
    assert read_texts(path) == [text.encode() for text in texts]


MIXED = b'{"text":"a"}\n{"txt":"b"}\n{"text":null}\n{"text":5}\n"context"\n[1]\n{bad\n\n'


@pytest.mark.parametrize("block_bytes", [1, 20, 1 << 20])
def test_bad_records_are_counted_by_kind_where_they_are_skipped(write, block_bytes: int) -> None:
    path = write(MIXED)
    assert read_texts(path, block_bytes=block_bytes, on_bad_record="skip") == [b"a"]
    assert count_skipped(path, block_bytes=block_bytes, on_bad_record="skip") == {
        "missing": 1, "null": 1, "non_string": 1, "non_object": 2, "malformed": 1, "blank": 1,
    }  # fmt: skip


@pytest.mark.parametrize("block_bytes", [1, 20, 1 << 20])
def test_the_first_bad_record_is_an_error_with_file_line_and_byte(write, block_bytes: int) -> None:
    path = write(MIXED)
    with pytest.raises(CorpusError) as caught:
        read_texts(path, block_bytes=block_bytes)
    assert f"{path}:2 (byte 13): no field 'text'" in str(caught.value)
    assert "'txt'" in str(caught.value)
    assert "--text-field" in str(caught.value)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        (b"{bad", "malformed"),
        (b'{"text":"a"', "malformed"),
        (b'{"text":"a"}{"text":"b"}', "malformed"),
        (b'{"text":"a"} {"text":"b"}', "malformed"),
        (b'{"text":"a"}\r{"text":"b"}', "malformed"),
        (b'{"text":"a",}', "malformed"),
        (b'{"text":"a" "b"}', "malformed"),
        (b"\x0b", "malformed"),
        (b"5", "non_object"),
        (b"null", "non_object"),
        (b'"text"', "non_object"),
        (b'[{"text":"a"}]', "non_object"),
        (b"{}", "missing"),
        (b'{"Text":"a"}', "missing"),
        (b'{"text":null}', "null"),
        (b'{"text":true}', "non_string"),
        (b'{"text":1.5}', "non_string"),
        (b'{"text":["a"]}', "non_string"),
        (b'{"text":{"text":"a"}}', "non_string"),
        (b'{"text":NaN}', "non_string"),
        (b'{"text":"\xff"}', "invalid_utf8"),
        (b'{"text":"\xc0\x80"}', "invalid_utf8"),
        (b'{"text":"\xed\xa0\x80"}', "invalid_utf8"),
        (b'{"text":"\xf4\x90\x80\x80"}', "invalid_utf8"),
        (b'{"text":"a\xe2\x82"}', "invalid_utf8"),
        (b'{"text":"\\ud800"}', "lone_surrogate"),
        (b'{"text":"\\uDFFFx"}', "lone_surrogate"),
        (b'{"text":"\\ud83d\\ud83d\\ude00"}', "lone_surrogate"),
        (b"   \t", "blank"),
        (b"\r", "blank"),
    ],
)
def test_each_kind_of_bad_record_has_its_name_and_does_not_hurt_its_neighbours(write, line: bytes, kind: str) -> None:
    path = write(b'{"text":"before"}\n' + line + b'\n{"text":"after"}\n')
    assert read_texts(path, on_bad_record="skip") == [b"before", b"after"]
    assert count_skipped(path, on_bad_record="skip") == {kind: 1}
    if kind == "blank":
        assert read_texts(path) == [b"before", b"after"]
    else:
        with pytest.raises(CorpusError, match=r"d\.jsonl:2 \(byte 18\)"):
            read_texts(path)


def test_a_surrogate_pair_is_one_character(write) -> None:
    assert read_texts(write(b'{"text":"\\ud83d\\ude00"}\n')) == ["\U0001f600".encode()]


def test_of_a_field_given_twice_the_last_counts_in_any_block(write) -> None:
    path = write(b'{"text":"a","text":"b"}\n{"text":"c"}\n')
    assert read_texts(path) == read_texts(path, block_bytes=1) == [b"b", b"c"]


@pytest.mark.parametrize(
    "other",
    [b"NaN", b"-Infinity", b"Infinity", b"1e999", b"9" * 5000, b"[" * 3000 + b"]" * 3000, b'"\\ud800"', b'{"text":1}'],
)
def test_oddities_in_other_fields_do_not_matter_whatever_stands_beside(write, other: bytes) -> None:
    line = b'{"text":"a","x":' + other + b"}\n"
    alone, beside = write(line), write(line + b"\n" + line, "e.jsonl")
    assert read_texts(alone) == [b"a"]
    assert read_texts(beside) == [b"a", b"a"]


def test_empty_texts_are_counted_unless_kept(write) -> None:
    path = write(b'{"text":""}\n{"text":"a"}\n{"text":""}\n')
    assert read_texts(path) == [b"a"]
    assert count_skipped(path) == {"empty": 2}
    assert read_texts(path, keep_empty=True) == [b"", b"a", b""]


def test_another_field_can_hold_the_text(write) -> None:
    assert read_texts(write(b'{"con tent":"x","text":5}\n'), text_field="con tent") == [b"x"]


def test_a_json_array_over_several_lines_is_an_error_at_its_first_line(write) -> None:
    with pytest.raises(CorpusError, match=r"d\.json:1 \(byte 0\): broken JSON"):
        read_texts(write(b'[\n{"text":"a"},\n{"text":"b"}\n]\n', "d.json"))


def test_utf16_is_named_as_such(write) -> None:
    with pytest.raises(CorpusError, match="UTF-16"):
        read_texts(write('{"text":"a"}\n'.encode("utf-16")))


def test_splits_and_ids_are_read_where_asked_for(write) -> None:
    lines = b'{"text":"a","split":"train","id":7}\n{"text":"b","split":"val","id":8}\n'
    for data in (lines, lines + b"\n"):  # the blank line takes the careful parser
        (block,) = read_all(write(data), split_field="split", id_field="id")
        assert block.splits is not None
        assert block.splits.tolist() == [0, 1]
        assert block.ids == ["7", "8"]
    (block,) = read_all(write(b'{"text":"a","id":"x"}\n{"text":"b","id":1.5}\n{"text":"c"}\n'), id_field="id")
    assert block.ids == ["x", None, None]


@pytest.mark.parametrize("value", [b'"test"', b"null", b"1", b'"Train"'])
def test_a_record_that_names_no_side_is_an_error_even_where_bad_records_are_skipped(write, value: bytes) -> None:
    path = write(b'{"text":"a","split":"train"}\n{"text":"b","split":' + value + b"}\n")
    with pytest.raises(CorpusError, match=r"d\.jsonl:2 .*split"):
        read_texts(path, split_field="split", on_bad_record="skip")


def test_a_plain_block_takes_the_fast_parser_and_an_odd_one_the_careful_one(write) -> None:
    plain, odd = write(b'{"text":"a\\n"}\r\n{"text":"b"}'), write(b'{"text":"a"}\n{"text":null}\n', "odd.jsonl")
    assert parse_fast([_segment(plain.read_bytes())], SourceOptions()) is not None
    assert parse_fast([_segment(odd.read_bytes())], SourceOptions()) is None


def _segment(data: bytes, start: int = 0) -> Segment:
    source = Source("x.jsonl", "x.jsonl", "jsonl", "", len(data))
    return Segment(0, source, start, start + len(data), bytearray(data), 0)


ODD_NUMBERS = ["5", "-0", "1.5e3", "1e999", "NaN", "-Inf", "Infinity", "-NaN", "01"]
ODD_STRINGS = [
    r'"\u0041"',
    r'"\ud800"',
    r'"\ud83d\ude00"',
    r'"\q"',
    r'"\u12"',
    '"\t"',
    '"\x00"',
    '"\u2028"',
    '"\ufeff"',
    '"}\n{"',
]
NESTED = ["[]", "{}", '[{"text":"z"}]', '{"text":"y"}', "[{}\n{}]", "[" * 2000 + "]" * 2000]
BROKEN = ["", "tru", "}\n{", '} {"text":"x"']
SCALARS = st.sampled_from(['"a"', '""', '"{"', '"é"', "null", "true", *ODD_NUMBERS, *ODD_STRINGS, *NESTED, *BROKEN])
KEYS = st.sampled_from(['"text"', '"te\\u0078t"', '"id"', '"split"', '"x"', '""', "text", '"\\ud800"'])
OBJECTS = st.lists(st.tuples(KEYS, SCALARS), max_size=4).map(
    lambda pairs: ("{" + ",".join(f"{k}:{v}" for k, v in pairs) + "}").encode()
)
LINES = st.one_of(
    OBJECTS,
    st.just(b'{"text":"plain"}'),
    st.just(b'{"text":"\xff"}'),
    st.just(b'{"text":"a","x":"\xff"}'),
    st.just(b'{"text":"a","x":"\xff","y":NaN}'),
    st.just(b"\xef\xbb\xbf{}"),
    st.binary(max_size=8),
    st.tuples(OBJECTS, st.sampled_from([b" ", b"\r", b"\n", b"", b"x"]), OBJECTS).map(b"".join),
)


@given(st.lists(LINES, min_size=1, max_size=4), st.sampled_from([b"\n", b"\r\n"]), st.booleans())
def test_the_fast_parser_takes_only_what_the_careful_one_reads_alike(
    lines: list[bytes], ending: bytes, close: bool
) -> None:
    data = ending.join(lines) + (ending if close else b"")
    for options in (SourceOptions(on_bad_record="skip"), SourceOptions(on_bad_record="skip", id_field="id")):
        segment = _segment(data, start=5)
        fast = parse_fast([segment], options)
        if fast is not None:
            careful = parse_careful(segment, options)
            assert _facts(fast) == _facts(careful)


def _facts(block: DocumentBlock) -> tuple[object, ...]:
    return list(block.texts), block.ids, block.offsets.tolist(), Counter(block.skipped)


@given(st.binary(max_size=12))
def test_utf8_is_judged_alike_by_both_parsers_and_by_python(raw: bytes) -> None:
    body = bytes(byte for byte in raw if byte not in b'"\\' and byte >= 0x20)
    segment = _segment(b'{"text":"' + body + b'"}\n', start=1)
    options = SourceOptions(on_bad_record="skip", keep_empty=True)
    try:
        body.decode()
        expected = [body]
    except UnicodeDecodeError:
        expected = []
    assert list(parse_careful(segment, options).texts) == expected
    fast = parse_fast([segment], options)
    assert (list(fast.texts) if fast is not None else []) == expected
