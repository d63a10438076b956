"""`tokenriver trace`: which shards, tokens and documents a training step was made of."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenriver.cli.summaries import ascii_controls, plural
from tokenriver.errors import ResumeError, UsageError
from tokenriver.storage.paths import to_path

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.loader.trace import RowTrace
    from tokenriver.loader.train import TrainLoader
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["trace_command"]

SHOWN_CHARACTERS = 160
"""How much of a document's text is shown; --json gives all of it."""


def trace_command(
    context: typer.Context,
    dataset: Annotated[
        str,
        typer.Argument(metavar="DATASET", help="Data set directory, manifest, shard, glob or URL.", show_default=False),
    ],
    step: Annotated[
        int,
        typer.Option(
            "--step", metavar="K", min=0, help="Step counted from the start of --epoch; may run into later epochs."
        ),
    ],
    epoch: Annotated[int, typer.Option("--epoch", metavar="E", min=0, help="Epoch that --step is counted from.")] = 0,
    state: Annotated[
        str | None,
        typer.Option("--state", metavar="FILE", help="A saved loader state (JSON): gives all the settings below."),
    ] = None,
    batch_size: Annotated[
        int | None, typer.Option("--batch-size", metavar="B", min=1, help="Rows per rank (default: the state's).")
    ] = None,
    seq_len: Annotated[
        int | None, typer.Option("--seq-len", metavar="T", min=1, help="Targets per row (default: the state's).")
    ] = None,
    world_size: Annotated[int, typer.Option("--world-size", metavar="W", min=1, help="Number of ranks.")] = 1,
    rank: Annotated[int | None, typer.Option("--rank", metavar="R", min=0, help="Show this rank alone.")] = None,
    row: Annotated[
        int | None, typer.Option("--row", metavar="I", min=0, help="Show this row of each rank alone.")
    ] = None,
    split: Annotated[str, typer.Option("--split", metavar="NAME", help="train or val.")] = "train",
    order: Annotated[
        str, typer.Option("--order", metavar="NAME", help="shuffled, block-shuffled or sequential.")
    ] = "shuffled",
    seed: Annotated[int, typer.Option("--seed", metavar="N", min=0, help="Seed of the order.")] = 0,
    drop_last: Annotated[
        bool,
        typer.Option("--drop-last/--no-drop-last", help="As the loader was told: the last, partial batch is left out."),
    ] = True,
    packing: Annotated[
        str, typer.Option("--packing", metavar="NAME", help="concat, bos-aligned or best-fit.")
    ] = "concat",
    max_doc_len: Annotated[
        int | None, typer.Option("--max-doc-len", metavar="N", min=1, help="Longest document of bos-aligned rows.")
    ] = None,
    tokenizer: Annotated[
        str | None, typer.Option("--tokenizer", metavar="T", help="Show the text, decoded with this tokenizer.")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print everything for programs.")] = False,
) -> None:
    """Say what a training step's batch was made of. Where to look when the loss jumps: shards, tokens, documents."""
    from tokenriver.cli.decoding import load_decoder
    from tokenriver.loader.trace import Separator, trace_step
    from tokenriver.loader.train import TrainLoader

    if rank is not None and rank >= world_size:
        raise UsageError(f"--rank {rank} of --world-size {world_size}: ranks count from 0")
    settings: dict[str, Any] = {"split": split, "order": order, "seed": seed, "seq_len": seq_len}
    if state is not None:
        saved = _read_state(to_path(state), world_size)
        _contradicted(context, saved, world_size)
        settings |= {name: saved[name] for name in settings}
        batch_size = saved["global_batch_size"] // world_size
        packed = saved.get("packing") or {}
        packing, max_doc_len = packed.get("mode", "concat"), packed.get("max_doc_len")
        settings |= {"window": packed["window"]} if isinstance(packed.get("window"), int) else {}
    settings |= {"packing": packing, "max_doc_len": max_doc_len, "drop_last": drop_last}
    if batch_size is None or settings["seq_len"] is None:
        raise UsageError("the batch's shape is not known: give --batch-size and --seq-len, or --state")
    loader = TrainLoader(dataset, batch_size=batch_size, rank=0, world_size=world_size, prefetch=0, **settings)
    if state is not None:
        _check_belongs(loader, saved, state)
    coder = None if tokenizer is None else load_decoder(tokenizer, made_with=loader.data.tokenizer, what=dataset)
    separator = None
    if coder is not None and loader.data.separator_id is None and loader.data.manifest is None:
        separator = None if coder.separator_id is None else Separator(coder.separator_id)
    rows = trace_step(loader, step, epoch=epoch, rank=rank, separator=separator)
    rows = [found for found in rows if row is None or found.row == row]
    if row is not None and not rows:
        raise UsageError(f"there is no row {row} in a batch of {batch_size} rows a rank")
    if as_json:
        print(json.dumps(_as_facts(loader, step, epoch, rows, coder), indent=2, ensure_ascii=False))
        return
    epoch, step = loader.settle(epoch, step)
    print(
        f"epoch {epoch}, step {step} of {loader.plan.steps(epoch):,}: {plural(len(rows), 'row')}, {settings['order']}"
    )
    for found in rows:
        _print_row(found, settings["split"], coder)


def _contradicted(context: typer.Context, saved: dict[str, Any], world_size: int) -> None:
    """Raise UsageError where an option was given that says something else than the state."""
    packed = saved.get("packing") or {}
    values = {
        **{name: saved[name] for name in ("split", "order", "seed", "seq_len")},
        "batch_size": saved["global_batch_size"] // world_size,
        "packing": packed.get("mode", "concat"),
        "max_doc_len": packed.get("max_doc_len"),
    }
    for name, value in values.items():
        source = context.get_parameter_source(name)
        if source is not None and source.name == "COMMANDLINE" and context.params[name] != value:
            option = f"--{name.replace('_', '-')}"
            raise UsageError(
                f"{option} is {context.params[name]!r}, but the state says {value!r}; leave {option} out, or --state"
            )


def _check_belongs(loader: TrainLoader, saved: dict[str, Any], state: str) -> None:
    """Raise ResumeError, with advice for the command line, where a state is not this data's."""
    try:
        loader.load_state_dict(saved)
    except ResumeError as error:
        error.args = (f"{state}: {error.args[0]}",)
        if error.advice:  # what to say in Python to override it
            error.advice = ("to look at other data give --batch-size, --seq-len and the rest instead of --state",)
        raise


def _read_state(path: Path, world_size: int) -> dict[str, Any]:
    """A saved loader state; whether it belongs to the data is for the loader to say."""
    from tokenriver.loader.arguments import optional_whole, shown
    from tokenriver.loader.order import ORDERS
    from tokenriver.loader.setup import Packer
    from tokenriver.loader.state import check_form
    from tokenriver.shards.manifest import read_limited

    try:
        saved: dict[str, Any] = json.loads(read_limited(path))
    except (ValueError, RecursionError) as error:
        raise ResumeError(f"{path}: not JSON ({error})") from None
    try:
        check_form(saved)
        packed = saved.get("packing", {})
        Packer(packed.get("mode", "concat"), max_doc_len=optional_whole("max_doc_len", packed.get("max_doc_len")))
    except (ResumeError, UsageError) as error:  # a damaged file is no fault of the command line
        raise ResumeError(f"{path}: {error}") from None
    for name, known in (("split", ("train", "val")), ("order", ORDERS)):
        if saved[name] not in known:
            raise ResumeError(f"{path}: {name} is one of {', '.join(known)}, not {shown(saved[name])}")
    if saved["global_batch_size"] % world_size:
        raise UsageError(f"{path}: {saved['global_batch_size']} rows a step cannot be shared by {world_size} ranks")
    return saved


def _print_row(found: RowTrace, split: str, coder: Tokenizer | None) -> None:
    where = f"tokens {found.start:,}:{found.stop:,} of {split}"
    print(f"rank {found.rank} row {found.row}: sequence {found.sequence:,}, {where}")
    for part in found.parts:
        if part.document is None:
            what = ""
        elif part.document < 0:
            what = "  a document of an earlier shard"
        else:
            what = f"  document {part.document:,}" + ("" if part.begins else " (goes on)")
        print(f"  {part.shard.name} {part.start:,}:{part.stop:,}{what}")
        if coder is not None:
            text = ascii_controls(coder.decode(part.ids))
            print(f"    {text[:SHOWN_CHARACTERS]}{'…' if len(text) > SHOWN_CHARACTERS else ''}")


def _as_facts(
    loader: TrainLoader, step: int, epoch: int, rows: list[RowTrace], coder: Tokenizer | None
) -> dict[str, Any]:
    epoch, step = loader.settle(epoch, step)
    return {
        "epoch": epoch,
        "step": step,
        "steps_per_epoch": loader.plan.steps(epoch),
        "rows": [
            {
                "rank": found.rank,
                "row": found.row,
                "sequence": found.sequence,
                "start": found.start,
                "stop": found.stop,
                "parts": [
                    {
                        "shard": str(part.shard),
                        "start": part.start,
                        "stop": part.stop,
                        "document": part.document,
                        "begins": part.begins,
                        "ids": part.ids.tolist(),
                        **({} if coder is None else {"text": coder.decode(part.ids)}),
                    }
                    for part in found.parts
                ],
            }
            for found in rows
        ],
    }
