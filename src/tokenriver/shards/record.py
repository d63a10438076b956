"""The build record beside the shards (`_BUILD.json`, `<name>_BUILD.json`): what a build did, and from what.

In the llmc and golf layouts it is also the list of the shards. Unlike the manifest it may hold anything, so reading
ignores keys that it does not know, and only the keys below have a fixed meaning.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import msgspec

from tokenriver.errors import FormatError
from tokenriver.files import atomic_write
from tokenriver.shards.layouts import Layout, parse_shard_name
from tokenriver.shards.manifest import ManifestFile, decode_json, read_limited, render_json
from tokenriver.storage.paths import to_path

if TYPE_CHECKING:
    import os

__all__ = [
    "BuildRecord",
    "InputRecord",
    "SplitRecord",
    "TokenizerRecord",
    "parse_record",
    "read_record",
    "write_record",
]


class TokenizerRecord(msgspec.Struct, kw_only=True):
    """The tokenizer of a build and the separator that the build added (None: none)."""

    tokenizer_id: str
    sha256: str
    vocab_size: int
    separator_id: int | None = None
    separator_position: Literal["before", "after"] = "before"


class InputRecord(msgspec.Struct, kw_only=True, gc=False):
    """One input file: where it was (absolute, or its URL without credentials; "-" is standard input), its name in the
    corpus, and its bytes.
    """

    path: str
    name: str
    n_bytes: int
    sha256: str


class SplitRecord(msgspec.Struct, kw_only=True):
    """What a split consists of: documents, ids (separators included) and bytes of text."""

    documents: int = 0
    tokens: int = 0
    text_bytes: int = 0


class BuildRecord(msgspec.Struct, kw_only=True):
    """The record of a build. `options["shard_tokens"]` is the size that cuts were made at.

    `corpus_manifest_sha256` is the manifest's (manifest.py), which the llmc and golf layouts have no other place for
    ("": not recorded). `indexes`: SHA-256 of the document indexes, by their names ({}: not recorded). `origin`: what a
    recipe says of where the inputs come from; {} for a build of files.
    """

    tool: str = "tokenriver"
    version: str = ""
    layout: Layout
    dataset: str
    tokenizer: TokenizerRecord
    options: dict[str, Any] = {}
    inputs: list[InputRecord] = []
    corpus_manifest_sha256: str = ""
    origin: dict[str, Any] = {}
    files: list[ManifestFile] = []
    indexes: dict[str, str] = {}
    splits: dict[str, SplitRecord] = {}
    skipped: dict[str, int] = {}
    encoder: dict[str, Any] = {}


def read_record(path: str | os.PathLike[str]) -> BuildRecord:
    """Read a build record. Raises FormatError, naming the key, when it is not one, and OSError when unreadable."""
    path = to_path(path)
    return parse_record(read_limited(path), path)


def parse_record(raw: bytes, path: Path) -> BuildRecord:
    """The build record in `raw`, checked as `read_record` says; `path` is for the messages."""
    record = decode_json(raw, BuildRecord, path)
    for i, file in enumerate(record.files):
        if Path(file.name).name != file.name or "\\" in file.name or parse_shard_name(file.name) is None:
            raise FormatError(f"{path}: files[{i}].name is {file.name!r}, not the plain name of a shard")
    return record


def write_record(path: str | os.PathLike[str], record: BuildRecord) -> None:
    """Write the record whole or not at all."""
    with atomic_write(to_path(path)) as file:
        file.write(render_json(record))
