"""`tokenriver corpus`: documents to corpus shards with their manifest."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenriver.cli.options import (
    DocumentSeparator,
    Engine,
    KeepEmpty,
    OnBadRecord,
    Quiet,
    RayAddress,
    Staging,
    SummaryAsJson,
    TextField,
    unescaped,
)
from tokenriver.cli.stopping import going_on, how_to_go_on
from tokenriver.cli.summaries import counted, print_json
from tokenriver.files import human_bytes

if TYPE_CHECKING:
    from tokenriver.corpus.shards import CorpusSummary

__all__ = ["corpus_command"]


def corpus_command(
    inputs: Annotated[
        list[str],
        typer.Argument(
            metavar="INPUT…", help="Files, directories, globs, a corpus, URLs of such, or - for JSONL on stdin."
        ),
    ],
    out: Annotated[str, typer.Option(metavar="DIR", help="Directory of the corpus, or its URL.")],
    file_format: Annotated[str, typer.Option("--format", help="jsonl.zst or parquet.")] = "jsonl.zst",
    name: Annotated[str | None, typer.Option(help="Name in the manifest (default: the directory's).")] = None,
    version: Annotated[str, typer.Option(help="Version in the manifest.")] = "v1",
    split: Annotated[str | None, typer.Option(help="column[:NAME], hash:FRACTION, first-docs:N or train.")] = None,
    text_field: TextField = "text",
    document_separator: DocumentSeparator = None,
    on_bad_record: OnBadRecord = "error",
    keep_empty: KeepEmpty = False,
    engine: Engine = "local",
    ray_address: RayAddress = None,
    workers: Annotated[int | None, typer.Option(help="Parsing threads, or tasks (default: one a core).")] = None,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a finished corpus.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin an unfinished corpus anew.")] = False,
    staging: Staging = None,
    as_json: SummaryAsJson = False,
    quiet: Quiet = False,
) -> None:
    """Write documents once as corpus shards (columns id, text, split): the same bytes on every run."""
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
    print(f"{sides} documents, {human_bytes(summary.text_bytes)} of text in {len(summary.manifest.files)} files")
    if summary.skipped:
        print("left out: " + counted(dict(sorted(summary.skipped.items()))))
    print(f"wrote {summary.path}" + (" (went on with an unfinished corpus)" if summary.resumed else ""))
