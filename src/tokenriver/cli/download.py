"""`tokenriver download`: data sets of ours from the Hub."""

from __future__ import annotations

from typing import Annotated, Literal

import typer

from tokenriver.cli.messages import hub_messages
from tokenriver.cli.options import AS_JSON, CONNECTIONS, QUIET, REVISION
from tokenriver.cli.stopping import going_on
from tokenriver.cli.summaries import plural, print_json
from tokenriver.files import human_bytes

__all__ = ["download_command"]


def download_command(
    repo: Annotated[str, typer.Argument(metavar="REPO", help="Data set repository, OWNER/NAME.")],
    dataset: Annotated[
        str | None, typer.Option(metavar="NAME", help="Name or path of one data set (default: all).")
    ] = None,
    split: Annotated[
        Literal["train", "val"] | None, typer.Option(metavar="train|val", help="Only this side (default: both).")
    ] = None,
    shards: Annotated[
        int | None, typer.Option(metavar="N", help="The first N train shards; val is always whole.")
    ] = None,
    out: Annotated[str, typer.Option(metavar="DIR", help="Folder that the files go below, or its URL.")] = "data",
    revision: Annotated[str, REVISION] = "main",
    connections: Annotated[int, CONNECTIONS] = 8,
    as_json: Annotated[bool, AS_JSON] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> None:
    """Fetch data sets from the Hugging Face Hub.

    Each file is checked against its manifest; what is there and right is not fetched again.
    """
    from tokenriver.cli.transfers import Transfers
    from tokenriver.hub.download import download

    with (
        hub_messages(quiet=quiet),
        going_on("the same command goes on with what came"),
        Transfers(quiet=quiet) as progress,
    ):
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
            f"{plural(len(summary.files), 'shard')}, {plural(summary.n_tokens, 'token')}, "
            f"{human_bytes(summary.n_bytes)}; {plural(summary.fetched, 'file')} fetched, every one checked"
        )
        for directory in summary.directories:
            print(f"wrote {directory}")
