"""The options of a build, checked once: what the bytes depend on, and what only changes how they are made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from tokenriver.errors import UsageError
from tokenriver.shards.header import MAX_SHARD_TOKENS
from tokenriver.shards.layouts import LAYOUTS, Layout, check_name

if TYPE_CHECKING:
    from tokenriver.tokenizers.base import Backend

__all__ = ["BuildOptions", "BuildWords", "Format"]

Format = Literal["auto", "llama-3"]
BadRecords = Literal["error", "skip"]


class BuildWords(TypedDict, total=False):
    """The options of `tokenriver.build` as keywords; BuildOptions says what each means."""

    tokenizer_id: str | None
    dataset: str | None
    dataset_version: str
    layout: Layout
    shard_tokens: int
    format: Format
    split: str | None
    text_field: str
    document_separator: str | None
    separator: str | int | None
    separator_position: Literal["before", "after"] | None
    end_id: int | None
    keep_empty: bool
    on_bad_record: BadRecords
    backend: Backend
    verify_sample: int
    workers: int | None
    block_bytes: int
    overwrite: bool
    restart: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Options of a build; those above the line decide the bytes, those below never do.

    `split` is a rule of corpus/splits.py (None: the layout's default). `separator` is an id, a token's text or
    "none" (None: the layout's default); `end_id` stands after each document beside it (None: nothing does).
    `format` "llama-3" writes llm.c's Llama-3 variant, "auto" uint16 or uint32
    by the vocabulary. `workers` None means one a core.
    """

    tokenizer_id: str | None = None
    dataset: str | None = None
    dataset_version: str = "v1"
    layout: Layout = "tokens"
    shard_tokens: int = 100_000_000
    format: Format = "auto"
    split: str | None = None
    text_field: str = "text"
    document_separator: str | None = None
    separator: str | int | None = None
    separator_position: Literal["before", "after"] | None = None
    end_id: int | None = None
    keep_empty: bool = False
    # ---- never in the bytes ----
    on_bad_record: BadRecords = "error"
    backend: Backend = "fast"
    verify_sample: int = 200
    workers: int | None = None
    block_bytes: int = 8 << 20
    overwrite: bool = False
    restart: bool = False

    def __post_init__(self) -> None:
        _among("layout", self.layout, LAYOUTS)
        _among("format", self.format, get_args(Format))
        _among("on-bad-record", self.on_bad_record, get_args(BadRecords))
        _among("backend", self.backend, ("fast", "reference"))
        _among("separator-position", self.separator_position, (None, "before", "after"))
        _between("shard-tokens", self.shard_tokens, 1, MAX_SHARD_TOKENS, "(2^31 - 1: the count in a header)")
        _between("block-bytes", self.block_bytes, 1, 1 << 30, "bytes")
        _between("verify-sample", self.verify_sample, 0, 1 << 40, "documents")
        if self.workers is not None:
            _between("workers", self.workers, 1, 4096, "threads")
        if self.dataset is not None:
            check_name(self.dataset, what="--dataset")
        if self.tokenizer_id is not None:
            check_name(self.tokenizer_id, what="--tokenizer-id")
        if not self.dataset_version:
            raise UsageError("--dataset-version is empty; give a version such as v1")

    @classmethod
    def from_words(cls, words: BuildWords | dict[str, Any]) -> BuildOptions:
        """From keywords; UsageError names a word that does not exist and lists those that do."""
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(words) - set(known))
        if unknown:
            raise UsageError(f"build has no option {unknown[0]!r}; there are {', '.join(known)}")
        return cls(**words)


def _among(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        listed = ", ".join(str(c) for c in choices if c is not None)
        raise UsageError(f"--{name} is {value!r}; it must be one of {listed}")


def _between(name: str, value: object, low: int, high: int, unit: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UsageError(f"--{name} is {value!r}; it must be a whole number from {low:,} to {high:,} {unit}")
