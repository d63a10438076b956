"""What a build made, for its caller."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.shards.manifest import ManifestFile

__all__ = ["BuildSummary"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildSummary:
    """What a build made. Counts by split are dicts of "train" and "val".

    `text_bytes` are UTF-8 bytes of text, `input_bytes` bytes of the input files, `seconds` wall time. `skipped`
    counts records that gave no document, by kind; `reference_documents` those that the reference encoded;
    `special_texts` the texts that spell a special token (encoded as ordinary text); of `sampled` documents compared
    with the reference, `lossless` decode to their own bytes. `resumed` says that earlier work was kept.
    """

    directory: Path
    record: Path
    layout: str
    dataset: str
    tokenizer_id: str
    vocab_size: int
    separator_id: int | None
    files: list[ManifestFile] = field(repr=False)
    documents: int
    tokens: int
    text_bytes: int
    documents_by_split: dict[str, int]
    tokens_by_split: dict[str, int]
    text_bytes_by_split: dict[str, int]
    skipped: dict[str, int]
    reference_documents: int
    special_texts: int
    sampled: int
    lossless: int
    input_bytes: int
    seconds: float
    resumed: bool
