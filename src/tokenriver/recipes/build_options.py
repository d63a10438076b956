"""How a recipe's documents are built: what the recipe says, and what the user said of it, as options of a build."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenriver.building.options import BuildOptions

if TYPE_CHECKING:
    from tokenriver.recipes.options import RecipeOptions
    from tokenriver.recipes.recipe import Recipe

__all__ = ["build_options"]


def build_options(recipe: Recipe, options: RecipeOptions, n_val: int | None) -> BuildOptions:
    """The options; `n_val` files at the front are val, or None where the files do not decide that."""
    documents = recipe.documents
    split = recipe.split
    if n_val is not None:
        split = f"first-files:{n_val}" if n_val else "train"
    plain = not recipe.numbered and options.layout == "llmc"
    return BuildOptions(
        dataset=recipe.data_set,
        layout=options.layout,
        shard_tokens=options.most_shard_tokens(numbered=recipe.numbered),
        format=options.file_format,
        split=split or {"llmc": "first-shard", "tokens": "hash:0.01"}[options.layout],
        text_field=options.text_field or documents.text_field,
        document_separator=documents.separator,
        keep_document_separator=documents.keep_separator,
        document_start=documents.start,
        json_arrays=documents.json_arrays,
        strip=documents.strip,
        shuffle_seed=documents.shuffle_seed,
        keep_empty=documents.keep_empty,
        max_documents=options.max_docs,
        max_tokens=options.max_tokens,
        numbered=not plain,
        on_bad_record=options.on_bad_record,
        backend=options.backend,
        workers=options.workers,
        overwrite=options.overwrite,
        restart=options.restart,
    )
