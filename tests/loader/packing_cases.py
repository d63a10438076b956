"""Data sets of documents whose tokens name their document and place, with indexes, for tests of packing."""

from __future__ import annotations

import json
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver import write_shard
from tokenriver.loader.shard_file import read_shard_file
from tokenriver.shards.index import index_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence
    from pathlib import Path

SEPARATOR = 0


def write_documents(
    path: Path, lengths: Sequence[int], *, position: str | None = "before", shards: int = 1, index: bool = True
) -> tuple[list[Path], np.ndarray]:
    """Shards of documents of these lengths; token i is i + 1, but separators are 0. Gives the paths and all ids.

    `position` None leaves separators out. Several shards hold whole documents each.
    """
    path.mkdir(parents=True, exist_ok=True)
    total = sum(lengths)
    ids = np.arange(1, total + 1, dtype=np.uint32)
    ends = np.cumsum(lengths)
    if position == "before":
        ids[ends - lengths] = SEPARATOR
    elif position == "after":
        ids[ends - 1] = SEPARATOR
    paths, first = [], 0
    for part in np.array_split(np.arange(len(lengths)), shards):
        if not len(part):
            continue
        stop = int(ends[part[-1]])
        shard = path / f"docs_train_{len(paths):06d}.bin"
        write_shard(shard, ids[first:stop], variant="uint32")
        if index:
            (ends[part] - first).astype("<u8").tofile(index_path(shard))
        paths.append(shard)
        first = stop
    return paths, ids


def record_separator(paths: Sequence[Path], position: str) -> Path:
    """A build record beside shards, which says where their separators stand; gives the data set's folder."""
    files = [
        {"name": path.name, "split": "train", "n_tokens": read_shard_file(str(path)).n_tokens, "sha256": None}
        for path in paths
    ]
    tokenizer = {"tokenizer_id": "toy", "separator_id": SEPARATOR, "separator_position": position}
    record = paths[0].parent / "docs_BUILD.json"
    record.write_text(json.dumps({"tokenizer": tokenizer, "files": files}))
    return record.parent


def joined(parts: Iterable[list[Any]]) -> list[Any]:
    """Several ranks' rows as one global batch."""
    return list(chain.from_iterable(parts))
