"""`tokenriver publish`: data sets of ours to the Hub."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from tokenriver.cli.messages import hub_messages
from tokenriver.cli.options import AS_JSON, QUIET
from tokenriver.cli.summaries import plural, print_json
from tokenriver.files import human_bytes

__all__ = ["publish_command"]


def publish_command(
    directory: Annotated[
        str, typer.Argument(metavar="DIR", help="A data set, artifacts root or Parameter Golf export, or its URL.")
    ],
    repo: Annotated[str, typer.Argument(metavar="REPO", help="Data set repository, OWNER/NAME; made if missing.")],
    private: Annotated[bool, typer.Option("--private", help="Make a new repository private.")] = False,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Show what would be sent, and ask nobody.")] = False,
    as_json: Annotated[bool, AS_JSON] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> None:
    """Publish data sets to the Hugging Face Hub.

    In one commit that ends with their manifests, and a card written from them.
    """
    from tokenriver.hub.publish import publish

    if quiet or not sys.stderr.isatty():  # its bars are drawn anew on every change
        from huggingface_hub.utils import disable_progress_bars

        disable_progress_bars()
    with hub_messages(quiet=quiet):
        summary = publish(directory, repo, private=private, dry_run=dry_run)
    if as_json:
        print_json(summary)
        return
    if quiet:
        return
    if dry_run:
        for name, size in summary.files.items():
            print(f"{human_bytes(size):>10}  {name}")
        print(f"\n{summary.card}")
    for name in summary.removed:
        print(f"removed {name}: its manifest no longer lists it")
    verb = "would send" if dry_run else "sent"
    print(f"{verb} {plural(len(summary.files), 'file')}, {human_bytes(summary.n_bytes)}, and the card to {repo}")
    if summary.url is not None:
        print(f"published {summary.url}")
