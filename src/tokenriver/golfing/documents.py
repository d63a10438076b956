"""The frozen documents of an export: the file, its sidecar, and that they agree, before anything is made from them."""

from __future__ import annotations

import hashlib
import os
import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenriver.errors import CorpusError, IntegrityError, UsageError
from tokenriver.files import atomic_write, sha256_file
from tokenriver.hub.crew import fetch_files
from tokenriver.hub.names import below
from tokenriver.hub.repository import open_repository
from tokenriver.hub.transfer import FetchJob
from tokenriver.shards.golf_manifest import GOLF_DOCS, GOLF_SIDECAR, GolfSidecar, read_golf_sidecar
from tokenriver.storage.objects import find_object
from tokenriver.storage.paths import is_remote, shown
from tokenriver.storage.reading import read_from

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.golfing.fetch import GolfSource
    from tokenriver.hub.transfer import TransferSink

__all__ = ["DEFAULT_VAL_DOCS", "Documents", "check_documents", "fetch_documents", "place_documents"]

DEFAULT_VAL_DOCS = 50_000
_READ_BYTES = 4 << 20


@dataclass(frozen=True, slots=True)
class Documents:
    """A checked documents file. `sidecar` is all of the sidecar's JSON, or None where there is none."""

    path: Path
    n_docs: int
    n_val: int
    sha256: str
    sidecar: dict[str, Any] | None


def place_documents(docs: Path, root: Path) -> Path:
    """Bring the documents and their sidecar below the root (a hard link, else a copy); the path there.

    IntegrityError where other documents are there: an export was made of them, or they were selected into it.
    """
    if is_remote(docs):
        return _fetch_objects(docs, root)
    if not docs.is_file():
        what = "a directory" if docs.is_dir() else "no such file"
        raise CorpusError(f"{docs}: {what}; give the documents file (docs_selected.jsonl) with --docs")
    if docs.suffix != ".jsonl":
        raise UsageError(f"{docs}: the documents are one plain .jsonl file; decompress or rename it")
    root.mkdir(parents=True, exist_ok=True)
    sidecar = docs.with_name(GOLF_SIDECAR)
    if (root / GOLF_DOCS).exists() and not _is_same(docs, root / GOLF_DOCS):
        raise IntegrityError(
            f"{root / GOLF_DOCS}: other documents than {docs} are there; give another --output-root, or remove them"
        )
    if not (root / GOLF_DOCS).exists():
        _link_or_copy(docs, root / GOLF_DOCS)
    if sidecar.exists() and not ((root / GOLF_SIDECAR).exists() and _is_same(sidecar, root / GOLF_SIDECAR)):
        _link_or_copy(sidecar, root / GOLF_SIDECAR)
    return root / GOLF_DOCS


def _fetch_objects(docs: Path, root: Path) -> Path:
    """The documents and their sidecar from behind a URL, below the root, unless they are there already.

    The sidecar's checksum is compared afterwards, whichever they are.
    """
    root.mkdir(parents=True, exist_ok=True)
    for url, target in ((str(docs), root / GOLF_DOCS), (str(docs.with_name(GOLF_SIDECAR)), root / GOLF_SIDECAR)):
        found = find_object(url)
        if found is None and target.name == GOLF_DOCS:
            raise CorpusError(
                f"{shown(url)}: no such object; give the documents file (docs_selected.jsonl) with --docs"
            )
        if found is not None and not (target.exists() and target.stat().st_size == found.n_bytes):
            with atomic_write(target) as file:
                for chunk in read_from(found):
                    file.write(chunk)
    return root / GOLF_DOCS


def _is_same(docs: Path, there: Path) -> bool:
    if docs.samefile(there):
        return True
    return docs.stat().st_size == there.stat().st_size and sha256_file(docs) == sha256_file(there)


def _link_or_copy(source: Path, target: Path) -> None:
    try:
        os.link(source.resolve(), target)
    except OSError:  # another file system, one without hard links, or a file that is replaced
        with atomic_write(target) as file, open(source, "rb") as documents:
            shutil.copyfileobj(documents, file, _READ_BYTES)


def fetch_documents(source: GolfSource, root: Path, *, progress: TransferSink | None = None) -> Path:
    """Fetch the documents and, where there is one, the sidecar from a repository; their path below the root."""
    repository = open_repository(source.repo_id, revision=source.revision)
    sidecar, docs = source.remote(GOLF_SIDECAR), source.remote(GOLF_DOCS)
    expected = repository.expected(docs)
    if sidecar in repository.files:
        job = FetchJob(sidecar, below(root, GOLF_SIDECAR, source=source.repo_id), repository.expected(sidecar))
        fetch_files(repository, [job], progress=progress)
        sha256 = read_golf_sidecar(job.path)[0].docs_sha256
        if sha256 is not None:
            expected = expected.with_sha256(sha256, name=docs, source=GOLF_SIDECAR)
    path = below(root, GOLF_DOCS, source=source.repo_id)
    fetch_files(repository, [FetchJob(docs, path, expected)], progress=progress)
    return path


def check_documents(path: Path, *, num_val_docs: int | None) -> Documents:
    """Hash and count the documents, and compare them with the sidecar beside them.

    Raises IntegrityError when the hash or the count is another, UsageError when there are fewer documents than
    `num_val_docs` (None: the sidecar's docs_val, else 50,000).
    """
    known, sidecar = GolfSidecar(), None
    beside = path.with_name(GOLF_SIDECAR)
    if beside.exists():
        known, sidecar = read_golf_sidecar(beside)
    sha256, n_docs = _hash_and_count(path)
    if known.docs_sha256 not in (None, sha256):
        raise IntegrityError(
            f"{path}: sha256 is {sha256}, but {beside.name} says docs_sha256 {known.docs_sha256}; these are not the "
            "documents that were frozen: fetch them again"
        )
    if known.num_docs not in (None, n_docs):
        raise IntegrityError(f"{path}: expected {known.num_docs:,} docs by {beside.name}, found {n_docs:,}")
    n_val = num_val_docs if num_val_docs is not None else known.docs_val
    if n_val is None:
        n_val = DEFAULT_VAL_DOCS
    if not 0 <= n_val <= n_docs:
        raise UsageError(f"{path}: num_val_docs must be in [0, {n_docs}], got {n_val}; give --num-val-docs")
    return Documents(path, n_docs, n_val, sha256, sidecar)


def _hash_and_count(path: Path) -> tuple[str, int]:
    """SHA-256 and number of records (lines that are not blank) in one pass."""
    digest, n_docs, blank = hashlib.sha256(), 0, True
    with open(path, "rb", buffering=0) as file:
        while chunk := file.read(_READ_BYTES):
            digest.update(chunk)
            first, *rest = chunk.split(b"\n")
            blank = blank and not first.strip()
            for line in rest:
                n_docs += not blank
                blank = not line.strip()
    return digest.hexdigest(), n_docs + (not blank)
