"""The files of a recipe as they lie on this disk: fetched, given with --input, or taken out of the one archive."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenriver.files import sha256_file
from tokenriver.hub.crew import fetch_files
from tokenriver.recipes.archive import extract, is_archive
from tokenriver.recipes.found import chosen_sides

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tokenriver.hub.transfer import TransferSink
    from tokenriver.recipes.found import FoundFiles
    from tokenriver.recipes.recipe import Recipe

__all__ = ["FilesOnDisk", "bring_all"]

_TAKEN_OUT = "files"
"""Below the source's folder: what was in the archive."""


@dataclass(frozen=True, slots=True)
class FilesOnDisk:
    """`paths` of the files and their `names` in the source, val first; the first `n_val` are val (None: not by file).

    `facts` name the archive that they were taken out of, if any.
    """

    paths: Sequence[Path]
    names: Sequence[str]
    n_val: int | None
    facts: dict[str, Any] = field(default_factory=dict)

    def first_like(self, patterns: Sequence[str]) -> Path:
        """The first file whose name fits, else the first of all."""
        fitting = (p for p, n in zip(self.paths, self.names, strict=True) if chosen_sides([n], [], patterns)[1])
        return next(fitting, self.paths[0])


def bring_all(
    recipe: Recipe, found: FoundFiles, folder: Path, *, patterns: Sequence[str], progress: TransferSink | None
) -> FilesOnDisk:
    """Fetch what is not here, and look into an archive; `patterns` choose the files in it, which go below `folder`."""
    if found.remote is not None:
        fetch_files(found.remote, found.jobs, progress=progress)
    paths = found.local or [job.path for job in found.jobs]
    if not is_archive(paths[0].name):
        return FilesOnDisk(paths, found.names, found.n_val)
    val_patterns = recipe.source.val_files
    sha256 = sha256_file(paths[0])
    taken_out = folder / f"{_TAKEN_OUT}-{sha256[:16]}"  # what was taken out of another archive is not kept for this one
    inside = extract(paths[0], taken_out, wanted=lambda name: any(chosen_sides([name], val_patterns, patterns)))
    archive = {"name": paths[0].name, "sha256": sha256}
    val, train = chosen_sides(inside, val_patterns, patterns)
    names = val + train
    n_val = len(val) if val_patterns else None
    return FilesOnDisk([taken_out / name for name in names], names, n_val, {"archive": archive})
