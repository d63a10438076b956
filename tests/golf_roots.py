"""A small Parameter Golf export made by this project, for the tests of fetching, publishing and scoring."""

from __future__ import annotations

import json
import random
from typing import TYPE_CHECKING, Any

from tokenriver.golfing.export import GolfExported, export_golf

if TYPE_CHECKING:
    from pathlib import Path

TEXT = "river water runs down to the sea and never turns back over stones; 12 boats, 7 bridges, café, 河"
WORDS = TEXT.split()


def write_documents(path: Path, n: int = 120, *, seed: int = 3) -> Path:
    """`n` documents of the same few words, one of them empty."""
    rng = random.Random(seed)
    texts = [" ".join(rng.choices(WORDS, k=rng.randint(5, 60))) for _ in range(n)]
    texts[7] = ""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join(json.dumps({"text": t}, ensure_ascii=False) + "\n" for t in texts), encoding="utf-8")
    return path


def write_specs(path: Path, specs: Any = None) -> Path:
    """A byte tokenizer and a SentencePiece model of 300 pieces, or other specs."""
    path.parent.mkdir(parents=True, exist_ok=True)
    default = [
        {"name": "pure_byte_260", "dataset_suffix": "byte260"},
        {"name": "sp_bpe_300", "dataset_suffix": "sp300", "vocab_size": 300},
    ]
    path.write_text(json.dumps(default if specs is None else specs))
    return path


def make_root(tmp_path: Path, **changes: Any) -> GolfExported:
    """An export of 120 documents, 10 of them val, in shards of 1,000 tokens at tmp_path/export."""
    words: dict[str, Any] = {
        "docs": write_documents(tmp_path / "docs" / "docs_selected.jsonl"),
        "tokenizer_config": write_specs(tmp_path / "docs" / "tokenizer_specs.json"),
        "output_root": tmp_path / "export",
        "num_val_docs": 10,
        "chunk_tokens": 1000,
    }
    return export_golf(**{**words, **changes})
