"""JSON files that are one array of records: read in one piece, so that their records can be put in another order."""

from __future__ import annotations

import functools
import random
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tokenriver.batches import TextBatch
from tokenriver.corpus.blocks import BOM, DocumentBlock, Segment, Verdict, id_text
from tokenriver.corpus.streams import read_chunks
from tokenriver.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from tokenriver.corpus.sources import Source, SourceOptions

__all__ = ["cut_array", "parse_array"]


def cut_array(source: Source, index: int, *, start: int, on_raw: Callable[[bytes], None] | None) -> Iterator[Segment]:
    """The whole file as one segment; nothing from any other offset than 0."""
    if start:
        return
    data = b"".join(read_chunks(source, on_raw=on_raw))
    yield Segment(index, source, 0, len(data), data)


@functools.lru_cache(maxsize=16)
def _decoder(text_field: str) -> msgspec.json.Decoder[Any]:
    """A decoder of an array of records of which only the text is kept."""
    record = msgspec.defstruct("Record", [("text", str)], rename={"text": text_field})
    return msgspec.json.Decoder(list[record])  # type: ignore[valid-type]


def parse_array(segment: Segment, options: SourceOptions) -> DocumentBlock:
    """Documents of one file, empty texts included, in the order that the source's `shuffle_seed` asks for.

    Raises CorpusError for a file that is no JSON array, and for its first bad record unless they are skipped. The
    order is drawn over all records, the bad ones too.
    """
    verdict = Verdict(options)
    payload = bytes(segment.payload).removeprefix(BOM)
    if options.split_field or options.id_field:
        values = _records(payload, segment)
        texts = _texts(values, segment, options.text_field, verdict)
    else:
        try:
            texts = [record.text for record in _decoder(options.text_field).decode(payload)]
            values = []
        except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError):
            values = _records(payload, segment)
            texts = _texts(values, segment, options.text_field, verdict)
    order = list(range(len(texts)))
    if segment.source.shuffle_seed is not None:
        random.Random(segment.source.shuffle_seed).shuffle(order)
    order = [k for k in order if texts[k] is not None]
    sides = (
        [verdict.split(values[k].get(options.split_field), segment, k, options.split_field) for k in order]
        if options.split_field
        else None
    )
    return DocumentBlock(
        TextBatch.from_texts([texts[k] for k in order]),  # type: ignore[misc]
        None if sides is None else np.array(sides, np.uint8),
        [id_text(values[k].get(options.id_field)) for k in order] if options.id_field else None,
        np.full(len(order), segment.source_index, np.int32),
        np.array(order, np.int64),
        verdict.skipped,
    )


def _records(payload: bytes, segment: Segment) -> list[Any]:
    try:
        values = msgspec.json.decode(payload)
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise CorpusError(f"{segment.source}: not one JSON array of records ({error})") from error
    if not isinstance(values, list):
        raise CorpusError(f"{segment.source}: not one JSON array of records, but {type(values).__name__}")
    return values


def _texts(values: list[Any], segment: Segment, field: str, verdict: Verdict) -> list[str | None]:
    """The texts of records, None for each that is bad where bad ones are skipped."""
    return [verdict.text(one, segment, k, field, kind_of=lambda v: type(v).__name__) for k, one in enumerate(values)]
