"""`tokenriver cache`: what of object stores is kept on this machine, and how to get rid of it."""

from __future__ import annotations

import json
import time
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from tokenriver.cli.summaries import plural
from tokenriver.errors import UsageError
from tokenriver.files import human_bytes

if TYPE_CHECKING:
    from tokenriver.cache.folder import CacheFolder

__all__ = ["cache_command"]


def cache_command(
    cache_dir: Annotated[
        str | None,
        typer.Option(
            "--cache-dir", metavar="DIR", help="The cache (default: TOKENRIVER_CACHE_DIR, else the user's cache)."
        ),
    ] = None,
    prune: Annotated[bool, typer.Option("--prune", help="Remove what was needed the longest time ago.")] = False,
    limit: Annotated[
        str | None, typer.Option("--limit", metavar="SIZE", help="With --prune: keep so much, such as 100GB.")
    ] = None,
    everything: Annotated[bool, typer.Option("--all", help="With --prune: keep nothing.")] = False,
    verify: Annotated[
        bool, typer.Option("--verify", help="Read all of it again; remove files that are not what was fetched.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print it for programs.")] = False,
) -> None:
    """Show or prune the cache of streamed data sets. Exit code 1 if --verify found damage."""
    from tokenriver.cache.folder import CacheFolder
    from tokenriver.cache.settings import cache_settings, parse_bytes

    if prune and (limit is not None) == everything:
        raise UsageError("--prune goes with one of --limit SIZE and --all")
    if not prune and (limit is not None or everything):
        raise UsageError("--limit and --all go with --prune")
    keep = 0 if limit is None else parse_bytes(limit, what="--limit")
    folder = CacheFolder(cache_settings(cache_dir))
    damaged = _remove_damaged(folder) if verify else []
    files, size = folder.prune(limit=keep) if prune else (0, 0)
    if as_json:
        print(json.dumps(_as_facts(folder, removed=(files, size), damaged=damaged), indent=2))
    else:
        for path in damaged:
            print(f"{path}: not what was fetched; removed")
        if prune:
            print(f"removed {plural(files, 'file')}, {human_bytes(size)}")
        _print_table(folder)
    if damaged:
        raise typer.Exit(1)


def _remove_damaged(folder: CacheFolder) -> list[Path]:
    damaged = [entry.path for entry in folder.damaged()]
    for path in damaged:
        path.unlink(missing_ok=True)
    return damaged


def _print_table(folder: CacheFolder) -> None:
    from tokenriver.cache.report import cached_data_sets

    found = cached_data_sets(folder)
    names = [one.url or one.key for one in found]
    width = max([8, *map(len, names)])
    if found:
        print(f"{'data set':<{width}} {'files':>8} {'unfinished':>10} {'size':>10}  last used")
    for one, name in zip(found, names, strict=True):
        used = time.strftime("%Y-%m-%d %H:%M", time.localtime(one.last_used))
        print(f"{name:<{width}} {one.files:>8,} {one.parts:>10,} {human_bytes(one.bytes):>10}  {used}")
    total = human_bytes(sum(one.bytes for one in found))
    print(f"{total} of {len(found)} data sets in {folder.root}")


def _as_facts(folder: CacheFolder, *, removed: tuple[int, int], damaged: list[Path]) -> dict[str, object]:
    from tokenriver.cache.report import cached_data_sets

    found = cached_data_sets(folder)
    return {
        "cache_dir": str(folder.root),
        "bytes": sum(one.bytes for one in found),
        "data_sets": [asdict(one) for one in found],
        "removed": {"files": removed[0], "bytes": removed[1]},
        "damaged": [str(path) for path in damaged],
    }
