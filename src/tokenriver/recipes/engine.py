"""The one engine that runs every recipe: find the files, plan, fetch, build or make the evaluation file, check."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from msgspec.structs import replace

from tokenriver.building.build import build_together
from tokenriver.building.records import Origin
from tokenriver.building.target import Target
from tokenriver.corpus.finding import find_sources
from tokenriver.corpus.kinds import kind_of
from tokenriver.corpus.sources import Source
from tokenriver.errors import IntegrityError, UsageError, advising_only
from tokenriver.evals.make import EvalSummary, make_eval_file
from tokenriver.files import file_exists, is_file, make_directory
from tokenriver.hub.repository import Repository
from tokenriver.recipes.adhoc import load_hub_recipe
from tokenriver.recipes.archive import is_archive
from tokenriver.recipes.build_options import build_options
from tokenriver.recipes.estimate import make_plan
from tokenriver.recipes.found import FoundFiles, find_local, find_remote, forget_unpinned, within, write_pin
from tokenriver.recipes.on_disk import FilesOnDisk, bring_all
from tokenriver.recipes.options import INSTEAD, OFFERED, RecipeOptions
from tokenriver.recipes.recipe import HUB_PREFIX, LoadedRecipe, load_recipe
from tokenriver.recipes.rows import parquet_to_jsonl
from tokenriver.recipes.supply import FileSupply
from tokenriver.resuming.lock import locked
from tokenriver.resuming.names import OVERWRITE
from tokenriver.shards.layouts import data_set_directory
from tokenriver.storage.paths import is_remote
from tokenriver.tokenizers.load import load_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tokenriver.building.summary import BuildSummary
    from tokenriver.corpus.progress import ProgressSink
    from tokenriver.hub.transfer import TransferSink
    from tokenriver.recipes.plan import RecipePlan
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["PreparedRecipe", "prepare_recipe", "run_recipe"]

_SOURCE_FOLDER = ".source"
"""Below --out (the staging directory of a URL): what is fetched and taken out of archives, until all is finished."""


def run_recipe(
    name: str,
    options: RecipeOptions | None = None,
    *,
    progress: ProgressSink | None = None,
    transfers: TransferSink | None = None,
) -> list[BuildSummary] | list[EvalSummary]:
    """Make a public data set (or evaluation file) by its recipe, once for each tokenizer, and say what was made.

    `name` is that of a recipe, the path of one's own TOML file, or hub:OWNER/NAME. Run again after an interruption, it
    goes on. Raises UsageError (unknown name, too little disk), HubError saying what to download where nothing can be
    reached, and what `build` and `make_eval_file` raise.
    """
    return prepare_recipe(name, options or RecipeOptions()).run(progress=progress, transfers=transfers)


def prepare_recipe(name: str, options: RecipeOptions) -> PreparedRecipe:
    """Everything that can be decided and estimated before a file is fetched; nothing is written."""
    anew = options.overwrite or options.restart
    if name.startswith(HUB_PREFIX):
        loaded = load_hub_recipe(
            name.removeprefix(HUB_PREFIX), options, _folder(options, name.rpartition("/")[2], None)
        )
    else:
        loaded = load_recipe(name)
    recipe = loaded.recipe
    options.refuse_useless(is_eval=recipe.eval is not None)
    patterns = recipe.version(options.version).files
    folder = _folder(options, recipe.name, options.version or next(iter(recipe.versions), None))
    if options.copy is not None:
        found = find_local(recipe, patterns, options.copy)
    else:
        revision = options.revision or recipe.source.revision
        found = find_remote(recipe, patterns, folder, revision=revision, anew=anew, restart=options.restart)
    if options.subset not in (None, "."):
        found = within(found, str(options.subset))
    tokenizers = [load_tokenizer(word, backend=options.backend) for word in options.tokenizer_words]
    return PreparedRecipe(loaded, options, tokenizers, found, folder)


def _folder(options: RecipeOptions, name: str, version: str | None) -> Path:
    """Where the source's files go: what is another set of files has another folder."""
    parts = [name, version, options.subset.replace("/", "-") if options.subset not in (None, ".") else None]
    return options.room / _SOURCE_FOLDER / "-".join(part for part in parts if part)


@dataclass(frozen=True, slots=True)
class PreparedRecipe:
    """A recipe with its files and tokenizers found; `plan` estimates, `run` works."""

    loaded: LoadedRecipe
    options: RecipeOptions
    tokenizers: Sequence[Tokenizer]
    found: FoundFiles
    folder: Path

    @property
    def outs(self) -> list[Path]:
        """The --out of each data set: the llmc layout has no tokenizer in its names, so several go apart."""
        out = self.options.target
        if self.options.layout == "tokens" or len(self.tokenizers) == 1:
            return [out] * len(self.tokenizers)
        return [out / tokenizer.tokenizer_id for tokenizer in self.tokenizers]

    def plan(self) -> RecipePlan:
        """Measure the encoders and estimate."""
        return make_plan(self.loaded.recipe, self.options, self.found, self.tokenizers, self._outputs())

    def _outputs(self) -> list[Path]:
        recipe = self.loaded.recipe
        if recipe.eval is not None:
            return [out / recipe.eval.output for out in self.outs]
        return [
            data_set_directory(out, self.options.layout, tokenizer_id=t.tokenizer_id, dataset=recipe.data_set)
            for out, t in zip(self.outs, self.tokenizers, strict=True)
        ]

    def run(
        self,
        *,
        plan: RecipePlan | None = None,
        progress: ProgressSink | None = None,
        transfers: TransferSink | None = None,
    ) -> list[BuildSummary] | list[EvalSummary]:
        """Do it. What was fetched is deleted when it is done, unless --keep-source."""
        (plan or self.plan()).check_disk()
        with self._locked() as was_killed:
            try:
                self._refuse_finished()
            except IntegrityError:
                if was_killed:  # after the data set was whole: what it fetched is of no use any more
                    self._forget_source()
                raise
            if self.options.restart:
                forget_unpinned(self.found)
            if self.found.remote is not None:
                write_pin(self.found, self.folder)
            made: list[BuildSummary] | list[EvalSummary]
            if self.loaded.recipe.eval is not None:
                made = self._make_eval_files(transfers)
            else:
                made = self._build(progress, transfers)
                self._check(made)
            self._forget_source()
        return made

    def _refuse_finished(self) -> None:
        """IntegrityError for what is there already, before anything is fetched for it."""
        if self.options.overwrite or self.options.restart:
            return
        recipe, layout = self.loaded.recipe, self.options.layout
        for path in self._outputs():
            if recipe.eval is None:
                target = Target.at(path, layout, recipe.data_set)
                is_there = target.remote is not None or target.directory.exists()
                if is_there and not target.record(OVERWRITE).exists():  # that run is gone on with first
                    with advising_only(*OFFERED, instead=INSTEAD):
                        target.refuse_finished()
            elif file_exists(path):
                raise IntegrityError(f"{path}: is there already; --overwrite replaces it")

    def _forget_source(self) -> None:
        if not self.options.keep_source and self.folder.exists() and not self._input_is_in_folder():
            shutil.rmtree(self.folder)

    def _input_is_in_folder(self) -> bool:
        given = self.options.copy
        return (
            given is not None
            and not is_remote(given)
            and self.folder.resolve() in [given.resolve(), *given.resolve().parents]
        )

    @contextmanager
    def _locked(self) -> Iterator[bool]:
        """Hold the source's folder: a second run would delete what the first one still reads. Gives whether the one
        before was killed, since it would have taken its lock with it.
        """
        lock = self.folder.with_name(f"{self.folder.name}.lock")
        was_killed = lock.exists()
        with locked(
            lock,
            where=self.folder,
            busy=(
                f"another run of recipe {self.loaded.recipe.name} uses these files; wait for it, give all tokenizers "
                "to one run, or name another --out"
            ),
            removable=[self.folder.parent, *([self.options.room] if is_remote(self.options.target) else [])],
        ):
            yield was_killed

    def _facts(self) -> dict[str, Any]:
        recipe = self.loaded.recipe
        version = {"version": self.options.version or next(iter(recipe.versions))} if recipe.versions else {}
        facts = {"recipe": recipe.name, "recipe_sha256": self.loaded.sha256, "licence": recipe.licence}
        return {**facts, **version, **self.found.facts}

    def _build(self, progress: ProgressSink | None, transfers: TransferSink | None) -> list[BuildSummary]:
        found, facts = self.found, self._facts()
        supply: AbstractContextManager[FileSupply | None] = nullcontext()
        if isinstance(found.remote, Repository) and not any(map(is_archive, found.names)):
            sources, n_val = [self._coming_source(i) for i in range(len(found.names))], found.n_val
            supply = FileSupply(found.remote, found.jobs, keep=self.options.keep_source, progress=transfers)
        else:
            here = self._bring_all(transfers)
            named = zip(here.paths, here.names, strict=True)
            sources, n_val = [replace(find_sources([path])[0], name=name) for path, name in named], here.n_val
            facts |= here.facts
        with supply as bringing, advising_only(*OFFERED, instead=INSTEAD):
            return build_together(
                Origin(sources, None, facts),
                tokenizers=self.tokenizers,
                outs=self.outs,
                options=build_options(self.loaded.recipe, self.options, n_val),
                dataset=self.loaded.recipe.data_set,
                supply=bringing,
                progress=progress,
            )

    def _coming_source(self, index: int) -> Source:
        """A source whose file is brought when it is needed."""
        job = self.found.jobs[index]
        kind = kind_of(job.name, build_options(self.loaded.recipe, self.options, None).reading())
        if kind is None:
            raise UsageError(f"{job.name}: no kind of file that documents are read from")
        expected = job.expected
        pin = f"sha256:{expected.sha256}" if expected.sha256 else f"git:{expected.git_id}"
        return Source(str(job.path), job.name, *kind, expected.n_bytes or 0, pin=pin)

    def _bring_all(self, transfers: TransferSink | None) -> FilesOnDisk:
        patterns = self.loaded.recipe.version(self.options.version).files
        return bring_all(self.loaded.recipe, self.found, self.folder, patterns=patterns, progress=transfers)

    def _make_eval_files(self, transfers: TransferSink | None) -> list[EvalSummary]:
        recipe, options = self.loaded.recipe, self.options
        assert recipe.eval is not None, "the caller looked"
        here = self._bring_all(transfers)
        main = here.first_like(recipe.version(options.version).files[:1])
        if main.suffix == ".parquet":
            main = parquet_to_jsonl(main, self.folder)
        elif recipe.eval.task == "mmlu" and not (options.copy is not None and is_file(options.copy)):
            main = main.parent.parent if main.parent.name == "test" else main.parent
        made = []
        for out, tokenizer in zip(self.outs, self.tokenizers, strict=True):
            make_directory(out)
            target = out / recipe.eval.output
            made.append(
                make_eval_file(
                    recipe.eval.task,
                    main,
                    tokenizer=tokenizer,
                    out=target,
                    on_bad_record=options.on_bad_record,
                    origin={**self._facts(), **here.facts},
                )
            )
            self._compare("examples", made[-1].examples, recipe.checks.examples, str(target))
        return made

    def _check(self, made: Sequence[BuildSummary]) -> None:
        if self.options.max_tokens is None and self.options.max_docs is None:
            for summary in made:
                found = summary.documents
                self._compare("documents", found, self.loaded.recipe.checks.documents, str(summary.directory))

    def _compare(self, what: str, found: int, expected: int | None, where: str) -> None:
        """IntegrityError where the whole published source gave another number than the recipe says."""
        if expected is None or self.options.input is not None or self.options.subset is not None or found == expected:
            return
        raise IntegrityError(
            f"{where}: {found:,} {what}, but recipe {self.loaded.recipe.name} says {expected:,}; its "
            "owner has changed the source: look at it before you use this data set"
        )
