"""One multiple-choice example, and many of them as flat arrays: what files hold and loaders serve."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.batches import offsets_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["UNKNOWN_LENGTH", "Completion", "EvalExample", "Places"]

UNKNOWN_LENGTH = -1
"""In place of a completion's bytes or characters where a file does not hold them (version 1)."""


@dataclass(frozen=True, slots=True)
class Completion:
    """One answer: its ids, the first `n_unscored` of which only lead up to it.

    `n_bytes` and `n_chars`: length of the answer's text in UTF-8 bytes and in code points, without the space that
    joins it to the context; what acc_norm by bytes and by characters divide by. UNKNOWN_LENGTH where not known.
    """

    ids: Sequence[int] | NDArray[Any]
    n_unscored: int = 0
    n_bytes: int = UNKNOWN_LENGTH
    n_chars: int = UNKNOWN_LENGTH


@dataclass(frozen=True, slots=True)
class EvalExample:
    """Ids of a context, the completions to choose from, and the index of the right one."""

    context: Sequence[int] | NDArray[Any]
    completions: Sequence[Completion]
    label: int


@dataclass(frozen=True, slots=True, eq=False)
class Places:
    """Where the parts of examples [first, first + n) lie in a file's array of ids; all int64.

    An entry an example: `label`, `context_start`, `context_len`, and `first_row` [n + 1] into the completions. An
    entry a completion: `start`, `length`, `n_unscored`, `n_bytes`, `n_chars`.
    """

    first: int
    label: NDArray[np.int64]
    context_start: NDArray[np.int64]
    context_len: NDArray[np.int64]
    first_row: NDArray[np.int64]
    start: NDArray[np.int64]
    length: NDArray[np.int64]
    n_unscored: NDArray[np.int64]
    n_bytes: NDArray[np.int64]
    n_chars: NDArray[np.int64]

    def __len__(self) -> int:
        return len(self.label)

    @property
    def example_of_row(self) -> NDArray[np.int64]:
        """Position of each completion's example among these examples, int64 [n_completions]."""
        return np.repeat(np.arange(len(self)), np.diff(self.first_row))

    @property
    def row_tokens(self) -> NDArray[np.int64]:
        """Ids of each row, context and completion together, int64 [n_completions]."""
        return self.context_len[self.example_of_row] + self.length

    def longest(self) -> NDArray[np.int64]:
        """Ids of each example's longest row, int64 [n]."""
        if not len(self):
            return np.zeros(0, np.int64)
        return np.maximum.reduceat(self.row_tokens, self.first_row[:-1])

    def take(self, chosen: NDArray[np.int64]) -> Places:
        """The examples at these positions (ascending), with their completions."""
        counts = np.diff(self.first_row)[chosen]
        first_row = offsets_of(counts)
        rows = np.arange(first_row[-1]) + np.repeat(self.first_row[chosen] - first_row[:-1], counts)
        return Places(
            self.first,
            self.label[chosen],
            self.context_start[chosen],
            self.context_len[chosen],
            first_row,
            self.start[rows],
            self.length[rows],
            self.n_unscored[rows],
            self.n_bytes[rows],
            self.n_chars[rows],
        )
