"""`tokenriver eval`: make, show and run multiple-choice evaluation files."""

from __future__ import annotations

import importlib
import inspect
import json
import sys
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal, cast

import typer

from tokenriver.cli.options import AS_JSON, BACKEND, ON_BAD_RECORD, QUIET, TOKENIZER
from tokenriver.cli.summaries import ascii_controls, counted, plural
from tokenriver.errors import TokenRiverError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenriver.evals.encode import Boundary
    from tokenriver.evals.make import EvalSummary
    from tokenriver.evals.tasks import Rendering

__all__ = ["check_device", "eval_app", "load_model"]

eval_app = typer.Typer(
    help="Make, show and run multiple-choice evaluation files.",
    rich_markup_mode=None,
)

_FILE = Annotated[str, typer.Argument(metavar="FILE", help="An evaluation file, or its URL.", show_default=False)]


@eval_app.command("make")
def make_command(
    task: Annotated[
        str,
        typer.Argument(
            metavar="TASK", help="hellaswag, mmlu, arc-easy, arc-challenge, piqa, winogrande or openbookqa."
        ),
    ],
    source: Annotated[
        str, typer.Argument(metavar="INPUT", help="The task's own .jsonl (also .gz, .zst); for mmlu a folder or .csv.")
    ],
    tokenizer: Annotated[str, TOKENIZER],
    out: Annotated[str, typer.Option(metavar="FILE", help="The file to write; FILE.json says how it was made.")],
    rendering: Annotated[
        str,
        typer.Option(metavar="llmc|harness", help="How the words are put together; harness: lm-evaluation-harness."),
    ] = "llmc",
    boundary: Annotated[
        str, typer.Option(metavar="apart|joint", help="Context and completion encoded as two texts, or in one piece.")
    ] = "apart",
    file_version: Annotated[
        str, typer.Option(metavar="auto|1|2", help="1 is llm.c's; auto takes it where it can hold the examples.")
    ] = "auto",
    shots: Annotated[
        int, typer.Option(metavar="N", min=0, help="mmlu, harness: answered examples before each question.")
    ] = 0,
    on_bad_record: Annotated[str, ON_BAD_RECORD] = "error",
    backend: Annotated[str, BACKEND] = "fast",
    as_json: Annotated[bool, AS_JSON] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> None:
    """Turn a task's published file into an evaluation file. A record beside it says how."""
    from tokenriver.evals.make import make_eval_file
    from tokenriver.tokenizers.load import load_tokenizer

    if file_version not in ("auto", "1", "2"):
        raise UsageError(f"--file-version {file_version!r} is unknown; choose auto, 1 or 2")
    summary = make_eval_file(
        task,
        source,
        tokenizer=load_tokenizer(tokenizer, backend=cast("Literal['fast', 'reference']", backend)),
        out=out,
        rendering=cast("Rendering", rendering),
        boundary=cast("Boundary", boundary),
        version=cast("Any", file_version if file_version == "auto" else int(file_version)),
        shots=shots,
        on_bad_record=cast("Literal['error', 'skip']", on_bad_record),
    )
    if as_json:
        from tokenriver.files import open_binary

        with open_binary(summary.record) as record:
            print((record.read() or b"").decode(), end="")
    elif not quiet:
        _print_summary(summary)


def _print_summary(summary: EvalSummary) -> None:
    print(f"{plural(summary.examples, 'example')}, {summary.tokens:,} ids, version {summary.version} in {summary.path}")
    if summary.skipped:
        print("skipped: " + counted(summary.skipped))
    if summary.notes.get("not_lossless"):
        print(
            f"{summary.notes['not_lossless']:,} completions changed when encoded by themselves (a leading "
            "space lost, or normalised): --boundary joint encodes them after their context"
        )
    if summary.notes.get("boundary_apart"):
        print(f"{summary.notes['boundary_apart']:,} completions could not be cut jointly: encoded apart")
    print(f"wrote {summary.record}")


@eval_app.command("show")
def show_command(
    file: _FILE,
    k: Annotated[int, typer.Argument(metavar="K", help="Number of the example, from 0.", show_default=False)],
    tokenizer: Annotated[str, typer.Option(metavar="T", help="The tokenizer that made the file.")],
    as_json: Annotated[bool, typer.Option("--json", help="Print it for programs.")] = False,
) -> None:
    """Show one example in words. Context, completions (the right one marked) and label."""
    from tokenriver.evals.file import open_eval_file, require_example
    from tokenriver.tokenizers.load import load_tokenizer

    example = require_example(open_eval_file(file, check=False), k)
    coder = load_tokenizer(tokenizer)
    context = coder.decode(example.context)
    completions = [
        {
            "lead": coder.decode(completion.ids[: completion.n_unscored]),
            "text": coder.decode(completion.ids[completion.n_unscored :]),
            "n_tokens": len(completion.ids) - completion.n_unscored,
        }
        for completion in example.completions
    ]
    if as_json:
        facts = {"example": k, "label": example.label, "context": context, "completions": completions}
        print(json.dumps(facts, indent=2, ensure_ascii=False))
        return
    print(f"example {k}, label {example.label}")
    print(f"context ({len(example.context):,} ids): {_shown(context)}")
    for i, completion in enumerate(completions):
        mark = "*" if i == example.label else " "
        lead = f" (not scored: {_shown(str(completion['lead']))})" if completion["lead"] else ""
        print(f"{mark} {i} ({completion['n_tokens']} ids): {_shown(str(completion['text']))}{lead}")


def _shown(text: str) -> str:
    """Text in quotes with control characters escaped: spaces at the ends matter here, and terminals are left alone."""
    return json.dumps(text, ensure_ascii=False) if text.isprintable() else f'"{ascii_controls(text)}"'


@eval_app.command("run")
def run_command(
    file: _FILE,
    model: Annotated[
        str,
        typer.Option(metavar="MODULE:CALLABLE", help="model(inputs) -> logits, NumPy or torch.", show_default=False),
    ],
    batch_size: Annotated[int, typer.Option(metavar="N", min=1, help="Rows in a batch.")] = 32,
    seq_len: Annotated[int, typer.Option(metavar="N", min=2, help="Ids in a row.")] = 1024,
    tokenizer: Annotated[
        str | None,
        typer.Option(metavar="T", help="For acc_norm by characters and bytes where the file does not hold them."),
    ] = None,
    too_long: Annotated[
        str, typer.Option(metavar="error|skip", help="Rows longer than a sequence: stop, or skip and count.")
    ] = "error",
    packed: Annotated[bool, typer.Option("--packed", help="Several examples in one row, with cu_seqlens.")] = False,
    device: Annotated[
        str | None, typer.Option(metavar="D", help="torch device, such as cuda; inputs are then tensors.")
    ] = None,
    autocast: Annotated[str | None, typer.Option(metavar="T", help="bfloat16 or float16, with torch.")] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print the scores as JSON.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", "-q", help="No progress.")] = False,
) -> None:
    """Score a model on an evaluation file. Prints acc and acc_norm with their standard errors."""
    from tokenriver.cli.progress import Progress
    from tokenriver.evals.evaluate import evaluate
    from tokenriver.evals.file import open_eval_file

    opened = open_eval_file(file)
    total = opened.words.nbytes
    coder = None
    if tokenizer is not None:
        from tokenriver.tokenizers.load import load_tokenizer

        coder = load_tokenizer(tokenizer)
    loaded = load_model(model)
    check_device(device)
    with Progress(total, label="evaluating", quiet=quiet) as progress:
        scores = evaluate(
            loaded,
            opened,
            batch_size=batch_size,
            seq_len=seq_len,
            too_long=cast("Literal['error', 'skip']", too_long),
            packed=packed,
            tokenizer=coder,
            device=device,
            autocast=autocast,
            progress=lambda done, of: progress.update(total * done // max(of, 1)),
            show=False,
        )
    n_left_out = len(opened) - scores.n_examples
    if as_json:
        print(json.dumps({**scores.to_dict(), "n_left_out": n_left_out}, indent=2))
        return
    print(scores.table())
    if n_left_out:
        print(f"{plural(n_left_out, 'example')} left out: longer than {seq_len:,} ids")


def load_model(words: str) -> Callable[..., Any]:
    """The callable that "module:name" names; modules are looked for in the working directory too."""
    module_name, colon, name = words.partition(":")
    if not colon or not module_name or not name:
        raise UsageError(f"--model {words!r}: expected module:callable, such as my_model:forward")
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        found: Any = importlib.import_module(module_name)
    except ModuleNotFoundError as error:
        raise UsageError(
            f"--model {words!r}: no module {error.name!r} (the working directory is looked at too)"
        ) from error
    except Exception as error:
        raise _theirs(words, error) from error
    for part in name.split("."):
        if not hasattr(found, part):
            raise UsageError(f"--model {words!r}: {module_name} has no {name!r}")
        found = getattr(found, part)
    if not callable(found):
        raise UsageError(f"--model {words!r}: it is {type(found).__name__}, not something to call")
    return _Model(words, found)


def check_device(device: str | None) -> None:
    """Raise UsageError for a torch device that is not here, before anything is computed."""
    if device is None:
        return
    try:
        import torch
    except ImportError:
        return  # what needs it says so
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError, NotImplementedError) as error:
        raise UsageError(f"--device {device!r}: {str(error).splitlines()[0]}") from error


def _theirs(words: str, error: Exception) -> TokenRiverError:
    return TokenRiverError(f"--model {words!r} raised {type(error).__name__}: {error} (TOKENRIVER_DEBUG=1 shows where)")


class _Model:
    """A user's model, whose own errors are called its own; everything else about it is as it was."""

    def __init__(self, words: str, model: Any) -> None:
        self._words, self._model = words, model
        with suppress(TypeError, ValueError):
            self.__signature__ = inspect.signature(getattr(model, "forward", model))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._model, name)

    def __call__(self, *arguments: Any, **words: Any) -> Any:
        try:
            return self._model(*arguments, **words)
        except TokenRiverError:
            raise
        except Exception as error:
            raise _theirs(self._words, error) from error
