"""llm.c's tokenizer file: written byte for byte, read and printed as recorded."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

from shared_folder import load

from tokenriver.llmc import Tokenizer
from tokenriver.tokenizers.llmc_file import printable, write_tokenizer_file

if TYPE_CHECKING:
    from pathlib import Path


def test_gpt2_s_file_is_written_byte_for_byte(shared: Path, tmp_path: Path) -> None:
    write_tokenizer_file(tmp_path / "t.bin", load("gpt2"))
    raw = (tmp_path / "t.bin").read_bytes()
    facts = json.loads((shared / "vectors/gpt2_tokenizer.json").read_bytes())["file"]
    assert (len(raw), hashlib.sha256(raw).hexdigest()) == (facts["size"], facts["sha256"])
    assert raw == (shared / "vectors/gpt2_tokenizer.bin").read_bytes()


def test_ids_decode_and_print_as_recorded(shared: Path) -> None:
    vector = json.loads((shared / "vectors/gpt2_tokenizer.json").read_bytes())
    tokenizer = Tokenizer(shared / "vectors/gpt2_tokenizer.bin")
    assert (tokenizer.init_ok, tokenizer.vocab_size, tokenizer.eot_token) == (1, vector["vocab_size"], 50256)
    for i, decoded, printed in vector["rows"]:
        piece = tokenizer.decode_bytes(i)
        if decoded is None:
            assert piece is None
            assert tokenizer.decode(i) is None
            continue
        assert piece is not None
        assert piece.split(b"\0")[0].hex() == decoded  # the vectors hold the C string, which ends at a NUL
        assert printable(piece).hex() == printed
    for i, record in vector["record_bytes"]:
        assert tokenizer.decode_bytes(i) == bytes.fromhex(record)


def test_version_1_is_gpt2_s_table_without_the_end_of_text(shared: Path, tmp_path: Path) -> None:
    write_tokenizer_file(tmp_path / "t.bin", load("gpt2"), version=1)
    tokenizer = Tokenizer(tmp_path / "t.bin")
    assert (tokenizer.vocab_size, tokenizer.eot_token) == (50257, 50256)
    assert (tmp_path / "t.bin").read_bytes()[1024:] == (shared / "vectors/gpt2_tokenizer.bin").read_bytes()[1024:]
