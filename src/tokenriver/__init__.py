"""Text to token shards to training batches: exact, fast, with nothing lost.

The public names, loaded when they are first used: importing this package imports nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
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

__version__ = "0.1.0"

_HOMES = {
    "Batch": "loader.train",
    "CorpusError": "errors",
    "FormatError": "errors",
    "IntegrityError": "errors",
    "MissingDependencyError": "errors",
    "ResumeError": "errors",
    "Shard": "shards.reader",
    "TokenRiverError": "errors",
    "TokenizerError": "errors",
    "TrainLoader": "loader.train",
    "UsageError": "errors",
    "open_shard": "shards.reader",
    "write_shard": "shards.writer",
}
"""Public name → the module that defines it, below tokenriver."""

__all__ = [
    "Batch",
    "CorpusError",
    "FormatError",
    "IntegrityError",
    "MissingDependencyError",
    "ResumeError",
    "Shard",
    "TokenRiverError",
    "TokenizerError",
    "TrainLoader",
    "UsageError",
    "open_shard",
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
