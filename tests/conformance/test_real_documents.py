"""The real documents beside the checkout, read by blocks of several sizes as Python's own json reads them."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING

import pytest
from corpus.corpus_cases import read_texts

from tokenriver.corpus.shards import verify_corpus, write_corpus

if TYPE_CHECKING:
    from pathlib import Path


def expected_texts(path: Path) -> list[bytes]:
    data = path.read_bytes()
    data = gzip.decompress(data) if path.suffix == ".gz" else data
    texts = [json.loads(line)["text"] for line in data.removeprefix(b"\xef\xbb\xbf").split(b"\n") if line.strip()]
    return [text.encode() for text in texts if text]


@pytest.mark.parametrize("block_bytes", [40_000, 1 << 20])
def test_every_file_of_documents_reads_as_python_reads_it(shared: Path, block_bytes: int) -> None:
    paths = sorted((shared / "data" / "docs").iterdir())
    assert paths
    for path in paths:
        assert read_texts(path, block_bytes=block_bytes) == expected_texts(path), path.name


@pytest.mark.parametrize("kind", ["jsonl.zst", "parquet"])
def test_a_corpus_of_all_of_them_gives_the_same_texts(shared: Path, tmp_path: Path, kind: str) -> None:
    docs = shared / "data" / "docs"
    write_corpus([docs], tmp_path / "c", format=kind, shard_bytes=1_000_000, block_bytes=100_000)  # type: ignore[arg-type]
    assert verify_corpus(tmp_path / "c") == []
    assert read_texts(tmp_path / "c") == [text for path in sorted(docs.iterdir()) for text in expected_texts(path)]
