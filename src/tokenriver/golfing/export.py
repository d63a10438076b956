"""Re-tokenize frozen documents with new vocabularies: every data set through the fast build, and the manifest last.

Run again after an interruption, it goes on: finished data sets are recognised by their records, an unfinished one by
its journal.
"""

from __future__ import annotations

import json
import os
import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenriver.building.build import build
from tokenriver.errors import IntegrityError, UsageError
from tokenriver.files import atomic_write, file_exists, remove_file
from tokenriver.golfing.documents import Documents, check_documents, fetch_documents, place_documents
from tokenriver.golfing.specs import TokenizerSpec, read_specs, recommended_bigrams
from tokenriver.golfing.vocabularies import TRAINED, end_of_text, make_vocabulary, manifest_entry
from tokenriver.shards.golf_manifest import GOLF_MANIFEST, GOLF_SIDECAR
from tokenriver.shards.layouts import BUILD_RECORD, GOLF_NAME
from tokenriver.shards.reader import read_header
from tokenriver.shards.record import BuildRecord, read_record
from tokenriver.storage.directory import RemoteDirectory, staging_directory
from tokenriver.storage.paths import is_remote, to_path
from tokenriver.storage.uploading import upload_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tokenriver.corpus.progress import ProgressSink
    from tokenriver.golfing.fetch import GolfSource
    from tokenriver.hub.transfer import TransferSink
    from tokenriver.tokenizers.base import Backend, Tokenizer

__all__ = ["GolfExported", "environment_notes", "export_golf"]

_VERSION = "10B"
_KNOBS_WITHOUT_EFFECT = {
    "MATCHED_FINEWEB_SP_BATCH_SIZE": "documents are encoded in blocks of bytes, which never change the ids",
    "MATCHED_FINEWEB_TIKTOKEN_THREADS": "no tokenizer of an export is a tiktoken one",
    "MATCHED_FINEWEB_GPT2_DECODE_BATCH_SIZE": "nothing is decoded here",
}
_THREADS = "MATCHED_FINEWEB_TOKENIZER_THREADS"


@dataclass(frozen=True, slots=True, kw_only=True)
class GolfExported:
    """What an export made: its root and manifest, the documents, each data set's stats, those that were there already.

    `seconds` is wall time; `text_bytes` UTF-8 bytes encoded in this run; `notes` say which variables had no effect.
    """

    root: Path
    manifest: Path
    docs_sha256: str
    num_docs: int
    num_val_docs: int
    datasets: dict[str, dict[str, int]]
    kept: list[str] = field(default_factory=list)
    text_bytes: int = 0
    seconds: float = 0.0
    notes: list[str] = field(default_factory=list)


def environment_notes(environment: Mapping[str, str]) -> list[str]:
    """One line for each of the published exporter's variables that is set and has no effect here."""
    return [f"{name} has no effect: {why}" for name, why in _KNOBS_WITHOUT_EFFECT.items() if name in environment]


def _workers(given: int | None, environment: Mapping[str, str]) -> int | None:
    text = environment.get(_THREADS)
    if given is not None or not text:
        return given
    if not text.isdecimal() or int(text) < 1:
        raise UsageError(f"{_THREADS} is {text!r}; it must be a whole number above 0")
    return int(text)


@dataclass(frozen=True, slots=True)
class _Plan:
    """What is the same for every data set of one export. Behind a URL (`out`), `root` is its staging directory."""

    root: Path
    out: Path
    documents: Documents
    chunk_tokens: int
    append_eos: bool
    backend: Backend
    workers: int | None
    verify_sample: int


def export_golf(
    *,
    tokenizer_config: str | os.PathLike[str],
    output_root: str | os.PathLike[str],
    docs: str | os.PathLike[str] | None = None,
    source: GolfSource | None = None,
    num_val_docs: int | None = None,
    chunk_tokens: int = 100_000_000,
    tokenizer_train_docs: int | None = None,
    skip_byte: bool = False,
    reuse_sp_models: Mapping[int, Path] | None = None,
    append_eos: bool = False,
    backend: Backend = "fast",
    workers: int | None = None,
    verify_sample: int = 200,
    stage: Callable[[str, int], AbstractContextManager[ProgressSink | None]] | None = None,
    transfer: TransferSink | None = None,
    on_docs: Callable[[Documents], None] | None = None,
) -> GolfExported:
    """Export the documents with every tokenizer of the config into `output_root` (formats.md §4).

    `docs` is the documents file; without it they are fetched from `source` (with it, `source` is only recorded).
    `on_docs` is called when the documents are checked and before anything is made; `stage(name, bytes)` gives the
    progress of one data set. The bytes depend on neither workers, backend nor interruptions.
    """
    started = time.perf_counter()
    out = to_path(output_root)
    root = staging_directory(RemoteDirectory.for_writing(str(out)).url) if is_remote(out) else out
    specs = read_specs(
        to_path(tokenizer_config),
        root=root,
        reuse=reuse_sp_models,
        train_docs=tokenizer_train_docs,
        skip_byte=skip_byte,
    )
    if docs is None and source is None:
        raise UsageError("give the documents with --docs, or the repository that holds them with --repo-id")
    if docs is not None:
        path = place_documents(to_path(docs), root)
    else:
        assert source is not None
        path = fetch_documents(source, root, progress=transfer)
    documents = check_documents(path, num_val_docs=num_val_docs)
    if on_docs is not None:
        on_docs(documents)
    plan = _Plan(root, out, documents, chunk_tokens, append_eos, backend, _workers(workers, os.environ), verify_sample)
    tokenizers, datasets, kept, text_bytes = [], [], [], 0
    for spec in specs:
        tokenizer = make_vocabulary(spec, documents, root, backend=backend)
        record, was_there = _data_set(plan, spec, tokenizer, stage)
        tokenizers.append(manifest_entry(spec, root, tokenizer))
        datasets.append(_dataset_entry(plan, spec, tokenizer, _stats(record, documents)))
        if was_there:
            kept.append(spec.dataset)
        else:
            text_bytes += sum(split.text_bytes for split in record.splits.values())
    manifest = _manifest(plan, specs, source, tokenizers, datasets)
    if is_remote(out):
        _upload_rest(root, out)
    with atomic_write(out / GOLF_MANIFEST) as file:
        file.write((json.dumps(manifest, indent=2) + "\n").encode())
    (root / "tokenizers" / TRAINED).unlink(missing_ok=True)
    if is_remote(out):
        shutil.rmtree(root)
    return GolfExported(
        root=out,
        manifest=out / GOLF_MANIFEST,
        docs_sha256=documents.sha256,
        num_docs=documents.n_docs,
        num_val_docs=documents.n_val,
        datasets={entry["name"]: entry["stats"] for entry in datasets},
        kept=kept,
        text_bytes=text_bytes,
        seconds=time.perf_counter() - started,
        notes=environment_notes(os.environ),
    )


def _upload_rest(root: Path, out: Path) -> None:
    """The documents, their sidecar and the tokenizers' files; the data sets are behind the URL already."""
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and path.name != TRAINED and not name.startswith("datasets/"):
            upload_whole(path, f"{str(out).rstrip('/')}/{name}")


def _data_set(
    plan: _Plan,
    spec: TokenizerSpec,
    tokenizer: Tokenizer,
    stage: Callable[[str, int], AbstractContextManager[ProgressSink | None]] | None,
) -> tuple[BuildRecord, bool]:
    """Build one data set, or find it finished; its record, and whether it was there."""
    out = plan.out / "datasets" / spec.dataset
    path = out / (GOLF_NAME + BUILD_RECORD)
    end_id = end_of_text(spec, plan.root) if plan.append_eos else None
    if end_id is not None and end_id < 0:
        raise UsageError(f"--append-eos: {spec.name} has no end-of-text id")
    if file_exists(path):
        record = read_record(path)
        _refuse_other(record, path, plan, tokenizer, end_id)
        return record, True
    remove_file(plan.out / GOLF_MANIFEST)
    progress = nullcontext() if stage is None else stage(spec.dataset, plan.documents.path.stat().st_size)
    with progress as sink:
        summary = build(
            plan.documents.path,
            tokenizer=tokenizer,
            tokenizer_id=spec.name,
            out=out,
            layout="golf",
            shard_tokens=plan.chunk_tokens,
            split=f"first-docs:{plan.documents.n_val}",
            keep_empty=True,
            end_id=end_id,
            backend=plan.backend,
            workers=plan.workers,
            verify_sample=plan.verify_sample,
            progress=sink,
        )
    return read_record(summary.record), False


def _refuse_other(record: BuildRecord, path: Path, plan: _Plan, tokenizer: Tokenizer, end_id: int | None) -> None:
    """IntegrityError unless a finished data set is the one that this export would make, with all its files."""
    wanted = {
        "tokenizer": (record.tokenizer.sha256, tokenizer.sha256),
        "documents": ([i.sha256 for i in record.inputs], [plan.documents.sha256]),
        "shard size": (record.options.get("shard_tokens"), plan.chunk_tokens),
        "split": (record.options.get("split"), f"first-docs:{plan.documents.n_val}"),
        "end id": (record.options.get("end_id"), end_id),
    }
    for what, (found, expected) in wanted.items():
        if found != expected:
            raise IntegrityError(
                f"{path}: the finished data set there was made otherwise ({what} {found}, now {expected}); remove "
                f"{path.parent} to make it anew, or give another --output-root"
            )
    for file in record.files:
        n_tokens = read_header(path.parent / file.name).n_tokens
        if n_tokens != file.n_tokens:
            raise IntegrityError(f"{path.parent / file.name}: {n_tokens:,} tokens, {path.name} says {file.n_tokens:,}")


def _stats(record: BuildRecord, documents: Documents) -> dict[str, int]:
    sides = {side: [f for f in record.files if f.split == side] for side in ("val", "train")}
    docs = {side: record.splits[side].documents for side in sides}
    if sum(docs.values()) != documents.n_docs:
        raise IntegrityError(f"{documents.path}: expected {documents.n_docs:,} docs, exported {sum(docs.values()):,}")
    counts = {
        "docs": docs,
        "files": {side: len(files) for side, files in sides.items()},
        "tokens": {side: sum(f.n_tokens for f in files) for side, files in sides.items()},
    }
    return {
        f"{what}_{side}": sum(by_side.values()) if side == "total" else by_side[side]
        for what, by_side in counts.items()
        for side in ("total", "val", "train")
    }


def _dataset_entry(plan: _Plan, spec: TokenizerSpec, tokenizer: Tokenizer, stats: dict[str, int]) -> dict[str, Any]:
    path = f"datasets/{spec.dataset}"
    return {
        "name": spec.dataset,
        "tokenizer_name": spec.name,
        "tokenizer_kind": spec.kind,
        "path": path,
        "train_glob": f"{path}/{GOLF_NAME}_train_*.bin",
        "val_glob": f"{path}/{GOLF_NAME}_val_*.bin",
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "eos_id": end_of_text(spec, plan.root),
        "recommended_bigram_vocab_size": recommended_bigrams(spec, tokenizer.vocab_size),
        "stats": stats,
    }


def _manifest(
    plan: _Plan,
    specs: list[TokenizerSpec],
    source: GolfSource | None,
    tokenizers: list[dict[str, Any]],
    datasets: list[dict[str, Any]],
) -> dict[str, Any]:
    """The manifest in the published exporter's order of keys."""
    documents = plan.documents
    sidecar = documents.sidecar or {}
    meta: dict[str, Any] = {
        "remote_repo_id": source.repo_id if source else None,
        "remote_root": source.remote_root if source else None,
        "num_docs": documents.n_docs,
        "docs_sha256": sidecar.get("docs_sha256"),
        "source_manifest": GOLF_SIDECAR if documents.sidecar is not None else None,
    }
    if documents.sidecar is not None:
        meta["source_sidecar"] = documents.sidecar
    return {
        "version": _VERSION,
        "num_docs": documents.n_docs,
        "num_val_docs": documents.n_val,
        "shuffle_seed": sidecar.get("shuffle_seed"),
        "shard_size": plan.chunk_tokens,
        "append_eos": plan.append_eos,
        "docs_jsonl": documents.path.name,
        "docs_meta": meta,
        "tokenizer_specs": [spec.given for spec in specs],
        "tokenizers": tokenizers,
        "datasets": datasets,
    }
