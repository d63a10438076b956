"""What a build counts, however it is made: documents, ids and bytes by split, and what was noticed on the way."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tokenriver.corpus.splits import VAL
from tokenriver.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenriver.building.assemble import EncodedBlock
    from tokenriver.building.ray_engine.encode_task import SegmentFacts
    from tokenriver.corpus.sources import Source

__all__ = ["BuildCounts", "no_documents"]


@dataclass(slots=True)
class BuildCounts:
    """Totals up to a block border; per split [train, val], `sources` the documents of each source."""

    documents: list[int] = field(default_factory=lambda: [0, 0])
    tokens: list[int] = field(default_factory=lambda: [0, 0])
    text_bytes: list[int] = field(default_factory=lambda: [0, 0])
    skipped: Counter[str] = field(default_factory=Counter)
    reference_documents: int = 0
    special_texts: int = 0
    sampled: int = 0
    lossy_samples: int = 0

    def add(self, block: EncodedBlock, val_tokens: int) -> None:
        """Count a whole block with so many tokens in val; a document counts where it begins."""
        if block.given is not None:
            val = block.given == VAL
            n_val, bytes_val = int(val.sum()), int(block.text_bytes[val].sum())
        else:
            n_val = int(np.searchsorted(block.bounds[:-1], val_tokens))  # val is what comes first
            bytes_val = int(block.text_bytes[:n_val].sum())
        for counts, val_part, total in (
            (self.documents, n_val, len(block.text_bytes)),
            (self.text_bytes, bytes_val, int(block.text_bytes.sum())),
            (self.tokens, val_tokens, int(block.bounds[-1])),
        ):
            counts[0] += total - val_part
            counts[1] += val_part
        self.notice(block)

    def notice(self, seen: EncodedBlock | SegmentFacts) -> None:
        """Count what was noticed while documents were encoded."""
        self.skipped.update(seen.skipped)
        self.reference_documents += seen.reference_documents
        self.special_texts += seen.special_texts
        self.sampled += seen.sampled
        self.lossy_samples += seen.lossy_samples

    def to_json(self) -> dict[str, Any]:
        """As plain JSON values."""
        values: dict[str, Any] = msgspec.to_builtins(self)
        return values

    @classmethod
    def from_json(cls, values: dict[str, Any]) -> BuildCounts:
        """Back from `to_json`."""
        return cls(**{**values, "skipped": Counter(values["skipped"])})


def no_documents(sources: Sequence[Source], skipped: Counter[str], *, full: bool) -> CorpusError:
    """The error for sources that leave nothing to write; `full`: a limit was reached."""
    kinds = ", ".join(f"{n} {kind}" for kind, n in sorted(skipped.items())) or "no records at all"
    limits = " within the limits given" if full else ""
    return CorpusError(
        f"{len(sources)} inputs ({sources[0]} first) gave no document{limits}: {kinds}; nothing was written"
    )
