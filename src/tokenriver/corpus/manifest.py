"""The corpus manifest: which files a corpus consists of, and how many documents it has on each side."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import msgspec

from tokenriver.errors import FormatError, IntegrityError
from tokenriver.files import PART_SUFFIX, atomic_write, sha256_file
from tokenriver.storage.paths import is_remote, is_web, to_path, word_of

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from tokenriver.corpus.inputs import InputFacts
    from tokenriver.corpus.sources import Source

__all__ = [
    "CORPUS_MANIFEST",
    "SHARD_NAME",
    "CorpusFile",
    "CorpusManifest",
    "corpus_directory",
    "corpus_facts",
    "corpus_shard_files",
    "is_corpus",
    "not_as_listed",
    "read_corpus_manifest",
    "render_corpus_manifest",
    "verify_corpus",
    "write_corpus_manifest",
]

CORPUS_MANIFEST = "_MANIFEST.json"
"""Name of the manifest inside a corpus directory."""

SHARD_NAME = re.compile(r"corpus-\d{5}\.(jsonl\.zst|parquet)(\.part)?")
"""Names of corpus shards, finished or not."""


class CorpusFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True, gc=False):
    """One file: its name relative to the corpus, documents taken from it, size in bytes, SHA-256 of it in hex."""

    name: str
    n_docs: int
    n_bytes: int
    sha256: str


class CorpusManifest(msgspec.Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """A corpus: `files` in the order of their documents, `documents` counted by split ("train", "val").

    `skipped`: records of the inputs that gave no document, counted by kind; only where bad ones were left out.
    """

    name: str
    version: str
    files: list[CorpusFile]
    documents: dict[str, int]
    skipped: dict[str, int] = {}


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
    raw = _read_if_there(path)
    if raw is None:
        return False
    try:
        keys = msgspec.json.decode(raw, type=dict[str, msgspec.Raw])
    except msgspec.MsgspecError as error:
        raise FormatError(f"{path}: not a JSON object ({error}); write the corpus again with --overwrite") from error
    return "documents" in keys


def read_corpus_manifest(directory: Path) -> CorpusManifest:
    """Read `_MANIFEST.json` of a corpus directory. FormatError where it is missing or not what it should be."""
    path = directory / CORPUS_MANIFEST
    raw = _read_if_there(path)
    if raw is None:
        raise FormatError(f"{path}: missing; this directory is no corpus, or an unfinished one")
    try:
        manifest = msgspec.json.decode(raw, type=CorpusManifest)
    except msgspec.MsgspecError as error:
        raise FormatError(f"{path}: not a corpus manifest: {error}") from error
    for file in manifest.files:
        if file.name.startswith(("/", "\\")) or ".." in file.name.replace("\\", "/").split("/"):
            raise FormatError(f"{path}: file name {file.name!r} leads out of the corpus directory")
    return manifest


def _read_if_there(path: Path) -> bytes | None:
    if is_remote(path):
        from tokenriver.storage.objects import find_object
        from tokenriver.storage.reading import read_whole

        found = find_object(str(path))
        return None if found is None else read_whole(found)
    return path.read_bytes() if path.is_file() else None


def corpus_shard_files(directory: Path) -> list[Path]:
    """Corpus shards in a directory by name, finished or not."""
    return [path for path in sorted(directory.iterdir()) if SHARD_NAME.fullmatch(path.name)]


def corpus_directory(inputs: Sequence[str | os.PathLike[str]]) -> Path | None:
    """The directory, if the inputs are one corpus directory: then its own manifest says what the documents are."""
    if len(inputs) != 1 or word_of(inputs[0]) == "-":
        return None
    path = to_path(inputs[0])
    if is_remote(path):
        return path if not is_web(str(path)) and is_corpus(path) else None
    return path if path.is_dir() and is_corpus(path) else None


def corpus_facts(
    name: str,
    version: str,
    sources: Sequence[Source],
    facts: Sequence[InputFacts],
    n_docs: Sequence[int],
    documents: dict[str, int],
) -> CorpusManifest:
    """The manifest of raw files (`_CORPUS.json`): the same keys as a corpus has; names relative, never absolute.

    `facts` and `n_docs` one a source; `documents` the counts by split.
    """
    files = [
        CorpusFile(source.name, n, fact.n_bytes, fact.sha256)
        for source, fact, n in zip(sources, facts, n_docs, strict=True)
    ]
    return CorpusManifest(name, version, files, documents)


def not_as_listed(file: CorpusFile, where: object, n_bytes: int | None) -> IntegrityError:
    """The error for a file of a corpus that is not there (None), or has another size than the manifest says."""
    listed = f"{CORPUS_MANIFEST} says {file.n_bytes:,}"
    what = f"missing, though {CORPUS_MANIFEST} lists it" if n_bytes is None else f"{n_bytes:,} bytes, but {listed}"
    return IntegrityError(f"{where}: {what}; fetch or write it again")


def _sizes(directory: Path) -> dict[str, int]:
    """Bytes of the files directly in a corpus directory, by name."""
    if is_remote(directory):
        from tokenriver.storage.objects import below

        return {name: file.n_bytes or 0 for name, file in below(str(directory), deep=False).items()}
    return {path.name: path.stat().st_size for path in directory.iterdir() if path.is_file()}


def verify_corpus(directory: str | os.PathLike[str]) -> list[str]:
    """Re-hash a corpus; the findings, one text each: files missing, additional, unfinished, or not as recorded.

    Raises FormatError where there is no manifest, or none that can be read.
    """
    target = to_path(directory)
    manifest = read_corpus_manifest(target)
    findings = []
    sizes = _sizes(target)
    for file in manifest.files:
        path = target / file.name
        size = sizes.get(file.name)
        if size is None:
            findings.append(f"{path}: missing")
        elif size != file.n_bytes:
            findings.append(f"{path}: {size:,} bytes, but the manifest says {file.n_bytes:,}")
        elif (found := sha256_file(path)) != file.sha256:
            findings.append(f"{path}: SHA-256 is {found}, but the manifest says {file.sha256}")
    listed = {file.name for file in manifest.files}
    for name in sorted(sizes):
        if SHARD_NAME.fullmatch(name) and name not in listed:
            what = "unfinished" if name.endswith(PART_SUFFIX) else "not in the manifest"
            findings.append(f"{target / name}: {what}")
    n_docs, n_sides = sum(file.n_docs for file in manifest.files), sum(manifest.documents.values())
    if n_docs != n_sides:
        findings.append(f"{target / CORPUS_MANIFEST}: files have {n_docs:,} documents, the splits {n_sides:,}")
    return findings
