"""By what an input is known again: whoever goes on with unfinished work must be given what it was begun with."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from tokenriver.corpus.unchanged import modified_ns

if TYPE_CHECKING:
    from tokenriver.corpus.sources import Source

__all__ = ["identity_of"]


def identity_of(source: Source) -> list[Any]:
    """Name, bytes, and the time of modification (ns) or a store's version; of standard input the name alone."""
    if source.stream is not None:
        return [source.name, None, None]
    if source.pin is not None:
        return [source.name, source.n_bytes, source.pin]
    if source.remote is not None:
        return [source.name, source.n_bytes, source.remote.version]
    return [source.name, source.n_bytes, modified_ns(source)]
