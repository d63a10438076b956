"""Documents that tests make up: texts in several scripts, and a JSONL file of them."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING

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
