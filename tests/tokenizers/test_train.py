"""Training a vocabulary: deterministic, and it says what it left out."""

from __future__ import annotations

import pytest

from tokenriver import TokenizerError, UsageError, load_tokenizer
from tokenriver.tokenizers.train import train_tokenizer

TEXTS = [f"Chapter {n}: the same old words in another order, {n % 7} times. Größe ☃\n\n" for n in range(400)]


@pytest.mark.parametrize("kind", ["sp-bpe", "byte-bpe"])
def test_training_twice_gives_the_same_bytes_and_a_tokenizer_that_is_exact(kind, tmp_path):
    first = train_tokenizer(iter(TEXTS), kind=kind, vocab_size=420, out=tmp_path / "a")
    second = train_tokenizer(iter(TEXTS), kind=kind, vocab_size=420, out=tmp_path / "b")
    assert first.path.read_bytes() == second.path.read_bytes()
    tokenizer = load_tokenizer(tmp_path / "a")
    assert tokenizer.backend == "fast"
    assert tokenizer.vocab_size == first.vocab_size
    assert tokenizer.encode_batch(TEXTS).ids.tolist() == tokenizer.reference_encode_batch(TEXTS).ids.tolist()
    assert tokenizer.decode(tokenizer.encode("the same words")) == "the same words"


@pytest.mark.parametrize("kind", ["sp-bpe", "byte-bpe"])
def test_what_was_left_out_is_counted(kind, tmp_path):
    result = train_tokenizer([*TEXTS, "", " \n", "x" * 9000, "y " * 9000], kind=kind, vocab_size=300, out=tmp_path)
    assert (result.n_texts, result.n_empty, result.n_cut) == (404, 2, 1)


def test_sentencepiece_settings_are_the_parameter_golf_ones(tmp_path):
    train_tokenizer(TEXTS, kind="sp-bpe", vocab_size=400, out=tmp_path)
    tokenizer = load_tokenizer(tmp_path)
    assert (tokenizer.bos_id, tokenizer.separator_id) == (1, 2)
    assert tokenizer.special_texts == ("<pad>", "<s>", "</s>")
    assert tokenizer.token_bytes_table()[4:260] == [bytes([b]) for b in range(256)]


def test_a_vocabulary_too_small_for_the_bytes_is_a_usage_error(tmp_path):
    with pytest.raises(UsageError, match="--vocab-size 259 is too small for sp-bpe"):
        train_tokenizer(TEXTS, kind="sp-bpe", vocab_size=259, out=tmp_path)


@pytest.mark.parametrize("kind", ["sp-bpe", "byte-bpe"])
def test_no_text_is_an_error_and_leaves_nothing(kind, tmp_path):
    with pytest.raises(TokenizerError):
        train_tokenizer(["", " "], kind=kind, vocab_size=300, out=tmp_path / "out")
    assert not (tmp_path / "out").exists()
