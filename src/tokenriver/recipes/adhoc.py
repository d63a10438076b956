"""hub:OWNER/NAME: the recipe of any data set repository, from the names of its files."""

from __future__ import annotations

import re
from glob import escape
from pathlib import PurePosixPath
from typing import TYPE_CHECKING

from tokenriver.errors import CorpusError, HubError, UsageError
from tokenriver.files import is_file
from tokenriver.recipes.found import open_pinned, under
from tokenriver.recipes.recipe import LoadedRecipe, hub_recipe

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

    from tokenriver.recipes.options import RecipeOptions

__all__ = ["load_hub_recipe", "sides"]

_KINDS = ((".parquet",), (".jsonl", ".jsonl.gz", ".jsonl.zst", ".ndjson", ".json.gz", ".json.zst", ".json"))
"""The first kind that a repository has any files of is taken: many hold the same documents in both."""

_VAL = re.compile(r"(?:^|[-_./])(?:validation|valid|val|dev)(?=[-_./]|$)", re.IGNORECASE)
_TEST = re.compile(r"(?:^|[-_./])(?:test|tests|evaluation)(?=[-_./]|$)", re.IGNORECASE)
_NOT_DATA = re.compile(r"(?:^|/)(?:\.|dataset_infos?\.json|dataset_dict\.json|state\.json)")


def load_hub_recipe(repo_id: str, options: RecipeOptions, folder: Path) -> LoadedRecipe:
    """The recipe of a repository, or of the local copy of one that --input names.

    Raises UsageError where its files lie in several folders and no --subset chooses, CorpusError where it has none.
    """
    revision = options.revision or "main"
    if options.copy is not None:
        names = [options.copy.name] if is_file(options.copy) else list(under(options.copy))
    else:
        try:
            names = list(
                open_pinned(repo_id, folder, revision=revision, anew=options.overwrite or options.restart).files
            )
        except HubError as error:
            raise HubError(
                f"{error}. Without a network: download the Parquet or JSONL files of "
                f"https://huggingface.co/datasets/{repo_id} on another machine, copy them here, and name their folder "
                "with --input PATH"
            ) from error
    train, val = sides(_of_one_kind(repo_id, names))
    _refuse_several(repo_id, train, options.subset)
    return hub_recipe(
        repo_id,
        files=[escape(name) for name in train],
        val_files=[escape(name) for name in val],
        revision=revision,
        text_field=options.text_field or "text",
    )


def _of_one_kind(repo_id: str, names: Iterable[str]) -> list[str]:
    names = [name for name in names if not _NOT_DATA.search(name)]
    for endings in _KINDS:
        if chosen := [name for name in names if name.lower().endswith(endings)]:
            return chosen
    raise CorpusError(f"hub:{repo_id}: no Parquet or JSONL files in it")


def sides(names: Sequence[str]) -> tuple[list[str], list[str]]:
    """Train and val by the words in the names, as the Hub has them; test is on neither side."""
    val = [name for name in names if _VAL.search(name)]
    rest = [name for name in names if name not in set(val)]
    return [name for name in rest if not _TEST.search(name)] or rest, val


def _refuse_several(repo_id: str, names: Sequence[str], subset: str | None) -> None:
    folders = sorted({PurePosixPath(name).parts[0] for name in names if "/" in name})
    if subset is None and len(folders) > 1:
        shown = ", ".join(folders[:8]) + (", …" if len(folders) > 8 else "")
        raise UsageError(
            f"hub:{repo_id}: its files lie in {len(folders)} folders ({shown}), which may hold the same documents; "
            "choose one with --subset NAME, or all with --subset ."
        )
