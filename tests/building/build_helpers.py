"""Small documents, and what the shards made from them must hold."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

import numpy as np

import tokenriver

if TYPE_CHECKING:
    from pathlib import Path


def hashes(directory: Path, pattern: str = "*") -> dict[str, str]:
    """SHA-256 by name of the files in a directory, the build record (it names absolute paths) left out."""
    return {
        p.name: hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(directory.glob(pattern))
        if p.is_file() and not p.name.endswith("_BUILD.json")
    }


def ids_of(directory: Path, pattern: str) -> list[int]:
    """All ids of the shards that match, joined in the order of their names."""
    shards = [tokenriver.open_shard(p).ids for p in sorted(directory.glob(pattern))]
    return np.concatenate(shards).tolist() if shards else []
