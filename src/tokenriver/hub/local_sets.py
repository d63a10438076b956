"""What a folder has to publish: its data sets, their names in the repository, and the facts for the card."""

from __future__ import annotations

import json
import os
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenriver.errors import IntegrityError
from tokenriver.files import file_size, is_file
from tokenriver.hub.card import CardFacts, SideFacts
from tokenriver.hub.names import below, checked_name, checked_root
from tokenriver.shards.discover import find_data
from tokenriver.shards.golf_manifest import (
    GOLF_MANIFEST,
    GOLF_SIDECAR,
    REMOTE_ROOT,
    REMOTE_ROOT_VARIABLE,
    GolfManifest,
    read_golf_manifest,
)
from tokenriver.shards.index import index_path
from tokenriver.shards.layouts import BUILD_RECORD, CORPUS_RECORD, GOLF_NAME, SPLITS, record_prefix
from tokenriver.shards.manifest import read_limited, render_json
from tokenriver.shards.reader import read_headers
from tokenriver.storage.paths import is_remote

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.shards.found import DataSet

__all__ = ["Upload", "find_uploads"]


@dataclass(slots=True)
class Upload:
    """Everything to upload, by its path in the repository: shards and their document indexes, other files, and the
    manifests, which come last.

    A value is a path, behind a URL too, or the bytes themselves. `sha256` is what each shard and index must be;
    `claimed` the (folder, name) pairs whose shards these are.
    """

    shards: dict[str, Path] = field(default_factory=dict)
    others: dict[str, bytes | Path] = field(default_factory=dict)
    listings: dict[str, bytes | Path] = field(default_factory=dict)
    sha256: dict[str, str] = field(default_factory=dict)
    claimed: set[tuple[str, str]] = field(default_factory=set)
    facts: list[CardFacts] = field(default_factory=list)


def find_uploads(directory: Path) -> Upload:
    """Look through a folder, or what is behind a URL.

    IntegrityError where there is no finished data set, or one that is not whole.
    """
    found = find_data([directory])
    if found.findings:
        raise IntegrityError(f"{found.findings[0].path}: {found.findings[0].problem}; nothing was published")
    if not found.data_sets:
        raise IntegrityError(f"{directory}: holds no finished data set (no manifest or build record)")
    golf, prefix = _golf_root(directory)
    upload = Upload()
    for data_set in found.data_sets:
        _add(upload, data_set, directory, golf, prefix)
    if golf is not None:
        _add_golf_root(upload, directory, golf, prefix)
    return upload


def _golf_root(directory: Path) -> tuple[GolfManifest | None, str]:
    """The manifest of a Parameter Golf export, and the folder in the repository that it goes to."""
    path = directory / GOLF_MANIFEST
    if not is_file(path):
        return None, ""
    prefix = checked_root(os.environ.get(REMOTE_ROOT_VARIABLE, REMOTE_ROOT), source=REMOTE_ROOT_VARIABLE)
    return read_golf_manifest(path), f"{prefix}/" if prefix else ""


def _add(upload: Upload, data_set: DataSet, root: Path, golf: GolfManifest | None, prefix: str) -> None:
    folder = _folder(data_set, root)
    in_golf = next((d for d in golf.datasets if d.path == folder), None) if golf is not None else None
    folder = prefix + folder if in_golf is not None else folder

    def named(name: str) -> str:
        return f"{folder}/{name}" if folder else name

    n_bytes = 0
    paths = [data_set.directory / file.name for file in data_set.files]
    for file, path, header in zip(data_set.files, paths, read_headers(paths), strict=True):
        if header.n_tokens != file.n_tokens:
            raise IntegrityError(f"{path}: {header.n_tokens:,} tokens, {data_set.source.name} says {file.n_tokens:,}")
        n_bytes += header.file_bytes
        upload.shards[named(file.name)] = path
        upload.sha256[named(file.name)] = file.sha256
        index, recorded = index_path(path), data_set.recorded_index(path)
        if recorded is not None and is_file(index):
            upload.shards[named(index.name)] = index
            upload.sha256[named(index.name)] = recorded[0]
            n_bytes += file_size(index)
    own = record_prefix(data_set.layout, data_set.record.dataset if data_set.record else "")
    upload.claimed.add((folder, own))
    corpus, record = data_set.directory / (own + CORPUS_RECORD), data_set.directory / (own + BUILD_RECORD)
    if is_file(corpus):
        upload.others[named(corpus.name)] = corpus
    if is_file(record):
        target = upload.others if data_set.manifest is not None else upload.listings
        target[named(record.name)] = _without_paths(read_limited(record))
    if data_set.manifest is not None:
        upload.listings[named(data_set.source.name)] = _listing(data_set.source)
    upload.facts.append(_facts(data_set, folder, in_golf.variant if in_golf is not None else None, n_bytes))


def _listing(path: Path) -> bytes | Path:
    return read_limited(path) if is_remote(path) else path


def _folder(data_set: DataSet, root: Path) -> str:
    """Where a data set goes in the repository."""
    if data_set.manifest is not None:
        name = f"tokens/{data_set.manifest.tokenizer_id}/{data_set.manifest.dataset}"
        return checked_name(name, source=str(data_set.source))
    if is_remote(root):
        relative = str(data_set.directory).removeprefix(str(root).rstrip("/")).strip("/") or "."
    else:
        relative = data_set.directory.resolve().relative_to(root.resolve()).as_posix()
    return "" if relative == "." else checked_name(relative, source=str(root))


def _without_paths(raw: bytes) -> bytes:
    """A build record that names its inputs by their names alone: the folders of this machine are nobody's business."""
    record: dict[str, Any] = json.loads(raw)
    for entry in record.get("inputs", []):
        entry["path"] = entry["name"]
    return render_json(record)


def _facts(data_set: DataSet, folder: str, variant: str | None, n_bytes: int) -> CardFacts:
    manifest, record = data_set.manifest, data_set.record
    own = record.dataset if record is not None and data_set.layout == "llmc" else ""
    sides: dict[str, SideFacts] = {
        side: SideFacts(
            documents=sum(f.n_docs for f in data_set.files if f.split == side),
            tokens=sum(f.n_tokens for f in data_set.files if f.split == side),
            shards=sum(f.split == side for f in data_set.files),
        )
        for side in SPLITS
    }
    if manifest is not None:
        tokenizer, sha256 = manifest.tokenizer_id, manifest.tokenizer_sha256
    else:
        assert record is not None, "a data set is found by its manifest or its record"
        tokenizer, sha256 = record.tokenizer.tokenizer_id, record.tokenizer.sha256
    select = "/".join(part for part in (folder.removeprefix("tokens/"), own) if part) or data_set.layout
    return CardFacts(
        path="/".join(part for part in (folder, own) if part) or data_set.layout,
        select=select,
        layout=data_set.layout,
        tokenizer=tokenizer,
        tokenizer_sha256=sha256,
        vocab_size=data_set.vocab_size,
        separator=data_set.separator_id,
        sides=sides,
        n_bytes=n_bytes,
        example=_example(data_set, folder, own, variant),
        golf=variant,
    )


def _example(data_set: DataSet, folder: str, own: str, variant: str | None) -> str:
    if data_set.layout == "tokens":
        return folder
    if variant is not None:
        return f"datasets/{folder.rpartition('/')[2]}/{GOLF_NAME}_train_*.bin"
    return "/".join(part for part in (folder, f"{own or GOLF_NAME}_train_*.bin") if part)


def _add_golf_root(upload: Upload, root: Path, golf: GolfManifest, prefix: str) -> None:
    """The tokenizers, the documents where they are there, and the manifest."""
    names = [name for tokenizer in golf.tokenizers for name in tokenizer.artifacts]
    for name in names:
        path = below(root, name, source=GOLF_MANIFEST)
        if not is_file(path):
            raise IntegrityError(f"{path}: missing, though {GOLF_MANIFEST} lists it; export again")
        upload.others[prefix + name] = path
    for name in (golf.docs_jsonl, GOLF_SIDECAR):
        path = below(root, name, source=GOLF_MANIFEST)
        if is_file(path):
            upload.others[prefix + name] = path
    for dataset in golf.datasets:
        for name in dataset.shards("val") + dataset.shards("train"):
            if prefix + name not in upload.shards:
                raise IntegrityError(f"{root / name}: {GOLF_MANIFEST} lists it, but no build record does; export again")
    upload.listings[prefix + GOLF_MANIFEST] = _listing(root / GOLF_MANIFEST)
