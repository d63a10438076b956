"""llm.c's tokenizer file: small tables, damaged files, a missing one, and printing."""

from __future__ import annotations

import io
import re
from typing import TYPE_CHECKING

import pytest

from tokenriver import load_tokenizer
from tokenriver.errors import FormatError, TokenizerError
from tokenriver.llmc import Tokenizer
from tokenriver.tokenizers.llmc_file import printable, render_tokenizer_file, write_tokenizer_file

if TYPE_CHECKING:
    from pathlib import Path

PIECES = [b"a", b" the", "é".encode(), b"\xc3", b"\xa9", b"\x07", b"\n", b"<end>"]


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = tmp_path / "t.bin"
    path.write_bytes(render_tokenizer_file(PIECES, eot=7))
    return path


def test_a_table_is_read_back(path: Path) -> None:
    tokenizer = Tokenizer(path)
    assert (tokenizer.init_ok, tokenizer.vocab_size, tokenizer.eot_token) == (1, 8, 7)
    assert [tokenizer.decode_bytes(i) for i in range(8)] == PIECES
    assert [tokenizer.decode(i) for i in (1, 2, 3)] == [" the", "é", "�"]
    assert tokenizer.decode(8) is None
    assert tokenizer.decode_bytes(-1) is None


def test_a_missing_file_is_a_warning_and_decoding_falls_back_to_ids(
    tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    with pytest.warns(UserWarning, match=r"nothing\.bin: no tokenizer file; ids are shown as numbers"):
        tokenizer = Tokenizer(tmp_path / "nothing.bin")
    assert (tokenizer.init_ok, tokenizer.decode(50256), tokenizer.decode_bytes(3)) == (0, "50256", b"3")
    tokenizer.safe_print(5)
    tokenizer.safe_print(12)
    assert capsysbinary.readouterr().out == b"5 12 "


def test_printing_skips_what_no_terminal_should_see_and_joins_characters(
    path: Path, capsysbinary: pytest.CaptureFixture[bytes]
) -> None:
    tokenizer = Tokenizer(path)
    for token in (0, 1, 5, 99, 6, 2):
        tokenizer.safe_print(token)
    tokenizer.safe_print("x")
    tokenizer.safe_print(b"\x01")
    tokenizer.safe_print(None)
    assert capsysbinary.readouterr().out == "a the\néx".encode()
    assert [printable(p) for p in (b"", b"\x1b", b"\x80", b"\t", b"~", b"\x1b[0m")] == [
        b"",
        b"",
        b"",
        b"\t",
        b"~",
        b"\x1b[0m",
    ]
    stream = io.StringIO()
    tokenizer.safe_print(1, file=stream)
    assert stream.getvalue() == " the"


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda raw: raw[:500], "500 bytes; a tokenizer file has a header of 1,024"),
        (lambda raw: b"\0" + raw[1:], "magic .* at byte 0; expected 20240328"),
        (lambda raw: raw[:4] + b"\3" + raw[5:], "version 3 at byte 4; expected 1 or 2"),
        (lambda raw: raw[:4] + b"\1" + raw[5:], "version 1 with 8 ids; version 1 has GPT-2's 50,257"),
        (lambda raw: raw[:12] + b"\x08" + raw[13:], "end-of-text id 8 at byte 12 is not below"),
        (lambda raw: raw[:-1], "cut off inside id 7 of 8, at byte"),
        (lambda raw: raw[:1026], "cut off inside id 1 of 8, at byte 1,026 of 1,026"),
        (lambda raw: raw + b"\0", "1 bytes after the last of 8 ids"),
    ],
)
def test_a_damaged_file_is_an_error_with_the_place(path: Path, change: object, words: str) -> None:
    assert callable(change)
    path.write_bytes(change(path.read_bytes()))
    with pytest.raises(FormatError, match=re.escape("t.bin: ") + words):
        Tokenizer(path)


def test_what_the_format_cannot_hold_is_refused() -> None:
    with pytest.raises(TokenizerError, match="id 1 stands for 256 bytes; the file holds 1 to 255"):
        render_tokenizer_file([b"a", b"x" * 256], eot=0)
    with pytest.raises(TokenizerError, match="id 0 stands for 0 bytes"):
        render_tokenizer_file([b""], eot=0)
    with pytest.raises(TokenizerError, match="end-of-text id 1 is outside the vocabulary of 1 ids"):
        render_tokenizer_file([b"a"], eot=1)
    with pytest.raises(TokenizerError, match="version 3 is unknown"):
        render_tokenizer_file([b"a"], eot=0, version=3)
    with pytest.raises(TokenizerError, match="write version 2"):
        render_tokenizer_file([b"a"], eot=0, version=1)


def test_special_ids_are_written_by_their_names(tmp_path: Path) -> None:
    write_tokenizer_file(tmp_path / "t.bin", load_tokenizer("byte260"))
    tokenizer = Tokenizer(tmp_path / "t.bin")
    assert [tokenizer.decode(i) for i in (0, 1, 2, 3, 4 + 65)] == ["<pad>", "<bos>", "<eos>", "<unk>", "A"]
    assert tokenizer.eot_token == 1
    with pytest.raises(TokenizerError, match=r"byte names no separator: give the id that ends a text \(--eot\)"):
        write_tokenizer_file(tmp_path / "t.bin", load_tokenizer("byte"))
    write_tokenizer_file(tmp_path / "t.bin", load_tokenizer("byte"), eot=10)
    assert Tokenizer(tmp_path / "t.bin").eot_token == 10
