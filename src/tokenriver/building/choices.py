"""What a build decides from its options, the tokenizer and the inputs before any document is read."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import msgspec

from tokenriver.building.plan import Cutting
from tokenriver.building.records import Origin, Separator
from tokenriver.corpus.documents import peek_fields
from tokenriver.corpus.finding import find_sources
from tokenriver.corpus.kinds import KINDS, kind_of
from tokenriver.corpus.manifest import CORPUS_MANIFEST, corpus_directory
from tokenriver.corpus.sources import split_by_file
from tokenriver.corpus.splits import SplitRule
from tokenriver.corpus.stdin import STDIN
from tokenriver.errors import UsageError
from tokenriver.shards.header import Variant, variant_for
from tokenriver.shards.layouts import GOLF_NAME, Layout
from tokenriver.storage.paths import is_url, last_name, to_path, word_of

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tokenriver.building.options import BuildOptions
    from tokenriver.tokenizers.base import Tokenizer

__all__ = [
    "arrange_sources",
    "choose_cutting",
    "choose_separator",
    "choose_split",
    "choose_variant",
    "data_set_name",
    "find_origin",
]

_DEFAULT_SPLITS: dict[Layout, str] = {"tokens": "hash:0.01", "llmc": "first-shard", "golf": "first-docs:50000"}
_DEFAULT_COLUMN = "split"


def find_origin(inputs: Sequence[str | os.PathLike[str]]) -> Origin:
    """The sources of the inputs, and the manifest when they are one corpus directory."""
    sources = find_sources(inputs)
    corpus = corpus_directory(inputs)
    return Origin(sources, None if corpus is None else corpus / CORPUS_MANIFEST)


def arrange_sources(origin: Origin, rule: SplitRule, options: BuildOptions) -> Origin:
    """The sources as the options have them read: `.json` as arrays, sides by file, the seed of each."""
    reading, sources = options.reading(), origin.sources
    if reading.json_arrays or any(s.kind == "array" for s in sources):
        sources = [
            msgspec.structs.replace(s, kind=found[0])
            if (found := kind_of(s.name, reading)) is not None and found[0] != s.kind
            else s
            for s in sources
        ]
    n_val = rule.count if rule.kind == "first-files" else None
    return replace(origin, sources=split_by_file(sources, n_val, options.shuffle_seed))


def data_set_name(inputs: Sequence[str | os.PathLike[str]], options: BuildOptions) -> str:
    """`--dataset`, else the first input's name without its endings; Parameter Golf's files are all called fineweb."""
    if options.layout == "golf":
        return GOLF_NAME
    if options.dataset is not None:
        return options.dataset
    if word_of(inputs[0]) == STDIN:
        return "stdin"
    first = word_of(inputs[0])
    name = last_name(first) if is_url(first) else to_path(first).resolve().name
    ending = next((e for e in sorted(KINDS, key=len, reverse=True) if name.lower().endswith(e)), "")
    stem = name[: len(name) - len(ending)]
    if not stem or set(stem) & set("*?["):
        raise UsageError(f"no data set name follows from the input {word_of(inputs[0])!r}; give one with --dataset")
    return stem


def choose_variant(tokenizer: Tokenizer, options: BuildOptions) -> Variant:
    """The shards' variant: uint16 while every id fits, else uint32; Llama-3 where asked for."""
    if options.format == "llama-3":
        if options.layout != "llmc":
            raise UsageError("--format llama-3 is llm.c's variant and goes with --layout llmc")
        return "llama-3"
    if options.layout == "golf" and tokenizer.vocab_size > 1 << 16:
        raise UsageError(
            f"the golf layout holds ids below 65,536, and {tokenizer.tokenizer_id} has {tokenizer.vocab_size:,}",
            advice=("use --layout tokens or llmc",),
        )
    return variant_for(tokenizer.vocab_size)


def choose_separator(tokenizer: Tokenizer, options: BuildOptions) -> Separator:
    """`--separator` (resolved when the tokenizer was loaded), else the layout's own.

    The tokens layout and llm.c's take the tokenizer's end of text; Parameter Golf's and llm.c's Llama-3 variant its
    begin of text, where it has one.
    """
    position = options.separator_position or "before"
    if options.end_id is not None:
        return _with_end(tokenizer, options)
    if options.separator is not None:
        return Separator(tokenizer.separator_id, position)
    if (options.layout == "golf" or options.format == "llama-3") and tokenizer.bos_id is not None:
        return Separator(tokenizer.bos_id, position)
    return Separator(tokenizer.separator_id, position)


def _with_end(tokenizer: Tokenizer, options: BuildOptions) -> Separator:
    """The layout's separator before each document and `end_id` after it."""
    if options.separator_position == "after":
        raise UsageError("end_id goes with a separator before each document, not after it")
    if not 0 <= (options.end_id or 0) < tokenizer.vocab_size:
        raise UsageError(f"end_id {options.end_id} is not an id below the vocabulary's {tokenizer.vocab_size:,}")
    return replace(choose_separator(tokenizer, replace(options, end_id=None)), end=options.end_id)


def choose_split(origin: Origin, options: BuildOptions) -> SplitRule:
    """`--split`, else the layout's rule; in the tokens layout the records' own `split` where they have one."""
    if options.split is not None:
        return SplitRule.parse(options.split)
    if options.layout == "tokens" and (origin.corpus_manifest or _DEFAULT_COLUMN in peek_fields(origin.sources)):
        return SplitRule.parse("column")
    return SplitRule.parse(_DEFAULT_SPLITS[options.layout])


def choose_cutting(rule: SplitRule, options: BuildOptions) -> Cutting:
    """The cuts of a layout under a split rule."""
    first_tokens = {"first-tokens": rule.count, "first-shard": options.shard_tokens}.get(rule.kind)
    return Cutting(
        shard_tokens=options.shard_tokens,
        whole_documents=options.layout == "tokens",
        running_index=options.layout == "llmc" and options.numbered,
        first_docs=rule.count if rule.kind == "first-docs" else None,
        first_tokens=first_tokens,
    )
