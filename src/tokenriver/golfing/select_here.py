"""The selection of documents on this machine: counted, dealt out into buckets by their keys, each sorted in memory."""

from __future__ import annotations

import shutil
from collections import Counter
from contextlib import ExitStack
from itertools import accumulate
from typing import TYPE_CHECKING, Any

from tokenriver.batches import tally
from tokenriver.building.pipeline import in_order, read_ahead
from tokenriver.corpus.documents import BLOCK_BYTES, SourceOptions, parse_block, read_blocks
from tokenriver.corpus.hashing import InputHasher
from tokenriver.errors import IntegrityError
from tokenriver.golfing.keys import chosen_lines, sort_bucket

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tokenriver.corpus.documents import RawBlock, Source
    from tokenriver.corpus.inputs import InputFacts

__all__ = ["LocalSelection"]


class LocalSelection:
    """Reads the inputs twice in the same blocks, with as many parsing threads as workers.

    `by_source` and `skipped` are known after `count`.
    """

    def __init__(
        self,
        folder: Path,
        sources: list[Source],
        options: SourceOptions,
        workers: int,
        block_bytes: int,
        progress: Callable[[int], None] | None,
    ) -> None:
        self._folder = folder
        self._counts: list[int] = []
        self._sources = sources
        self._options = options
        self._workers = workers
        self._block_bytes = block_bytes
        self._progress = progress
        self._read = 0
        self.by_source: Counter[int] = Counter()
        self.skipped: Counter[str] = Counter()

    def count(self) -> list[InputFacts]:
        """Count the documents in each block; size and hash of each source."""
        with InputHasher(self._sources) as hasher:

            def tap(index: int, chunk: bytes) -> None:
                hasher.tap(index, chunk)
                self._tell(index, chunk)

            for by_source, skipped in self._parsed(self._facts, self._blocks(tap)):
                self._counts.append(sum(by_source.values()))
                self.by_source.update(by_source)
                self.skipped.update(skipped)
            return hasher.finish()

    def chosen(self, seed: int, limit: int, n_buckets: int) -> Iterator[bytes]:
        """The lines of the documents whose keys are at most `limit`, in the order of their keys.

        They are sorted through a hidden folder that is gone afterwards, whatever happens.
        """
        shutil.rmtree(self._folder, ignore_errors=True)  # of a run that was killed
        self._folder.mkdir()
        try:
            paths = [self._folder / f"{i:04d}" for i in range(n_buckets)]
            self._deal_out(seed, limit, paths)
            for path in paths:
                raw = path.read_bytes()
                path.unlink()
                yield from sort_bucket(raw)
        except BaseException:  # what went wrong is what the user must hear
            shutil.rmtree(self._folder, ignore_errors=True)
            raise
        shutil.rmtree(self._folder)

    def _deal_out(self, seed: int, limit: int, paths: list[Path]) -> None:
        """Write the chosen documents into buckets by their keys."""
        counts = self._counts
        starts = [0, *accumulate(counts)]

        def choose(item: tuple[int, RawBlock]) -> list[tuple[int, bytes]]:
            number, raw = item
            texts = parse_block(raw, self._options).texts
            if number >= len(counts) or len(texts) != counts[number]:
                raise IntegrityError(f"{raw.segments[0].source}: it changed between the two readings; start again")
            return list(chosen_lines(texts, seed, starts[number], limit, len(paths)))

        with ExitStack() as stack:
            files = [stack.enter_context(open(path, "wb")) for path in paths]
            for lines in self._parsed(choose, enumerate(self._blocks(self._tell))):
                for bucket, line in lines:
                    files[bucket].write(line)

    def _blocks(self, tap: Callable[[int, bytes], None]) -> Iterator[RawBlock]:
        return read_blocks(self._sources, self._options, block_bytes=self._block_bytes, on_raw=tap)

    def _parsed(self, function: Callable[[Any], Any], items: Any) -> Iterator[Any]:
        budget = (self._workers + 2) * max(self._block_bytes, BLOCK_BYTES)
        ahead = read_ahead(items, depth=1)
        return in_order(lambda box: function(box.pop()), ahead, workers=self._workers, weight=_weight, budget=budget)

    def _facts(self, raw: RawBlock) -> tuple[Counter[int], Counter[str]]:
        block = parse_block(raw, self._options)
        return Counter(tally(block.source_indices)), block.skipped

    def _tell(self, _index: int, chunk: bytes) -> None:
        self._read += len(chunk)
        if self._progress is not None:
            self._progress(self._read)


def _weight(item: Any) -> int:
    raw: RawBlock = item[1] if isinstance(item, tuple) else item
    return raw.n_bytes
