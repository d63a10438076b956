"""The words of --split, and the rules as pure functions."""

from __future__ import annotations

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenriver.batches import TextBatch
from tokenriver.corpus.splits import SplitRule, first_docs_split, hash_split, mix64, text_keys
from tokenriver.errors import UsageError


@pytest.mark.parametrize(
    ("words", "rule"),
    [
        ("column", SplitRule("column", column="split")),
        ("column:fold", SplitRule("column", column="fold")),
        ("column:a:b", SplitRule("column", column="a:b")),
        ("hash:0.01", SplitRule("hash", fraction=Fraction(1, 100))),
        ("hash:0", SplitRule("hash")),
        ("hash:1e-3", SplitRule("hash", fraction=Fraction(1, 1000))),
        ("hash:1/3", SplitRule("hash", fraction=Fraction(1, 3))),
        ("first-docs:50000", SplitRule("first-docs", count=50_000)),
        ("first-docs:50_000", SplitRule("first-docs", count=50_000)),
        ("first-tokens:0", SplitRule("first-tokens")),
        ("first-shard", SplitRule("first-shard")),
        ("train", SplitRule("train")),
    ],
)
def test_rules_are_read_from_their_words_and_say_them_again(words: str, rule: SplitRule) -> None:
    assert SplitRule.parse(words) == rule
    assert SplitRule.parse(str(rule)) == rule


@pytest.mark.parametrize(
    "words",
    ["", "val", "column:", "hash", "hash:", "hash:1", "hash:-0.1", "hash:x", "hash:nan", "hash:inf", "hash:1/0",
     "first-docs", "first-docs:-1", "first-docs:1.5", "first-docs:²", "first-tokens:", "first-shard:1",
     "train:1", "Train"],
)  # fmt: skip
def test_other_words_are_refused_with_the_choices_or_an_example(words: str) -> None:
    with pytest.raises(UsageError, match=r"choose one of column|hash:0\.01"):
        SplitRule.parse(words)


def test_the_mixing_function_is_the_published_one() -> None:
    # The first outputs of splitmix64 seeded with 0 are mix64 of multiples of its increment.
    gamma = 0x9E3779B97F4A7C15
    inputs = np.array([gamma * k % 2**64 for k in (1, 2, 3)], np.uint64)
    assert [hex(value) for value in mix64(inputs).tolist()] == [
        "0xe220a8397b1dcdaf", "0x6e789e6aa1b965f4", "0x6c45d188009454f",
    ]  # fmt: skip


@given(st.lists(st.binary(max_size=20), max_size=20), st.fractions(0, Fraction(999, 1000)))
def test_the_side_is_a_function_of_each_text_alone(texts: list[bytes], fraction: Fraction) -> None:
    batch = TextBatch.from_texts([*texts, *texts])
    sides = hash_split(batch, fraction)
    assert sides.dtype == np.uint8
    assert sides[: len(texts)].tolist() == sides[len(texts) :].tolist()
    assert sides[: len(texts)].tolist() == [int(Fraction(key_of(text)) < fraction * 2**64) for text in texts]


def key_of(text: bytes) -> int:
    """The rule of docs/format.md with Python's integers."""

    def mix(z: int) -> int:
        z = (z ^ (z >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
        z = (z ^ (z >> 27)) * 0x94D049BB133111EB % 2**64
        return z ^ (z >> 31)

    total = 0x9E3779B97F4A7C15 + len(text)
    for k in range(17):
        at = (len(text) - 8) * k // 16 if len(text) >= 8 else 0
        word = int.from_bytes(text[at : at + 8], "little")
        total += (word ^ word >> 32) * (mix((k + 1) * 0x9E3779B97F4A7C15 % 2**64) | 1)
    return mix(total % 2**64)


@given(st.lists(st.integers(0, 400), max_size=8), st.binary(min_size=400, max_size=400))
def test_the_key_is_that_of_the_written_rule(lengths: list[int], material: bytes) -> None:
    texts = [material[:n] for n in lengths]
    assert text_keys(TextBatch.from_texts(texts)).tolist() == [key_of(text) for text in texts]


def test_the_keys_of_a_text_never_change() -> None:
    texts = ["", "a", "1234567", "12345678", "tokens" * 100]
    assert [hex(key) for key in text_keys(TextBatch.from_texts(texts)).tolist()] == [
        "0xe220a8397b1dcdaf",
        "0x195d15ac62e962a6",
        "0xfc8abfa3b52922e2",
        "0x6fdb3130989aec31",
        "0xd6ff10162da1ad15",
    ]


def test_texts_that_differ_in_any_byte_have_other_keys_up_to_136_bytes() -> None:
    text = bytes(range(136))
    others = [text[:i] + b"\xff" + text[i + 1 :] for i in range(136)]
    assert len(set(text_keys(TextBatch.from_texts([text, *others])).tolist())) == 137


def test_the_share_of_val_is_about_the_fraction_and_grows_with_it() -> None:
    batch = TextBatch.from_texts([f"document {i}" for i in range(20_000)])
    small, large = hash_split(batch, 0.01), hash_split(batch, Fraction(1, 10))
    assert 150 < small.sum() < 250
    assert 1850 < large.sum() < 2150
    assert (small <= large).all()
    assert hash_split(batch, 0).sum() == 0
    assert hash_split(batch, 1 - 2**-53).sum() == 20_000


def test_a_slice_of_a_batch_has_the_same_sides() -> None:
    batch = TextBatch.from_texts([f"document {i}" for i in range(1000)])
    assert hash_split(batch.slice(300, 700), 0.5).tolist() == hash_split(batch, 0.5)[300:700].tolist()


@given(st.integers(0, 50), st.lists(st.integers(0, 20), max_size=10))
def test_running_counts_give_the_first_ones_however_they_are_cut(count: int, blocks: list[int]) -> None:
    before, val = 0, 0
    for n in blocks:
        here = first_docs_split(count, before, n)
        assert here == n or val + here == count  # train begins only when val is full
        val += here
        before += n
    assert val == min(count, before)


def test_a_column_that_no_document_can_have_is_refused() -> None:
    with pytest.raises(UsageError, match="is not UTF-8"):
        SplitRule.parse("column:b\udcff")


@pytest.mark.parametrize(
    "words", ["hash:1e-999999999", "hash:0." + "0" * 5000, "first-docs:" + "9" * 5000, "hash:1e-x"]
)
def test_numbers_of_any_length_are_refused_at_once(words: str) -> None:
    with pytest.raises(UsageError, match="is no "):
        SplitRule.parse(words)
