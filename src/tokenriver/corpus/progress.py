"""How far a build is, in bytes of its input files: what an estimate of the time left can be made from."""

from __future__ import annotations

from functools import cache
from itertools import accumulate
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenriver.corpus.documents import Position
    from tokenriver.corpus.sources import Source

__all__ = ["InputProgress", "ProgressSink", "expect_bytes"]


class ProgressSink(Protocol):
    """Told how far a build is: input bytes done, documents and tokens so far.

    One that has a method `expect(total_bytes)` is told first how many bytes there are (None: nobody knows).
    """

    def update(self, bytes_done: int, documents: int, tokens: int) -> None: ...


def expect_bytes(progress: object, sources: Sequence[Source], *, times: int = 1) -> None:
    """Tell who is told of progress, and asks for it by a method `expect`, how many bytes will be read."""
    expect = getattr(progress, "expect", None)
    if expect is not None:
        expect(times * sum(source.n_bytes or 0 for source in sources) or None)


class InputProgress:
    """Turns a position between documents into bytes of the files; `tap` sees the compressed bytes as they are read."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._before = [0, *accumulate(source.n_bytes or 0 for source in sources)]
        self._read = {i: 0 for i, source in enumerate(sources) if source.compression or source.stream is not None}

    def tap(self, source_index: int, chunk: bytes) -> None:
        """Count bytes read of a source whose offsets do not tell."""
        if source_index in self._read:
            self._read[source_index] += len(chunk)

    def bytes_done(self, position: Position) -> int:
        """Bytes of the input files before a position; for compressed files what has been read, a few blocks ahead."""
        index, offset = position
        if index >= len(self._sources):
            return self._before[-1]
        source = self._sources[index]
        size = source.n_bytes or 0
        if source.kind == "parquet":
            done = size * offset // max(1, _rows(source))
        elif index in self._read:
            done = self._read[index]
        else:
            done = offset
        return self._before[index] + (min(done, size) if source.stream is None else done)


@cache
def _rows(source: Source) -> int:
    from tokenriver.corpus.parquet import open_parquet

    with open_parquet(source) as file:
        rows: int = file.metadata.num_rows
    return rows
