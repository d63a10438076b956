"""Small data sets whose ids are their own positions, so that a batch says where it came from."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from hashlib import sha256
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tokenriver import write_shard


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


@pytest.fixture
def data_set(tmp_path: Path) -> Callable[..., Path]:
    """write_data_set below tmp_path / "data"."""
    return lambda sizes, **options: write_data_set(tmp_path / "data", sizes, **options)
