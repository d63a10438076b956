"""The manifest of a token data set: exactly the keys of tokens-manifest.schema.json, in that order.

It is a function of the corpus, the tokenizer and the cuts alone, so two runs give the same bytes. Whatever else is
worth recording goes into the build record beside it (record.py).
"""

from __future__ import annotations

import json
from importlib import resources
from typing import TYPE_CHECKING, Annotated, Any, TypeVar

import msgspec

from tokenriver.errors import FormatError
from tokenriver.files import atomic_write, human_bytes, open_binary
from tokenriver.shards.layouts import MANIFEST, Split, parse_shard_name
from tokenriver.storage.paths import is_remote, to_path

if TYPE_CHECKING:
    import os
    from pathlib import Path

__all__ = [
    "MAX_JSON_BYTES",
    "ManifestFile",
    "TokensManifest",
    "decode_json",
    "manifest_schema",
    "parse_manifest",
    "read_limited",
    "read_manifest",
    "render_json",
    "write_manifest",
]

MAX_JSON_BYTES = 256 << 20
"""A manifest of 100,000 shards, the most that five digits can name, takes about 20 MB; the record of a build of
150,000 shards from 240,000 files 80 MB.
"""

# The length too: in Python's dialect "$" also matches before a last line end.
_Sha256 = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", max_length=64)]
_Count = Annotated[int, msgspec.Meta(ge=0, le=2**31 - 1)]
_Name = Annotated[str, msgspec.Meta(min_length=1)]

T = TypeVar("T")


class ManifestFile(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """One shard: its name in the directory, split, ids, documents that begin in it, and SHA-256 of the whole file."""

    name: str
    split: Split
    n_tokens: _Count
    n_docs: _Count
    sha256: _Sha256


class TokensManifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The manifest's keys in their order; `doc_sep_id` is None where the tokenizer has no separator."""

    tokenizer_id: _Name
    tokenizer_sha256: _Sha256
    vocab_size: Annotated[int, msgspec.Meta(ge=1, le=2**31 - 1)]
    doc_sep_id: Annotated[int, msgspec.Meta(ge=0, le=2**32 - 1)] | None
    dataset: _Name
    version: _Name
    corpus_manifest_sha256: _Sha256
    files: list[ManifestFile]

    def tokens(self, split: Split) -> int:
        """Ids in all shards of a split."""
        return sum(f.n_tokens for f in self.files if f.split == split)


def read_manifest(path: str | os.PathLike[str]) -> TokensManifest:
    """Read and check `_MANIFEST.json` (or the one in a directory), also behind a URL.

    Raises FormatError, naming the key, for anything that the schema does not allow, a name that is not a plain
    `<split>-<nnnnn>.bin` (so none can lead out of the directory) or comes twice, a split that differs from the
    name's, a separator that is not below vocab_size; and OSError when the file cannot be read.
    """
    path = to_path(path)
    if not path.name.endswith(".json") if is_remote(path) else path.is_dir():
        path = path / MANIFEST
    return parse_manifest(read_limited(path), path)


def parse_manifest(raw: bytes, path: Path) -> TokensManifest:
    """The manifest in `raw`, checked as `read_manifest` says; `path` is for the messages."""
    manifest = decode_json(raw, TokensManifest, path)
    seen = set()
    for i, file in enumerate(manifest.files):
        name = parse_shard_name(file.name)
        if name is None or name.dataset:
            raise FormatError(f"{path}: files[{i}].name is {file.name!r}, not a name like train-00000.bin")
        if name.split != file.split:
            raise FormatError(f"{path}: files[{i}].split is {file.split!r}, but its name is {file.name}")
        if file.name in seen:
            raise FormatError(f"{path}: files[{i}].name: {file.name} is listed twice")
        seen.add(file.name)
    if manifest.doc_sep_id is not None and manifest.doc_sep_id >= manifest.vocab_size:
        raise FormatError(
            f"{path}: doc_sep_id {manifest.doc_sep_id} is not below vocab_size {manifest.vocab_size}; "
            "one of the two is wrong"
        )
    return manifest


def write_manifest(path: str | os.PathLike[str], manifest: TokensManifest) -> None:
    """Write the manifest whole or not at all; the same manifest always gives the same bytes."""
    path = to_path(path)
    raw = render_json(manifest)
    parse_manifest(raw, path)
    with atomic_write(path) as file:
        file.write(raw)


def render_json(value: Any) -> bytes:
    """JSON as every record is written: two spaces of indent, UTF-8, keys in the order given, a final newline."""
    return msgspec.json.format(msgspec.json.encode(value), indent=2) + b"\n"


def read_limited(path: Path) -> bytes:
    """The bytes of a small JSON file. Raises FormatError past 256 MiB, so a hostile file cannot fill the memory."""
    with open_binary(path) as file:
        raw = file.read(MAX_JSON_BYTES + 1) or b""
    if len(raw) > MAX_JSON_BYTES:
        raise FormatError(f"{path}: over {human_bytes(MAX_JSON_BYTES)}; a manifest or record is far smaller")
    return raw


def decode_json(raw: bytes, kind: type[T], path: Path) -> T:
    """Decode `raw` as `kind`. Raises FormatError with msgspec's words, which name the key or the byte."""
    try:
        return msgspec.json.decode(raw, type=kind)
    except msgspec.ValidationError as error:
        raise FormatError(f"{path}: not as its schema demands: {error}") from error
    except (msgspec.DecodeError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON: {error}") from error


def manifest_schema() -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of the manifest, as it ships with the package."""
    text = resources.files("tokenriver.shards").joinpath("tokens-manifest.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema
