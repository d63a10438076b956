"""`tokenriver bpb-audit`: prove or disprove a data set's byte counts and a reported bits per byte, in one page."""

from __future__ import annotations

import json
import math
from dataclasses import asdict
from typing import Annotated, Any

import typer

from tokenriver.errors import UsageError

__all__ = ["bpb_audit_command"]


def bpb_audit_command(
    dataset: Annotated[
        str, typer.Argument(metavar="DATASET", help="Folder of one data set, in any layout, or its URL.")
    ],
    tokenizer: Annotated[
        str, typer.Option(metavar="T", help="The tokenizer that made it: name, file, folder or Hub id.")
    ],
    docs: Annotated[
        list[str] | None,
        typer.Option(metavar="CORPUS", help="The source documents, to be compared id for id; once for each input."),
    ] = None,
    loss: Annotated[float | None, typer.Option(metavar="L", help="Reported mean loss in nats per target.")] = None,
    bpb: Annotated[float | None, typer.Option(metavar="B", help="Reported bits per byte.")] = None,
    seq_len: Annotated[
        int | None,
        typer.Option(metavar="N", min=1, help="Sequence length that the reported targets were cut to (default: all)."),
    ] = None,
    split: Annotated[str, typer.Option(metavar="val|train", help="Split of the reported figures.")] = "val",
    as_json: Annotated[bool, typer.Option("--json", help="Print everything for programs.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Prove or disprove byte counts and bits per byte.

    Counted from the ids, the build's record and the source text; exit code 1 if anything is disproved.
    """
    from tokenriver.bpb.audit import Claim, audit
    from tokenriver.cli.progress import Progress
    from tokenriver.tokenizers.load import load_tokenizer

    if (loss is None) != (bpb is None):
        raise UsageError("--loss and --bpb belong together: the figure follows from the loss")
    if loss is not None and bpb is not None and not (0 < loss < math.inf and 0 < bpb < math.inf):
        raise UsageError(f"--loss {loss} and --bpb {bpb}: both are numbers above 0")
    if split not in ("val", "train"):
        raise UsageError(f"--split {split!r}: choose val or train")
    claim = Claim(loss, bpb, seq_len) if loss is not None and bpb is not None else None
    what: dict[str, Any] = {"tokenizer": load_tokenizer(tokenizer), "claim": claim, "claim_split": split}
    if docs:
        with Progress(None, label="encoding again", quiet=quiet) as progress:
            result = audit(dataset, docs=docs, progress=progress, **what)
    else:
        result = audit(dataset, **what)
    if as_json:
        print(json.dumps({"ok": result.ok, **asdict(result)}, indent=2))
    else:
        print("\n".join(result.lines()))
    if not result.ok:
        raise typer.Exit(1)
