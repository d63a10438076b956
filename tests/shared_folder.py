"""Where the recorded vectors and real data lie, beside the checkout; and their tokenizers, each loaded once."""

from __future__ import annotations

import functools
import warnings
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenriver import Tokenizer

SHARED = Path(__file__).resolve().parents[2] / "shared"

REFERENCE_ONLY = ("hf/torchtitan_test_2020.tokenizer.json.gz", "sentencepiece/spm_test_unigram_1000.model")
"""Those that the fast path does not know: loading them warns."""


@functools.cache
def load(name: str) -> Tokenizer:
    """The tokenizer of ../shared/data with that path: a large vocabulary takes seconds. A warning is an error."""
    from tokenriver import load_tokenizer

    with warnings.catch_warnings():
        warnings.simplefilter("ignore" if name in REFERENCE_ONLY else "error")
        return load_tokenizer(SHARED / "data" / name)
