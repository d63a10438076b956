"""Read a data set's documents again and compare them, id for id, with what its shards hold."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.corpus.blocks import counts_to_record
from tokenriver.corpus.documents import SourceOptions, find_sources, parse_block, peek_fields, read_blocks
from tokenriver.corpus.progress import InputProgress, expect_bytes
from tokenriver.corpus.sources import split_by_file
from tokenriver.corpus.splits import SPLITS, SplitRule, hash_split
from tokenriver.errors import UsageError, advising_only

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tokenriver.bpb.source import TokenSet
    from tokenriver.corpus.blocks import DocumentBlock
    from tokenriver.corpus.progress import ProgressSink
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["DocumentCheck", "check_documents"]

_READING = ("document_separator", "keep_document_separator", "document_start", "json_arrays", "strip")
"""Options of a build record that say how documents were read, where they are not the usual."""


@dataclass(slots=True)
class DocumentCheck:
    """Documents and bytes found in the sources, by split, and the first difference (None: every id is the same).

    A document that two splits share (a cut inside it) counts where it begins; `shared` is then true.
    """

    documents: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    source_bytes: dict[str, int] = field(default_factory=lambda: dict.fromkeys(SPLITS, 0))
    difference: str | None = None
    shared: bool = False


class _Stream:
    """The ids of one or more splits as one stream, taken piece by piece."""

    def __init__(self, token_set: TokenSet, splits: Sequence[str]) -> None:
        self._chunks = ((split, chunk) for split in splits for chunk in token_set.chunks(split))
        self._split = splits[0]
        self._rest: NDArray[np.int64] = np.zeros(0, np.int64)
        self.at = 0

    def where(self) -> str:
        """The split that the next id belongs to."""
        self._fill()
        return self._split

    def take(self, n: int) -> tuple[NDArray[np.int64], bool]:
        """The next n ids (fewer at the end), and whether they go over the border of two splits."""
        parts = []
        begin = self.where()
        while n and self._fill():
            parts.append(self._rest[:n])
            self._rest = self._rest[len(parts[-1]) :]
            n -= len(parts[-1])
            self.at += len(parts[-1])
        return np.concatenate([np.zeros(0, np.int64), *parts]), self._split != begin

    def _fill(self) -> bool:
        while not len(self._rest):
            following = next(self._chunks, None)
            if following is None:
                return False
            if following[0] != self._split:
                self.at = 0
            self._split, self._rest = following
        return True


@advising_only()
def check_documents(
    token_set: TokenSet,
    inputs: Sequence[str | os.PathLike[str]],
    tokenizer: Tokenizer,
    *,
    progress: ProgressSink | None = None,
) -> DocumentCheck:
    """Encode the documents of `inputs` and walk through the shards with them; stops at the first difference.

    Which split a document belongs to follows from the build record's options (hash, column); in all other cases val
    comes first and train goes on after it (Parameter Golf, llm.c). UsageError where that is not known.
    """
    options = token_set.record.options if token_set.record else {}
    sources = find_sources(inputs, SourceOptions(json_arrays=options.get("json_arrays", False)))
    rule = _rule(token_set, options, peek_fields(sources))
    source_options = SourceOptions(
        text_field=options.get("text_field", "text"),
        split_field=rule.column if rule is not None and rule.kind == "column" else None,
        on_bad_record="skip" if _left_out_bad_ones(token_set) else "error",
        keep_empty=options.get("keep_empty", token_set.record is None),
        **{name: options[name] for name in _READING if name in options},
    )
    first_files = SplitRule.parse(str(options["split"])) if "split" in options else None
    n_val = first_files.count if first_files is not None and first_files.kind == "first-files" else None
    sources = split_by_file(sources, n_val, options.get("shuffle_seed"))
    if rule is None:
        one = _Stream(token_set, ("val", "train"))
        streams = {"val": one, "train": one}
    else:
        streams = {split: _Stream(token_set, (split,)) for split in SPLITS}
    check = DocumentCheck()
    expect_bytes(progress, sources)
    place = InputProgress(sources)
    number = n_tokens = 0
    for raw in read_blocks(sources, source_options, on_raw=place.tap):
        block = parse_block(raw, source_options)
        sides = _sides(rule, block)
        for i, ids in enumerate(tokenizer.encode_batch(block.texts)):
            stream = streams["train" if sides is None or not sides[i] else "val"]
            if not _same(check, stream, _with_separator(token_set, ids), number, len(block.texts[i])):
                return check
            number += 1
            n_tokens += len(ids)
        if progress is not None:
            progress.update(place.bytes_done(raw.end), number, n_tokens)
    for stream in dict.fromkeys(streams.values()):
        if len(stream.take(1)[0]):
            check.difference = f"the sources end after document {number - 1}; {stream.where()} goes on with more ids"
    return check


def _left_out_bad_ones(token_set: TokenSet) -> bool:
    """Whether the build was told to skip bad records, and met some."""
    return token_set.record is not None and bool(counts_to_record(token_set.record.skipped))


def _rule(token_set: TokenSet, options: dict[str, Any], fields: list[str]) -> SplitRule | None:
    """The rule where sides alternate in the sources, None where val stands before train."""
    words = options.get("split")
    if words is not None:
        rule = SplitRule.parse(str(words))
        return rule if rule.kind in ("hash", "column", "first-files") else None
    if token_set.record is None and any(p.name.startswith(("val-", "train-")) for p in token_set.splits["train"]):
        if "split" in fields:
            return SplitRule.parse("column")
        raise UsageError(
            f"{token_set.directory}: no build record beside the manifest and no field 'split' in the documents, so "
            "nothing says which of them belong to val"
        )
    return None


def _sides(rule: SplitRule | None, block: DocumentBlock) -> NDArray[np.uint8] | None:
    if rule is None:
        return None
    return hash_split(block.texts, rule.fraction) if rule.kind == "hash" else block.splits


def _with_separator(token_set: TokenSet, ids: NDArray[np.uint32]) -> NDArray[np.int64]:
    if token_set.separator_id is None:
        return ids.astype(np.int64)
    text, separator = ids.astype(np.int64), np.array([token_set.separator_id], np.int64)
    return np.concatenate([text, separator] if token_set.separator_position == "after" else [separator, text])


def _same(check: DocumentCheck, stream: _Stream, expected: NDArray[np.int64], number: int, n_bytes: int) -> bool:
    """Take a document's ids and compare them; the first difference is put into `check`."""
    split, at = stream.where(), stream.at
    found, over_border = stream.take(len(expected))
    check.shared |= over_border
    check.documents[split] += 1
    check.source_bytes[split] += n_bytes
    if np.array_equal(found, expected):
        return True
    if len(found) < len(expected) and np.array_equal(found, expected[: len(found)]):
        check.difference = f"{split} ends inside document {number}; the sources go on"
        return False
    n = min(len(found), len(expected))
    i = int(np.argmax(found[:n] != expected[:n]))
    check.difference = (
        f"document {number} (from 0), id {i} of it, token {at + i:,} of {split}: the shards hold {int(found[i])}, "
        f"the tokenizer gives {int(expected[i])}"
    )
    return False
