"""One pass over the documents for one or more data sets: locked, gone on with, streamed, recorded.

Data sets made together are each what they would be alone. After an interruption they may stand at different places:
reading begins at the earliest, block borders are set where another goes on, and each takes the blocks from its own
place on.
"""

from __future__ import annotations

import functools
from contextlib import ExitStack, closing, suppress
from dataclasses import dataclass, field
from itertools import pairwise
from typing import TYPE_CHECKING, Protocol

from tokenriver.building.counts import no_documents
from tokenriver.building.lanes import Lanes
from tokenriver.building.pipeline import in_order, read_ahead
from tokenriver.corpus.documents import BLOCK_BYTES, Position, read_blocks
from tokenriver.corpus.hashing import InputHasher
from tokenriver.corpus.inputs import InputFacts, InputMark
from tokenriver.corpus.progress import InputProgress
from tokenriver.cpus import available_cpus

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokenriver.building.assemble import EncodedBlock
    from tokenriver.building.dataset import DatasetWriter
    from tokenriver.building.job import Job
    from tokenriver.building.journal import Journal
    from tokenriver.building.summary import BuildSummary
    from tokenriver.corpus.blocks import RawBlock
    from tokenriver.corpus.progress import ProgressSink
    from tokenriver.corpus.sources import Source

__all__ = ["OpenJob", "Supply", "run_jobs"]

_SHA256 = "sha256:"


class Supply(Protocol):
    """Brings the files of the sources while they are read."""

    def need(self, source_index: int) -> None:
        """Return when the file of a source is there, whole; raises what kept it from coming."""

    def passed(self, source_index: int) -> None:
        """The files of the sources before this one will not be read again, not even by a build that goes on."""


@dataclass(slots=True)
class OpenJob:
    """A data set being written: `position` is where it reads from, `resumed` that earlier work is kept.

    `known` and `mark` are what its journal says of the inputs.
    """

    job: Job
    journal: Journal
    writer: DatasetWriter
    position: Position = field(default_factory=lambda: Position(0, 0))
    resumed: bool = False
    known: dict[int, InputFacts] = field(default_factory=dict)
    mark: InputMark | None = None

    def take_up(self) -> None:
        """Go on with what the journal says, or begin."""
        content = self.job.take_up(self.journal, self.writer)
        if content is not None and content.checkpoint is not None:
            self.resumed, self.known, self.mark = True, content.inputs, content.mark
            self.position = Position(*content.checkpoint.position)

    def abandon(self) -> None:
        """Stop; a build that finished no shard leaves nothing behind."""
        self.writer.abort()
        self.journal.close()
        if self.journal.begun and not self.writer.leaves_something:
            self.journal.remove()
            self.writer.remove_unfinished()
        self.job.target.drop_anew()

    def facts(self, hashes: list[InputFacts]) -> list[InputFacts]:
        """Those of the sources that this data set comes from."""
        return hashes[: self.writer.n_sources]


def run_jobs(
    jobs: Sequence[Job], *, supply: Supply | None = None, progress: ProgressSink | None = None
) -> list[BuildSummary]:
    """Build under the directories' locks. The jobs have the same sources and the same options of reading."""
    with ExitStack() as locks:
        for job in jobs:
            locks.enter_context(job.target.locked())
        opened: list[OpenJob] = []
        try:
            for job in jobs:
                opened.append(job.open())
                opened[-1].take_up()
            hashes = _stream(opened, supply, progress)
            records = [one.job.write_records(one.writer, one.facts(hashes)) for one in opened]
        except BaseException:
            for one in opened:
                with suppress(OSError):  # a disk that fails: what it kept from being done is what the user must hear
                    one.abandon()
            raise
        for one in opened:  # only now: all of them can be taken up again as long as one is unfinished
            one.journal.remove()
            one.job.target.swap()
            one.job.target.forget_staging()
    return [
        one.job.summary(one.writer, record, one.facts(hashes), resumed=one.resumed)
        for one, record in zip(opened, records, strict=True)
    ]


def _stream(opened: Sequence[OpenJob], supply: Supply | None, progress: ProgressSink | None) -> list[InputFacts]:
    """Read, encode, cut and write all blocks that are missing; the sizes and hashes of the sources that were read."""
    job = opened[0].job
    options, sources = job.options, job.origin.sources
    place = InputProgress(sources)
    known = _known(opened, sources)
    marks = [one.mark for one in opened if one.mark is not None]
    workers = options.workers or available_cpus()
    # What a supply has not brought yet cannot be read ahead.
    hashing = 1 if supply is not None else workers
    with InputHasher(sources, known=known, marks=marks, keep_marks=True, workers=hashing) as hasher:
        for one in opened:
            one.writer.input_state = hasher.teller()

        def on_raw(source_index: int, chunk: bytes) -> None:
            place.tap(source_index, chunk)
            hasher.tap(source_index, chunk)

        encoders = [(one.position, one.job.encoder()) for one in opened]
        words = [one.job.encoder_words(one.position) for one in opened]
        lanes = Lanes(encoders, words, sources, job.reading(), workers=workers)
        with lanes, closing(read_ahead(_read(opened, supply, on_raw), depth=1)) as raw:
            encoded = in_order(
                lanes.encode,
                raw,
                workers=workers,
                weight=lambda block: block.n_bytes,
                budget=(workers + 2) * max(options.block_bytes, BLOCK_BYTES),
                begin=lanes.enter,
                end=lanes.leave,
            )
            with closing(encoded):
                for blocks in encoded:
                    end = _take(opened, blocks)
                    _report(opened, place, end, supply, progress)
                    if all(one.writer.full for one in opened):
                        break
        for one in opened:
            if not sum(one.writer.counts.documents):
                raise no_documents(sources, one.writer.counts.skipped, full=one.writer.full)
        n_sources = [one.writer.n_sources for one in opened]
        facts = hasher.finish(max((n for n in n_sources if n is not None), default=None))
        for one in opened:
            one.writer.finish((len(sources), 0))
        _tell(opened, supply)
        return facts


def _known(opened: Sequence[OpenJob], sources: Sequence[Source]) -> dict[int, InputFacts]:
    """Sources whose hashes need no reading: from the content's name, or from an earlier run."""
    pins = {i: s.pin for i, s in enumerate(sources) if s.pin is not None and s.pin.startswith(_SHA256)}
    known = {i: InputFacts(sources[i].n_bytes or 0, pin.removeprefix(_SHA256)) for i, pin in pins.items()}
    for one in opened:
        known |= one.known
    return known


def _take(opened: Sequence[OpenJob], blocks: Sequence[EncodedBlock | None]) -> Position | None:
    """Hand a block to every data set that is not past it or full; where the block ends."""
    end = None
    for one, block in zip(opened, blocks, strict=True):
        if block is not None:
            end = block.end
            if not one.writer.full:
                one.writer.add(block)
    return end


def _read(opened: Sequence[OpenJob], supply: Supply | None, on_raw: Callable[[int, bytes], None]) -> Iterator[RawBlock]:
    """Blocks from the earliest position on, with a border at each of the others.

    Only what is read after the last border is told to `on_raw`: there every file is read in one go.
    """
    job = opened[0].job
    read = functools.partial(
        read_blocks,
        job.origin.sources,
        job.reading(),
        block_bytes=job.options.block_bytes,
        on_source=None if supply is None else supply.need,
        workers=job.options.workers or available_cpus(),
    )
    starts = sorted({one.position for one in opened})
    for start, stop in pairwise(starts):
        yield from read(start=start, stop=stop)
    yield from read(start=starts[-1], on_raw=on_raw)


def _report(
    opened: Sequence[OpenJob],
    place: InputProgress,
    end: Position | None,
    supply: Supply | None,
    progress: ProgressSink | None,
) -> None:
    if progress is not None and end is not None:
        counts = opened[0].writer.counts
        progress.update(place.bytes_done(end), sum(counts.documents), sum(counts.tokens))
    _tell(opened, supply)


def _tell(opened: Sequence[OpenJob], supply: Supply | None) -> None:
    if supply is not None:
        supply.passed(min(one.writer.durable[0] for one in opened))
