"""Names of shards and records: fixed forms, and a way back from each."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenriver import UsageError
from tokenriver.shards.layouts import (
    LAYOUTS,
    SPLITS,
    ShardName,
    check_name,
    data_set_directory,
    parse_shard_name,
    record_prefix,
    shard_name,
)


def test_each_layout_has_its_own_names() -> None:
    assert shard_name("tokens", "tinystories", "train", 0) == "train-00000.bin"
    assert shard_name("llmc", "edu_fineweb", "val", 0) == "edu_fineweb_val_000000.bin"
    assert shard_name("golf", "whatever", "train", 12) == "fineweb_train_000012.bin"


def test_the_tokens_layout_lies_three_levels_down_and_the_others_in_the_folder_itself() -> None:
    root = Path("out")
    assert data_set_directory(root, "tokens", tokenizer_id="gpt2", dataset="d") == root / "tokens" / "gpt2" / "d"
    assert data_set_directory(root, "llmc", tokenizer_id="gpt2", dataset="d") == root
    assert data_set_directory(root, "golf", tokenizer_id="gpt2", dataset="d") == root


def test_records_carry_the_name_of_the_data_set_where_a_folder_may_hold_several() -> None:
    assert [record_prefix(layout, "tales") for layout in LAYOUTS] == ["", "tales", "fineweb"]


@given(
    st.sampled_from(LAYOUTS),
    st.sampled_from(SPLITS),
    st.integers(0, 99_999),
    st.text(st.characters(codec="utf-8", exclude_characters='\\/:*?"<>|', exclude_categories=["C"]), min_size=1).filter(
        lambda name: not name.startswith(".") and not name.endswith((".", " "))
    ),
)
def test_a_name_reads_back_as_what_it_was_made_of(layout: str, split: str, index: int, dataset: str) -> None:
    name = shard_name(layout, check_name(dataset, what="--dataset"), split, index)  # type: ignore[arg-type]
    expected = {"tokens": "", "llmc": dataset, "golf": "fineweb"}[layout]
    assert parse_shard_name(name) == ShardName(split, index, expected)  # type: ignore[arg-type]


def test_the_two_recipe_outputs_without_a_number_are_understood() -> None:
    assert parse_shard_name("TinyStories_val.bin") == ShardName("val", None, "TinyStories")
    assert parse_shard_name("tiny_shakespeare_train.bin") == ShardName("train", None, "tiny_shakespeare")


@pytest.mark.parametrize(
    "name",
    [
        "train-0000.bin",
        "train-000000.bin",
        "test-00000.bin",
        "train-00000.bin.part",
        "fineweb_train_00000.bin",
        "x.bin",
    ],
)
def test_other_files_are_no_shard_names(name: str) -> None:
    parsed = parse_shard_name(name)
    assert parsed is None


def test_a_number_with_too_many_digits_is_refused_with_the_way_out() -> None:
    with pytest.raises(UsageError, match=r"shard number 100000 .* raise --shard-tokens"):
        shard_name("tokens", "d", "train", 100_000)
    assert shard_name("llmc", "d", "train", 100_000) == "d_train_100000.bin"
    with pytest.raises(UsageError):
        shard_name("llmc", "d", "train", 1_000_000)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/b", "a\\b", ".hidden", "a\x00b", "a\nb", "a\udcff", "c:", "x ", "x."]
)
def test_a_name_that_could_lead_elsewhere_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="--dataset"):
        check_name(name, what="--dataset")
    with pytest.raises(UsageError):
        data_set_directory(Path("out"), "tokens", tokenizer_id=name, dataset="d")
    with pytest.raises(UsageError):
        data_set_directory(Path("out"), "llmc", tokenizer_id="t", dataset=name)
