"""What a corpus adds to a document: its id and its side, functions of where it stands among the others."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenriver.corpus.splits import first_docs_split, hash_split

if TYPE_CHECKING:
    from collections import Counter
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tokenriver.corpus.blocks import DocumentBlock
    from tokenriver.corpus.sources import Source
    from tokenriver.corpus.splits import SplitRule

__all__ = ["DocumentNames", "sides_of"]


class DocumentNames:
    """Ids of documents, block by block: a record's own, else "SOURCE:INDEX", counted in its source.

    `counted` are the documents of each source before the first block; it is counted on.
    """

    def __init__(self, sources: Sequence[Source], counted: Counter[int]) -> None:
        self._sources = sources
        self._counted = counted

    def of(self, block: DocumentBlock) -> list[str]:
        """The ids of a block's documents."""
        names = []
        for own, index in zip(block.ids or (), block.source_indices.tolist(), strict=True):
            names.append(own if own is not None else f"{self._sources[index].name}:{self._counted[index]}")
            self._counted[index] += 1
        return names


def sides_of(rule: SplitRule, block: DocumentBlock, n_before: int) -> NDArray[np.uint8]:
    """Sides uint8 [n] of a block's documents, `n_before` others standing before it."""
    if rule.kind == "hash":
        return hash_split(block.texts, rule.fraction)
    if block.splits is not None:
        return block.splits
    sides = np.zeros(len(block), np.uint8)
    if rule.kind == "first-docs":
        sides[: first_docs_split(rule.count, n_before, len(block))] = 1
    return sides
