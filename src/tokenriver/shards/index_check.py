"""The document index beside a shard, compared with the shard's separators while these are read for other reasons."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Literal

import numpy as np

from tokenriver.files import open_binary
from tokenriver.shards.index import INDEX_DTYPE, index_path, index_problem

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["IndexCheck"]


class IndexCheck:
    """What is wrong with a shard's index (`problem`, None when nothing is), found while the shard is scanned.

    `separator_id` None: only the index's own form is checked, with `n_docs` its length, and with `recorded` its
    SHA-256; each of these with the name of the file that says so. Raises FileNotFoundError when there is no index,
    OSError when it cannot be read.
    """

    def __init__(
        self,
        shard: Path,
        *,
        separator_id: int | None = None,
        position: Literal["before", "after"] = "before",
        n_docs: tuple[int, str] | None = None,
        recorded: tuple[str, str] | None = None,
    ) -> None:
        self.path = index_path(shard)
        with open_binary(self.path) as opened:
            self._raw = opened.read() or b""
        self._separator_id, self._position = separator_id, position
        self._n_docs, self._recorded = n_docs, recorded
        self._ends: NDArray[np.int64] = np.zeros(0, np.int64)
        self._seen = 0
        self._last = 0
        self.problem: str | None = None
        self.wants_separators = False

    def begin(self, n_tokens: int) -> None:
        """The shard's header is known."""
        self._n_tokens = n_tokens
        self.problem = index_problem(self._raw, n_tokens)
        if self.problem is not None:
            return
        self._ends = np.frombuffer(self._raw, INDEX_DTYPE).astype(np.int64)
        self.wants_separators = self._separator_id is not None
        if not self.wants_separators:
            self.problem = self._other_than_recorded()
        self._raw = b""

    def _other_than_recorded(self) -> str | None:
        """What is wrong with an index that no separators can be compared with."""
        if self._n_docs is not None and len(self._ends) != self._n_docs[0]:
            return f"{len(self._ends):,} documents, {self._n_docs[1]} says n_docs {self._n_docs[0]:,}"
        if self._recorded is None or (found := hashlib.sha256(self._raw).hexdigest()) == self._recorded[0]:
            return None
        return f"sha256 is {found}, {self._recorded[1]} says {self._recorded[0]}"

    def see(self, separators: NDArray[np.int64]) -> None:
        """The next separators' places in the shard, ascending."""
        self._compare(separators[separators > 0] if self._position == "before" else separators + 1)

    def end(self) -> None:
        """The shard was read to its end, which closes the last document."""
        if not self.wants_separators:
            return
        if self._n_tokens and self._last != self._n_tokens:
            self._compare(np.array([self._n_tokens], np.int64))
        if self.problem is None and self._seen != len(self._ends):
            self.problem = (
                f"{len(self._ends):,} documents, but the separators (id {self._separator_id}) say {self._seen:,}"
            )

    def _compare(self, ends: NDArray[np.int64]) -> None:
        if not len(ends):
            return
        listed = self._ends[self._seen : self._seen + len(ends)]
        other = np.flatnonzero(listed != ends[: len(listed)])
        if len(other) and self.problem is None:
            k = int(other[0])
            self.problem = (
                f"document {self._seen + k} ends at {listed[k]:,}, but by the separators (id {self._separator_id}) at "
                f"{ends[k]:,}"
            )
        self._seen += len(ends)
        self._last = int(ends[-1])
