"""`tokenriver verify`: check shards and data sets, and name everything that is wrong."""

from __future__ import annotations

import json
import time
from typing import Annotated

import typer

from tokenriver.cli.summaries import plural
from tokenriver.files import human_bytes
from tokenriver.storage.paths import shown

__all__ = ["verify_command"]


def verify_command(
    paths: Annotated[
        list[str],
        typer.Argument(
            metavar="PATH",
            help="Shards, manifests, data sets in any layout, directories with data sets below, or URLs.",
        ),
    ],
    inputs: Annotated[
        bool, typer.Option("--inputs", help="Also hash the inputs again that the build recorded.")
    ] = False,
    workers: Annotated[
        int | None,
        typer.Option("--workers", metavar="N", min=1, help="Files read at the same time (default: two a processor)."),
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print a report for programs.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but what is wrong.")] = False,
) -> None:
    """Check shards and data sets, and name every fault.

    Header, size, id range, checksum, counts and manifest; exit code 1 if anything is wrong.
    """
    from tokenriver.cli.progress import Progress
    from tokenriver.shards.verify import verify

    start = time.perf_counter()
    with Progress(None, label="verifying", quiet=quiet) as progress:
        report = verify(paths, inputs=inputs, workers=workers, progress=progress)
    seconds = time.perf_counter() - start
    if as_json:
        findings = [{"path": shown(f.path), "problem": f.problem} for f in report.findings]
        facts = {"files_checked": report.files_checked, "tokens": report.tokens, "bytes": report.bytes}
        print(json.dumps({"ok": not findings, **facts, "seconds": round(seconds, 3), "findings": findings}, indent=2))
    else:
        for finding in report.findings:
            print(f"{shown(finding.path)}: {finding.problem}")
        n = len(report.findings)
        verdict = plural(n, "finding") if n else "all good"
        if not quiet:
            print(
                f"{verdict}: {plural(report.files_checked, 'shard')}, {plural(report.tokens, 'token')}, "
                f"{human_bytes(report.bytes)} in {seconds:.1f} s"
            )
    if report.findings:
        raise typer.Exit(1)
