"""`tokenriver mix`: what a mixture of data sets will show in a run."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenriver.cli.summaries import ascii_controls
from tokenriver.storage.paths import to_output

if TYPE_CHECKING:
    from tokenriver.loader.mix_plan import MixPlan, PhasePlan

__all__ = ["mix_app"]

mix_app = typer.Typer(help="Show what a mixture of data sets will give.", no_args_is_help=True, rich_markup_mode=None)


@mix_app.callback()
def _mix() -> None:
    """Mixtures of data sets."""


@mix_app.command("plan")
def mix_plan_command(
    file: Annotated[str, typer.Argument(metavar="FILE", help="The mixture, a TOML file.", show_default=False)],
    steps: Annotated[int, typer.Option("--steps", metavar="N", min=1, help="Steps of the run.")],
    batch_size: Annotated[
        int, typer.Option("--batch-size", metavar="N", min=1, help="Rows of all ranks in a step.")
    ] = 512,
    seq_len: Annotated[int, typer.Option("--seq-len", metavar="T", min=1, help="Targets per row.")] = 1024,
    split: Annotated[str, typer.Option("--split", metavar="NAME", help="train or val.")] = "train",
    packing: Annotated[
        str, typer.Option("--packing", metavar="NAME", help="concat, bos-aligned or best-fit.")
    ] = "concat",
    plot: Annotated[str | None, typer.Option("--plot", metavar="FILE", help="Draw it, as PNG, SVG or PDF.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the plan as JSON.")] = False,
) -> None:
    """Show what a run will see, without reading data. Tokens, epochs and share by source and phase."""
    from tokenriver.loader.mix_plan import draw_mixture, plan_mixture
    from tokenriver.loader.mixture import Mixture

    mixture = Mixture(file)
    options: dict[str, Any] = {"batch_size": batch_size, "seq_len": seq_len, "split": split, "packing": packing}
    options |= {"rank": 0, "world_size": 1}
    picture = None if plot is None else to_output(plot)
    plan = plan_mixture(mixture, steps=steps, **options)
    if picture is not None:
        draw_mixture(mixture, picture, steps=steps, **options)
    if as_json:
        print(json.dumps(asdict(plan), indent=2))
        return
    _print_plan(plan, steps)


def _print_plan(plan: MixPlan, asked: int) -> None:
    names = [ascii_controls(source.name) for source in plan.total.sources]
    width = max(6, *map(len, names))
    for phase in plan.phases:
        _print_phase(f"steps {phase.start:,} to {phase.stop - 1:,}", phase, width)
    if len(plan.phases) != 1:
        _print_phase(f"all {plan.steps:,} steps", plan.total, width)
    print(f"{plan.tokens:,} tokens in {plan.steps:,} steps")
    if plan.steps < asked:
        print(f"the sources are used up after {plan.steps:,} of {asked:,} steps")


def _print_phase(title: str, phase: PhasePlan, width: int) -> None:
    print(title)
    print(f"  {'source':<{width}} {'tokens':>18} {'share':>8} {'epochs':>8}")
    for source in phase.sources:
        name, note = ascii_controls(source.name), "  used up" if source.used_up else ""
        print(f"  {name:<{width}} {source.tokens:>18,} {source.share:>8.2%} {source.epochs:>8.2f}{note}")
