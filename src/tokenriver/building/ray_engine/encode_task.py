"""A task that turns one range of the inputs into a segment, with the reader and the encoder of the local engine."""

from __future__ import annotations

import socket
import sys
from collections import Counter
from contextlib import closing, suppress
from dataclasses import dataclass
from typing import TYPE_CHECKING

import msgspec

from tokenriver.building.assemble import BlockEncoder, encode_block
from tokenriver.building.pipeline import read_ahead
from tokenriver.building.ray_engine.segments import Chunk, SegmentWriter
from tokenriver.cluster.shared import require_probe
from tokenriver.corpus.blocks import Position
from tokenriver.corpus.inputs import InputFacts  # noqa: TC001 - msgspec reads the annotations
from tokenriver.corpus.range_reader import RangeReader, hash_parts
from tokenriver.corpus.unchanged import require_unchanged
from tokenriver.errors import TokenizerError, TokenRiverError
from tokenriver.shards.header import dtype_of
from tokenriver.tokenizers.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction
    from pathlib import Path

    from tokenriver.building.records import Separator
    from tokenriver.corpus.ranges import Range
    from tokenriver.corpus.sources import Source, SourceOptions
    from tokenriver.shards.header import Variant
    from tokenriver.tokenizers.base import Backend, Tokenizer

__all__ = ["EncodeJob", "SegmentFacts", "TokenizerWord", "encode_range", "hash_file", "load_ahead"]


@dataclass(frozen=True, slots=True)
class TokenizerWord:
    """How a task gets the tokenizer: by the word that named it, or as it is where it can be sent."""

    word: str
    backend: Backend
    separator: str | int | None
    sha256: str
    itself: Tokenizer | None = None


@dataclass(frozen=True, slots=True)
class EncodeJob:
    """What all encoding tasks of a build have in common; `two_streams`: each document's split is known to them."""

    folder: Path
    probe: str
    tokenizer: TokenizerWord
    reading: SourceOptions
    variant: Variant
    separator: Separator
    hash_fraction: Fraction | None
    two_streams: bool
    verify_sample: int
    expected_bytes: int
    block_bytes: int


class SegmentFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What an encoding task tells: its chunks, what was counted, the files that it read whole (by their index), the
    CRC-32 of what it read of a file that it did not, and its own files' sizes in bytes.
    """

    chunks: list[Chunk]
    sizes: dict[str, int]
    skipped: dict[str, int]
    reference_documents: int
    special_texts: int
    sampled: int
    lossy_samples: int
    inputs: dict[int, InputFacts]
    crc: int | None


def encode_range(
    job: EncodeJob, number: int, part: Range, sources: Sequence[Source], modified: Sequence[int]
) -> tuple[SegmentFacts, TokenRiverError | None]:
    """Write the segment of a range; `sources` and `modified` (ns) are of the files that it lies in.

    What stopped it, if anything did, comes back beside the facts of what stands before it.
    """
    require_probe(job.folder, job.probe)
    tokenizer = _tokenizer(job.tokenizer)
    encoder = BlockEncoder(
        tokenizer,
        sources,
        dtype=dtype_of(job.variant),
        separator=job.separator,
        hash_fraction=job.hash_fraction,
        verify_sample=job.verify_sample,
        expected_bytes=job.expected_bytes,
    )
    reader = RangeReader(sources, part, job.reading, job.block_bytes)
    writer = SegmentWriter(job.folder, number, part.sources[0], two_streams=job.two_streams)
    counts: Counter[str] = Counter()
    skipped: Counter[str] = Counter()
    error: TokenRiverError | None = None
    try:
        with closing(read_ahead(reader.blocks(), depth=1)) as raws:
            try:
                for raw in raws:
                    block = encode_block([(Position(0, 0), encoder)], job.reading, raw)[0]
                    assert block is not None, "nothing is before the first position"
                    del raw
                    writer.add(block)
                    skipped.update(block.skipped)
                    for name in _COUNTED:
                        counts[name] += getattr(block, name)
            except TokenRiverError as met:
                error = met
        require_unchanged(sources, modified)
        sizes = writer.publish()
    except BaseException:
        writer.discard()
        raise
    facts = SegmentFacts(
        chunks=writer.chunks,
        sizes=sizes,
        skipped=dict(skipped),
        **{name: counts[name] for name in _COUNTED},
        inputs=reader.facts,
        crc=reader.crc,
    )
    return facts, error


_COUNTED = ("reference_documents", "special_texts", "sampled", "lossy_samples")


def hash_file(
    folder: Path, probe: str, source: Source, modified: int, options: SourceOptions, marks: Sequence[int]
) -> tuple[InputFacts, list[int]]:
    """Size and SHA-256 of a file that is encoded in parts, and the CRC-32 of each part."""
    require_probe(folder, probe)
    facts = hash_parts(source, options, marks)
    require_unchanged([source], [modified])
    return facts


_loaded: dict[tuple[str, Backend, str | int | None], Tokenizer] = {}
"""The tokenizer that this worker has loaded, for the next task: loading takes as long as encoding 30 MB."""


def load_ahead(word: str, backend: Backend, separator: str | int | None) -> None:
    """Load a tokenizer, and use it once, for the tasks to come; no thread is begun. What goes wrong is told by the
    driver, or by the task that needs it.
    """
    with suppress(TokenRiverError, OSError):
        tokenizer = _load(word, backend, separator)
        if "gigatoken" in sys.modules:
            import awkward  # noqa: F401 - what gigatoken gives its arrays in: 0.2 s
        tokenizer.encode_batch(["ready"], parallel=False)


def _load(word: str, backend: Backend, separator: str | int | None) -> Tokenizer:
    key = word, backend, separator
    if key not in _loaded:
        _loaded.clear()
        _loaded[key] = load_tokenizer(word, backend=backend, separator=separator)
    return _loaded[key]


def _tokenizer(wanted: TokenizerWord) -> Tokenizer:
    if wanted.itself is not None:
        return wanted.itself
    tokenizer = _load(wanted.word, wanted.backend, wanted.separator)
    if tokenizer.sha256 != wanted.sha256:  # or the file has become another since
        _loaded.clear()
        tokenizer = _load(wanted.word, wanted.backend, wanted.separator)
    if tokenizer.sha256 != wanted.sha256:
        raise TokenizerError(
            f"{wanted.word}: on node {socket.gethostname()} its SHA-256 is {tokenizer.sha256}, where the build "
            f"began {wanted.sha256}; give a path that is the same file on every node"
        )
    return tokenizer
