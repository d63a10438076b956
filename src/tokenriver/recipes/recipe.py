"""A recipe: what a public data set is, in one small TOML file. It holds no code; docs/recipes.md explains every key.

A key that is not known is refused: it would be believed, and do nothing.
"""

from __future__ import annotations

import codecs
import hashlib
from dataclasses import dataclass
from importlib import resources
from typing import Annotated, Any

import msgspec

from tokenriver.corpus.splits import SplitRule
from tokenriver.errors import FormatError, UsageError
from tokenriver.evals.tasks import TASKS
from tokenriver.shards.layouts import check_name
from tokenriver.shards.manifest import read_limited
from tokenriver.storage.paths import is_url, shown, to_path

__all__ = [
    "HUB_PREFIX",
    "Documents",
    "LoadedRecipe",
    "Recipe",
    "RecipeSource",
    "hub_recipe",
    "load_recipe",
    "recipe_names",
]

HUB_PREFIX = "hub:"

_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class RecipeSource(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Where the files are: a data set repository of the Hub, or addresses on the web.

    `files` and `val_files` are patterns of names (`*` matches "/" too), of those inside `archive` where there is one.
    `sha256` pins files by name.
    """

    hub: _Name | None = None
    revision: _Name = "main"
    urls: list[str] = []
    archive: _Name | None = None
    files: list[str] = []
    val_files: list[str] = []
    sha256: dict[str, _Sha256] = {}


class Documents(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """How files become documents; the words of BuildOptions."""

    text_field: _Name = "text"
    separator: str | None = None
    keep_separator: bool = False
    start: str | None = None
    json_arrays: bool = False
    strip: bool = False
    shuffle_seed: int | None = None
    keep_empty: bool = False


class EvalTask(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The evaluation task that the files hold, and the name of the evaluation file."""

    task: _Name
    output: _Name


class Version(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What differs in one version of a data set."""

    files: list[str]


class Checks(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What must come out of the whole source."""

    documents: int | None = None
    examples: int | None = None


class Recipe(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One public data set; `size` is for people."""

    name: _Name
    about: _Name
    size: _Name
    licence: _Name
    source: RecipeSource
    dataset: str | None = None
    split: str | None = None
    numbered: bool = True
    documents: Documents = Documents()
    eval: EvalTask | None = None
    versions: dict[str, Version] = {}
    checks: Checks = Checks()

    @property
    def data_set(self) -> str:
        """The name in paths and manifest."""
        return self.dataset or self.name

    @property
    def origin(self) -> str:
        """Where it comes from, for people."""
        return f"hub:{self.source.hub}" if self.source.hub else self.source.urls[0]

    def version(self, name: str | None) -> Version:
        """What is different in a version; the first one by default. UsageError for one that there is not."""
        if not self.versions:
            if name is not None:
                raise UsageError(f"--version {name}: {self.name} has no versions")
            return Version(files=self.source.files)
        chosen = name or next(iter(self.versions))
        if chosen not in self.versions:
            raise UsageError(f"--version {chosen}: {self.name} has {', '.join(self.versions)}")
        return self.versions[chosen]


@dataclass(frozen=True, slots=True)
class LoadedRecipe:
    """A recipe and the text it was read from."""

    recipe: Recipe
    text: bytes

    @property
    def sha256(self) -> str:
        """What a data set's record says of the recipe it was made by."""
        return hashlib.sha256(self.text).hexdigest()


def recipe_names() -> list[str]:
    """The names of the recipes that come with tokenriver, sorted."""
    folder = resources.files("tokenriver.recipes") / "data"
    return sorted(entry.name.removesuffix(".toml") for entry in folder.iterdir() if entry.name.endswith(".toml"))


def load_recipe(name: str) -> LoadedRecipe:
    """A recipe by its name, or one's own by the path or URL of its TOML file.

    Raises UsageError for an unknown name, FormatError naming the key where a file is no recipe.
    """
    if name.endswith(".toml") or is_url(name) or to_path(name).is_file():
        try:
            raw = read_limited(to_path(name))
        except FileNotFoundError:
            raise UsageError(f"{shown(name)}: no such recipe file") from None
        return _decode(raw, shown(name))
    if name not in recipe_names():
        raise UsageError(
            f"recipe {name!r} is not known; there are {', '.join(recipe_names())}, hub:OWNER/NAME for any data set of "
            "the Hub, and one's own by the path of its .toml"
        )
    raw = (resources.files("tokenriver.recipes") / "data" / f"{name}.toml").read_bytes()
    return _decode(raw, name)


def _decode(raw: bytes, where: str) -> LoadedRecipe:
    try:
        recipe = msgspec.toml.decode(raw.removeprefix(codecs.BOM_UTF8), type=Recipe)
    except (msgspec.MsgspecError, RecursionError) as error:
        raise FormatError(f"{where}: not a recipe: {error}") from error
    problem = _problem(recipe)
    if problem is not None:
        raise FormatError(f"{where}: not a recipe: {problem}")
    return LoadedRecipe(recipe, raw)


def _problem(recipe: Recipe) -> str | None:
    """What the schema cannot say."""
    source = recipe.source
    try:
        check_name(recipe.name, what="name")
        check_name(recipe.data_set, what="dataset")
        if recipe.eval is not None:
            check_name(recipe.eval.output, what="eval.output")
        if recipe.split is not None:
            SplitRule.parse(recipe.split)
    except UsageError as error:
        return str(error)
    if (source.hub is None) == (not source.urls):
        return "source needs either hub or urls"
    if not source.files and not recipe.versions:
        return "source.files names no files"
    if source.val_files and recipe.split is not None:
        return "source.val_files are val; split says it a second time"
    if recipe.eval is not None and recipe.eval.task not in TASKS:
        return f"eval.task is {recipe.eval.task!r}; there are {', '.join(TASKS)}"
    if recipe.documents.shuffle_seed is not None and not recipe.documents.json_arrays:
        return "documents.shuffle_seed goes with json_arrays"
    return None


def hub_recipe(repo_id: str, *, files: list[str], val_files: list[str], revision: str, text_field: str) -> LoadedRecipe:
    """The recipe of a data set repository of which nothing else is known."""
    values: dict[str, Any] = {
        "name": repo_id.rpartition("/")[2],
        "about": f"the data set {repo_id} of the Hub",
        "size": "see its page",
        "licence": "see its page",
        "source": {"hub": repo_id, "revision": revision, "files": files, "val_files": val_files},
        "documents": {"text_field": text_field},
    }
    recipe = msgspec.convert(values, Recipe)
    check_name(recipe.name, what="the repository's name")
    return LoadedRecipe(recipe, msgspec.json.encode(recipe))
