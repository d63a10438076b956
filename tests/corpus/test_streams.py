"""Bytes of compressed files: every member and frame, and no damage unnoticed."""

from __future__ import annotations

import gzip
import os
from typing import TYPE_CHECKING

import pytest
import zstandard

from tokenriver.corpus.finding import find_sources
from tokenriver.corpus.inputs import hash_source
from tokenriver.corpus.streams import count_newlines, read_chunks
from tokenriver.errors import CorpusError, IntegrityError

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TEXT = b"".join(b'{"text":"line %d"}\n' % i for i in range(20_000))
PACK: dict[str, Callable[[bytes], bytes]] = {
    "gz": gzip.compress,
    "zst": lambda data: zstandard.ZstdCompressor(write_checksum=True).compress(data),
}


def read(path: Path, **options: object) -> bytes:
    return b"".join(read_chunks(find_sources([path])[0], **options))  # type: ignore[arg-type]


@pytest.fixture(params=["gz", "zst"])
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def test_all_members_and_frames_are_read(tmp_path: Path, kind: str) -> None:
    path = tmp_path / f"d.jsonl.{kind}"
    path.write_bytes(PACK[kind](TEXT) + PACK[kind](b"") + PACK[kind](b'{"text":"end"}'))
    assert read(path) == TEXT + b'{"text":"end"}'
    assert read(path, start=len(TEXT) + 3) == b'ext":"end"}'


def test_a_file_cut_short_is_an_error_that_names_the_byte(tmp_path: Path, kind: str) -> None:
    first, second = PACK[kind](TEXT), PACK[kind](TEXT)
    path = tmp_path / f"d.jsonl.{kind}"
    for keep in (1, 5, len(second) // 2, len(second) - 1):
        path.write_bytes(first + second[:keep])
        with pytest.raises(CorpusError, match=rf"d\.jsonl\.{kind}: (cut short|damaged).*byte {len(first):,}"):
            read(path)
    path.write_bytes(b"")
    with pytest.raises(CorpusError, match="cut short"):
        read(path)


@pytest.mark.parametrize(
    "junk", [b"junk", b"{", b"\0\0\0\0", b"\x1f\x8bxxxxxxxxxxxxxxx", b"\x28\xb5\x2f\xfdxxxxxxxxxxxx"]
)
def test_junk_after_the_end_is_an_error(tmp_path: Path, kind: str, junk: bytes) -> None:
    whole = PACK[kind](TEXT)
    path = tmp_path / f"d.jsonl.{kind}"
    path.write_bytes(whole + junk)
    with pytest.raises(CorpusError, match=f"byte {len(whole):,}"):
        read(path)


def test_a_flipped_byte_is_an_error(tmp_path: Path, kind: str) -> None:
    data = bytearray(PACK[kind](TEXT))
    data[-2 if kind == "zst" else -6] ^= 1
    path = tmp_path / f"d.jsonl.{kind}"
    path.write_bytes(data)
    with pytest.raises(CorpusError, match="damaged"):
        read(path)


def test_a_skippable_zstd_frame_holds_no_text(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl.zst"
    path.write_bytes(b"\x50\x2a\x4d\x18\x04\0\0\0abcd" + PACK["zst"](TEXT))
    assert read(path) == TEXT


@pytest.mark.parametrize("kind_or_plain", ["", ".gz", ".zst"])
def test_the_tap_gets_the_bytes_of_the_file_and_its_end(tmp_path: Path, kind_or_plain: str) -> None:
    path = tmp_path / f"d.jsonl{kind_or_plain}"
    data = PACK[kind_or_plain[1:]](TEXT) if kind_or_plain else TEXT
    path.write_bytes(data)
    seen: list[bytes] = []
    assert read(path, on_raw=seen.append, read_bytes=1000) == TEXT
    assert b"".join(seen) == data
    assert seen[-1] == b""
    assert all(seen[:-1])


@pytest.mark.parametrize("name", ["docs.jsonl", "docs.jsonl.gz"])
def test_a_file_of_the_same_size_that_is_written_to_while_it_is_read_is_an_error(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    path.write_bytes(gzip.compress(TEXT) if name.endswith("gz") else TEXT)
    os.utime(path, ns=(0, 1))
    (source,) = find_sources([path])
    chunks = read_chunks(source, read_bytes=5000)
    first = next(chunks)
    with open(path, "r+b") as file:
        file.write(path.read_bytes()[:20])  # the same bytes again: only the time tells
    assert path.stat().st_size == source.n_bytes
    with pytest.raises(IntegrityError, match=r"docs.*written to while it was read.*start again"):
        b"".join(chunks)
    assert b"".join(read_chunks(find_sources([path])[0]))[: len(first)] == first


def test_a_parquet_file_that_is_another_when_it_is_hashed_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "docs.parquet"
    path.write_bytes(b"as it was when its rows were read")
    (source,) = find_sources([path])
    facts = hash_source(source)
    assert facts.n_bytes == source.n_bytes
    path.write_bytes(b"as it was when its rows were READ")
    os.utime(path, ns=(0, 1))
    with pytest.raises(IntegrityError, match=r"docs\.parquet: it was written to while it was read"):
        hash_source(source)


def test_a_file_that_grows_while_it_is_read_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(TEXT)
    (source,) = find_sources([path])
    path.write_bytes(TEXT + b"{}\n")
    with pytest.raises(IntegrityError, match="changes while it is read"):
        list(read_chunks(source))


def test_a_file_that_vanishes_is_an_error(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl"
    path.write_bytes(TEXT)
    (source,) = find_sources([path])
    path.unlink()
    with pytest.raises(CorpusError, match="cannot be read"):
        list(read_chunks(source))


def test_newlines_are_counted_up_to_an_offset(tmp_path: Path) -> None:
    path = tmp_path / "d.jsonl.gz"
    path.write_bytes(gzip.compress(TEXT))
    (source,) = find_sources([path])
    for stop in (0, 1, 18, 19, 100_000, len(TEXT)):
        assert count_newlines(source, stop) == TEXT[:stop].count(b"\n")
