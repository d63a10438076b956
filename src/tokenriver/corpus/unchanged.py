"""Whether an input is still what it was when it was found: asked where more than one reading makes a data set."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

from tokenriver.errors import CorpusError
from tokenriver.storage.objects import changed, check_unchanged

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenriver.corpus.sources import Source

__all__ = ["modified_ns", "require_unchanged"]


def require_unchanged(sources: Sequence[Source], modified: Sequence[int]) -> None:
    """IntegrityError for a file whose size or time of modification (ns) is not what it was when it was found."""
    for source, then in zip(sources, modified, strict=True):
        if source.remote is not None:
            check_unchanged(source.remote)
            continue
        try:
            facts = os.stat(source.file)  # noqa: PTH116 - a Path costs, with many sources
        except OSError as error:
            raise CorpusError(f"{source}: cannot be read ({error.strerror})") from error
        if (facts.st_size, facts.st_mtime_ns) != (source.n_bytes, then):
            now = f"{facts.st_size:,} bytes and modified at {facts.st_mtime_ns} ns"
            raise changed(source, f"{now}, but {source.n_bytes:,} and {then} when it was found")


def modified_ns(source: Source) -> int:
    """When a source's file was modified, in ns, as it was found; 0 for an object of a store, which has a version."""
    return source.modified_ns or 0
