"""What the manifest of an export says, in the published exporter's order of keys."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenriver.errors import IntegrityError
from tokenriver.golfing.specs import recommended_bigrams
from tokenriver.golfing.vocabularies import end_of_text
from tokenriver.shards.golf_manifest import GOLF_SIDECAR
from tokenriver.shards.layouts import GOLF_NAME
from tokenriver.tokenizers.byte import BYTE260_SPECIAL_IDS

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.golfing.documents import Documents
    from tokenriver.golfing.fetch import GolfSource
    from tokenriver.golfing.specs import TokenizerSpec
    from tokenriver.shards.record import BuildRecord
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["dataset_entry", "render_export", "tokenizer_entry"]

_VERSION = "10B"


def tokenizer_entry(spec: TokenizerSpec, tokenizer: Tokenizer, *, root: Path) -> dict[str, Any]:
    """What the manifest says of a tokenizer, whose files are below `root`."""
    is_byte = spec.kind == "byte"
    entry: dict[str, Any] = {
        "name": spec.name,
        "kind": spec.kind,
        "vocab_size": tokenizer.vocab_size,
        "bos_id": tokenizer.bos_id,
        "eos_id": end_of_text(spec, root),
        "recommended_bigram_vocab_size": recommended_bigrams(spec, tokenizer.vocab_size),
        "source_spec": spec.given,
    }
    if is_byte:
        ids = {key: BYTE260_SPECIAL_IDS[key] for key in ("pad_id", "unk_id")}
        return {**entry, "path": spec.artifact, **ids}
    return {**entry, "model_path": spec.artifact, "vocab_path": spec.vocab_path}


def dataset_entry(
    spec: TokenizerSpec, tokenizer: Tokenizer, *, root: Path, record: BuildRecord, documents: Documents
) -> dict[str, Any]:
    """What the manifest says of a data set. IntegrityError unless it holds every document."""
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
        "eos_id": end_of_text(spec, root),
        "recommended_bigram_vocab_size": recommended_bigrams(spec, tokenizer.vocab_size),
        "stats": _stats(record, documents),
    }


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


def render_export(
    documents: Documents,
    *,
    source: GolfSource | None,
    chunk_tokens: int,
    append_eos: bool,
    specs: list[TokenizerSpec],
    tokenizers: list[dict[str, Any]],
    datasets: list[dict[str, Any]],
) -> bytes:
    """The manifest; `tokenizers` and `datasets` are the entries of each spec."""
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
    manifest = {
        "version": _VERSION,
        "num_docs": documents.n_docs,
        "num_val_docs": documents.n_val,
        "shuffle_seed": sidecar.get("shuffle_seed"),
        "shard_size": chunk_tokens,
        "append_eos": append_eos,
        "docs_jsonl": documents.path.name,
        "docs_meta": meta,
        "tokenizer_specs": [spec.given for spec in specs],
        "tokenizers": tokenizers,
        "datasets": datasets,
    }
    return (json.dumps(manifest, indent=2) + "\n").encode()
