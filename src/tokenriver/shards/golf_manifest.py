"""Parameter Golf's `manifest.json`: what it must say for its files to be found and checked (formats of both exporters).

It names no hashes; sizes and counts come from the shards' headers, hashes from where the files were fetched.
"""

from __future__ import annotations

from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Annotated, Any

import msgspec

from tokenriver.errors import FormatError
from tokenriver.shards.layouts import Split, shard_name
from tokenriver.shards.manifest import decode_json, read_limited
from tokenriver.storage.paths import to_path

if TYPE_CHECKING:
    import os
    from pathlib import Path

__all__ = [
    "GOLF_DOCS",
    "GOLF_MANIFEST",
    "GOLF_SIDECAR",
    "REMOTE_ROOT",
    "REMOTE_ROOT_VARIABLE",
    "GolfDataset",
    "GolfManifest",
    "GolfSidecar",
    "GolfStats",
    "GolfTokenizer",
    "parse_golf_manifest",
    "parse_golf_sidecar",
    "read_golf_manifest",
    "read_golf_sidecar",
]

GOLF_MANIFEST = "manifest.json"
GOLF_DOCS = "docs_selected.jsonl"
GOLF_SIDECAR = "docs_selected.source_manifest.json"

REMOTE_ROOT = "datasets"
"""Folder of a repository that an export is in; REMOTE_ROOT_VARIABLE of the environment names another."""
REMOTE_ROOT_VARIABLE = "MATCHED_FINEWEB_REMOTE_ROOT_PREFIX"

_Count = Annotated[int, msgspec.Meta(ge=0, le=2**62)]
_Files = Annotated[int, msgspec.Meta(ge=0, le=10**6)]
_Id = Annotated[int, msgspec.Meta(ge=-1, le=2**16 - 1)]
_Vocabulary = Annotated[int, msgspec.Meta(ge=1, le=2**16)]


class GolfStats(msgspec.Struct, frozen=True, kw_only=True):
    """Documents, files and tokens of a data set, in all and by side."""

    docs_total: _Count
    docs_val: _Count
    docs_train: _Count
    files_total: _Files
    files_val: _Files
    files_train: _Files
    tokens_total: _Count
    tokens_val: _Count
    tokens_train: _Count


class GolfDataset(msgspec.Struct, frozen=True, kw_only=True):
    """One export: where its shards are (relative to the manifest) and what they hold."""

    name: str
    tokenizer_name: str
    path: str
    vocab_size: _Vocabulary
    stats: GolfStats
    bos_id: _Id | None = None
    eos_id: _Id | None = None

    @property
    def variant(self) -> str:
        """What follows "fineweb10B_" in the name: sp1024, byte260, …"""
        return self.name.partition("_")[2] or self.name

    def shards(self, split: Split, n: int | None = None) -> list[str]:
        """Paths of the first `n` shards of a side (None: all), relative to the manifest."""
        there = self.stats.files_val if split == "val" else self.stats.files_train
        path = PurePosixPath(self.path)
        return [f"{path}/{shard_name('golf', '', split, i)}" for i in range(there if n is None else min(n, there))]


class GolfTokenizer(msgspec.Struct, frozen=True, kw_only=True):
    """A tokenizer of the exports, and its files relative to the manifest: `model_path` and `vocab_path`, or `path`."""

    name: str
    kind: str
    vocab_size: _Vocabulary
    model_path: str | None = None
    vocab_path: str | None = None
    path: str | None = None

    @property
    def artifacts(self) -> list[str]:
        """Its files, the one that encodes first."""
        return [p for p in (self.model_path, self.vocab_path, self.path) if p is not None]


class GolfManifest(msgspec.Struct, frozen=True, kw_only=True):
    """The manifest; other keys are left alone."""

    version: str
    tokenizers: list[GolfTokenizer]
    datasets: list[GolfDataset]
    num_docs: _Count | None = None
    num_val_docs: _Count | None = None
    shard_size: Annotated[int, msgspec.Meta(ge=1)] | None = None
    docs_jsonl: str = GOLF_DOCS
    docs_meta: dict[str, Any] = {}

    def dataset(self, variant: str) -> GolfDataset | None:
        """The export of a variant (sp1024), also by its whole name (fineweb10B_sp1024)."""
        return next((d for d in self.datasets if variant in (d.variant, d.name)), None)

    def tokenizer(self, name: str) -> GolfTokenizer | None:
        """The tokenizer of that name."""
        return next((t for t in self.tokenizers if t.name == name), None)


class GolfSidecar(msgspec.Struct, frozen=True, kw_only=True):
    """What the documents file's sidecar says of it; other keys are left alone."""

    num_docs: _Count | None = None
    docs_val: _Count | None = None
    docs_sha256: Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{64}$", max_length=64)] | None = None
    docs_bytes: _Count | None = None


def read_golf_sidecar(path: str | os.PathLike[str]) -> tuple[GolfSidecar, dict[str, Any]]:
    """Read a sidecar: what is known of it, and all of it. Raises FormatError when it is not one."""
    path = to_path(path)
    return parse_golf_sidecar(read_limited(path), path)


def parse_golf_sidecar(raw: bytes, path: Path) -> tuple[GolfSidecar, dict[str, Any]]:
    """The sidecar in `raw`; `path` is for the messages."""
    return decode_json(raw, GolfSidecar, path), decode_json(raw, dict[str, Any], path)


def read_golf_manifest(path: str | os.PathLike[str]) -> GolfManifest:
    """Read a `manifest.json`. Raises FormatError, naming the key, when it is not one, OSError when unreadable."""
    path = to_path(path)
    return parse_golf_manifest(read_limited(path), path)


def parse_golf_manifest(raw: bytes, path: Path) -> GolfManifest:
    """The manifest in `raw`; `path` is for the messages."""
    manifest = decode_json(raw, GolfManifest, path)
    for i, dataset in enumerate(manifest.datasets):
        stats = dataset.stats
        for what in ("docs", "files", "tokens"):
            total, val, train = (getattr(stats, f"{what}_{side}") for side in ("total", "val", "train"))
            if total != val + train:
                raise FormatError(
                    f"{path}: datasets[{i}].stats.{what}_total is {total:,}, but val and train make {val + train:,}"
                )
        if manifest.tokenizer(dataset.tokenizer_name) is None:
            raise FormatError(
                f"{path}: datasets[{i}].tokenizer_name {dataset.tokenizer_name!r} is not among tokenizers"
            )
    return manifest
