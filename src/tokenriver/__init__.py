"""Text to token shards to training batches: exact, fast, with nothing lost.

The public names, loaded when they are first used: importing this package imports nothing heavy.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenriver.bpb.bits import BitsPerByte
    from tokenriver.bpb.tables import text_bytes, token_bytes
    from tokenriver.building.build import build
    from tokenriver.building.summary import BuildSummary
    from tokenriver.corpus.shards import CorpusSummary, write_corpus
    from tokenriver.errors import (
        ClusterError,
        CorpusError,
        FormatError,
        HubError,
        IntegrityError,
        MissingDependencyError,
        ResumeError,
        StorageError,
        TokenizerError,
        TokenRiverError,
        UsageError,
    )
    from tokenriver.evals.evaluate import evaluate
    from tokenriver.evals.file import open_eval_file
    from tokenriver.evals.loader import EvalLoader
    from tokenriver.evals.make import make_eval_file
    from tokenriver.evals.scoring import Scores, score
    from tokenriver.hub.download import DownloadSummary, download
    from tokenriver.hub.publish import PublishSummary, publish
    from tokenriver.loader.batch import Batch
    from tokenriver.loader.mixture import Mixture
    from tokenriver.loader.train import TrainLoader
    from tokenriver.recipes.engine import run_recipe
    from tokenriver.recipes.options import RecipeOptions
    from tokenriver.shards.reader import Shard, open_shard
    from tokenriver.shards.verify import Finding, VerifyReport, verify
    from tokenriver.shards.writer import write_shard
    from tokenriver.tokenizers.base import Tokenizer
    from tokenriver.tokenizers.load import load_tokenizer
    from tokenriver.tokenizers.train import train_tokenizer

__version__ = "0.1.0"

_HOMES = {
    "Batch": "loader.batch",
    "BitsPerByte": "bpb.bits",
    "BuildSummary": "building.summary",
    "ClusterError": "errors",
    "CorpusError": "errors",
    "CorpusSummary": "corpus.shards",
    "DownloadSummary": "hub.download",
    "EvalLoader": "evals.loader",
    "Finding": "shards.verify",
    "FormatError": "errors",
    "HubError": "errors",
    "IntegrityError": "errors",
    "MissingDependencyError": "errors",
    "Mixture": "loader.mixture",
    "PublishSummary": "hub.publish",
    "RecipeOptions": "recipes.options",
    "ResumeError": "errors",
    "Scores": "evals.scoring",
    "Shard": "shards.reader",
    "StorageError": "errors",
    "TokenRiverError": "errors",
    "Tokenizer": "tokenizers.base",
    "TokenizerError": "errors",
    "TrainLoader": "loader.train",
    "UsageError": "errors",
    "VerifyReport": "shards.verify",
    "build": "building.build",
    "download": "hub.download",
    "evaluate": "evals.evaluate",
    "load_tokenizer": "tokenizers.load",
    "make_eval_file": "evals.make",
    "open_eval_file": "evals.file",
    "open_shard": "shards.reader",
    "publish": "hub.publish",
    "run_recipe": "recipes.engine",
    "score": "evals.scoring",
    "text_bytes": "bpb.tables",
    "token_bytes": "bpb.tables",
    "train_tokenizer": "tokenizers.train",
    "verify": "shards.verify",
    "write_corpus": "corpus.shards",
    "write_shard": "shards.writer",
}
"""Public name → the module that defines it, below tokenriver."""

__all__ = [
    "Batch",
    "BitsPerByte",
    "BuildSummary",
    "ClusterError",
    "CorpusError",
    "CorpusSummary",
    "DownloadSummary",
    "EvalLoader",
    "Finding",
    "FormatError",
    "HubError",
    "IntegrityError",
    "MissingDependencyError",
    "Mixture",
    "PublishSummary",
    "RecipeOptions",
    "ResumeError",
    "Scores",
    "Shard",
    "StorageError",
    "TokenRiverError",
    "Tokenizer",
    "TokenizerError",
    "TrainLoader",
    "UsageError",
    "VerifyReport",
    "build",
    "download",
    "evaluate",
    "load_tokenizer",
    "make_eval_file",
    "open_eval_file",
    "open_shard",
    "publish",
    "run_recipe",
    "score",
    "text_bytes",
    "token_bytes",
    "train_tokenizer",
    "verify",
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
