"""The options of a build, checked once: what the bytes depend on, and what only changes how they are made."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Any, Literal, TypedDict, get_args

from tokenriver.cluster.engines import check_engine
from tokenriver.corpus.sources import BLOCK_BYTES, OnBadRecord, SourceOptions
from tokenriver.errors import UsageError
from tokenriver.shards.header import MAX_SHARD_TOKENS
from tokenriver.shards.layouts import LAYOUTS, Layout, check_name
from tokenriver.storage.paths import is_unicode

if TYPE_CHECKING:
    import os

    from tokenriver.tokenizers.base import Backend

__all__ = ["BuildOptions", "BuildWords", "Engine", "Format"]

Format = Literal["auto", "llama-3"]
Engine = Literal["local", "ray"]


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
    keep_document_separator: bool
    document_start: str | None
    json_arrays: bool
    strip: bool
    shuffle_seed: int | None
    max_documents: int | None
    max_tokens: int | None
    numbered: bool
    separator: str | int | None
    separator_position: Literal["before", "after"] | None
    end_id: int | None
    keep_empty: bool
    doc_index: bool | None
    on_bad_record: OnBadRecord
    backend: Backend
    verify_sample: int
    engine: Engine
    ray_address: str | None
    workers: int | None
    block_bytes: int
    overwrite: bool
    restart: bool
    staging: str | os.PathLike[str] | None


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildOptions:
    """Options of a build; those above the line decide the bytes, those below never do.

    `split` is a rule of corpus/splits.py (None: the layout's default). `separator` is an id, a token's text or
    "none" (None: the layout's default); `end_id` stands after each document beside it (None: nothing does).
    `format` "llama-3" writes llm.c's Llama-3 variant, "auto" uint16 or uint32
    by the vocabulary. `doc_index` writes each shard's document index beside it (None: in the tokens layout only).
    The words from `text_field` to `strip` are those of SourceOptions (corpus/sources.py);
    `shuffle_seed` + k orders the records of the JSON array that is file k of its side (`split_by_file` there).
    Documents are taken while they are no more than `max_documents` and hold no more than `max_tokens` ids, separators
    included. `numbered` False names the llmc layout's files `<dataset>_val.bin` and `<dataset>_train.bin`, one of each.
    `staging` is where output behind a URL is made ready (storage/directory.py).
    `engine` "ray" builds on the Ray cluster at `ray_address` ("auto": this machine's; None: one is started here).
    `workers` None means one a core; on a cluster it is how many tasks run at a time.
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
    keep_document_separator: bool = False
    document_start: str | None = None
    json_arrays: bool = False
    strip: bool = False
    shuffle_seed: int | None = None
    max_documents: int | None = None
    max_tokens: int | None = None
    numbered: bool = True
    separator: str | int | None = None
    separator_position: Literal["before", "after"] | None = None
    end_id: int | None = None
    keep_empty: bool = False
    doc_index: bool | None = None
    # ---- never in the bytes ----
    on_bad_record: OnBadRecord = "error"
    backend: Backend = "fast"
    verify_sample: int = 200
    engine: Engine = "local"
    ray_address: str | None = None
    workers: int | None = None
    block_bytes: int = BLOCK_BYTES
    overwrite: bool = False
    restart: bool = False
    staging: str | os.PathLike[str] | None = None

    def __post_init__(self) -> None:
        _among("layout", self.layout, LAYOUTS)
        _among("format", self.format, get_args(Format))
        _among("on-bad-record", self.on_bad_record, get_args(OnBadRecord))
        _among("backend", self.backend, ("fast", "reference"))
        check_engine(self.engine, self.ray_address)
        _among("separator-position", self.separator_position, (None, "before", "after"))
        _between("shard-tokens", self.shard_tokens, 1, MAX_SHARD_TOKENS, "(2^31 - 1: the count in a header)")
        _between("block-bytes", self.block_bytes, 1, 1 << 30, "bytes")
        _between("verify-sample", self.verify_sample, 0, 1 << 40, "documents")
        for name, limit in (("max-docs", self.max_documents), ("max-tokens", self.max_tokens)):
            if limit is not None:
                _between(name, limit, 1, 1 << 60, "")
        if self.shuffle_seed is not None and not self.json_arrays:
            raise UsageError("shuffle_seed orders the records of JSON arrays, and goes with json_arrays")
        if not self.numbered and self.layout == "golf":
            raise UsageError("the golf layout numbers its files; numbered=False goes with the llmc layout")
        if self.workers is not None:
            _between("workers", self.workers, 1, 4096, "threads")
        if self.dataset is not None:
            check_name(self.dataset, what="--dataset")
        if self.tokenizer_id is not None:
            check_name(self.tokenizer_id, what="--tokenizer-id")
        if not self.dataset_version or not is_unicode(self.dataset_version):
            problem = "is not UTF-8" if self.dataset_version else "is empty"
            raise UsageError(f"--dataset-version {problem}; give a version such as v1")

    @classmethod
    def from_words(cls, words: BuildWords | dict[str, Any]) -> BuildOptions:
        """From keywords; UsageError names a word that does not exist and lists those that do."""
        known = [f.name for f in fields(cls)]
        unknown = sorted(set(words) - set(known))
        if unknown:
            raise UsageError(f"build has no option {unknown[0]!r}; there are {', '.join(known)}")
        return cls(**words)

    def reading(self, split_field: str | None = None) -> SourceOptions:
        """How the documents are read."""
        return SourceOptions(
            text_field=self.text_field,
            split_field=split_field,
            on_bad_record=self.on_bad_record,
            keep_empty=self.keep_empty,
            document_separator=self.document_separator,
            keep_document_separator=self.keep_document_separator,
            document_start=self.document_start,
            json_arrays=self.json_arrays,
            strip=self.strip,
        )

    def beyond_the_usual(self) -> dict[str, Any]:
        """Those of the words that decide the bytes which most builds do not use, where they are used."""
        return {name: getattr(self, name) for name in _UNUSUAL if getattr(self, name) != _DEFAULTS[name]}


_UNUSUAL = (
    "keep_document_separator",
    "document_start",
    "json_arrays",
    "strip",
    "shuffle_seed",
    "max_documents",
    "max_tokens",
    "numbered",
)
_DEFAULTS = {f.name: f.default for f in fields(BuildOptions)}


def _among(name: str, value: object, choices: tuple[object, ...]) -> None:
    if value not in choices:
        listed = ", ".join(str(c) for c in choices if c is not None)
        raise UsageError(f"--{name} is {value!r}; it must be one of {listed}")


def _between(name: str, value: object, low: int, high: int, unit: str) -> None:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        raise UsageError(f"--{name} is {value!r}; it must be a whole number from {low:,} to {high:,} {unit}")
