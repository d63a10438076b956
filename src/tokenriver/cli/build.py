"""`tokenriver build`: documents to token shards."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenriver.cli.options import (
    AS_JSON,
    BACKEND,
    DOCUMENT_SEPARATOR,
    ENGINE,
    INPUTS,
    KEEP_EMPTY,
    ON_BAD_RECORD,
    QUIET,
    RAY_ADDRESS,
    STAGING,
    TEXT_FIELD,
    TOKENIZER,
    unescaped,
)
from tokenriver.cli.stopping import going_on, how_to_go_on
from tokenriver.cli.summaries import counted, plural, print_json
from tokenriver.files import human_bytes

if TYPE_CHECKING:
    from tokenriver.building.summary import BuildSummary

__all__ = ["build_command", "print_summary"]


def build_command(
    inputs: Annotated[list[str], INPUTS],
    tokenizer: Annotated[str, TOKENIZER],
    out: Annotated[
        str, typer.Option(metavar="DIR", help="Artifacts root, or the shards' folder (llmc, golf); or its URL.")
    ],
    tokenizer_id: Annotated[
        str | None, typer.Option(metavar="ID", help="Name in paths and manifest (default: the tokenizer's).")
    ] = None,
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name of the data set (default: the first input's).")
    ] = None,
    dataset_version: Annotated[str, typer.Option(metavar="V", help="Version in the manifest.")] = "v1",
    layout: Annotated[str, typer.Option(metavar="tokens|llmc|golf", help="Names, cuts and records.")] = "tokens",
    shard_tokens: Annotated[int, typer.Option(metavar="N", help="Tokens in a shard.")] = 100_000_000,
    file_format: Annotated[
        str, typer.Option("--format", metavar="auto|llama-3", help="llama-3: llm.c's variant for Llama-3.")
    ] = "auto",
    split: Annotated[
        str | None,
        typer.Option(
            metavar="RULE",
            help="column[:NAME], hash:FRACTION, first-docs:N, first-tokens:N, first-files:N, first-shard or train "
            "(default: the layout's).",
        ),
    ] = None,
    text_field: Annotated[str, TEXT_FIELD] = "text",
    document_separator: Annotated[str | None, DOCUMENT_SEPARATOR] = None,
    separator: Annotated[
        str | None,
        typer.Option(metavar="ID|STRING|none", help="What stands between documents (default: the layout's)."),
    ] = None,
    separator_position: Annotated[
        str | None, typer.Option(metavar="before|after", help="Where it stands (default: before).")
    ] = None,
    keep_empty: Annotated[bool, KEEP_EMPTY] = False,
    doc_index: Annotated[
        bool | None,
        typer.Option("--doc-index/--no-doc-index", help="Write <shard>.bin.index (default: in the tokens layout)."),
    ] = None,
    on_bad_record: Annotated[str, ON_BAD_RECORD] = "error",
    backend: Annotated[str, BACKEND] = "fast",
    verify_sample: Annotated[int, typer.Option(metavar="N", help="Documents compared with the reference.")] = 200,
    engine: Annotated[str, ENGINE] = "local",
    ray_address: Annotated[str | None, RAY_ADDRESS] = None,
    workers: Annotated[
        int | None, typer.Option(metavar="N", help="Encoding threads, or tasks (default: one a core).")
    ] = None,
    block_bytes: Annotated[int, typer.Option(metavar="N", help="Bytes of text in one unit of work.")] = 8 << 20,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a finished data set.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin an unfinished build anew.")] = False,
    staging: Annotated[str | None, STAGING] = None,
    as_json: Annotated[bool, AS_JSON] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> None:
    """Turn documents into token shards with their manifest. Run again after an interruption, it goes on."""
    if quiet:
        warnings.simplefilter("ignore")  # the command's own filters: `main` puts the old ones back
    options: dict[str, Any] = {
        "tokenizer_id": tokenizer_id,
        "dataset": dataset,
        "dataset_version": dataset_version,
        "layout": layout,
        "shard_tokens": shard_tokens,
        "format": file_format,
        "split": split,
        "text_field": text_field,
        "document_separator": unescaped(document_separator),
        "separator": separator,
        "separator_position": separator_position,
        "keep_empty": keep_empty,
        "doc_index": doc_index,
        "on_bad_record": on_bad_record,
        "backend": backend,
        "verify_sample": verify_sample,
        "engine": engine,
        "ray_address": ray_address,
        "workers": workers,
        "block_bytes": block_bytes,
        "overwrite": overwrite,
        "restart": restart,
        "staging": staging,
    }
    with going_on(how_to_go_on(overwrite=overwrite)):
        summary = _build(inputs, tokenizer, out, options, quiet=quiet)
    if as_json:
        print_json(summary)
    elif not quiet:
        print_summary(summary)


def _build(inputs: list[str], tokenizer: str, out: str, options: dict[str, Any], *, quiet: bool) -> BuildSummary:
    from tokenriver.building.build import build
    from tokenriver.cli.progress import Progress

    with Progress(None, label="building", quiet=quiet) as progress:
        return build(inputs, tokenizer=tokenizer, out=out, progress=progress, **options)


def print_summary(summary: BuildSummary, *, has_split: bool = True) -> None:
    """A build's summary for people; `has_split`: the command has an option for the split rule."""
    for split in ("train", "val"):
        files = [f for f in summary.files if f.split == split]
        if not files:
            continue
        last = f", the last with {files[-1].n_tokens:,} (expected)" if len(files) > 1 else ""
        print(
            f"{split:<6}{plural(summary.documents_by_split[split], 'document')}, "
            f"{plural(summary.tokens_by_split[split], 'token')} in {plural(len(files), 'shard')}{last}"
        )
    rate = summary.text_bytes / summary.tokens if summary.tokens else 0
    print(
        f"all {summary.documents:,} documents done: {human_bytes(summary.text_bytes)} of text, "
        f"{rate:.2f} bytes per token, {summary.text_bytes / 1e6 / summary.seconds:.1f} MB/s"
        + (" (went on with an unfinished build)" if summary.resumed else "")
    )
    for note in _notes(summary, has_split=has_split):
        print(note)
    print(f"wrote {summary.record}")


def _notes(summary: BuildSummary, *, has_split: bool) -> list[str]:
    notes = []
    if summary.documents and not summary.documents_by_split["train"]:
        notes.append(
            f"no train data: the split rule puts all {summary.documents:,} documents on the val side"
            + ("; --split chooses another" if has_split else "")
        )
    if summary.skipped:
        notes.append(f"skipped: {counted(summary.skipped)}")
    if summary.reference_documents:
        share = summary.reference_documents / summary.documents
        notes.append(f"{plural(summary.reference_documents, 'document')} ({share:.2%}) took the reference encoder")
    if summary.special_texts:
        notes.append(f"{summary.special_texts:,} texts spell a special token; they are ordinary text")
    if summary.lossless < summary.sampled:
        notes.append(
            f"tokenizer not lossless on sample: {summary.sampled - summary.lossless} of {summary.sampled} documents "
            "do not decode to their own bytes"
        )
    return notes
