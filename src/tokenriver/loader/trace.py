"""Which shard, tokens and documents a batch was made of: what to look at when the loss jumps at a step."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.errors import UsageError
from tokenriver.loader.documents import indexed_ends
from tokenriver.loader.plan import Plan
from tokenriver.loader.segments import Segments
from tokenriver.shards.index import Separator

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from tokenriver.loader.rows import Span
    from tokenriver.loader.train import TrainLoader

__all__ = ["DocumentPart", "RowTrace", "Separator", "trace_step"]

_STEP = 1 << 22
"""Ids read at a time while separators are counted."""


@dataclass(frozen=True, slots=True)
class DocumentPart:
    """Tokens [start, stop) of a shard that belong to one document.

    `document` counts the documents that begin in the shard (with a separator after: that end in it) from 0; −1 is
    one that began in an earlier shard, None where documents are not known. `begins` says that its first token is among
    these.
    """

    shard: Path
    start: int
    stop: int
    document: int | None
    begins: bool
    ids: NDArray[Any]


@dataclass(frozen=True, slots=True)
class RowTrace:
    """A row of a global batch: its rank and row there, its sequence number, and tokens [start, stop) of the split.

    These are T + 1 tokens: T inputs and the last target. A packed row's `parts` are its pieces in order, and `start`
    is its first token in the stream; `sequence` then counts the epoch's rows in their order.
    """

    rank: int
    row: int
    sequence: int
    start: int
    stop: int
    parts: tuple[DocumentPart, ...]


def trace_step(
    loader: TrainLoader, step: int, *, epoch: int = 0, rank: int | None = None, separator: Separator | None = None
) -> list[RowTrace]:
    """The rows of the global batch `step` steps after the start of `epoch`, of all ranks or one, in rank order.

    Without a `separator` the one of the loader's manifest is used, with none the shards' document indexes; where there
    are none either, a row is one part per shard. Reads the touched shards once from their start, to number the
    documents by separators. Raises UsageError for a step or rank out of range.
    """
    plan = loader.plan
    epoch, step = loader.settle(epoch, step)
    if rank is not None and not 0 <= rank < plan.world_size:
        raise UsageError(f"rank is in [0, {plan.world_size}), not {rank}")
    if separator is None and loader.data.separator_id is not None:
        after = loader.data.separator_position == "after"
        separator = Separator(loader.data.separator_id, "after" if after else "before")
    length = plan.seq_len + 1
    rows = []
    for r in range(plan.world_size) if rank is None else [rank]:
        taken = plan.for_rank(r).take(epoch, step)
        if isinstance(taken, Segments):
            rows += [(r, row, start, spans) for row, start, spans in _packed_rows(loader, taken)]
        else:
            rows += [
                (r, row, start, loader.reader.spans(start, start + length)) for row, start in enumerate(taken.tolist())
            ]
    touched = [span for *_, spans in rows for span in spans]
    counts = _separators_before(loader, touched, separator)
    ends = {} if separator is not None else {s.path: indexed_ends(s) for s in {span.shard for span in touched}}
    first = step * plan.global_batch_size
    return [
        RowTrace(
            r,
            row,
            start // plan.seq_len if isinstance(plan, Plan) else first + r * plan.batch_size + row,
            start,
            start + length if isinstance(plan, Plan) else start + sum(span.stop - span.start for span in spans),
            tuple(part for span in spans for part in _documents(loader, span, counts, separator, ends)),
        )
        for r, row, start, spans in rows
    ]


def _packed_rows(loader: TrainLoader, rows: Segments) -> Iterator[tuple[int, int, list[Span]]]:
    """(row, first token, spans) of packed rows: every piece is spans of its own."""
    bounds = np.searchsorted(rows.row, np.arange(rows.n_rows + 1)).tolist()
    for row, (a, b) in enumerate(pairwise(bounds)):
        starts, sizes = rows.start[a:b].tolist(), rows.size[a:b].tolist()
        spans = [
            span for start, size in zip(starts, sizes, strict=True) for span in loader.reader.spans(start, start + size)
        ]
        yield row, starts[0], spans


def _separators_before(
    loader: TrainLoader, spans: list[Span], separator: Separator | None
) -> dict[tuple[Path, int], int]:
    """(shard, position) → separators before that position in the shard, for the start of every span."""
    if separator is None:
        return {}
    wanted: dict[Path, set[int]] = {}
    for span in spans:
        wanted.setdefault(span.shard.path, set()).add(span.start)
    found = {}
    for index, shard in enumerate(loader.reader.shards):
        first, seen, at = int(loader.reader.bounds[index]), 0, 0
        for position in sorted(wanted.get(shard.path, ())):
            while at < position:
                ids = np.empty(min(_STEP, position - at), loader.reader.dtype)
                loader.reader.read(first + at, ids)
                seen += int(np.count_nonzero(ids == separator.id))
                at += len(ids)
            found[shard.path, position] = seen
    return found


def _documents(
    loader: TrainLoader,
    span: Span,
    counts: dict[tuple[Path, int], int],
    separator: Separator | None,
    indexed: dict[Path, NDArray[np.int64] | None],
) -> list[DocumentPart]:
    """A span cut at its documents' borders."""
    first = int(loader.reader.bounds[loader.reader.shards.index(span.shard)])
    ids = np.empty(span.stop - span.start, loader.reader.dtype)
    loader.reader.read(first + span.start, ids)
    path = span.shard.path
    if separator is None:
        return _indexed_documents(span, ids, indexed[path])
    before = separator.position == "before"
    cuts = np.flatnonzero(ids == separator.id) + (0 if before else 1)
    seen = counts[path, span.start]
    borders = sorted({0, len(ids), *cuts.tolist()})
    number = seen - 1 if before else seen
    parts = []
    for k, (a, b) in enumerate(pairwise(borders)):
        begins = a in cuts or (not before and not a and _opens(loader, first + span.start, separator))
        if before:
            number += begins
        elif k:
            number += 1
        parts.append(DocumentPart(path, span.start + a, span.start + b, number, bool(begins), ids[a:b]))
    return parts


def _opens(loader: TrainLoader, at: int, separator: Separator) -> bool:
    """Whether a document begins at a token of the stream, which separators behind documents show one token before."""
    previous = np.empty(min(at, 1), loader.reader.dtype)
    loader.reader.read(at - len(previous), previous)
    return all(previous == separator.id)


def _indexed_documents(span: Span, ids: NDArray[Any], ends: NDArray[np.int64] | None) -> list[DocumentPart]:
    """A span cut at the ends of a shard's documents by its index; in one piece without one."""
    path = span.shard.path
    if ends is None:
        return [DocumentPart(path, span.start, span.stop, None, False, ids)]
    starts = np.concatenate([ends[:0], [0], ends[:-1]])
    cuts = starts[(starts > span.start) & (starts < span.stop)]
    parts = []
    for a, b in pairwise([span.start, *np.unique(cuts).tolist(), span.stop]):
        number = int(np.searchsorted(starts, a, "right")) - 1
        begins = bool(starts[number] == a)
        parts.append(DocumentPart(path, a, b, number, begins, ids[a - span.start : b - span.start]))
    return parts
