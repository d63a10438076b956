"""`tokenriver recipe`: public data sets and evaluation files by name."""

from __future__ import annotations

from contextlib import nullcontext
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tokenriver.cli.messages import hub_messages
from tokenriver.cli.options import BACKEND, ON_BAD_RECORD, QUIET
from tokenriver.cli.stopping import going_on
from tokenriver.cli.summaries import plural, print_json

if TYPE_CHECKING:
    from tokenriver.building.summary import BuildSummary
    from tokenriver.evals.make import EvalSummary

__all__ = ["recipe_command"]


def recipe_command(
    name: Annotated[
        str, typer.Argument(metavar="NAME", help="A recipe, list, hub:OWNER/NAME, or a .toml of one's own.")
    ],
    tokenizer: Annotated[
        list[str] | None,
        typer.Option(metavar="T", help="As for build; several go in one pass (default: gpt2, or the variant's)."),
    ] = None,
    model_desc: Annotated[
        Literal["gpt-2", "llama-3"] | None,
        typer.Option(metavar="gpt-2|llama-3", help="llm.c's variant of the files, and its tokenizer (default: gpt-2)."),
    ] = None,
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Artifacts root (tokens), or the shards' folder (llmc); or its URL.")
    ] = "data",
    local: Annotated[
        str | None,
        typer.Option(
            "--input",
            metavar="PATH",
            help="A copy of the source: a file, folder or archive, or its URL (default: it is fetched).",
        ),
    ] = None,
    layout: Annotated[
        Literal["llmc", "tokens"], typer.Option(metavar="llmc|tokens", help="Names, cuts and records.")
    ] = "llmc",
    shard_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Tokens in a shard (default: 100,000,000).")
    ] = None,
    version: Annotated[
        str | None,
        typer.Option("--version", metavar="V", help="fineweb, fineweb-edu: 10B or 100B (default: the first)."),
    ] = None,
    max_tokens: Annotated[
        int | None, typer.Option(metavar="N", help="Whole documents of at most so many tokens.")
    ] = None,
    max_docs: Annotated[int | None, typer.Option(metavar="N", help="The first N documents.")] = None,
    text_field: Annotated[
        str | None, typer.Option(metavar="NAME", help="Field or column that holds the text (default: the recipe's).")
    ] = None,
    subset: Annotated[str | None, typer.Option(metavar="NAME", help="Only the files in a folder of that name.")] = None,
    revision: Annotated[
        str | None, typer.Option(metavar="R", help="Branch, tag or commit of the source (default: the recipe's).")
    ] = None,
    keep_source: Annotated[bool, typer.Option("--keep-source", help="Keep what was fetched.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Print the plan and stop.")] = False,
    on_bad_record: Annotated[Literal["error", "skip"], ON_BAD_RECORD] = "error",
    backend: Annotated[Literal["fast", "reference"], BACKEND] = "fast",
    workers: Annotated[int | None, typer.Option(metavar="N", help="Encoding threads (default: one a core).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace what is finished.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin anew, also with the source.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summaries as JSON.")] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> None:
    """Make a public data set by its recipe. Fetches, builds and checks; run again after an interruption, it goes on."""
    if name == "list":
        _print_list(as_json=as_json)
        return
    from tokenriver.cli.progress import Progress
    from tokenriver.recipes.engine import prepare_recipe
    from tokenriver.recipes.options import RecipeOptions

    options = RecipeOptions(
        tokenizers=tuple(tokenizer or ()),
        model_desc=model_desc,
        out=out,
        input=local,
        layout=layout,
        shard_tokens=shard_tokens,
        version=version,
        max_tokens=max_tokens,
        max_docs=max_docs,
        text_field=text_field,
        subset=subset,
        revision=revision,
        keep_source=keep_source,
        backend=backend,
        workers=workers,
        on_bad_record=on_bad_record,
        overwrite=overwrite,
        restart=restart,
    )
    with hub_messages(quiet=quiet) if local is None else nullcontext():
        prepared = prepare_recipe(name, options)
        plan = prepared.plan()
        if not quiet:
            for line in plan.lines():
                typer.echo(line, err=as_json)
        if dry_run:
            return
        with going_on(), Progress(prepared.found.total_bytes or None, label="building", quiet=quiet) as progress:
            made = prepared.run(plan=plan, progress=progress)
    if as_json:
        print_json(made)
    elif not quiet:
        for summary in made:
            _print_one(summary)


def _print_list(*, as_json: bool) -> None:
    from tokenriver.recipes.recipe import load_recipe, recipe_names

    recipes = [load_recipe(name).recipe for name in recipe_names()]
    if as_json:
        rows = [
            {"name": r.name, "about": r.about, "size": r.size, "licence": r.licence, "source": r.origin}
            for r in recipes
        ]
        print_json(rows)
        return
    for recipe in recipes:
        print(recipe.name)
        for title, value in (
            ("what", recipe.about),
            ("size", recipe.size),
            ("licence", recipe.licence),
            ("source", recipe.origin),
        ):
            print(f"    {title:<8}{value}")
    print("hub:OWNER/NAME")
    print("    any Parquet or JSONL data set of the Hub, with --text-field and --subset")


def _print_one(summary: BuildSummary | EvalSummary) -> None:
    from tokenriver.building.summary import BuildSummary
    from tokenriver.cli.build import print_summary

    if isinstance(summary, BuildSummary):
        print_summary(summary, has_split=False)
        return
    print(f"{plural(summary.examples, 'example')}, {summary.tokens:,} ids, version {summary.version}")
    print(f"wrote {summary.path} and {summary.record.name}")
