"""`tokenriver tokenizer-file`: write llm.c's tokenizer file from any tokenizer."""

from __future__ import annotations

from typing import Annotated

import typer

from tokenriver.cli.options import TOKENIZER
from tokenriver.files import human_bytes

__all__ = ["tokenizer_file_command"]


def tokenizer_file_command(
    tokenizer: Annotated[str, TOKENIZER],
    out: Annotated[str, typer.Option(metavar="FILE", help="The file to write, such as gpt2_tokenizer.bin.")],
    eot: Annotated[
        int | None, typer.Option(metavar="ID", help="Id that ends a text (default: the tokenizer's separator).")
    ] = None,
    file_version: Annotated[int, typer.Option(metavar="1|2", min=1, max=2, help="1 is for GPT-2 alone.")] = 2,
) -> None:
    """Write llm.c's table from ids to bytes. Its programs print with it."""
    from tokenriver.tokenizers.llmc_file import write_tokenizer_file
    from tokenriver.tokenizers.load import load_tokenizer

    coder = load_tokenizer(tokenizer)
    n_bytes = write_tokenizer_file(out, coder, eot=eot, version=file_version)
    print(f"wrote {out}: {coder.vocab_size:,} ids, {human_bytes(n_bytes)}")
