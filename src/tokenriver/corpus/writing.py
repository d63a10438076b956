"""The shards of a corpus while they are written: documents appended in order, shards closed where they are full.

A closed shard is whole and on disk under its part's name, or behind a URL uploaded, before the journal speaks of it.
"""

from __future__ import annotations

import os
from collections import Counter, deque
from concurrent.futures import ThreadPoolExecutor
from itertools import islice
from typing import IO, TYPE_CHECKING, TypeAlias

import msgspec
import numpy as np

from tokenriver.corpus.documents import Position, parse_block, read_blocks
from tokenriver.corpus.log import Checkpoint
from tokenriver.corpus.manifest import CorpusFile
from tokenriver.corpus.naming import DocumentNames, sides_of
from tokenriver.corpus.progress import InputProgress
from tokenriver.corpus.splits import hash_split
from tokenriver.corpus.writers import CorpusFormat, ShardFile, fitting, open_shard_file
from tokenriver.files import fsync_directory, sha256_file
from tokenriver.resuming.uploads import Uploads

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tokenriver.corpus.blocks import DocumentBlock, RawBlock
    from tokenriver.corpus.log import CorpusLog
    from tokenriver.corpus.sources import Source, SourceOptions
    from tokenriver.corpus.splits import SplitRule
    from tokenriver.corpus.target import CorpusTarget

    _Parsed: TypeAlias = tuple[tuple[Position, Position], DocumentBlock, NDArray[np.uint8] | None]

__all__ = ["CorpusWriter", "FinishedShards", "shard_name"]


def shard_name(index: int, shard_format: CorpusFormat) -> str:
    """`corpus-00000.jsonl.zst`, …"""
    return f"corpus-{index:05d}.{shard_format}"


class FinishedShards:
    """Takes shards whose parts are whole to where they belong, and then into the journal."""

    def __init__(self, target: CorpusTarget, log: CorpusLog, *, at_once: int = 1) -> None:
        self._target = target
        self._log = log
        self._uploads = None if target.store is None else Uploads(target.store, at_once=at_once)

    def add(self, file: CorpusFile, *, checkpoint: Checkpoint | None = None, n_val: int | None = None) -> None:
        """Note a shard; raises what went wrong with earlier ones on their way to the store."""

        def record() -> None:
            self._log.shard(file, checkpoint=checkpoint, n_val=n_val)

        if self._uploads is None:
            record()
        else:
            self._uploads.put([(self._target.part(file.name), file.name)], record=record)

    def wait(self) -> None:
        """Return when all are noted."""
        if self._uploads is not None:
            self._uploads.wait()

    def close(self) -> None:
        """Give what is under way a little time to end."""
        if self._uploads is not None:
            self._uploads.close()


class CorpusWriter:
    """Writes one shard after the other, from where the journal says that reading goes on."""

    def __init__(
        self,
        target: CorpusTarget,
        log: CorpusLog,
        finished: FinishedShards,
        sources: Sequence[Source],
        shard_format: CorpusFormat,
        shard_bytes: int,
    ) -> None:
        then = log.checkpoint
        self._target = target
        self._finished = finished
        self._sources = sources
        self._start = then.position
        self._format = shard_format
        self._shard_bytes = shard_bytes
        self._file: IO[bytes] | None = None
        self._shard: ShardFile | None = None
        self._shard_docs = self._shard_text = 0
        self._n_files = len(log.files)
        self._counted = Counter({then.position[0]: then.of_source})
        self._names = DocumentNames(sources, self._counted)
        self._skip = then.skip
        self.documents = list(then.documents)
        self.text_bytes = then.text_bytes
        self.skipped = Counter(then.skipped)

    @property
    def n_docs(self) -> int:
        """Documents of both sides so far."""
        return sum(self.documents)

    def write(
        self,
        options: SourceOptions,
        rule: SplitRule,
        *,
        threads: int,
        block_bytes: int,
        progress: Callable[[int, int], None] | None,
    ) -> None:
        """Read what is missing and write it, parsing in so many threads. Raises what reading and uploading raise."""
        place = InputProgress(self._sources)
        try:
            with ThreadPoolExecutor(threads, "tokenriver-corpus") as pool:
                raws = read_blocks(
                    self._sources, options, block_bytes=block_bytes, start=Position(*self._start), on_raw=place.tap
                )
                for (begin, end), block, sides in _in_order(pool, raws, options, rule, ahead=threads + 1):
                    self._add(begin, block, sides if sides is not None else sides_of(rule, block, self.n_docs))
                    if progress is not None:
                        progress(place.bytes_done(end), self.n_docs)
            if self._shard is not None:
                self._close(self._checkpoint((len(self._sources), 0)), 0)
        finally:
            if self._file is not None:
                self._file.close()

    def _add(self, start: Position, block: DocumentBlock, sides: NDArray[np.uint8]) -> None:
        """Append the documents of the block that begins at `start`, closing shards where they are full."""
        here = self._checkpoint((start.source_index, start.offset))
        ids = self._names.of(block)
        begin = min(self._skip, len(block))
        self._skip -= begin
        while begin < len(block):
            room = self._shard_bytes - self._shard_text
            end = fitting(block.texts.offsets, begin, room)
            if end == begin and self._shard_docs:
                self._close(here, begin)
                continue
            end = max(end, begin + 1)  # a document larger than a shard stands alone in one
            part = block.texts.slice(begin, end)
            self._open().add(ids[begin:end], part, sides[begin:end])
            self._shard_docs += end - begin
            self._shard_text += part.data.nbytes
            begin = end
        n_val = int(np.count_nonzero(sides))
        self.documents[0] += len(block) - n_val
        self.documents[1] += n_val
        self.text_bytes += block.texts.data.nbytes
        self.skipped.update(block.skipped)

    def _checkpoint(self, position: tuple[int, int]) -> Checkpoint:
        return Checkpoint(
            position=position,
            of_source=self._counted[position[0]],
            documents=(self.documents[0], self.documents[1]),
            text_bytes=self.text_bytes,
            skipped=dict(self.skipped),
        )

    def _open(self) -> ShardFile:
        if self._shard is None:
            self._file = open(self._target.part(shard_name(self._n_files, self._format)), "wb")  # noqa: SIM115
            self._shard = open_shard_file(self._file, self._format)
        return self._shard

    def _close(self, here: Checkpoint, skip: int) -> None:
        """Finish the open shard; `skip` documents after the checkpoint are in shards then."""
        assert self._shard is not None
        assert self._file is not None
        self._shard.close()
        self._file.flush()
        os.fsync(self._file.fileno())
        self._file.close()
        name = shard_name(self._n_files, self._format)
        part = self._target.part(name)
        file = CorpusFile(name, self._shard_docs, part.stat().st_size, sha256_file(part))
        fsync_directory(part.parent)
        self._finished.add(file, checkpoint=msgspec.structs.replace(here, skip=skip))
        self._n_files += 1
        self._shard, self._file = None, None
        self._shard_docs = self._shard_text = 0


def _in_order(
    pool: ThreadPoolExecutor, raws: Iterator[RawBlock], options: SourceOptions, rule: SplitRule, *, ahead: int
) -> Iterator[_Parsed]:
    """Parse blocks in the pool, a few ahead, and give them back in order."""
    waiting = deque(pool.submit(_parse, raw, options, rule) for raw in islice(raws, ahead))
    while waiting:
        yield waiting.popleft().result()
        raw = next(raws, None)
        if raw is not None:
            waiting.append(pool.submit(_parse, raw, options, rule))


def _parse(raw: RawBlock, options: SourceOptions, rule: SplitRule) -> _Parsed:
    block = parse_block(raw, options)
    sides = hash_split(block.texts, rule.fraction) if rule.kind == "hash" else block.splits
    return (raw.start, raw.end), block, sides
