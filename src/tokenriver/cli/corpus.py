"""`tokenriver corpus`: documents to corpus shards with their manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenriver.cli.options import (
    AS_JSON,
    DOCUMENT_SEPARATOR,
    ENGINE,
    INPUTS,
    KEEP_EMPTY,
    ON_BAD_RECORD,
    PARSING_WORKERS,
    QUIET,
    RAY_ADDRESS,
    STAGING,
    TEXT_FIELD,
    unescaped,
)
from tokenriver.cli.stopping import going_on, how_to_go_on
from tokenriver.cli.summaries import counted, plural, print_json
from tokenriver.files import human_bytes

if TYPE_CHECKING:
    from tokenriver.corpus.shards import CorpusSummary

__all__ = ["corpus_command"]


def corpus_command(
    inputs: Annotated[list[str], INPUTS],
    out: Annotated[str, typer.Option(metavar="DIR", help="Directory of the corpus, or its URL.")],
    file_format: Annotated[
        str, typer.Option("--format", metavar="jsonl.zst|parquet", help="Kind of the corpus shards.")
    ] = "jsonl.zst",
    name: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name in the manifest (default: the directory's).")
    ] = None,
    version: Annotated[str, typer.Option(metavar="V", help="Version in the manifest.")] = "v1",
    split: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="column[:NAME], hash:FRACTION, first-docs:N or train (default: column where there is one, else "
            "hash:0.01).",
        ),
    ] = None,
    text_field: Annotated[str, TEXT_FIELD] = "text",
    document_separator: Annotated[str | None, DOCUMENT_SEPARATOR] = None,
    on_bad_record: Annotated[str, ON_BAD_RECORD] = "error",
    keep_empty: Annotated[bool, KEEP_EMPTY] = False,
    engine: Annotated[str, ENGINE] = "local",
    ray_address: Annotated[str | None, RAY_ADDRESS] = None,
    workers: Annotated[int | None, PARSING_WORKERS] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a finished corpus.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin an unfinished corpus anew.")] = False,
    staging: Annotated[str | None, STAGING] = None,
    as_json: Annotated[bool, AS_JSON] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> None:
    """Write documents once, as corpus shards with fixed sides. The same bytes on every run; columns id, text, split."""
    from tokenriver.cli.progress import Progress
    from tokenriver.corpus.shards import write_corpus
    from tokenriver.corpus.sources import SourceOptions

    options = SourceOptions(
        text_field=text_field,
        on_bad_record=on_bad_record,  # type: ignore[arg-type]  # SourceOptions refuses other words
        keep_empty=keep_empty,
        document_separator=unescaped(document_separator),
    )
    words: dict[str, Any] = {"format": file_format, "name": name, "version": version, "split": split}
    words |= {"engine": engine, "ray_address": ray_address}
    words |= {"options": options, "workers": workers, "overwrite": overwrite, "restart": restart, "staging": staging}
    how = how_to_go_on(overwrite=overwrite, anew="-" in inputs)
    with going_on(how), Progress(None, label="writing the corpus", quiet=quiet) as progress:
        summary = write_corpus(inputs, out, progress=progress, **words)
    if as_json:
        print_json(summary)
    elif not quiet:
        _print_summary(summary)


def _print_summary(summary: CorpusSummary) -> None:
    sides = counted(summary.manifest.documents)
    print(
        f"{sides} documents, {human_bytes(summary.text_bytes)} of text in {plural(len(summary.manifest.files), 'file')}"
    )
    if summary.skipped:
        print("left out: " + counted(dict(sorted(summary.skipped.items()))))
    print(f"wrote {summary.path}" + (" (went on with an unfinished corpus)" if summary.resumed else ""))
