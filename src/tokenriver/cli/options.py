"""Options that several commands have, with the same words."""

from __future__ import annotations

from typing import Annotated

import typer

__all__ = ["Engine", "Quiet", "RayAddress", "Staging", "SummaryAsJson"]

Engine = Annotated[str, typer.Option(help="local, or ray: on a cluster.")]
RayAddress = Annotated[str | None, typer.Option(help="A running cluster, or auto (default: one is started here).")]
Staging = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Where output to a URL is made ready (default: TOKENRIVER_STAGING)."),
]
SummaryAsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]
