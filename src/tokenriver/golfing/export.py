"""Re-tokenize frozen documents with new vocabularies: every data set through the fast build, and the manifest last.

Run again after an interruption, it goes on: finished data sets are known by their records, others by their journal.
"""

from __future__ import annotations

import os
import shutil
import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from tokenriver.building.build import build
from tokenriver.errors import IntegrityError, UsageError, advising_only
from tokenriver.files import atomic_write, file_exists, remove_file
from tokenriver.golfing.documents import Documents, check_documents, fetch_documents, place_documents
from tokenriver.golfing.export_manifest import dataset_entry, render_export, tokenizer_entry
from tokenriver.golfing.specs import TokenizerSpec, read_specs
from tokenriver.golfing.vocabularies import TRAINED, end_of_text, make_vocabulary
from tokenriver.resuming.names import JOURNAL
from tokenriver.shards.golf_manifest import GOLF_MANIFEST
from tokenriver.shards.header import MAX_SHARD_TOKENS
from tokenriver.shards.layouts import BUILD_RECORD, GOLF_NAME
from tokenriver.shards.reader import read_header
from tokenriver.shards.record import BuildRecord, read_record
from tokenriver.storage.directory import RemoteDirectory, staging_directory
from tokenriver.storage.paths import is_remote, to_folder, to_path
from tokenriver.storage.uploading import upload_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tokenriver.corpus.progress import ProgressSink
    from tokenriver.golfing.fetch import GolfSource
    from tokenriver.hub.transfer import TransferSink
    from tokenriver.tokenizers.base import Backend, Tokenizer

    Stage: TypeAlias = Callable[[str, int], AbstractContextManager[ProgressSink | None]]

__all__ = ["GolfExported", "environment_notes", "export_golf"]

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
    if given is not None and given < 1:
        raise UsageError(f"--workers is {given}; it must be 1 or more")
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
    training: Callable[[], AbstractContextManager[object]]


@dataclass(frozen=True, slots=True)
class _Made:
    """Of one tokenizer: the manifest's entries, and the bytes of text encoded in this run (None: it was there)."""

    tokenizer: dict[str, Any]
    dataset: dict[str, Any]
    text_bytes: int | None


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
    stage: Stage | None = None,
    transfer: TransferSink | None = None,
    training: Callable[[], AbstractContextManager[object]] = nullcontext,
    on_docs: Callable[[Documents], None] | None = None,
) -> GolfExported:
    """Export the documents with every tokenizer of the config into `output_root` (docs/golf.md).

    `docs` is the documents file; without it they are fetched from `source` (with it, `source` is only recorded).
    `on_docs` is called when the documents are checked and before anything is made; `stage(name, bytes)` gives the
    progress of one data set, `training` is that of `train_tokenizer`. The bytes depend on neither workers, backend nor
    interruptions.
    """
    started = time.perf_counter()
    if not 1 <= chunk_tokens <= MAX_SHARD_TOKENS:
        raise UsageError(f"--chunk-tokens is {chunk_tokens}; it must be from 1 to {MAX_SHARD_TOKENS:,} (2^31 - 1)")
    if tokenizer_train_docs is not None and tokenizer_train_docs < 1:
        raise UsageError(f"--tokenizer-train-docs is {tokenizer_train_docs}; it must be 1 or more")
    workers = _workers(workers, os.environ)
    out = to_folder(output_root, option="--output-root")
    root = staging_directory(RemoteDirectory.for_writing(str(out)).url) if is_remote(out) else out
    specs = read_specs(
        to_path(tokenizer_config),
        root=root,
        reuse=reuse_sp_models,
        train_docs=tokenizer_train_docs,
        skip_byte=skip_byte,
    )
    documents = check_documents(_bring_documents(docs, source, root, transfer), num_val_docs=num_val_docs)
    if on_docs is not None:
        on_docs(documents)
    plan = _Plan(root, out, documents, chunk_tokens, append_eos, backend, workers, verify_sample, training)
    made = [_make_one(plan, spec, stage) for spec in specs]
    manifest = render_export(
        documents,
        source=source,
        chunk_tokens=chunk_tokens,
        append_eos=append_eos,
        specs=specs,
        tokenizers=[one.tokenizer for one in made],
        datasets=[one.dataset for one in made],
    )
    _publish(plan, manifest)
    return GolfExported(
        root=out,
        manifest=out / GOLF_MANIFEST,
        docs_sha256=documents.sha256,
        num_docs=documents.n_docs,
        num_val_docs=documents.n_val,
        datasets={one.dataset["name"]: one.dataset["stats"] for one in made},
        kept=[one.dataset["name"] for one in made if one.text_bytes is None],
        text_bytes=sum(one.text_bytes or 0 for one in made),
        seconds=time.perf_counter() - started,
        notes=environment_notes(os.environ),
    )


def _bring_documents(
    docs: str | os.PathLike[str] | None, source: GolfSource | None, root: Path, progress: TransferSink | None
) -> Path:
    """The documents file, below the root."""
    if docs is not None:
        return place_documents(to_path(docs), root)
    if source is not None:
        return fetch_documents(source, root, progress=progress)
    raise UsageError("give the documents with --docs, or the repository that holds them with --repo-id")


_ANEW = "give the command as before, remove the data set's folder to make it anew, or give another --output-root"


@advising_only(
    "--backend", instead={"--restart": _ANEW, "--overwrite": _ANEW, "--shard-tokens": "raise --chunk-tokens"}
)
def _make_one(plan: _Plan, spec: TokenizerSpec, stage: Stage | None) -> _Made:
    """Make a tokenizer and its data set, or find them made."""
    path = plan.out / "datasets" / spec.dataset / (GOLF_NAME + BUILD_RECORD)
    ended = is_remote(path) or not path.with_name(GOLF_NAME + JOURNAL).exists()  # else killed at its very end
    there = read_record(path) if ended and file_exists(path) else None

    def accept(sha256: str) -> None:
        if there is not None:
            _refuse_other(path, {"tokenizer": (there.tokenizer.sha256, sha256)})

    if there is not None:
        _refuse_other_documents(there, path, plan)
    tokenizer = make_vocabulary(
        spec, plan.documents, plan.root, backend=plan.backend, accept=accept, training=plan.training
    )
    end_id = end_of_text(spec, plan.root) if plan.append_eos else None
    if end_id is not None and end_id < 0:
        raise UsageError(f"--append-eos: {spec.name} has no end-of-text id")
    if there is not None:
        _refuse_other(path, {"end id": (there.options.get("end_id"), end_id)})
        _refuse_lost_files(there, path)
    record = there or _build(plan, spec, tokenizer, end_id, stage)
    return _Made(
        tokenizer_entry(spec, tokenizer, root=plan.root),
        dataset_entry(spec, tokenizer, root=plan.root, record=record, documents=plan.documents),
        None if there is not None else sum(split.text_bytes for split in record.splits.values()),
    )


def _publish(plan: _Plan, manifest: bytes) -> None:
    """Put the manifest beside the whole data sets, behind a URL after all else, and remove what only a rerun needs."""
    if is_remote(plan.out):
        _upload_rest(plan.root, plan.out)
    with atomic_write(plan.out / GOLF_MANIFEST) as file:
        file.write(manifest)
    (plan.root / "tokenizers" / TRAINED).unlink(missing_ok=True)
    if is_remote(plan.out):
        shutil.rmtree(plan.root)


def _upload_rest(root: Path, out: Path) -> None:
    """The documents, their sidecar and the tokenizers' files; the data sets are behind the URL already."""
    for path in sorted(root.rglob("*")):
        name = path.relative_to(root).as_posix()
        if path.is_file() and path.name != TRAINED and not name.startswith("datasets/"):
            upload_whole(path, f"{str(out).rstrip('/')}/{name}")


def _build(
    plan: _Plan, spec: TokenizerSpec, tokenizer: Tokenizer, end_id: int | None, stage: Stage | None
) -> BuildRecord:
    """Build one data set, or go on with it; its record."""
    remove_file(plan.out / GOLF_MANIFEST)
    progress = nullcontext() if stage is None else stage(spec.dataset, plan.documents.path.stat().st_size)
    with progress as sink:
        summary = build(
            plan.documents.path,
            tokenizer=tokenizer,
            tokenizer_id=spec.name,
            out=plan.out / "datasets" / spec.dataset,
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
    return read_record(summary.record)


def _refuse_other_documents(record: BuildRecord, path: Path, plan: _Plan) -> None:
    wanted = {
        "documents": ([i.sha256 for i in record.inputs], [plan.documents.sha256]),
        "shard size": (record.options.get("shard_tokens"), plan.chunk_tokens),
        "split": (record.options.get("split"), f"first-docs:{plan.documents.n_val}"),
    }
    _refuse_other(path, wanted)


def _refuse_other(path: Path, wanted: Mapping[str, tuple[object, object]]) -> None:
    """IntegrityError unless a finished data set is the one that this export would make: (found, expected) by name."""
    for what, (found, expected) in wanted.items():
        if found != expected:
            raise IntegrityError(
                f"{path}: the finished data set there was made otherwise ({what} {found}, now {expected}); remove "
                f"{path.parent} to make it anew, or give another --output-root"
            )


def _refuse_lost_files(record: BuildRecord, path: Path) -> None:
    for file in record.files:
        n_tokens = read_header(path.parent / file.name).n_tokens
        if n_tokens != file.n_tokens:
            raise IntegrityError(f"{path.parent / file.name}: {n_tokens:,} tokens, {path.name} says {file.n_tokens:,}")
