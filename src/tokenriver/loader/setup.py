"""From what a TrainLoader is given to its data and its plan: one data set or a mixture, packed or not."""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.errors import UsageError
from tokenriver.loader.arguments import flag, shown
from tokenriver.loader.dealt import DealtPlan
from tokenriver.loader.documents import DocumentFinder
from tokenriver.loader.mixture import Mixture
from tokenriver.loader.mixture_rows import MixtureRows, OffsetRows
from tokenriver.loader.packed import WINDOW, PackedRows
from tokenriver.loader.packing import PACKINGS
from tokenriver.loader.plan import Plan, check_shape
from tokenriver.loader.source import ShardSource, resolve

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tokenriver.cache.settings import CacheSettings
    from tokenriver.loader.dealt import RowSource
    from tokenriver.loader.order import Order
    from tokenriver.loader.packing import Packing
    from tokenriver.loader.source import Source

__all__ = ["Packer", "Setup", "set_up"]


_MOST_ROWS = 1 << 22
"""Rows of a step: with the most steps of a run (2^40) their number still fits into 62 bits."""

_MOST_INPUTS = (1 << 31) - 1
"""Inputs of a rank's batch whose documents are marked: cu_seqlens are int32."""


@dataclass(frozen=True, slots=True)
class Packer:
    """How rows are made of documents, and which marks a batch carries."""

    packing: Packing = "concat"
    cu_seqlens: bool | int | None = None
    max_doc_len: int | None = None
    window: int | None = None

    def __post_init__(self) -> None:
        if self.packing not in PACKINGS:
            raise UsageError(f"packing is one of {', '.join(PACKINGS)}, not {shown(self.packing)}")
        if self.packing == "concat" and (self.max_doc_len is not None or self.window is not None):
            raise UsageError("max_doc_len and window belong to packing='bos-aligned' and 'best-fit'")
        if self.max_doc_len is not None and (self.packing != "bos-aligned" or not 1 <= self.max_doc_len < 2**63):
            raise UsageError(f"max_doc_len is for packing='bos-aligned' and at least 1, not {self.max_doc_len}")
        if not isinstance(self.cu_seqlens, bool | None) and not 2 <= self.cu_seqlens <= _MOST_INPUTS:
            raise UsageError(f"cu_seqlens is True, False or a length of 2 to {_MOST_INPUTS:,}, not {self.cu_seqlens}")

    @property
    def marks(self) -> bool:
        """Whether batches carry cu_seqlens and position ids: by default where documents are packed."""
        return self.packing != "concat" if self.cu_seqlens is None else bool(self.cu_seqlens)

    @property
    def fixed_length(self) -> int | None:
        """The fixed number of cu_seqlens, None where each batch has as many as it needs."""
        return None if isinstance(self.cu_seqlens, bool | None) else self.cu_seqlens


@dataclass(slots=True)
class Setup:
    """A loader's data, plan, and what knows its documents."""

    data: ShardSource
    plan: Plan | DealtPlan
    packer: Packer
    packed: list[PackedRows] = field(default_factory=list)
    mixture: MixtureRows | None = None
    parts: dict[str, ShardSource] = field(default_factory=dict)
    finders: list[tuple[DocumentFinder, int]] = field(default_factory=list)

    def starts(self) -> NDArray[np.int64]:
        """Where documents begin in the joined stream, int64; waits for them where they are still looked for."""
        if not self.finders:  # separators behind the documents mark rows by themselves
            self.finders.append((DocumentFinder(self.data), 0))
        return np.concatenate([finder.get().starts[:-1] + base for finder, base in self.finders])

    def fragments(self) -> set[int]:
        """First tokens of documents that begin outside their split, so without a separator."""
        return {base for finder, base in self.finders if finder.get().fragment}


def set_up(
    source: Source | Mixture,
    *,
    packer: Packer,
    split: str,
    separator: int | None,
    seq_len: int,
    batch_size: int,
    world_size: int,
    rank: int,
    order: Order,
    seed: int,
    drop_last: bool,
    cache: Callable[[], CacheSettings] | None = None,
) -> Setup:
    """Resolve the source and make the plan. Raises what TrainLoader says."""
    drop_last = flag("drop_last", drop_last)
    _check_packing(packer, order, isinstance(source, Mixture), batch_size, seq_len)
    shape: dict[str, Any] = {"seq_len": seq_len, "order": order, "seed": seed}
    deal: dict[str, Any] = {**shape, "batch_size": batch_size, "world_size": world_size, "rank": rank}
    if not isinstance(source, Mixture):
        data = _with_separator(resolve(source, split=split, cache=cache), separator)
        if packer.packing == "concat":
            plan = Plan(n_tokens=data.n_tokens, drop_last=drop_last, split=split, **deal)
            finders = [(DocumentFinder(data), 0)] if packer.marks and data.separator_id is None else []
            return Setup(data, plan, packer, finders=finders)
    _check_rows(batch_size, world_size)
    parts = (
        {name: _part(name, s.path, separator, split=split, cache=cache) for name, s in source.sources.items()}
        if isinstance(source, Mixture)
        else {"": data}
    )
    joined = _join(parts, split)
    rows: list[RowSource] = []
    setup = Setup(joined, None, packer, parts=parts)  # type: ignore[arg-type]
    base = 0
    for name, part in parts.items():
        needed = seq_len + 1 if packer.packing == "concat" else 2
        if isinstance(source, Mixture) and part.n_tokens < needed:
            raise UsageError(
                f"source {name} has too little data for one row: {part.n_tokens:,} tokens, {needed:,} are needed; "
                "leave it out, or give more"
            )
        rows.append(_rows_of(setup, part, base, split=split, **shape))
        base += part.n_tokens
    row_source = rows[0]
    if isinstance(source, Mixture):
        setup.mixture = row_source = MixtureRows(source, rows, global_batch_size=max(1, batch_size * world_size))
    setup.plan = DealtPlan(source=row_source, n_tokens=joined.n_tokens, drop_last=drop_last, split=split, **deal)
    check_shape(setup.plan)
    if all(finder.ready for finder, _ in setup.finders):
        setup.plan.steps(0)
    return setup


def _check_packing(packer: Packer, order: Order, mixed: bool, batch_size: int, seq_len: int) -> None:
    """UsageError for an order that rows of documents do not have, and for more inputs than they can be marked in."""
    if order == "block-shuffled" and (mixed or packer.packing != "concat"):
        what = "a mixture" if mixed else f"packing={packer.packing!r}"
        raise UsageError(f"order='block-shuffled' is for the flat stream of one data set; {what} takes 'shuffled'")
    if (packer.marks or packer.packing != "concat") and batch_size * seq_len > _MOST_INPUTS:
        raise UsageError(
            f"a batch of {batch_size:,} rows x {seq_len:,} targets is more than the {_MOST_INPUTS:,} inputs in which "
            "documents can be marked (cu_seqlens are int32); take fewer rows, or shorter ones"
        )


def _rows_of(
    setup: Setup, part: ShardSource, base: int, *, split: str, seq_len: int, order: Order, seed: int
) -> RowSource:
    """The rows of one source, which begins at token `base` of all; the setup is told where its documents are found."""
    packer = setup.packer
    if packer.packing != "concat":
        finder = DocumentFinder(part)
        setup.finders.append((finder, base))
        packed = PackedRows(
            finder,
            packing=packer.packing,
            max_doc_len=packer.max_doc_len,
            window=WINDOW if packer.window is None else packer.window,
            base=base,
            seq_len=seq_len,
            order=order,
            seed=seed,
        )
        setup.packed.append(packed)
        return packed
    if packer.marks and part.separator_id is None:
        setup.finders.append((DocumentFinder(part), base))
    deal: dict[str, Any] = {"seq_len": seq_len, "order": order, "seed": seed, "batch_size": 1, "world_size": 1}
    return OffsetRows(Plan(n_tokens=part.n_tokens, drop_last=True, split=split, rank=0, **deal), base)


def _check_rows(batch_size: int, world_size: int) -> None:
    if batch_size * world_size > _MOST_ROWS:
        raise UsageError(
            f"a step of {batch_size * world_size:,} rows ({world_size:,} ranks x {batch_size:,}) is more than the "
            f"{_MOST_ROWS:,} that can be counted over a run"
        )


def _part(
    name: str, path: Source, separator: int | None, *, split: str, cache: Callable[[], CacheSettings] | None
) -> ShardSource:
    """The data of a mixture's source; an error in how it is named says which source that is."""
    try:
        return _with_separator(resolve(path, split=split, cache=cache), separator)
    except UsageError as error:
        raise UsageError(f"source {name}: {error}") from None


def _with_separator(data: ShardSource, separator: int | None) -> ShardSource:
    """The data with the separator that the user gave, which must not contradict what is recorded, nor be no id."""
    if separator is None or data.separator_id == separator:
        return data
    limit = max((s.header.vocab_size or 1 << 8 * s.header.dtype.itemsize for s in data.shards), default=1)
    if not 0 <= separator < limit:
        raise UsageError(f"separator={separator} is no id of these shards, which hold ids below {limit:,}")
    if data.separator_id is not None:
        raise UsageError(f"separator={separator}, but {data.manifest} says {data.separator_id}")
    return replace(data, separator_id=separator)


def _separator_words(part: ShardSource) -> str | None:
    return None if part.separator_id is None else f"{part.separator_id} ({part.separator_position} each document)"


def _join(parts: dict[str, ShardSource], split: str) -> ShardSource:
    """All shards in one stream. Raises UsageError for two data sets that no one model could read."""
    sources = list(parts.items())
    first_name, first = sources[0]
    if len(sources) == 1:
        return first
    for name, part in sources[1:]:
        for what, mine, other in (
            ("tokenizer", first.tokenizer, part.tokenizer),
            ("separator", _separator_words(first), _separator_words(part)),
        ):
            known = mine is not None and other is not None
            if (known and mine != other) or (what == "separator" and mine != other):
                raise UsageError(
                    f"{first_name} and {name} cannot be mixed: their {what}s are {mine} and {other}; build both with "
                    "the same tokenizer"
                )
    return ShardSource(
        split,
        tuple(shard for _, part in sources for shard in part.shards),
        tokenizer=first.tokenizer,
        separator_id=first.separator_id,
        separator_position=first.separator_position,
    )
