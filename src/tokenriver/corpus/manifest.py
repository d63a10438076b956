"""The corpus manifest: which files a corpus consists of, and how many documents it has on each side."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec

from tokenriver.errors import FormatError
from tokenriver.files import atomic_write

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "CORPUS_FACTS",
    "CORPUS_MANIFEST",
    "CorpusFile",
    "CorpusManifest",
    "is_corpus",
    "read_corpus_manifest",
    "render_corpus_manifest",
    "write_corpus_manifest",
]

CORPUS_MANIFEST = "_MANIFEST.json"
"""Name of the manifest inside a corpus directory."""

CORPUS_FACTS = "_CORPUS.json"
"""Name of the same facts about raw input files, beside the token shards made from them."""


class CorpusFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """One file: its name relative to the corpus, documents taken from it, size in bytes, SHA-256 of it in hex."""

    name: str
    n_docs: int
    n_bytes: int
    sha256: str


class CorpusManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A corpus: `files` in the order of their documents, `documents` counted by split ("train", "val")."""

    name: str
    version: str
    files: list[CorpusFile]
    documents: dict[str, int]


def render_corpus_manifest(manifest: CorpusManifest) -> bytes:
    """The manifest as JSON: keys in the order of the class, two spaces, UTF-8, a final newline. No dates, no paths."""
    return msgspec.json.format(msgspec.json.encode(manifest), indent=2) + b"\n"


def write_corpus_manifest(path: Path, manifest: CorpusManifest) -> None:
    """Write the manifest whole or not at all."""
    with atomic_write(path) as file:
        file.write(render_corpus_manifest(manifest))


def is_corpus(directory: Path) -> bool:
    """Whether a directory has a `_MANIFEST.json` that speaks of documents (a token data set's does not)."""
    path = directory / CORPUS_MANIFEST
    if not path.is_file():
        return False
    try:
        keys = msgspec.json.decode(path.read_bytes(), type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise FormatError(f"{path}: not a JSON object ({error}); write the corpus again with --overwrite") from error
    return "documents" in keys


def read_corpus_manifest(directory: Path) -> CorpusManifest:
    """Read `_MANIFEST.json` of a corpus directory. FormatError where it is missing or not what it should be."""
    path = directory / CORPUS_MANIFEST
    try:
        manifest = msgspec.json.decode(path.read_bytes(), type=CorpusManifest)
    except FileNotFoundError as error:
        raise FormatError(f"{path}: missing; this directory is no corpus, or an unfinished one") from error
    except msgspec.MsgspecError as error:
        raise FormatError(f"{path}: not a corpus manifest: {error}") from error
    for file in manifest.files:
        if file.name.startswith(("/", "\\")) or ".." in file.name.replace("\\", "/").split("/"):
            raise FormatError(f"{path}: file name {file.name!r} leads out of the corpus directory")
    return manifest
