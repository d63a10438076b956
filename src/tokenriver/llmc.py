"""Drop-in for llm.c's evaluation loader and tokenizer: its names, its order, bit for bit."""

from __future__ import annotations

from tokenriver.evals.llmc_loader import EvalLoader
from tokenriver.tokenizers.llmc_file import Tokenizer

__all__ = ["EvalLoader", "Tokenizer"]
