"""`tokenriver index`: make the document index of existing shards from their separators."""

from __future__ import annotations

import json
import time
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenriver.cli.options import AS_JSON
from tokenriver.cli.summaries import plural
from tokenriver.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["index_command"]


def index_command(
    shards: Annotated[
        list[str], typer.Argument(metavar="SHARD", help="Shards (.bin files) or URLs of such.", show_default=False)
    ],
    separator: Annotated[
        int | None,
        typer.Option("--separator", metavar="ID", min=0, help="Id between documents (default: the record's)."),
    ] = None,
    separator_position: Annotated[
        str | None,
        typer.Option(
            "--separator-position", metavar="before|after", help="Where it stands (default: the record's, else before)."
        ),
    ] = None,
    tokenizer: Annotated[
        str | None,
        typer.Option(
            "--tokenizer", metavar="T", help="Take the separator of this tokenizer, where no record names one."
        ),
    ] = None,
    threads: Annotated[int, typer.Option("--threads", metavar="N", min=1, help="Threads that search a shard.")] = 2,
    as_json: Annotated[bool, AS_JSON] = False,
) -> None:
    """Write the document index of shards, <shard>.bin.index.

    Where each document ends, found by the separators; an older index is replaced.
    """
    from tokenriver.shards.index import index_shard
    from tokenriver.storage.paths import to_output

    start = time.perf_counter()
    paths = [to_output(word) for word in shards]  # each index goes beside its shard
    separators = _separators(paths, separator, separator_position, tokenizer)
    facts = [
        index_shard(path, separator_id=separators[path][0], position=separators[path][1], threads=threads)
        for path in paths
    ]
    seconds = time.perf_counter() - start
    documents, tokens = sum(f.n_docs for f in facts), sum(f.n_tokens for f in facts)
    if as_json:
        files = [{"path": str(f.path), "documents": f.n_docs, "tokens": f.n_tokens} for f in facts]
        print(json.dumps({"files": files, "seconds": round(seconds, 3)}, indent=2))
        return
    made = plural(len(facts), "index", "indexes")
    print(f"{made}: {plural(documents, 'document')} in {plural(tokens, 'token')}, {seconds:.2f} s")


def _separators(
    shards: list[Path], given: int | None, position: str | None, tokenizer: str | None
) -> dict[Path, tuple[int, Any]]:
    """Id and position for each shard: as given, else from the manifest or record that lists it, else the tokenizer's.

    Raises UsageError, naming the shard, where none of them knows.
    """
    from tokenriver.shards.documents import known_separators
    from tokenriver.shards.reader import read_header

    if position not in (None, "before", "after"):
        raise UsageError(f"--separator-position is {position!r}; it must be one of before, after")
    for path in shards:
        read_header(path)  # what is no shard at all is called so, not one whose separator nobody knows
    known = known_separators(shards)
    for path, recorded in known.items():
        if given not in (None, recorded.id) or position not in (None, recorded.position):
            raise UsageError(
                f"{path}: its manifest or build record says separator {recorded.id}, {recorded.position} each "
                "document; leave --separator and --separator-position out"
            )
    if given is not None:
        return dict.fromkeys(shards, (given, position or "before"))
    default = None
    if tokenizer is not None:
        from tokenriver.tokenizers.load import load_tokenizer

        default = load_tokenizer(tokenizer).separator_id
    found = {}
    for path in shards:
        if path in known:
            found[path] = (known[path].id, position or known[path].position)
        elif default is not None:
            found[path] = (default, position or "before")
        else:
            what = "--tokenizer" if tokenizer is None else f"another --tokenizer ({tokenizer} has none)"
            raise UsageError(
                f"{path}: no manifest or build record beside it names a separator; give --separator ID or {what} "
                "(without separators the documents are known to the build alone: build --doc-index)"
            )
    return found
