"""Documents for the tests of the engines, and what of a finished data set must not depend on the engine."""

from __future__ import annotations

import hashlib
import json
import random
from typing import TYPE_CHECKING, Any

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


def deterministic(directory: Path) -> dict[str, Any]:
    """SHA-256 of every file by name, and the build record without what depends on where blocks are cut."""
    found: dict[str, Any] = {}
    for path in sorted(directory.iterdir()):
        if path.name.endswith("_BUILD.json"):
            record = json.loads(path.read_bytes())
            for key in ("sample_checked", "sample_lossless"):
                del record["encoder"][key]
            found[path.name] = record
        else:
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
