"""The options of a recipe's run, checked once."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from tokenriver.errors import UsageError
from tokenriver.shards.header import MAX_SHARD_TOKENS
from tokenriver.storage.directory import staging_directory
from tokenriver.storage.paths import is_remote, to_folder, to_output, to_path

if TYPE_CHECKING:
    import os
    from pathlib import Path

    from tokenriver.tokenizers.base import Backend

__all__ = ["INSTEAD", "OFFERED", "ModelDesc", "RecipeOptions"]

ModelDesc = Literal["gpt-2", "llama-3"]

OFFERED = (
    "--backend",
    "--layout",
    "--on-bad-record",
    "--out",
    "--overwrite",
    "--restart",
    "--shard-tokens",
    "--text-field",
)
"""Those of a build's options that a recipe's run has as well: errors advise no other."""

INSTEAD = {"--dataset": "another --out stands beside it"}
"""What they advise instead of one that it has not."""

_TOKENIZERS: dict[str | None, str] = {
    None: "gpt2",
    "gpt-2": "gpt2",
    "llama-3": "meta-llama/Meta-Llama-3.1-8B",
}
"""What the original scripts take for each variant."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeOptions:
    """What a run may choose. None means: as the recipe, or the layout, says.

    `tokenizers` are what `load_tokenizer` takes; several are built in one pass. `model_desc` is llm.c's word for the
    variant of the files, and for the tokenizer where none is given. `input` is a copy of the source. Both it and `out`
    may be URLs.
    """

    tokenizers: tuple[str, ...] = ()
    model_desc: ModelDesc | None = None
    out: str | os.PathLike[str] = "data"
    input: str | os.PathLike[str] | None = None
    layout: Literal["llmc", "tokens"] = "llmc"
    shard_tokens: int | None = None
    version: str | None = None
    max_tokens: int | None = None
    max_docs: int | None = None
    text_field: str | None = None
    subset: str | None = None
    revision: str | None = None
    keep_source: bool = False
    backend: Backend = "fast"
    workers: int | None = None
    on_bad_record: Literal["error", "skip"] = "error"
    overwrite: bool = False
    restart: bool = False

    def __post_init__(self) -> None:
        to_folder(self.out, option="--out")
        if self.layout not in ("llmc", "tokens"):
            raise UsageError(f"--layout is {self.layout!r}; recipes are built as llmc or tokens")
        if self.model_desc not in (None, *get_args(ModelDesc)):
            raise UsageError(f"--model-desc is {self.model_desc!r}; it must be one of {', '.join(get_args(ModelDesc))}")
        if len(set(self.tokenizers)) < len(self.tokenizers):
            raise UsageError("a --tokenizer is given twice")

    @property
    def target(self) -> Path:
        """`out` as a path, a `UPath` behind a URL."""
        return to_output(self.out)

    @property
    def copy(self) -> Path | None:
        """`input` as a path, a `UPath` behind a URL."""
        return None if self.input is None else to_path(self.input)

    @property
    def room(self) -> Path:
        """Where work goes on on this machine: `out`, or the staging directory of its URL."""
        return staging_directory(str(self.target)) if is_remote(self.target) else self.target

    @property
    def tokenizer_words(self) -> tuple[str, ...]:
        """The tokenizers asked for, else the one that the variant has."""
        return self.tokenizers or (_TOKENIZERS[self.model_desc],)

    def most_shard_tokens(self, *, numbered: bool) -> int:
        """Tokens in a shard; llm.c's files without numbers are one shard each."""
        if self.shard_tokens is not None:
            return self.shard_tokens
        return 100_000_000 if numbered or self.layout == "tokens" else MAX_SHARD_TOKENS

    @property
    def file_format(self) -> Literal["auto", "llama-3"]:
        """The variant of the shards: Llama-3's own in the llmc layout alone."""
        return "llama-3" if self.model_desc == "llama-3" and self.layout == "llmc" else "auto"

    def refuse_useless(self, *, is_eval: bool) -> None:
        """UsageError for numbers that cannot be, and for words of data sets that an evaluation file does not have."""
        numbers = {"--max-docs": self.max_docs, "--max-tokens": self.max_tokens}
        for word, n in numbers.items():
            if n is not None and n < 1:
                raise UsageError(f"{word} is {n}; it must be 1 or more")
        given = [word for word, n in numbers.items() if n is not None]
        given += ["--layout tokens"] if self.layout == "tokens" else []
        given += ["--shard-tokens"] if self.shard_tokens is not None else []
        given += ["--text-field"] if self.text_field is not None else []
        if is_eval and given:
            raise UsageError(
                f"{given[0]} is for data sets; this recipe makes an evaluation file, always of all examples"
            )
