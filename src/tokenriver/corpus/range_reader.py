"""Reading and hashing one range of the sources, as a task on some node does."""

from __future__ import annotations

import hashlib
import zlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenriver.corpus.blocks import Position
from tokenriver.corpus.documents import read_blocks
from tokenriver.corpus.inputs import InputFacts, hash_source
from tokenriver.corpus.ranges import find_border
from tokenriver.corpus.streams import read_chunks

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenriver.corpus.blocks import RawBlock
    from tokenriver.corpus.ranges import Range
    from tokenriver.corpus.sources import Source, SourceOptions

__all__ = ["RangeReader", "hash_parts"]

_SLACK_BYTES = 1 << 17
"""What the blocks of a range are larger than its even share, since each ends a record early."""


@dataclass(slots=True)
class RangeReader:
    """Reads one range block by block; `sources` are only those that it lies in, the first at `Range.sources[0]`.

    The source indices in the blocks count from 0 in these. Once all was read, `facts` are those of the files that lie
    in the range as a whole, by their index in all sources, and `crc` the CRC-32 of the bytes read of a file that does
    not (None for Parquet), by which who hashes that file proves that both read the same.
    """

    sources: Sequence[Source]
    range: Range
    options: SourceOptions
    block_bytes: int
    hashing: bool = True
    facts: dict[int, InputFacts] = field(default_factory=dict)
    crc: int | None = None
    begin: Position = field(default_factory=lambda: Position(0, 0))
    end: Position = field(default_factory=lambda: Position(0, 0))
    _digest: Any = None
    _n_bytes: int = 0

    def blocks(self) -> Iterator[RawBlock]:
        """The raw blocks, in order. Raises as `read_blocks` does."""
        first = self.range.sources[0]
        self.begin = self._position(self.range.begin)
        self.end = self._position(self.range.end)
        if self.begin >= self.end:
            return
        part = not self.range.whole(first)
        plain = part and self.sources[0].kind != "parquet"
        crc = 0
        for raw in read_blocks(
            self.sources,
            self.options,
            block_bytes=self._even_blocks() if plain else self.block_bytes,
            start=self.begin,
            stop=self.end,
            on_raw=self._tap if self.hashing and not part else None,
        ):
            if plain:
                for segment in raw.segments:
                    crc = zlib.crc32(segment.payload, crc)
            yield raw
        self.crc = crc if plain else None

    def _position(self, mark: tuple[int, int]) -> Position:
        index = mark[0] - self.range.sources[0]
        return Position(index, find_border(self.sources[index], self.options, mark[1]) if mark[1] else 0)

    def _even_blocks(self) -> int:
        """Blocks of one size, so that little is read behind the range's end."""
        end = self.end.offset if self.end.source_index == 0 else self.sources[0].n_bytes or 0
        size = end - self.begin.offset
        n = max(1, -(-size // self.block_bytes))
        return size // n + _SLACK_BYTES if n * _SLACK_BYTES < size else self.block_bytes

    def _tap(self, index: int, chunk: bytes) -> None:
        """Hash a file from its bytes as they are read, or (Parquet, which is not read in order) by reading it apart."""
        if self._digest is None:
            self._digest, self._n_bytes = hashlib.sha256(), 0
        self._digest.update(chunk)
        self._n_bytes += len(chunk)
        if not chunk:
            source = self.sources[index]
            facts = InputFacts(self._n_bytes, self._digest.hexdigest())
            facts = hash_source(source) if source.kind == "parquet" else facts
            self.facts[self.range.sources[0] + index] = facts
            self._digest = None


def hash_parts(source: Source, options: SourceOptions, marks: Sequence[int]) -> tuple[InputFacts, list[int]]:
    """Facts of a file that is read in parts which begin at bytes `marks`, and the CRC-32 of each ([]: Parquet)."""
    if source.kind == "parquet" or not marks:
        return hash_source(source), []
    borders = [find_border(source, options, byte) for byte in marks] + [source.n_bytes or 0]
    digest, crcs, at, part = hashlib.sha256(), [0] * len(marks), 0, 0
    for chunk in read_chunks(source):
        digest.update(chunk)
        view = memoryview(chunk)
        while view:
            while at >= borders[part + 1]:
                part += 1
            piece = view[: borders[part + 1] - at]
            crcs[part] = zlib.crc32(piece, crcs[part])
            at += len(piece)
            view = view[len(piece) :]
    return InputFacts(at, digest.hexdigest()), crcs
