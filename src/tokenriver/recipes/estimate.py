"""The figures of a plan, from the sizes of the files, what is on disk already, and encoders measured here and now."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenriver.files import PART_SUFFIX
from tokenriver.hub.repository import Repository
from tokenriver.recipes.archive import is_archive
from tokenriver.recipes.plan import RecipePlan, disk_needed, free_bytes, measure, text_bytes_of
from tokenriver.shards.header import dtype_of, variant_for
from tokenriver.shards.layouts import parse_shard_name
from tokenriver.storage.paths import is_remote, shown

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tokenriver.recipes.found import FoundFiles
    from tokenriver.recipes.options import RecipeOptions
    from tokenriver.recipes.recipe import Recipe
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["make_plan"]

_BYTES_PER_TOKEN = 4

_SHARDS_HERE = 3
"""Shards of a data set behind a URL that are on this disk at a time: one of each side, and one that is uploaded."""

_ARCHIVE_EXPANSION = 4
"""Bytes in a byte of a compressed archive, at most in the data sets there are."""


def make_plan(
    recipe: Recipe,
    options: RecipeOptions,
    found: FoundFiles,
    tokenizers: Sequence[Tokenizer],
    outputs: Sequence[Path],
) -> RecipePlan:
    """Measure each encoder for a moment and estimate; `outputs` are where the data sets go, one a tokenizer."""
    text_bytes = text_bytes_of(found.names, found.n_bytes)
    tokens: dict[str, int] = {}
    disk, encoded_bytes, seconds = _source_disk(recipe, options, found), 0.0, 0.0
    for tokenizer, output in zip(tokenizers, outputs, strict=True):
        speed = measure(tokenizer)
        n = round(text_bytes / speed.bytes_per_token)
        n = n if options.max_tokens is None else min(n, options.max_tokens)
        tokens[tokenizer.tokenizer_id] = n
        encoded_bytes += n * speed.bytes_per_token
        seconds += n * speed.bytes_per_token / speed.bytes_per_second
        width = _width(tokenizer, options)
        if is_remote(output):
            disk += min(
                disk_needed(tokens=n, width=width),
                _SHARDS_HERE * width * options.most_shard_tokens(numbered=recipe.numbered),
            )
        else:
            disk += disk_needed(tokens=n, width=width, present=_present(output, recipe.data_set))
    return RecipePlan(
        recipe=recipe.name,
        source=recipe.origin if options.copy is None else shown(options.copy),
        outputs=[shown(path) for path in outputs],
        files=len(found.names),
        fetch_bytes=found.missing_bytes,
        n_unsized=found.n_unsized,
        tokens=None if recipe.eval is not None else tokens,
        disk_bytes=disk,
        free_bytes=free_bytes(options.room),
        seconds=seconds,
        bytes_per_second=encoded_bytes / max(seconds, 1e-9),
    )


def _width(tokenizer: Tokenizer, options: RecipeOptions) -> int:
    variant = "llama-3" if options.file_format == "llama-3" else variant_for(tokenizer.vocab_size)
    return dtype_of(variant).itemsize


def _source_disk(recipe: Recipe, options: RecipeOptions, found: FoundFiles) -> int:
    """Bytes of the source's files that will be on disk at a time.

    Where they are read one by one: one that is read, one that comes, and what one shard may have been made of.
    """
    archive = sum(n for name, n in zip(found.names, found.n_bytes, strict=True) if is_archive(name))
    if archive:
        return found.missing_bytes + _ARCHIVE_EXPANSION * archive
    if isinstance(found.remote, Repository) and not options.keep_source and recipe.eval is None:
        largest, shard = max(found.n_bytes), _BYTES_PER_TOKEN * (options.shard_tokens or 100_000_000)
        return min(found.missing_bytes, 2 * largest + max(largest, shard))
    return found.missing_bytes


def _present(directory: Path, dataset: str) -> int:
    """Bytes of a data set that are there already, finished or not."""
    if not directory.is_dir():
        return 0
    total = 0
    for path in directory.iterdir():
        name = parse_shard_name(path.name.removesuffix(PART_SUFFIX))
        if name is not None and name.dataset in ("", dataset):
            total += path.stat().st_size
    return total
