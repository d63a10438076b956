"""Choose and shuffle documents once and for all: `docs_selected.jsonl` and its sidecar, out of core.

Document i of the inputs has a key, a bijection of (seed, i); the documents with the N smallest keys are chosen, in
the order of their keys. So the choice depends on the documents' order and the seed alone. The texts are read twice
(to count, then to choose) and once sorted on disk, so memory does not grow with them.
"""

from __future__ import annotations

import hashlib
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenriver.cluster.engines import check_engine
from tokenriver.corpus.blocks import counts_to_record
from tokenriver.corpus.documents import BLOCK_BYTES, SourceOptions, find_sources
from tokenriver.corpus.progress import expect_bytes
from tokenriver.cpus import available_cpus
from tokenriver.errors import IntegrityError, UsageError
from tokenriver.files import atomic_write, file_exists, is_same_file, remove_file
from tokenriver.golfing.documents import DEFAULT_VAL_DOCS
from tokenriver.golfing.keys import threshold_key
from tokenriver.golfing.select_here import LocalSelection
from tokenriver.resuming.lock import locked
from tokenriver.shards.golf_manifest import GOLF_DOCS, GOLF_SIDECAR
from tokenriver.shards.manifest import render_json
from tokenriver.storage.directory import RemoteDirectory, staging_directory
from tokenriver.storage.paths import is_remote, to_folder, to_path
from tokenriver.storage.uploading import upload_whole

if TYPE_CHECKING:
    import os
    from collections import Counter
    from collections.abc import Callable, Iterable, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tokenriver.corpus.documents import Source
    from tokenriver.corpus.inputs import InputFacts
    from tokenriver.golfing.select_on_ray import ClusterSelection

__all__ = ["GolfSelected", "select_golf"]

_BUCKET_BYTES = 64 << 20
_MOST_BUCKETS = 400
"""Files open at the same time while the chosen documents are dealt out; each is then sorted in memory."""

_BUCKETS = ".buckets"
_LOCK = ".selecting"


@dataclass(frozen=True, slots=True, kw_only=True)
class GolfSelected:
    """What was chosen. `skipped` counts records that gave no document, by kind; sizes are bytes."""

    docs: Path
    sidecar: Path
    num_docs: int
    docs_val: int
    docs_sha256: str
    docs_bytes: int
    documents_read: int
    skipped: dict[str, int] = field(default_factory=dict)


def select_golf(
    inputs: Sequence[str | os.PathLike[str]] | str,
    *,
    docs: int,
    seed: int,
    out: str | os.PathLike[str],
    docs_val: int | None = None,
    text_field: str = "text",
    on_bad_record: str = "error",
    workers: int | None = None,
    overwrite: bool = False,
    engine: str = "local",
    ray_address: str | None = None,
    staging: str | os.PathLike[str] | None = None,
    block_bytes: int = BLOCK_BYTES,
    bucket_bytes: int = _BUCKET_BYTES,
    progress: Callable[[int], None] | None = None,
) -> GolfSelected:
    """Choose `docs` documents of the inputs by `seed` into `out`; the same files for any workers and block sizes.

    `docs_val` (None: 50,000, or a tenth where fewer than 500,000 are chosen) is written into the sidecar: so many
    documents at the front are val. `engine` "ray" makes the same files on a Ray cluster (`ray_address`, else one that
    is started here). Behind a URL the documents are sorted and joined in `staging` (storage/directory.py), which all
    nodes of a cluster must see; what was there stays until they are whole. `progress` is told input bytes read, of
    twice their size in all (its `expect`, where it has that, gets that size first).

    Raises UsageError when there are fewer documents, CorpusError for a bad record, IntegrityError when a selection is
    there already, ResumeError while another one is made there.
    """
    check_engine(engine, ray_address)
    n_val = _val_documents(docs, docs_val)
    if workers is not None and workers < 1:
        raise UsageError(f"--workers is {workers}; it must be 1 or more")
    options = SourceOptions(text_field=text_field, on_bad_record=on_bad_record)  # type: ignore[arg-type]
    sources = find_sources([inputs] if isinstance(inputs, str) else inputs, options)
    expect_bytes(progress, sources, times=2)
    if any(source.stream is not None for source in sources):
        raise UsageError("the inputs are read twice, so standard input (-) cannot be one of them; give a file")
    folder = to_folder(out, option="--out")
    room = _room(sources, folder, staging)
    with ExitStack() as stack:
        stack.enter_context(_locked(room, folder))
        if file_exists(folder / GOLF_SIDECAR) and not overwrite:
            raise IntegrityError(f"{folder}: holds a selection already ({GOLF_SIDECAR}); --overwrite replaces it")
        reader: LocalSelection | ClusterSelection
        if engine == "ray":
            reader = _on_cluster(stack, room, sources, options, workers, ray_address, block_bytes, progress)
        else:
            reader = LocalSelection(
                room / _BUCKETS, sources, options, workers or available_cpus(), block_bytes, progress
            )
        facts = reader.count()
        there, source_bytes = sum(reader.by_source.values()), sum(s.n_bytes or 0 for s in sources)
        limit, n_buckets = _choice(docs, seed, there=there, source_bytes=source_bytes, bucket_bytes=bucket_bytes)
        sha256, n_bytes = _join(reader.chosen(seed, limit, n_buckets), docs, room, folder)
        selected = GolfSelected(
            docs=folder / GOLF_DOCS,
            sidecar=folder / GOLF_SIDECAR,
            num_docs=docs,
            docs_val=n_val,
            docs_sha256=sha256,
            docs_bytes=n_bytes,
            documents_read=there,
            skipped=dict(sorted(reader.skipped.items())),
        )
        _write_sidecar(selected, seed=seed, sources=_described(sources, reader.by_source, facts))
    return selected


def _val_documents(docs: int, docs_val: int | None) -> int:
    if docs < 1:
        raise UsageError(f"--docs is {docs}; it must be 1 or more")
    n_val = min(DEFAULT_VAL_DOCS, docs // 10) if docs_val is None else docs_val
    if not 0 <= n_val <= docs:
        raise UsageError(f"--docs-val is {n_val}; it must be from 0 to --docs, {docs}")
    return n_val


def _choice(docs: int, seed: int, *, there: int, source_bytes: int, bucket_bytes: int) -> tuple[int, int]:
    """The largest key of the chosen documents, and into how many files they are dealt, to be sorted in memory."""
    if docs > there:
        raise UsageError(f"--docs is {docs:,}, but the inputs hold {there:,} documents")
    chosen_bytes = source_bytes * docs // there
    return threshold_key(seed, docs, there), min(_MOST_BUCKETS, chosen_bytes // bucket_bytes + 1)


def _room(sources: Sequence[Source], folder: Path, staging: str | os.PathLike[str] | None) -> Path:
    """Where the documents are sorted and joined; refuses what nothing can be written to, and to replace an input."""
    if is_remote(folder):
        RemoteDirectory.for_writing(str(folder))
    for source in sources:
        if is_same_file(to_path(source.path), folder / GOLF_DOCS):
            raise UsageError(f"{source.path}: an input, which the selection would replace; give another --out")
    return staging_directory(str(folder), staging) if is_remote(folder) else folder


def _locked(room: Path, folder: Path) -> AbstractContextManager[None]:
    """Hold the room: a second run would delete what the first one sorts there."""
    busy = "another selection is being made here; wait for it, or give another --out"
    return locked(room / _LOCK, where=folder, busy=busy, removable=[] if room is folder else [room])


def _on_cluster(
    stack: ExitStack,
    room: Path,
    sources: list[Source],
    options: SourceOptions,
    workers: int | None,
    address: str | None,
    block_bytes: int,
    progress: Callable[[int], None] | None,
) -> ClusterSelection:
    from tokenriver.cluster.work import work_on
    from tokenriver.golfing.select_on_ray import ClusterSelection

    module, cores = ClusterSelection.__module__, available_cpus()
    work = stack.enter_context(work_on(room / _BUCKETS, address=address, workers=workers, cores=cores, module=module))
    return ClusterSelection(work, sources, options, block_bytes, progress)


def _write_sidecar(selected: GolfSelected, *, seed: int, sources: list[dict[str, Any]]) -> None:
    sidecar = {
        "num_docs": selected.num_docs,
        "docs_val": selected.docs_val,
        "docs_train": selected.num_docs - selected.docs_val,
        "docs_bytes": selected.docs_bytes,
        "docs_sha256": selected.docs_sha256,
        "shuffle_seed": seed,
        "sources": sources,
    }
    if left_out := counts_to_record(selected.skipped):
        sidecar["skipped"] = left_out
    with atomic_write(selected.sidecar) as file:
        file.write(render_json(sidecar))


def _described(sources: Sequence[Source], documents: Counter[int], facts: Sequence[InputFacts]) -> list[dict[str, Any]]:
    """The sources as the sidecar lists them, by name: no folders of this machine."""
    return [
        {"name": source.name, "documents": documents[i], "n_bytes": one.n_bytes, "sha256": one.sha256}
        for i, (source, one) in enumerate(zip(sources, facts, strict=True))
    ]


def _join(pieces: Iterable[bytes], docs: int, room: Path, folder: Path) -> tuple[str, int]:
    """Write the pieces one after another, `docs` lines of them; SHA-256 and bytes of the whole.

    What a selection before left in `folder` goes when the new documents are whole, its sidecar first.
    """
    digest, n_bytes, n_lines = hashlib.sha256(), 0, 0
    made = room / GOLF_DOCS
    try:
        with atomic_write(made) as out:
            for piece in pieces:
                out.write(piece)
                digest.update(piece)
                n_bytes += len(piece)
                n_lines += piece.count(b"\n")
            if n_lines != docs:
                raise IntegrityError(f"{made}: {n_lines:,} documents instead of {docs:,}: the inputs changed")
            remove_file(folder / GOLF_SIDECAR)
        if room is not folder:
            upload_whole(made, str(folder / GOLF_DOCS))
    finally:
        if room is not folder:
            made.unlink(missing_ok=True)
    return digest.hexdigest(), n_bytes
