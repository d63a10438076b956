"""Options that several commands have, with the same words."""

from __future__ import annotations

from typing import Annotated

import typer

from tokenriver.errors import UsageError

__all__ = [
    "Backend",
    "DocumentSeparator",
    "Engine",
    "KeepEmpty",
    "OnBadRecord",
    "Quiet",
    "RayAddress",
    "Staging",
    "SummaryAsJson",
    "TextField",
    "TokenizerWord",
    "unescaped",
]

TokenizerWord = Annotated[str, typer.Option(help="byte, byte260, gpt2, a tokenizer file or folder, or a Hub id.")]
TextField = Annotated[str, typer.Option(help="Field or column that holds the text.")]
DocumentSeparator = Annotated[str | None, typer.Option(help="Text that ends a document in .txt files.")]
OnBadRecord = Annotated[str, typer.Option(help="error, or skip (and count).")]
KeepEmpty = Annotated[bool, typer.Option("--keep-empty", help="Keep documents without text.")]
Backend = Annotated[str, typer.Option(help="fast, or reference.")]
Engine = Annotated[str, typer.Option(help="local, or ray: on a cluster.")]
RayAddress = Annotated[str | None, typer.Option(help="A running cluster, or auto (default: one is started here).")]
Staging = Annotated[
    str | None,
    typer.Option(metavar="DIR", help="Where output to a URL is made ready (default: TOKENRIVER_STAGING)."),
]
SummaryAsJson = Annotated[bool, typer.Option("--json", help="Print the summary as JSON.")]
Quiet = Annotated[bool, typer.Option("--quiet", "-q", help="Print nothing but errors.")]


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
