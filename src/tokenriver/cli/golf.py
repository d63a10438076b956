"""`tokenriver golf`: Parameter Golf's data workflow: fetch, select, export, score."""

from __future__ import annotations

import os
from contextlib import contextmanager, nullcontext
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenriver.cli.golf_score import score_command
from tokenriver.cli.messages import hub_messages
from tokenriver.cli.options import (
    AS_JSON,
    BACKEND,
    CONNECTIONS,
    ENGINE,
    ON_BAD_RECORD,
    PARSING_WORKERS,
    QUIET,
    RAY_ADDRESS,
    REVISION,
    STAGING,
    TEXT_FIELD,
)
from tokenriver.cli.stopping import at_once, going_on, how_to_go_on
from tokenriver.cli.summaries import counted, plural, print_json
from tokenriver.errors import UsageError
from tokenriver.files import human_bytes
from tokenriver.storage.paths import to_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tokenriver.golfing.documents import Documents
    from tokenriver.golfing.export import GolfExported

__all__ = ["golf_app"]

golf_app = typer.Typer(help="Parameter Golf's data: fetch, select, export, score.", rich_markup_mode=None)

_REPO = typer.Option(metavar="REPO", help="Repository (default: MATCHED_FINEWEB_REPO_ID, else the challenge's).")
_REMOTE_ROOT = typer.Option(
    metavar="DIR", help="Folder in it (default: MATCHED_FINEWEB_REMOTE_ROOT_PREFIX, else datasets)."
)


@golf_app.command("fetch")
def fetch_command(
    variant: Annotated[str, typer.Option(metavar="V", help="sp1024, byte260, …: what follows fineweb10B_.")] = "sp1024",
    train_shards: Annotated[int, typer.Option(metavar="N", help="The first N train shards; val is always whole.")] = 80,
    with_docs: Annotated[bool, typer.Option("--with-docs", help="The documents and their sidecar too.")] = False,
    root: Annotated[str, typer.Option(metavar="DIR", help="Folder that becomes the root, or its URL.")] = "data",
    repo_id: Annotated[str | None, _REPO] = None,
    remote_root: Annotated[str | None, _REMOTE_ROOT] = None,
    revision: Annotated[str, REVISION] = "main",
    check: Annotated[bool, typer.Option("--check", help="Only ask for every file of the manifest.")] = False,
    connections: Annotated[int, CONNECTIONS] = 8,
    as_json: Annotated[bool, AS_JSON] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> None:
    """Fetch an export, every file checked. All val shards, the first train shards, the tokenizer."""
    from tokenriver.cli.transfers import Transfers
    from tokenriver.golfing.check import check_golf
    from tokenriver.golfing.fetch import fetch_golf

    where: dict[str, Any] = {"repo_id": repo_id, "remote_root": remote_root, "revision": revision, "root": root}
    if check:
        with hub_messages(quiet=quiet):
            found = check_golf(**where, connections=connections)
        if as_json:
            print_json(found)
        else:
            for name, problem in found.problems.items():
                print(f"{name}: {problem}")
            if not quiet:
                print(f"{plural(found.checked, 'file')} asked for, {len(found.problems)} cannot be had")
        if not found.ok:
            raise typer.Exit(1)
        return
    with (
        hub_messages(quiet=quiet),
        going_on("the same command goes on with what came"),
        Transfers(quiet=quiet) as progress,
    ):
        done = fetch_golf(
            **where,
            variant=variant,
            train_shards=train_shards,
            with_docs=with_docs,
            connections=connections,
            progress=progress,
        )
    if as_json:
        print_json(done)
    elif not quiet:
        print(
            f"{done.dataset}: {done.val_tokens:,} val and {done.train_tokens:,} train tokens, "
            f"{human_bytes(done.n_bytes)} in {plural(len(done.files), 'file')}; "
            f"{done.fetched} fetched, every one checked"
        )
        print(f"wrote {done.root}")


@golf_app.command("select")
def select_command(
    inputs: Annotated[
        list[str], typer.Argument(metavar="INPUT", help="Files, directories, globs, a corpus, or URLs of such.")
    ],
    docs: Annotated[int, typer.Option(metavar="N", help="Documents to choose.")],
    seed: Annotated[int, typer.Option(metavar="S", help="Decides which, and their order.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder of docs_selected.jsonl and its sidecar, or its URL.")],
    docs_val: Annotated[
        int | None,
        typer.Option(metavar="N", help="Documents at the front that are val (default: 50,000, at most a tenth)."),
    ] = None,
    text_field: Annotated[str, TEXT_FIELD] = "text",
    on_bad_record: Annotated[str, ON_BAD_RECORD] = "error",
    engine: Annotated[str, ENGINE] = "local",
    ray_address: Annotated[str | None, RAY_ADDRESS] = None,
    workers: Annotated[int | None, PARSING_WORKERS] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a selection.")] = False,
    staging: Annotated[str | None, STAGING] = None,
    as_json: Annotated[bool, AS_JSON] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> None:
    """Choose documents and shuffle them, once and for all."""
    from tokenriver.cli.progress import Progress
    from tokenriver.golfing.select import select_golf

    how = how_to_go_on(overwrite=overwrite, anew=True)
    with going_on(how), Progress(None, label="selecting", quiet=quiet) as progress:
        chosen = select_golf(
            inputs,
            docs=docs,
            seed=seed,
            out=out,
            docs_val=docs_val,
            text_field=text_field,
            on_bad_record=on_bad_record,
            engine=engine,
            ray_address=ray_address,
            workers=workers,
            staging=staging,
            overwrite=overwrite,
            progress=progress,
        )
    if as_json:
        print_json(chosen)
    elif not quiet:
        print(f"chose {chosen.num_docs:,} of {chosen.documents_read:,} documents, {chosen.docs_val:,} of them val")
        if chosen.skipped:
            print("skipped: " + counted(chosen.skipped))
        print(f"docs_sha256 {chosen.docs_sha256}")
        print(f"wrote {chosen.docs}")


@golf_app.command("export")
def export_command(
    tokenizer_config: Annotated[str, typer.Option(metavar="FILE", help="tokenizer_specs.json.")],
    output_root: Annotated[str, typer.Option(metavar="DIR", help="Root of the export.")],
    docs: Annotated[
        str | None, typer.Option(metavar="FILE", help="docs_selected.jsonl, its sidecar beside it.")
    ] = None,
    repo_id: Annotated[
        str | None, typer.Option(metavar="REPO", help="Repository to fetch the documents from instead.")
    ] = None,
    remote_root: Annotated[str | None, _REMOTE_ROOT] = None,
    num_val_docs: Annotated[
        int | None,
        typer.Option(metavar="N", help="Documents at the front that are val (default: the sidecar's, else 50,000)."),
    ] = None,
    chunk_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens in a shard.")] = 100_000_000,
    tokenizer_train_docs: Annotated[
        int | None, typer.Option(metavar="N", help="Train on the first N documents.")
    ] = None,
    skip_byte: Annotated[bool, typer.Option("--skip-byte", help="Leave out the byte tokenizer.")] = False,
    reuse_sp_model: Annotated[
        list[str] | None, typer.Option(metavar="VOCAB=MODEL", help="Take this model, train none of that size.")
    ] = None,
    append_eos: Annotated[bool, typer.Option("--append-eos", help="End of text after each document.")] = False,
    backend: Annotated[str, BACKEND] = "fast",
    workers: Annotated[
        int | None,
        typer.Option(
            metavar="N", help="Encoding threads (default: MATCHED_FINEWEB_TOKENIZER_THREADS, else one a core)."
        ),
    ] = None,
    as_json: Annotated[bool, AS_JSON] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> None:
    """Export the documents with each tokenizer, trained or reused. Run again after an interruption, it goes on."""
    from tokenriver.cli.progress import Progress
    from tokenriver.cli.transfers import Transfers
    from tokenriver.golfing.export import export_golf
    from tokenriver.golfing.fetch import GolfSource

    def say(found: Documents) -> None:
        if not quiet:
            held = " (as the sidecar says)" if (found.sidecar or {}).get("docs_sha256") else ""
            count = f"{found.n_docs:,} documents, {found.n_val:,} of them val"
            typer.echo(f"{count}\ndocs_sha256 {found.sha256}{held}", err=as_json)

    @contextmanager
    def training() -> Iterator[None]:
        typer.echo("training a vocabulary …", err=True)
        with at_once():
            yield

    if docs is None and repo_id is None and "MATCHED_FINEWEB_REPO_ID" not in os.environ:
        raise UsageError("give the documents with --docs, or the repository that holds them with --repo-id")
    source = GolfSource.chosen(repo_id, remote_root) if docs is None or repo_id is not None else None
    transfers = Transfers(quiet=quiet or docs is not None)
    with hub_messages(quiet=quiet) if docs is None else nullcontext(), transfers, going_on():
        done = export_golf(
            tokenizer_config=tokenizer_config,
            output_root=output_root,
            docs=docs,
            source=source,
            num_val_docs=num_val_docs,
            chunk_tokens=chunk_tokens,
            tokenizer_train_docs=tokenizer_train_docs,
            skip_byte=skip_byte,
            reuse_sp_models=_models(reuse_sp_model or []),
            append_eos=append_eos,
            backend=backend,  # type: ignore[arg-type]  # the build refuses other words
            workers=workers,
            stage=lambda name, total: Progress(total, label=name, quiet=quiet),
            transfer=transfers,
            training=at_once if quiet else training,
            on_docs=say,
        )
    if as_json:
        print_json(done)
    elif not quiet:
        _print_exported(done)


def _models(words: list[str]) -> dict[int, Path]:
    models = {}
    for word in words:
        size, equals, path = word.partition("=")
        if not equals or not size.isdecimal() or not path:
            raise UsageError(f"--reuse-sp-model {word!r}: expected VOCAB=MODEL, such as 1024=fineweb_1024_bpe.model")
        models[int(size)] = to_path(path)
    return models


def _print_exported(done: GolfExported) -> None:
    for name, stats in done.datasets.items():
        kept = " (was there)" if name in done.kept else ""
        print(
            f"{name}: {stats['tokens_val']:,} val tokens in {plural(stats['files_val'], 'file')}, "
            f"{stats['tokens_train']:,} train tokens in {plural(stats['files_train'], 'file')}{kept}"
        )
    for note in done.notes:
        print(note)
    print(f"wrote {done.manifest} in {done.seconds:.1f} s")


golf_app.command("score")(score_command)
