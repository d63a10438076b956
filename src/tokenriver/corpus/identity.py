"""By what an input is known again: whoever goes on with unfinished work must be given what it was begun with."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tokenriver.corpus.unchanged import modified_ns

if TYPE_CHECKING:
    from tokenriver.corpus.sources import Source

__all__ = ["Identity", "identity_of"]


class Identity(msgspec.Struct, frozen=True, array_like=True, gc=False):
    """Name, bytes, and the time of modification (ns) or what names the content; an array in JSON.

    A list of each of ten thousand files would have Python look for garbage among all that there is (60 ms).
    """

    name: str
    n_bytes: int | None
    content: int | str | None


def identity_of(source: Source) -> Identity:
    """Name, bytes, and the time of modification (ns) or a store's version; of standard input the name alone."""
    if source.stream is not None:
        return Identity(source.name, None, None)
    if source.pin is not None:
        return Identity(source.name, source.n_bytes, source.pin)
    if source.remote is not None:
        return Identity(source.name, source.n_bytes, source.remote.version)
    return Identity(source.name, source.n_bytes, modified_ns(source))
