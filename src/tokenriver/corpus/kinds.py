"""What a file holds and how it is compressed, by the ending of its name: the one list of what is read as documents."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal

from tokenriver.errors import CorpusError

if TYPE_CHECKING:
    from tokenriver.corpus.sources import SourceOptions

__all__ = ["KINDS", "Compression", "Kind", "holds_documents", "is_json", "kind_if_found", "kind_of", "require_kind"]

Kind = Literal["jsonl", "parquet", "txt", "array"]
Compression = Literal["", "gz", "zst"]

KINDS: dict[str, tuple[Kind, Compression]] = {
    ".jsonl": ("jsonl", ""),
    ".jsonl.gz": ("jsonl", "gz"),
    ".jsonl.zst": ("jsonl", "zst"),
    ".ndjson": ("jsonl", ""),
    ".ndjson.gz": ("jsonl", "gz"),
    ".ndjson.zst": ("jsonl", "zst"),
    ".json": ("jsonl", ""),
    ".json.gz": ("jsonl", "gz"),
    ".json.zst": ("jsonl", "zst"),
    ".parquet": ("parquet", ""),
    ".txt": ("txt", ""),
    ".txt.gz": ("txt", "gz"),
    ".txt.zst": ("txt", "zst"),
}
"""Ending of a file (in any case) → what it holds and how it is compressed. `.json` is read as JSON lines."""

_RECORDS = ("_BUILD.json", "_CORPUS.json", "_MANIFEST.json")
"""Records that stand beside shards, with a data set's name before them (docs/format.md): never documents."""


def kind_of(name: str, options: SourceOptions) -> tuple[Kind, Compression] | None:
    """What a file of this name holds and how it is compressed; None for a name that no document source has."""
    found = _by_ending(name)
    return ("array", found[1]) if found is not None and options.json_arrays and is_json(name) else found


def require_kind(name: str, shown: str) -> tuple[Kind, Compression]:
    """What a file of this name holds and how it is compressed; CorpusError for a name that no document source has."""
    kind = _by_ending(name)
    if kind is None:
        raise CorpusError(f"{shown}: unknown kind of file; expected a name ending in {', '.join(KINDS)}")
    return kind


def kind_if_found(name: str) -> tuple[Kind, Compression] | None:
    """What a file that a directory or a pattern brought is read as, by its name; None for one that is passed over."""
    return None if name.endswith(_RECORDS) else _by_ending(name)


def holds_documents(name: str) -> bool:
    """Whether a file that a directory or a pattern brought is read, by its name."""
    return kind_if_found(name) is not None


def is_json(file: str) -> bool:
    """Whether it is a .json file, compressed or not."""
    return file.lower().removesuffix(".gz").removesuffix(".zst").endswith(".json")


def _by_ending(name: str) -> tuple[Kind, Compression] | None:
    lower = name.lower()
    dot = lower.rfind(".")
    if lower[dot:] in (".gz", ".zst"):
        dot = lower.rfind(".", 0, dot)
    return KINDS.get(lower[dot:]) if dot >= 0 else None
