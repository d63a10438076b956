"""The command `tokenriver`: one module a command; each parses, calls one library function and prints.

Exit codes: 0 done, 1 our errors (bad input, findings of verify), 2 a command line that cannot work, 130 interrupted,
143 terminated.
An error is one line on standard error, never a traceback; TOKENRIVER_DEBUG=1 shows the traceback too.
"""

from __future__ import annotations

import importlib
import os
import sys
import traceback
import warnings
from typing import TYPE_CHECKING, Annotated, Any

import typer

from tokenriver import __version__
from tokenriver.cli.messages import logged, show_warning
from tokenriver.cli.stopping import StoppedError, stop_of, terminable
from tokenriver.errors import TokenRiverError, UsageError
from tokenriver.storage.paths import shown

if TYPE_CHECKING:
    from collections.abc import Sequence

__all__ = ["main", "make_app"]

_COMMANDS = {
    "build": "build:build_command",
    "corpus": "corpus:corpus_command",
    "train-tokenizer": "train_tokenizer:train_tokenizer_command",
    "verify": "verify:verify_command",
    "inspect": "inspect:inspect_command",
    "index": "index:index_command",
    "eval": "eval:eval_app",
    "tokenizer-file": "tokenizer_file:tokenizer_file_command",
    "bpb-audit": "bpb_audit:bpb_audit_command",
    "trace": "trace:trace_command",
    "cache": "cache:cache_command",
    "mix": "mix:mix_app",
    "golf": "golf:golf_app",
    "download": "download:download_command",
    "publish": "publish:publish_command",
    "recipe": "recipe:recipe_command",
}
"""Each command's module in this folder and what to take from it: a function, or the group of its subcommands."""


def make_app(only: str | None = None) -> typer.Typer:
    """The command line with all commands, or with the one that is wanted: the others take a quarter second to load."""
    made = typer.Typer(
        name="tokenriver",
        help="Text to token shards to training batches: exact, fast, with nothing lost.",
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,  # plain help: rich alone would take as long to load as all the rest
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    for name, place in _COMMANDS.items():
        if only in (None, name):
            module, _, attribute = place.partition(":")
            command = getattr(importlib.import_module(f"tokenriver.cli.{module}"), attribute)
            if isinstance(command, typer.Typer):
                made.add_typer(command, name=name)
            else:
                made.command(name)(command)
    made.callback()(_options)
    return made


def _print_version(wanted: bool) -> None:
    if wanted:
        print(f"tokenriver {__version__}")
        raise typer.Exit


def _options(
    _version: Annotated[
        bool, typer.Option("--version", callback=_print_version, is_eager=True, help="Show the version and exit.")
    ] = False,
) -> None:
    """Text to token shards to training batches: exact, fast, with nothing lost."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run the command line (default: `sys.argv`) and return its exit code; errors are printed, not raised."""
    _open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        # A document or a file name may hold what the console's encoding lacks; that is no reason to stop.
        if hasattr(stream, "reconfigure"):
            stream.reconfigure(errors="backslashreplace")
    words = sys.argv[1:] if arguments is None else list(arguments)
    app = make_app(words[0] if words and words[0] in _COMMANDS else None)
    try:
        with terminable(), logged(), warnings.catch_warnings():
            warnings.showwarning = show_warning
            code = app(args=words, prog_name="tokenriver", standalone_mode=False)
            sys.stdout.flush()
        if code == _INTERRUPTED:  # what the parser makes of a KeyboardInterrupt, silently
            raise KeyboardInterrupt
    except (KeyboardInterrupt, typer.Abort) as stop:
        word, code = stop_of(stop) if isinstance(stop, KeyboardInterrupt) else ("interrupted", _INTERRUPTED)
        print(f"tokenriver: {word}", file=sys.stderr)
        return code
    except BrokenPipeError:
        # The reader of our output went away (`| head`). Python would complain again when it flushes at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 1
    except Exception as error:
        if os.environ.get("TOKENRIVER_DEBUG") == "1":
            traceback.print_exc()
        message, code = _explain(error)
        print(f"tokenriver: {shown(' '.join(message.splitlines()))}", file=sys.stderr)
    return code if isinstance(code, int) else 0


_INTERRUPTED = 130


def _open_closed_streams() -> None:
    """Give standard streams that were closed (`>&-`, a daemon's) to the null device: what is said there goes nowhere.

    A file that is opened next would get the free number otherwise, and whatever libraries say be written into a shard.
    """
    for number, stream in enumerate((sys.stdin, sys.stdout, sys.stderr)):
        if stream is None:
            try:
                os.fstat(number)
            except OSError:  # closed, and none below it is: this is the number that open gives
                os.set_inheritable(os.open(os.devnull, os.O_RDWR), True)
    if sys.stdout is None:
        sys.stdout = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115
    if sys.stderr is None:
        sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115


def _explain(error: Exception) -> tuple[str, int]:
    """The one line and the exit code for an error."""
    if isinstance(error, StoppedError):
        return str(error), error.code
    if isinstance(error, TokenRiverError):
        return str(error), 2 if isinstance(error, UsageError) else 1
    if hasattr(error, "format_message"):
        return _explain_words(error), getattr(error, "exit_code", 2)
    if isinstance(error, MemoryError):
        return f"not enough memory: {str(error) or 'the system gives no more'}; take less at a time", 1
    if isinstance(error, OSError):
        where = f"{error.filename}: " if error.filename is not None else ""
        return f"{where}{error.strerror or error}", 1
    return f"internal error, please report it: {type(error).__name__}: {error} (TOKENRIVER_DEBUG=1 shows where)", 1


def _explain_words(error: Any) -> str:
    """The parser's own errors in one line; typer has moved their class between versions, their shape has stayed."""
    context = getattr(error, "ctx", None)
    message = "Missing command." if type(error).__name__ == "NoArgsIsHelpError" else error.format_message()
    # What was given, where the parser names only what it wants: "Input should be a valid integer …".
    reasons = getattr(error.__cause__, "errors", None)
    given = [reason["input"] for reason in reasons() if "input" in reason] if callable(reasons) else []
    if given and repr(given[0]) not in message:
        message = f"{message.rstrip('.')}, not {given[0]!r}"
    hint = f" (see {context.command_path} --help)" if context is not None else ""
    return f"{' '.join(message.split())}{hint}"
