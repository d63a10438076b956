"""What the corpus tests share: reading a whole input through blocks of any size."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any

from tokenriver.corpus.documents import DocumentBlock, SourceOptions, find_sources, parse_block, read_blocks

if TYPE_CHECKING:
    from pathlib import Path


def read_all(*inputs: Path | str, block_bytes: int = 8 << 20, **options: Any) -> list[DocumentBlock]:
    """Every block of the inputs, parsed."""
    chosen = SourceOptions(**options)
    sources = find_sources(inputs, chosen)
    return [parse_block(raw, chosen) for raw in read_blocks(sources, chosen, block_bytes=block_bytes)]


def read_texts(*inputs: Path | str, block_bytes: int = 8 << 20, **options: Any) -> list[bytes]:
    """Every text of the inputs."""
    return [text for block in read_all(*inputs, block_bytes=block_bytes, **options) for text in block.texts]


def count_skipped(*inputs: Path | str, block_bytes: int = 8 << 20, **options: Any) -> dict[str, int]:
    """The counts of records without a document."""
    total: Counter[str] = Counter()
    for block in read_all(*inputs, block_bytes=block_bytes, **options):
        total.update(block.skipped)
    return dict(total)
