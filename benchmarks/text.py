"""Text to measure on: as much as asked for, of no text twice, from real sentences put together anew.

The sentences are those of the documents in ../shared/data/docs (web pages and stories) where that folder is there,
else of the language reference that every Python ships. A document draws sentences at random, to a length that is
log-normal like the web's; three in ten sentences get one word changed, for another word of the texts or, one time
in five, for a new one of random letters, so that the vocabulary grows as real text's does. Seeded, so the same
bytes everywhere.
"""

from __future__ import annotations

import gzip
import json
import random
import re
import string
from pathlib import Path

SHARED_DOCS = Path(__file__).resolve().parents[2] / "shared" / "data" / "docs"
_FILES = ("fineweb_sample", "dclm_annotated", "tinystories_sample", "dolma_cc_head_20docs")


def make_jsonl(path: Path, n_bytes: int, *, seed: int = 7) -> Path:
    """Write JSON lines with id, text and url until `n_bytes` are there; a file of that name is taken as it is."""
    if path.exists():
        return path
    rng = random.Random(seed)
    texts = source_texts()
    sentences = [s for t in texts for s in re.split(r"(?<=[.!?\n])\s+", t) if s]
    words = [w for t in texts for w in t.split()]
    part = path.with_name(path.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    written = number = 0
    with open(part, "w", encoding="utf-8", newline="\n") as file:
        while written < n_bytes:
            record = {"id": number, "text": make_text(rng, sentences, words), "url": f"http://example.org/{number}"}
            line = json.dumps(record, ensure_ascii=False) + "\n"
            file.write(line)
            written += len(line.encode())
            number += 1
    part.replace(path)
    return path


def make_text(rng: random.Random, sentences: list[str], words: list[str]) -> str:
    """One document of 50 characters and more."""
    length = int(rng.lognormvariate(7.4, 1.0)) + 50
    parts: list[str] = []
    size = 0
    while size < length:
        sentence = rng.choice(sentences)
        if rng.random() < 0.3:
            pieces = sentence.split(" ")
            new = "".join(rng.choices(string.ascii_lowercase, k=rng.randint(3, 12)))
            pieces[rng.randrange(len(pieces))] = rng.choice(words) if rng.random() < 0.8 else new
            sentence = " ".join(pieces)
        parts.append(sentence)
        size += len(sentence) + 1
    return " ".join(parts)


def source_texts() -> list[str]:
    """The real texts that sentences are taken from."""
    if SHARED_DOCS.is_dir():
        lines = [
            line
            for name in _FILES
            for line in gzip.decompress((SHARED_DOCS / f"{name}.jsonl.gz").read_bytes()).decode().split("\n")
        ]
        return [json.loads(line)["text"] for line in lines if line]
    from pydoc_data.topics import topics

    return list(topics.values())
