"""Where documents begin and end inside a shard, once the separator is known."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from tokenriver.errors import UsageError
from tokenriver.shards.discover import find_data
from tokenriver.shards.index import Separator

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["Separator", "count_documents", "document_bounds", "known_separator", "known_separators", "known_tokenizer"]

_STEP = 1 << 22
"""Ids looked at in one step, so that a pass over a large shard does not fill the memory."""


class HasSeparator(Protocol):
    """A tokenizer, as far as separators are concerned."""

    @property
    def separator_id(self) -> int | None:
        """The id before each document, None without."""


def known_separator(shard: Path, tokenizer: HasSeparator | None = None) -> Separator | None:
    """The separator of a shard: from the manifest or build record that lists it, else from the tokenizer.

    A manifest or record that cannot be read says nothing here; verification names what is wrong with it.
    """
    listing = next((d for d in find_data([shard]).data_sets if d.separator_id is not None), None)
    if listing is not None and listing.separator_id is not None:
        return Separator(listing.separator_id, listing.separator_position)
    if tokenizer is not None and tokenizer.separator_id is not None:
        return Separator(tokenizer.separator_id)
    return None


def known_tokenizer(shard: Path) -> str | None:
    """The tokenizer of a shard, as "name@first 16 digits of its SHA-256", from the manifest or build record that lists
    it; None where none does.
    """
    for listing in find_data([shard]).data_sets:
        if listing.manifest is not None:
            return f"{listing.manifest.tokenizer_id}@{listing.manifest.tokenizer_sha256[:16]}"
        if listing.record is not None:
            return f"{listing.record.tokenizer.tokenizer_id}@{listing.record.tokenizer.sha256[:16]}"
    return None


def known_separators(shards: Sequence[Path]) -> dict[Path, Separator]:
    """The separators of shards that a manifest or build record beside them lists; each directory is read once."""
    found: dict[Path, Separator] = {}
    wanted = set(shards)
    for data_set in find_data(shards).data_sets:
        if data_set.separator_id is not None:
            separator = Separator(data_set.separator_id, data_set.separator_position)
            paths = (data_set.directory / file.name for file in data_set.checked_files)
            found |= {path: separator for path in paths if path in wanted}
    return found


def count_documents(ids: NDArray[np.unsignedinteger[Any]], separator: Separator) -> int:
    """How many documents begin (separator before) or end (after) in a shard: the separators in it."""
    return sum(int(np.count_nonzero(ids[i : i + _STEP] == separator.id)) for i in range(0, len(ids), _STEP))


def document_bounds(ids: NDArray[np.unsignedinteger[Any]], separator: Separator, index: int) -> tuple[int, int]:
    """The half-open range of document `index` (from 0), its separator included.

    With the separator before, documents are those that begin in the shard; what stands before the first separator
    belongs to a document of the shard before. With it after, they are those that end here, and the first may have
    begun in the shard before. Raises UsageError when there is no such document.
    """
    seen = 0
    found: list[int] = []
    # With "before" a document ends where the next one begins; with "after" it begins where the last one ended.
    wanted = (index, index + 1) if separator.position == "before" else (index - 1, index)
    for start in range(0, len(ids), _STEP):
        places = np.flatnonzero(ids[start : start + _STEP] == separator.id)
        found += [start + int(places[w - seen]) for w in wanted if 0 <= w - seen < len(places)]
        seen += len(places)
        if seen > wanted[1]:
            break
    if seen <= index:
        raise UsageError(f"there is no document {index}: the shard has {seen:,}, counted from 0")
    if separator.position == "before":
        return found[0], found[1] if len(found) > 1 else len(ids)
    return found[0] + 1 if len(found) > 1 else 0, found[-1] + 1
