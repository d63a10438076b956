"""Bytes and characters of completions from their ids, for files that do not hold them (version 1)."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.errors import UsageError
from tokenriver.evals.parse import flat_runs

if TYPE_CHECKING:
    from tokenriver.evals.examples import Places
    from tokenriver.evals.file import EvalFile
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["with_lengths"]


def with_lengths(file: EvalFile, places: Places, tokenizer: Tokenizer) -> Places:
    """The places with `n_bytes` and `n_chars` where they were unknown, counted in the bytes that the ids stand for.

    The one space that joins a completion to its context is not counted (nor the tokenizer's own, where it puts one
    before each text). A character is counted at its first byte. UsageError for ids outside the vocabulary.
    """
    unknown = np.flatnonzero((places.n_bytes < 0) | (places.n_chars < 0))
    if not len(unknown):
        return places
    table = tokenizer.token_bytes_table()
    ids = file.words[flat_runs(places.start[unknown], places.length[unknown])]
    if len(ids) and int(ids.max()) >= len(table):
        raise UsageError(f"{file.path}: id {int(ids.max())} is outside {tokenizer.tokenizer_id}'s {len(table):,} ids")
    n_bytes = np.array([len(piece) for piece in table], np.int64)
    n_chars = np.array([sum(b & 0xC0 != 0x80 for b in piece) for piece in table], np.int64)
    spaces = np.array([len(piece) - len(piece.lstrip(b" ")) for piece in table], np.int64)
    ends = np.cumsum(places.length[unknown])
    starts = ends - places.length[unknown]
    # A dummy prefix and the joining space may share the first piece or stand in the first two.
    leading = spaces[ids[starts]]
    removed = np.minimum(leading, 1 + int(tokenizer.prefix_space))
    sums = [np.add.reduceat(column[ids], starts) - removed for column in (n_bytes, n_chars)]
    all_bytes, all_chars = places.n_bytes.copy(), places.n_chars.copy()
    all_bytes[unknown], all_chars[unknown] = (np.maximum(one, 0) for one in sums)
    return replace(places, n_bytes=all_bytes, n_chars=all_chars)
