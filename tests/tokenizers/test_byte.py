"""The byte tokenizers: ids are bytes."""

from __future__ import annotations

import json

import pytest

from tokenriver import TokenizerError, load_tokenizer
from tokenriver.tokenizers.byte import byte260_json

ALL_BYTES_TEXT = "".join(map(chr, range(0x250))) + "日本🙂\r\n\x00"


def test_byte_ids_are_the_bytes_and_there_is_no_separator():
    tokenizer = load_tokenizer("byte")
    assert tokenizer.encode("a\x00é").tolist() == [97, 0, 195, 169]
    assert (tokenizer.vocab_size, tokenizer.separator_id, tokenizer.tokenizer_id) == (256, None, "byte")


def test_byte260_adds_four_and_separates_by_its_bos():
    tokenizer = load_tokenizer("byte260")
    assert tokenizer.encode("a").tolist() == [101]
    assert (tokenizer.vocab_size, tokenizer.separator_id, tokenizer.bos_id) == (260, 1, 1)
    assert byte260_json()["tokenizer_type"] == "pure_byte"
    assert byte260_json()["vocab_size"] == 260


@pytest.mark.parametrize("name", ["byte", "byte260"])
def test_byte_tokenizers_decode_to_the_same_bytes_and_agree_with_plain_python(name):
    tokenizer = load_tokenizer(name)
    batch = tokenizer.encode_batch([ALL_BYTES_TEXT, "", "x"])
    reference = tokenizer.reference_encode_batch([ALL_BYTES_TEXT, "", "x"])
    assert batch.ids.tolist() == reference.ids.tolist()
    assert batch.offsets.tolist() == reference.offsets.tolist()
    assert tokenizer.decode_bytes(batch[0]) == ALL_BYTES_TEXT.encode()
    assert tokenizer.decode(batch[2]) == "x"
    table = tokenizer.token_bytes_table()
    assert b"".join(table[i] for i in batch[0]) == ALL_BYTES_TEXT.encode()


def test_control_ids_of_byte260_decode_to_nothing():
    assert load_tokenizer("byte260").decode_bytes([1, 101, 2]) == b"a"


def test_an_id_outside_the_vocabulary_is_named():
    with pytest.raises(TokenizerError, match="id 256 at position 1 is outside the vocabulary of 256"):
        load_tokenizer("byte").decode([1, 256])


@pytest.mark.parametrize(("text", "reason"), [("ok\ud800", "surrogates"), (b"\xff", "invalid start byte")])
def test_text_that_is_not_unicode_is_an_error_naming_the_document(text, reason):
    with pytest.raises(TokenizerError, match=rf"document 1 is not Unicode text.*{reason}"):
        load_tokenizer("byte").encode_batch(["fine", text])


def test_a_separator_of_ones_own_must_be_in_the_vocabulary():
    assert load_tokenizer("byte", separator=10).separator_id == 10
    assert load_tokenizer("byte260", separator="none").separator_id is None
    with pytest.raises(TokenizerError, match=r"256 .*outside the vocabulary of 256"):
        load_tokenizer("byte", separator="256")


@pytest.mark.parametrize(
    "change",
    [
        {"vocab_size": 261},
        {"vocab_size": "260"},
        {"vocab_size": [260]},
        {"vocab_size": 256},
        {"config": {**byte260_json()["config"], "bos_id": 2}},
        {"config": {**byte260_json()["config"], "byte_offset": 3}},
        {"config": 4},
    ],
)
def test_a_definition_that_numbers_the_bytes_otherwise_is_refused(tmp_path, change):
    path = tmp_path / "bytes.json"
    path.write_text(json.dumps({**byte260_json(), **change}))
    with pytest.raises(TokenizerError, match=r"bytes\.json: a pure_byte tokenizer with vocab_size .*known are 256"):
        load_tokenizer(path)


def test_a_definition_is_known_by_what_it_says(tmp_path):
    for definition, name in (
        (byte260_json(), "byte260"),
        ({"tokenizer_type": "pure_byte", "vocab_size": 260}, "byte260"),
        ({"tokenizer_type": "pure_byte", "vocab_size": 260, "config": {"bos_id": 1, "about": "x"}}, "byte260"),
        ({"tokenizer_type": "pure_byte", "vocab_size": 256, "config": {}}, "byte"),
    ):
        (tmp_path / "bytes.json").write_text(json.dumps(definition))
        assert load_tokenizer(tmp_path / "bytes.json").tokenizer_id == name
