"""Opening shards: ids by the header's own dtype, large files by 64-bit offsets, and what is refused."""

from __future__ import annotations

import re
from pathlib import Path

import numpy as np
import pytest

from tokenriver import FormatError, open_shard, write_shard
from tokenriver.shards.header import ShardHeader, Variant
from tokenriver.shards.reader import check_ids, read_header


def sparse_shard(path: Path, *, variant: Variant, n_tokens: int, at: int, ids: list[int]) -> Path:
    """A shard whose ids are all 0 but for a few, taking next to no room on disk."""
    made = ShardHeader(variant, n_tokens)
    with open(path, "wb") as file:
        file.write(made.to_bytes())
        file.truncate(made.file_bytes)
        file.seek(1024 + at * made.dtype.itemsize)
        file.write(np.array(ids, made.dtype).tobytes())
    return path


@pytest.mark.parametrize(
    ("variant", "byte"), [("uint16", 2_147_484_692), ("uint32", 4_294_968_360), ("llama-3", 4_294_968_360)]
)
def test_ids_beyond_2_and_4_gigabytes_are_read(tmp_path: Path, variant: Variant, byte: int) -> None:
    at = 2**30 + 10
    path = sparse_shard(tmp_path / "big.bin", variant=variant, n_tokens=2**30 + 4096, at=at, ids=[7, 8, 9])
    shard = open_shard(path)
    assert 1024 + at * shard.itemsize == byte
    assert shard.n_tokens == 2**30 + 4096
    assert shard[at - 1 : at + 4].tolist() == [0, 7, 8, 9, 0]


def test_a_uint32_shard_needs_no_dtype_from_the_caller(tmp_path: Path) -> None:
    ids = [0, 65_535, 65_536, 100_257, 128_000, 151_643]
    write_shard(tmp_path / "wide.bin", ids, vocab_size=151_936)
    shard = open_shard(tmp_path / "wide.bin")
    assert (shard.variant, shard.dtype, shard.vocab_size) == ("uint32", np.dtype("<u4"), 151_936)
    assert shard.tolist() == ids


def test_a_shard_is_read_only_and_parts_know_where_they_come_from(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.bin", range(100), vocab_size=256)
    shard = open_shard(tmp_path / "a.bin")
    with pytest.raises(ValueError, match="read-only"):
        shard[0] = 1
    with pytest.raises(ValueError, match="read-only"):
        shard.ids[0] = 1
    part = shard[10:20]
    assert (part.path, part.variant, part.vocab_size, part.n_tokens) == (tmp_path / "a.bin", "uint16", 256, 10)
    assert type(shard.ids) is np.ndarray


def test_an_empty_shard_opens_with_no_ids(tmp_path: Path) -> None:
    write_shard(tmp_path / "none.bin", [], vocab_size=256)
    shard = open_shard(str(tmp_path / "none.bin"))
    assert (shard.n_tokens, shard.vocab_size, shard.dtype) == (0, 256, np.dtype("<u2"))
    assert (tmp_path / "none.bin").stat().st_size == 1024


def test_an_id_outside_the_header_vocabulary_is_refused_with_its_place(tmp_path: Path) -> None:
    path = tmp_path / "a.bin"
    write_shard(path, range(1000), vocab_size=1000)
    raw = bytearray(path.read_bytes())
    raw[1024 + 2 * 777 : 1024 + 2 * 778] = (1000).to_bytes(2, "little")
    path.write_bytes(raw)
    with pytest.raises(FormatError, match=r"id 1000 at token 777 .* vocabulary of 1,000"):
        open_shard(path)
    assert open_shard(path, check=False)[777] == 1000


def test_the_place_of_a_bad_id_is_right_beyond_the_first_step_of_the_check() -> None:
    ids = np.zeros(2**22 + 100, np.uint16)
    ids[2**22 + 5] = 9
    with pytest.raises(FormatError, match="id 9 at token 4,194,309 "):
        check_ids(ids, 9, Path("x.bin"))
    check_ids(ids, 10, Path("x.bin"))


def test_a_vocabulary_of_0_allows_every_id(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.bin", [65_535], vocab_size=0)
    assert open_shard(tmp_path / "a.bin").tolist() == [65_535]


def test_a_nanogpt_file_is_refused_by_name_and_not_read_as_garbage(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(np.arange(5000, dtype="<u2").tobytes())
    with pytest.raises(FormatError, match=r"train\.bin: no header.*nanoGPT") as refused:
        open_shard(tmp_path / "train.bin")
    said = re.search(r"tokenriver\.(write_shard\(.*?\)\)) makes a shard", str(refused.value))
    assert said is not None
    words = {"write_shard": write_shard, "numpy": np, "NEW": tmp_path / "new.bin", "OLD": tmp_path / "train.bin"}
    eval(said[1], words)
    assert open_shard(tmp_path / "new.bin").tolist() == list(range(5000)), "what the error says to do, does it"


def test_a_missing_file_is_an_os_error(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        open_shard(tmp_path / "none.bin")
    with pytest.raises(FileNotFoundError):
        read_header(tmp_path / "none.bin")
