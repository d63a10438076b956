"""`tokenriver build`: documents to token shards."""

from __future__ import annotations

import signal
import sys
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from types import FrameType

    from tokenriver.building.build import BuildSummary

__all__ = ["build_command"]

_INPUTS = "PANEL"


def build_command(
    inputs: Annotated[
        list[str],
        typer.Argument(metavar="INPUT…", help="Files, directories, globs, a corpus, or - for JSONL on stdin."),
    ],
    tokenizer: Annotated[str, typer.Option(help="byte, byte260, gpt2, a tokenizer file or folder, or a Hub id.")],
    out: Annotated[str, typer.Option(metavar="DIR", help="Artifacts root, or the shards' folder (llmc, golf).")],
    tokenizer_id: Annotated[str | None, typer.Option(help="Name of the tokenizer in paths and manifest.")] = None,
    dataset: Annotated[str | None, typer.Option(help="Name of the data set (default: the first input's).")] = None,
    dataset_version: Annotated[str, typer.Option(help="Version written into the manifest.")] = "v1",
    layout: Annotated[str, typer.Option(help="tokens, llmc or golf: names, cuts and records.")] = "tokens",
    shard_tokens: Annotated[int, typer.Option(help="Tokens in a shard.")] = 100_000_000,
    file_format: Annotated[str, typer.Option("--format", help="auto, or llama-3 for llm.c's variant.")] = "auto",
    split: Annotated[
        str | None,
        typer.Option(help="column[:NAME], hash:FRACTION, first-docs:N, first-tokens:N, first-shard or train."),
    ] = None,
    text_field: Annotated[str, typer.Option(help="Field or column that holds the text.")] = "text",
    document_separator: Annotated[str | None, typer.Option(help="Text that ends a document in .txt files.")] = None,
    separator: Annotated[str | None, typer.Option(help="Id or token between documents, or none.")] = None,
    separator_position: Annotated[str | None, typer.Option(help="before or after each document.")] = None,
    keep_empty: Annotated[bool, typer.Option("--keep-empty", help="Keep documents without text.")] = False,
    on_bad_record: Annotated[str, typer.Option(help="error, or skip (and count).")] = "error",
    backend: Annotated[str, typer.Option(help="fast, or reference.")] = "fast",
    verify_sample: Annotated[int, typer.Option(help="Documents compared with the reference.")] = 200,
    workers: Annotated[int | None, typer.Option(help="Encoding threads (default: one a core).")] = None,
    block_bytes: Annotated[int, typer.Option(help="Text in one unit of work, in bytes.")] = 8 << 20,
    overwrite: Annotated[bool, typer.Option("--overwrite", help="Replace a finished data set.")] = False,
    restart: Annotated[bool, typer.Option("--restart", help="Begin an unfinished build anew.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")] = False,
) -> None:
    """Turn documents into token shards with their manifest; run again after an interruption, it goes on."""
    from tokenriver.building.build import build
    from tokenriver.cli.progress import Progress
    from tokenriver.corpus.sources import find_sources

    signal.signal(signal.SIGTERM, _terminated)
    total = sum(source.n_bytes or 0 for source in find_sources(inputs)) if not quiet else 0
    options: dict[str, Any] = {
        "tokenizer_id": tokenizer_id,
        "dataset": dataset,
        "dataset_version": dataset_version,
        "layout": layout,
        "shard_tokens": shard_tokens,
        "format": file_format,
        "split": split,
        "text_field": text_field,
        "document_separator": _unescaped(document_separator),
        "separator": separator,
        "separator_position": separator_position,
        "keep_empty": keep_empty,
        "on_bad_record": on_bad_record,
        "backend": backend,
        "verify_sample": verify_sample,
        "workers": workers,
        "block_bytes": block_bytes,
        "overwrite": overwrite,
        "restart": restart,
    }
    with Progress(total or None, "building", quiet=quiet) as progress:
        summary = build(inputs, tokenizer=tokenizer, out=out, progress=progress, **options)
    if as_json:
        _print_json(summary)
    elif not quiet:
        _print_summary(summary)
