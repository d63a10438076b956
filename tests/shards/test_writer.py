"""Writing shards: exact bytes, no id that wraps, and never half a file under a final name."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tokenriver import FormatError, UsageError, open_shard, write_shard
from tokenriver.shards import writer as writer_module
from tokenriver.shards.writer import ShardWriter

if TYPE_CHECKING:
    from pathlib import Path

EXAMPLE = "6746b84901cfaaa5cbbf5950e13e7f6e1212f02ceb612c7802f8b4b4eb452880"


def test_the_worked_example_byte_for_byte(tmp_path: Path) -> None:
    facts = write_shard(tmp_path / "x.bin", [1, 2, 3], vocab_size=256)
    raw = (tmp_path / "x.bin").read_bytes()
    head = bytes.fromhex("88d83401 01000000 03000000 00010000")
    assert raw == head + bytes(1008) + bytes.fromhex("010002000300")
    assert hashlib.sha256(raw).hexdigest() == facts.sha256 == EXAMPLE
    assert (facts.n_tokens, facts.path, len(raw)) == (3, tmp_path / "x.bin", 1030)


@given(
    ids=st.lists(st.integers(0, 2**32 - 1), max_size=50),
    dtype=st.sampled_from([np.uint16, np.uint32, np.int64, np.uint64, ">u4", np.int32]),
)
def test_what_is_written_is_what_is_read(tmp_path_factory: pytest.TempPathFactory, ids: list[int], dtype: Any) -> None:
    ids = [i & min(np.iinfo(dtype).max, 2**32 - 1) for i in ids]
    path = tmp_path_factory.mktemp("round") / "x.bin"
    write_shard(path, np.array(ids, dtype))
    shard = open_shard(path)
    assert shard.tolist() == ids
    assert shard.variant == ("uint32" if ids and max(ids) > 65_535 else "uint16")


@pytest.mark.parametrize(("vocab_size", "variant"), [(65_536, "uint16"), (65_537, "uint32"), (0, "uint16")])
def test_the_width_follows_the_vocabulary_and_not_the_ids(tmp_path: Path, vocab_size: int, variant: str) -> None:
    write_shard(tmp_path / "x.bin", [1, 2], vocab_size=vocab_size)
    assert open_shard(tmp_path / "x.bin").variant == variant


def test_ids_too_large_for_16_bits_are_refused_and_never_wrapped(tmp_path: Path) -> None:
    ids = np.array([65535, 65536, 100257, 128000, 151643])
    with pytest.raises(FormatError, match="id 151643 does not fit"):
        write_shard(tmp_path / "x.bin", ids, variant="uint16")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(
    ("ids", "vocab_size", "words"),
    [
        ([0, 256], 256, "id 256 does not fit.*vocabulary of 256"),
        ([5, -1], 256, "id -1 is negative"),
        ([-1], 0, "id -1 is negative"),
        ([2**32], 0, "id 4294967296 does not fit"),
        ([1.5], 256, "must be integers, not float64"),
        ([[1, 2]], 256, "not an array of shape"),
    ],
)
def test_ids_that_are_no_ids_are_refused_before_a_file_exists(
    tmp_path: Path, ids: list[Any], vocab_size: int, words: str
) -> None:
    with pytest.raises(FormatError, match=words):
        write_shard(tmp_path / "x.bin", ids, vocab_size=vocab_size)
    assert list(tmp_path.iterdir()) == []


def test_more_ids_than_a_header_counts_are_refused_before_a_file_exists(tmp_path: Path) -> None:
    too_many = np.broadcast_to(np.uint16(1), 2**31)
    with pytest.raises(ValueError, match=r"2,147,483,648 ids, but a shard holds at most 2,147,483,647"):
        write_shard(tmp_path / "x.bin", too_many)
    assert list(tmp_path.iterdir()) == []


def test_a_failed_write_leaves_the_older_file_and_no_part(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "x.bin"
    write_shard(path, [1, 2, 3])
    before = path.read_bytes()

    def full_disk(_handle: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(writer_module.os, "fsync", full_disk)
    with pytest.raises(OSError, match="No space left"):
        write_shard(path, [4, 5, 6, 7])
    assert path.read_bytes() == before
    assert [p.name for p in tmp_path.iterdir()] == ["x.bin"]


def test_pieces_appended_make_the_same_file_as_one_write(tmp_path: Path) -> None:
    ids = np.arange(1000, dtype=np.uint32)
    whole = write_shard(tmp_path / "whole.bin", ids, vocab_size=1000)
    writer = ShardWriter(tmp_path / "pieces.bin", variant="uint16", vocab_size=1000)
    for piece in np.array_split(ids, [0, 1, 1, 500]):
        writer.append(piece)
    assert not (tmp_path / "pieces.bin").exists()
    facts = writer.seal()
    assert not (tmp_path / "pieces.bin").exists()
    writer.publish()
    assert facts.sha256 == whole.sha256
    assert (tmp_path / "pieces.bin").read_bytes() == (tmp_path / "whole.bin").read_bytes()
    assert not writer.part.exists()


def test_a_part_is_taken_up_again_at_the_count_that_was_recorded(tmp_path: Path) -> None:
    whole = write_shard(tmp_path / "whole.bin", np.arange(10), vocab_size=100)
    first = ShardWriter(tmp_path / "x.bin", variant="uint16", vocab_size=100)
    first.append(np.arange(4))
    first.sync()
    first.append(np.array([77, 78, 79]))  # appended after the journal's last word, so it does not count
    first.close()
    again = ShardWriter(tmp_path / "x.bin", variant="uint16", vocab_size=100, keep_tokens=4)
    again.append(np.arange(4, 10))
    assert again.seal().sha256 == whole.sha256


def test_a_part_shorter_than_the_journal_says_is_refused(tmp_path: Path) -> None:
    first = ShardWriter(tmp_path / "x.bin", variant="uint16")
    first.append(np.arange(4))
    first.close()
    with pytest.raises(FormatError, match=r"x\.bin\.part: shorter than the 5 ids"):
        ShardWriter(tmp_path / "x.bin", variant="uint16", keep_tokens=5)


def test_a_discarded_shard_leaves_nothing(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "x.bin", variant="uint16")
    writer.append(np.arange(4))
    writer.discard()
    assert list(tmp_path.iterdir()) == []


def test_a_writer_refuses_an_id_outside_its_vocabulary(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "x.bin", variant="uint16", vocab_size=100)
    with pytest.raises(FormatError, match="id 100 does not fit"):
        writer.append(np.array([99, 100]))
    writer.discard()


def test_a_writer_refuses_to_pass_31_bits(tmp_path: Path) -> None:
    writer = ShardWriter(tmp_path / "x.bin", variant="uint16")
    writer.n_tokens = 2**31 - 2
    with pytest.raises(UsageError, match=r"over 2,147,483,647 ids"):
        writer.append(np.arange(2))
    writer.discard()


def test_a_variant_or_vocabulary_that_does_not_exist_is_refused_before_any_file(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="variant 'uint8' is not known; choose one of auto, uint16"):
        write_shard(tmp_path / "x.bin", [1], variant="uint8")  # type: ignore[arg-type]
    for vocab_size in (-1, 2**31):
        with pytest.raises(UsageError, match="a header names a vocabulary of"):
            write_shard(tmp_path / "x.bin", [1], vocab_size=vocab_size)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("most", [3, 100, 1 << 20])
def test_pieces_that_are_not_joined_make_the_same_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, most: int
) -> None:
    def write_little(handle: int, views: list[memoryview]) -> int:
        assert 0 < len(views) <= 1024
        return os.write(handle, b"".join(views)[:most])

    ids = np.arange(2500, dtype=np.uint16)
    pieces = [ids[:0], ids[:1], *np.split(ids[1:1001], 500), *np.split(ids[1001:], 1499)]
    expected = write_shard(tmp_path / "whole.bin", ids, vocab_size=3000, variant="uint16")
    monkeypatch.setattr("tokenriver.shards.writer._write_some", write_little)
    writer = ShardWriter(tmp_path / "pieces.bin", variant="uint16", vocab_size=3000)
    writer.append_all(pieces)
    writer.append_all([])
    assert writer.seal().sha256 == expected.sha256
