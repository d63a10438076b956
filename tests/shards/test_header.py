"""The header's bytes: what is written, what is refused, and what a refusal says."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenriver import FormatError, UsageError
from tokenriver.shards.header import HEADER_BYTES, MAX_SHARD_TOKENS, ShardHeader, parse_header, variant_for

PATH = Path("some.bin")


def header(**fields: int) -> bytes:
    """1024 bytes of a header whose numbers are given as i0=…, i1=…."""
    ints = np.zeros(256, "<i4")
    for name, value in {"i0": 20240520, "i1": 1, **fields}.items():
        ints[int(name[1:])] = value
    return ints.tobytes()


def test_the_worked_example_has_the_stated_first_bytes() -> None:
    raw = ShardHeader("uint16", 3, 256).to_bytes()
    assert raw[:16].hex() == "88d83401010000000300000000010000"
    assert raw[16:] == bytes(1008)


@given(
    st.sampled_from(["uint16", "uint32", "llama-3"]),
    st.integers(0, MAX_SHARD_TOKENS),
    st.integers(0, 2**31 - 1),
)
def test_a_header_reads_back_as_it_was_written(variant: str, n_tokens: int, vocab_size: int) -> None:
    written = ShardHeader(variant, n_tokens, 0 if variant == "llama-3" else vocab_size)  # type: ignore[arg-type]
    assert parse_header(written.to_bytes(), written.file_bytes, PATH) == written


def test_the_variant_follows_the_vocabulary() -> None:
    assert [variant_for(v) for v in (0, 256, 65_536, 65_537, 151_936)] == [
        "uint16",
        "uint16",
        "uint16",
        "uint32",
        "uint32",
    ]


def test_the_llama_variant_leaves_the_vocabulary_out() -> None:
    assert ShardHeader("llama-3", 1, 128_256).to_bytes()[12:16] == bytes(4)


def test_a_header_never_counts_more_than_31_bits_hold() -> None:
    assert len(ShardHeader("uint16", MAX_SHARD_TOKENS).to_bytes()) == HEADER_BYTES
    with pytest.raises(UsageError, match=r"2\^31 - 1"):
        ShardHeader("uint16", MAX_SHARD_TOKENS + 1).to_bytes()


@pytest.mark.parametrize(
    ("raw", "file_bytes", "words"),
    [
        (b"", 0, "an empty file"),
        (bytes(1023), 1023, "1023 bytes"),
        (header(i0=0), 1024, "a damaged header: magic 0, expected 20240520"),
        (header(i0=20240522), 1024, "an evaluation file"),
        (header(i0=20240328, i1=2), 1024, "a tokenizer file"),
        (header(i1=3), 1024, "version 3, a version that is not known"),
        (header(i0=20240801, i1=1), 1024, "version 1, a version that is not known"),
        (header(i2=-1), 1024, "counts -1 ids"),
        (header(i3=-5), 1024, "a vocabulary of -5"),
        (header(i2=3), 1029, "1,029 bytes, but the header's 3 ids of 2 bytes make 1,030; the file is cut short"),
        (header(i1=2, i2=3), 1030, "3 ids of 4 bytes make 1,036"),
        (header(i2=3), 1031, "the file is too long"),
    ],
)
def test_a_refusal_says_what_was_found_and_expected(raw: bytes, file_bytes: int, words: str) -> None:
    with pytest.raises(FormatError) as error:
        parse_header(raw, file_bytes, PATH)
    assert words in str(error.value)
    assert str(error.value).startswith("some.bin: ")


def test_raw_ids_without_a_header_are_told_from_a_damaged_header() -> None:
    raw_ids = np.arange(1, 2001, dtype="<u2").tobytes()
    with pytest.raises(FormatError, match=r"no header.*nanoGPT"):
        parse_header(raw_ids[:HEADER_BYTES], len(raw_ids), PATH)
    damaged = b"\x00" + header(i2=2000)[1:]
    with pytest.raises(FormatError, match="a damaged header"):
        parse_header(damaged, 5024, PATH)
