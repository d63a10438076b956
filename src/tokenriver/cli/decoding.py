"""The tokenizer that a command decodes ids with, and a word where it is not the one that made them."""

from __future__ import annotations

import warnings
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["load_decoder"]


def load_decoder(word: str, *, made_with: str | None, what: str, wrong: str = "the text is") -> Tokenizer:
    """The tokenizer `word`; a warning when `what` says that it was `made_with` ("name@first digits of its SHA-256")
    another. Files of one vocabulary in two formats differ too, so it is no error.
    """
    from tokenriver.tokenizers.load import load_tokenizer

    tokenizer = load_tokenizer(word)
    if made_with is not None:
        name, _, digest = made_with.rpartition("@")
        if digest and not tokenizer.sha256.startswith(digest):
            warnings.warn(
                f"{what}: made with the tokenizer {name} (SHA-256 {digest}…), not with this {tokenizer.tokenizer_id} "
                f"({tokenizer.sha256[: len(digest)]}…): unless both are one vocabulary, {wrong} wrong",
                stacklevel=2,
            )
    return tokenizer
