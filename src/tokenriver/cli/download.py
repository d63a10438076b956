"""`tokenriver download`: data sets of ours from the Hub."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tokenriver.cli.options import Quiet, SummaryAsJson
from tokenriver.cli.stopping import going_on
from tokenriver.cli.summaries import print_json
from tokenriver.files import human_bytes

__all__ = ["download_command"]


def download_command(
    repo: Annotated[str, typer.Argument(metavar="REPO", help="Data set repository, OWNER/NAME.")],
    dataset: Annotated[str | None, typer.Option(help="Name or path of one data set (default: all).")] = None,
    split: Annotated[Literal["train", "val"] | None, typer.Option(help="Only this side.")] = None,
    shards: Annotated[int | None, typer.Option(help="The first N train shards; val is always whole.")] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder that the files go below, or its URL.")] = "data",
    revision: Annotated[str, typer.Option(help="Branch, tag or commit.")] = "main",
    connections: Annotated[int, typer.Option(help="Files under way at the same time.")] = 8,
    as_json: SummaryAsJson = False,
    quiet: Quiet = False,
) -> None:
    """Fetch data sets, each file checked against its manifest; what is there and right is not fetched again."""
    from tokenriver.cli.transfers import Transfers
    from tokenriver.hub.download import download

    with going_on("the same command goes on with what came"), Transfers(quiet=quiet) as progress:
        summary = download(
            repo,
            dataset=dataset,
            split=split,
            shards=shards,
            out=out,
            revision=revision,
            connections=connections,
            progress=progress,
        )
    if as_json:
        print_json(summary)
    elif not quiet:
        print(
            f"{len(summary.files)} shards, {summary.n_tokens:,} tokens, {human_bytes(summary.n_bytes)}; "
            f"{summary.fetched} files fetched, every one checked"
        )
        for directory in summary.directories:
            print(f"wrote {directory}")
