"""Bytes of a built data set: what its ids stand for, and what the build recorded of its source text."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.bpb.golf import GolfTable, byte_tables
from tokenriver.bpb.tables import TextTable
from tokenriver.errors import FormatError, IntegrityError, UsageError
from tokenriver.shards.discover import find_data
from tokenriver.shards.layouts import parse_shard_name
from tokenriver.shards.reader import open_shard, read_header
from tokenriver.storage.paths import to_path

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from tokenriver.shards.record import BuildRecord
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["ByteCounts", "SplitBytes", "TokenSet", "count_bytes", "open_token_set", "split_bytes"]

_STEP = 1 << 22


@dataclass(frozen=True, slots=True)
class SplitBytes:
    """Bytes of a split: `source`, of its documents as they were read, and `ids`, what its tokens stand for.

    Where the border between the splits cuts a document (llm.c's layout) they are those of both splits together.
    """

    source: int
    ids: int

    @property
    def ratio(self) -> float:
        """Source bytes for each byte by ids; 1 for a tokenizer that loses nothing."""
        return self.source / self.ids if self.ids else 1.0


@dataclass(frozen=True, slots=True)
class TokenSet:
    """The shards of one data set by split, in order, and the separator between its documents.

    `joined`: train goes on where val ends, in the middle of a document (llm.c's layout: one stream, cut into files).
    """

    directory: Path
    splits: dict[str, list[Path]]
    separator_id: int | None
    separator_position: str
    joined: bool
    record: BuildRecord | None
    tokenizer_sha256: str | None

    def chunks(self, split: str) -> Iterator[NDArray[np.int64]]:
        """The ids of a split in order, int64, some millions at a time."""
        for path in self.splits[split]:
            ids = open_shard(path).ids
            for start in range(0, len(ids), _STEP):
                yield ids[start : start + _STEP].astype(np.int64)

    def before(self, split: str) -> int | None:
        """The id before a split's first one: the last of val where train goes on in it, else None."""
        if not self.joined or split != "train" or not self.splits["val"]:
            return None
        last = open_shard(self.splits["val"][-1], check=False).ids[-1:].tolist()
        return last[0] if last else None

    def counted_with(self, split: str) -> list[str]:
        """The splits whose source bytes only mean something together: both where a document may lie in both."""
        return [side for side in ("val", "train") if self.splits[side]] if self.joined else [split]

    def n_tokens(self, split: str) -> int:
        """Ids of a split, from the headers."""
        return sum(read_header(path).n_tokens for path in self.splits[split])


@dataclass(frozen=True, slots=True)
class ByteCounts:
    """What the ids of a split add up to. `golf_bytes` counts the targets: all ids but the first."""

    tokens: int = 0
    text_tokens: int = 0
    separators: int = 0
    unknown: int = 0
    text_bytes: int = 0
    golf_bytes: int = 0


def open_token_set(path: str | os.PathLike[str], tokenizer: Tokenizer) -> TokenSet:
    """The one data set at a path: a folder with a manifest or build record, or with shards alone.

    Shards without a record (a published Parameter Golf export) are taken by their names; their separator is the first
    id of the data set where that is a special id of the tokenizer. Raises IntegrityError for an unfinished or damaged
    data set, UsageError for several at once or none.
    """
    path = to_path(path)
    found = find_data([path])
    if found.findings:
        raise IntegrityError(f"{found.findings[0].path}: {found.findings[0].problem}")
    if len(found.data_sets) == 1:
        one = found.data_sets[0]
        rule = str(one.record.options.get("split", "")) if one.record else ""
        joined = rule.startswith(("first-shard", "first-tokens"))
        splits = {split: [one.directory / f.name for f in one.files if f.split == split] for split in ("val", "train")}
        sha256 = one.manifest.tokenizer_sha256 if one.manifest else one.record.tokenizer.sha256 if one.record else None
        return TokenSet(one.directory, splits, one.separator_id, one.separator_position, joined, one.record, sha256)
    if found.data_sets or not found.loose:
        what = f"{len(found.data_sets)} data sets" if found.data_sets else "no data set"
        raise UsageError(f"{path}: {what} here; give the folder of one")
    return _from_names(path, found.loose, tokenizer)


def _from_names(path: Path, shards: list[Path], tokenizer: Tokenizer) -> TokenSet:
    splits: dict[str, list[Path]] = {"val": [], "train": []}
    names: set[tuple[Path, str]] = set()
    first_train: int | None = None
    for shard in sorted(shards, key=str):
        name = parse_shard_name(shard.name)
        if name is None:
            raise UsageError(f"{shard}: its name does not say which split it belongs to")
        names.add((shard.parent, name.dataset))
        if name.split == "train" and first_train is None:
            first_train = name.index
        splits[name.split].append(shard)
    if len(names) != 1:
        raise UsageError(f"{path}: shards of {len(names)} data sets here; give the folder of one")
    first = open_shard(next(iter(splits["val"] + splits["train"]))).ids[:1].tolist()
    separator = first[0] if first and first[0] in tokenizer.special_ids else None
    return TokenSet(shards[0].parent, splits, separator, "before", first_train == 1, None, None)


def count_bytes(
    token_set: TokenSet,
    split: str,
    text: TextTable,
    golf: GolfTable,
    *,
    unknown: frozenset[int] = frozenset(),
    targets: int | None = None,
    previous: int | None = None,
) -> ByteCounts:
    """Add up the ids of a split; with `targets` only the first id and that many after it.

    `previous`: the id before the split's first one; None where a document begins there. FormatError for an id that
    the tokenizer does not have.
    """
    counts = ByteCounts()
    left = None if targets is None else targets + 1
    for chunk in token_set.chunks(split):
        ids = chunk if left is None else chunk[:left]
        if not len(ids):
            break
        if int(ids.max()) >= len(text.n_bytes):
            raise FormatError(
                f"{token_set.directory}: id {int(ids.max())} in {split} is outside the tokenizer's "
                f"{len(text.n_bytes):,} ids; is it the tokenizer of this data set?"
            )
        before = np.concatenate([[ids[0] if previous is None else previous], ids[:-1]])
        by_id = text.target_bytes(ids, before)
        by_golf = golf.target_bytes(ids, before)
        if counts.tokens == 0:
            by_golf[0] = 0  # no target: nothing predicts it
            if previous is None:
                by_id[0] = text.n_bytes[ids[0]] - text.has_prefix[ids[0]]
        counts = ByteCounts(
            counts.tokens + len(ids),
            counts.text_tokens + int(text.is_text[ids].sum()),
            counts.separators + int((ids == token_set.separator_id).sum()),
            counts.unknown + (int(np.isin(ids, list(unknown)).sum()) if unknown else 0),
            counts.text_bytes + int(by_id.sum()),
            counts.golf_bytes + int(by_golf.sum()),
        )
        previous = int(ids[-1])
        left = None if left is None else left - len(ids)
    return counts


def split_bytes(dataset: str | os.PathLike[str], tokenizer: Tokenizer, split: str = "val") -> SplitBytes:
    """The bytes of a split's source text, as its build recorded them, and those that its ids stand for.

    Reads the split once (llm.c's layout: both). UsageError where there is no build record (or none for that split).
    """
    token_set = open_token_set(dataset, tokenizer)
    sides = token_set.counted_with(split)
    if token_set.record is None or not {split, *sides} <= set(token_set.record.splits):
        raise UsageError(f"{dataset}: no build record says how many bytes of text {split} has")
    table, golf = TextTable.of(tokenizer, separator_id=token_set.separator_id), byte_tables(tokenizer)
    counts = [count_bytes(token_set, side, table, golf, previous=token_set.before(side)) for side in sides]
    source = sum(token_set.record.splits[side].text_bytes for side in sides)
    return SplitBytes(source, sum(one.text_bytes for one in counts))
