"""Text to token shards to training batches: exact, fast, with nothing lost.

The public names, loaded when they are first used: importing this package imports nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenriver.building.build import BuildSummary, build
    from tokenriver.corpus.shards import CorpusSummary, write_corpus
    from tokenriver.errors import (
        CorpusError,
        FormatError,
        IntegrityError,
        MissingDependencyError,
        ResumeError,
        TokenizerError,
        TokenRiverError,
        UsageError,
    )
    from tokenriver.loader.train import Batch, TrainLoader
    from tokenriver.shards.reader import Shard, open_shard
    from tokenriver.shards.writer import write_shard
    from tokenriver.tokenizers.base import Tokenizer
    from tokenriver.tokenizers.load import load_tokenizer

__version__ = "0.1.0"

_HOMES = {
    "Batch": "loader.train",
    "BuildSummary": "building.build",
    "CorpusError": "errors",
    "CorpusSummary": "corpus.shards",
    "FormatError": "errors",
    "IntegrityError": "errors",
    "MissingDependencyError": "errors",
    "ResumeError": "errors",
    "Shard": "shards.reader",
    "TokenRiverError": "errors",
    "Tokenizer": "tokenizers.base",
    "TokenizerError": "errors",
    "TrainLoader": "loader.train",
    "UsageError": "errors",
    "build": "building.build",
    "load_tokenizer": "tokenizers.load",
    "open_shard": "shards.reader",
    "write_corpus": "corpus.shards",
    "write_shard": "shards.writer",
}
"""Public name → the module that defines it, below tokenriver."""

__all__ = [
    "Batch",
    "BuildSummary",
    "CorpusError",
    "CorpusSummary",
    "FormatError",
    "IntegrityError",
    "MissingDependencyError",
    "ResumeError",
    "Shard",
    "TokenRiverError",
    "Tokenizer",
    "TokenizerError",
    "TrainLoader",
    "UsageError",
    "build",
    "load_tokenizer",
    "open_shard",
    "write_corpus",
    "write_shard",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tokenriver' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"tokenriver.{_HOMES[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted([*globals(), *_HOMES])
