"""Where an encoder went wrong: the document it failed on, the first id in which it differs from its reference."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.batches import TextBatch
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["failing_document", "first_difference"]


def failing_document(tokenizer: Tokenizer, texts: TextBatch) -> int | None:
    """Index of a text that the tokenizer fails on alone, found by halves; None where none is to be found.

    For what its own error does not name: a tokenizer given as an object may raise anything.
    """
    first, last = 0, len(texts)
    if not _fails(tokenizer, texts):
        return None
    while last - first > 1:
        middle = (first + last) // 2
        if _fails(tokenizer, texts.slice(first, middle)):
            last = middle
        elif _fails(tokenizer, texts.slice(middle, last)):
            first = middle
        else:
            return None
    return first


def _fails(tokenizer: Tokenizer, texts: TextBatch) -> bool:
    try:
        tokenizer.encode_batch(texts, parallel=False)
    except Exception:  # whatever it is, it is told by whoever asks
        return True
    return False


def first_difference(got: NDArray[Any], want: NDArray[Any], tokenizer: Tokenizer) -> str:
    """The first token in which the fast encoder's ids and the reference's differ, in words."""
    n = min(len(got), len(want))
    at = int(np.argmax(got[:n] != want[:n])) if (got[:n] != want[:n]).any() else n
    found = int(got[at]) if at < len(got) else "the end"
    expected = int(want[at]) if at < len(want) else "the end"
    return (
        f"the fast encoder ({tokenizer.backend_version}) differs from the reference at token {at:,}: {found} "
        f"instead of {expected}. Build with --backend reference, and please report the text"
    )
