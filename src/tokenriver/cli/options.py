"""Options that several commands have, in the same words: each command says the type and the default.

A metavar is what docs/cli.md writes: N for a number, T for a tokenizer, the words themselves where there are few.
"""

from __future__ import annotations

import typer

from tokenriver.errors import UsageError

__all__ = [
    "AS_JSON",
    "BACKEND",
    "CONNECTIONS",
    "DOCUMENT_SEPARATOR",
    "ENGINE",
    "INPUTS",
    "KEEP_EMPTY",
    "ON_BAD_RECORD",
    "PARSING_WORKERS",
    "QUIET",
    "RAY_ADDRESS",
    "REVISION",
    "STAGING",
    "TEXT_FIELD",
    "TOKENIZER",
    "unescaped",
]

INPUTS = typer.Argument(
    metavar="INPUT", help="Files, directories, globs, a corpus, URLs of such, or - for JSONL on stdin."
)
AS_JSON = typer.Option("--json", help="Print the summary as JSON.")
QUIET = typer.Option("--quiet", "-q", help="Print nothing but errors.")
TOKENIZER = typer.Option(
    "--tokenizer", metavar="T", help="byte, byte260, gpt2, a tokenizer file or folder, or a Hub id."
)
TEXT_FIELD = typer.Option("--text-field", metavar="NAME", help="Field or column that holds the text.")
DOCUMENT_SEPARATOR = typer.Option(
    "--document-separator",
    metavar="TEXT",
    help="Text that ends a document in .txt files (default: one document a file).",
)
KEEP_EMPTY = typer.Option("--keep-empty", help="Keep documents without text.")
ON_BAD_RECORD = typer.Option(
    "--on-bad-record", metavar="error|skip", help="Stop at the first bad record, or skip and count."
)
BACKEND = typer.Option("--backend", metavar="fast|reference", help="What encodes; the ids are the same.")
ENGINE = typer.Option("--engine", metavar="local|ray", help="This machine, or a Ray cluster; the bytes are the same.")
RAY_ADDRESS = typer.Option(
    "--ray-address", metavar="ADDRESS", help="A running cluster, or auto (default: one is started here)."
)
STAGING = typer.Option(
    "--staging",
    metavar="DIR",
    help="Where output to a URL is made ready (default: TOKENRIVER_STAGING, else the user's cache).",
)
REVISION = typer.Option("--revision", metavar="R", help="Branch, tag or commit.")
CONNECTIONS = typer.Option("--connections", metavar="N", help="Files under way at the same time.")
PARSING_WORKERS = typer.Option("--workers", metavar="N", help="Parsing threads, or tasks (default: one a core).")


def unescaped(separator: str | None) -> str | None:
    r"""`\n`, `\t` and the like as typed in a shell."""
    if separator is None or "\\" not in separator:
        return separator
    try:
        return separator.encode("latin-1", "backslashreplace").decode("unicode_escape")
    except UnicodeDecodeError as error:
        raise UsageError(
            rf"--document-separator {separator!r}: {error.reason}; a backslash begins an escape such as \n, and stands "
            r"for itself as \\"
        ) from None
