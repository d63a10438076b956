"""Small documents, and what the shards made from them must hold."""

from __future__ import annotations

import hashlib
import json
import random
from typing import TYPE_CHECKING

import numpy as np

import tokenriver

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

WORDS = ["the", "river", "carries", "every", "token", "to", "sea", "äöü", "河", "🌊", "and", "nothing", "is", "lost"]


def make_texts(n: int, *, seed: int = 1, words: int = 40) -> list[str]:
    """`n` different texts of about `words` words."""
    rng = random.Random(seed)
    return [f"{i} " + " ".join(rng.choices(WORDS, k=rng.randint(1, 2 * words))) for i in range(n)]


def write_jsonl(path: Path, texts: Iterable[str], **more: list[str]) -> Path:
    """One record a text, with further fields where given."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for i, text in enumerate(texts):
            record = {"id": str(i), "text": text, **{k: v[i] for k, v in more.items()}}
            file.write(json.dumps(record, ensure_ascii=False) + "\n")
    return path


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
