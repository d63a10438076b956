"""What the files of a data set are like, whoever writes them: names, cuts and the header's fields."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenriver.errors import UsageError
from tokenriver.shards.layouts import SPLITS, Layout, plain_shard_name, shard_name

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.building.plan import Cutting
    from tokenriver.shards.header import Variant

__all__ = ["Shape"]


@dataclass(frozen=True, slots=True)
class Shape:
    """What the files of a data set are like: names, cuts, and the header's fields."""

    directory: Path
    layout: Layout
    dataset: str
    cutting: Cutting
    variant: Variant
    header_vocab_size: int
    numbered: bool = True
    max_documents: int | None = None
    max_tokens: int | None = None
    doc_index: bool = False

    @property
    def limited(self) -> bool:
        """Whether a limit may leave documents out."""
        return self.max_documents is not None or self.max_tokens is not None

    def path(self, split: int, index: int) -> Path:
        """Where a shard goes. UsageError for a second file where each split has one without a number."""
        if not self.numbered and self.layout == "llmc":
            if index:
                raise UsageError(
                    f"{self.directory}: {self.dataset} has one file for each split, and more than "
                    f"{self.cutting.shard_tokens:,} tokens do not fit into one; use --layout tokens"
                )
            return self.directory / plain_shard_name(self.dataset, SPLITS[split])
        return self.directory / shard_name(self.layout, self.dataset, SPLITS[split], index)
