"""Shards whose content a test can compute: ids that are their own positions, and the sets of the recorded vectors."""

from __future__ import annotations

import hashlib
import json
from hashlib import sha256
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver import write_shard

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

__all__ = ["read_vectors", "sha", "write_data_set", "write_vector_sets"]


def write_data_set(
    root: Path,
    sizes: Sequence[int],
    *,
    variants: Sequence[str] = ("auto",),
    val: Sequence[int] = (),
    separator: int | None = None,
) -> Path:
    """A tokens-layout data set of ids 0, 1, 2, … over train shards of these sizes (val counts from 0 again)."""
    root.mkdir(parents=True, exist_ok=True)
    files: list[dict[str, Any]] = []
    for split, lengths in (("train", sizes), ("val", val)):
        start = 0
        for i, size in enumerate(lengths):
            name = f"{split}-{i:05d}.bin"
            write_shard(root / name, np.arange(start, start + size), variant=variants[i % len(variants)])
            digest = sha256((root / name).read_bytes()).hexdigest()
            files.append({"name": name, "split": split, "n_tokens": size, "n_docs": 1, "sha256": digest})
            start += size
    manifest = {
        "tokenizer_id": "positions",
        "tokenizer_sha256": "0" * 64,
        "vocab_size": 1 << 16,
        "doc_sep_id": separator,
        "dataset": "positions",
        "version": "v1",
        "corpus_manifest_sha256": "0" * 64,
        "files": files,
    }
    (root / "_MANIFEST.json").write_text(json.dumps(manifest, indent=2) + "\n")
    return root


def sha(values: Any, dtype: str = "<i4") -> str:
    return hashlib.sha256(np.asarray(values).astype(dtype).tobytes()).hexdigest()


def read_vectors(shared: Path, name: str) -> dict[str, Any]:
    return json.loads((shared / "vectors" / name).read_text())


def write_vector_sets(root: Path, sets: dict[str, Any]) -> None:
    """The shards of the vectors' rule: token(i, s) = (i·7919 + s·104729 + i² mod 65521) mod 50257."""
    for name, described in sets.items():
        (root / name).mkdir()
        for file in described["files"]:
            i = np.arange(file["n_tokens"], dtype=np.int64)
            ids = (i * 7919 + file["s"] * 104729 + (i * i) % 65521) % 50257
            facts = write_shard(root / name / file["name"], ids, vocab_size=file["header3"], variant="uint16")
            assert facts.sha256 == file["sha256"]
