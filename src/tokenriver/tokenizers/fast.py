"""gigatoken behind one method, with its memory bounded: flat arrays in, flat arrays out.

gigatoken 0.10 keeps every word it has seen. On text whose words never repeat (identifiers, base64, many
languages) that cache would take the machine, so the encoder object is replaced once the process has grown by
`cache_budget` bytes since the object was made; ids do not depend on it. A thread that still encodes with the old
object finishes with it.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import awkward as ak
import numpy as np

from tokenriver.batches import TokenBatch
from tokenriver.tokenizers.base import encoder_failure
from tokenriver.tokenizers.memory import resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tokenriver.batches import TextBatch

__all__ = ["CACHE_BUDGET", "FastEncoder"]

CACHE_BUDGET = 192 << 20
"""Growth of the process in bytes after which the encoder is replaced."""

_MOST_GROWTH = 10
"""Bytes of cache that a byte of text can cost (measured: 7.5 on words that never repeat). With less text than that
since the encoder was made, a larger process has other reasons."""

_BLIND_BYTES = 512 << 20
"""Bytes of text after which it is replaced where the process cannot tell its size."""


class FastEncoder:
    """A gigatoken encoder that is made again by `make` when its cache has grown too large. Thread-safe."""

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        cache_budget: int = CACHE_BUDGET,
        memory: Callable[[], int | None] = resident_bytes,
    ) -> None:
        self._make = make
        self._cache_budget = cache_budget
        self._memory = memory
        self._lock = threading.Lock()
        self._encoder = make()
        self._baseline = memory()
        self._bytes_since = 0
        self.n_replaced = 0

    def encode(self, batch: TextBatch, *, parallel: bool) -> TokenBatch:
        """Ids of every text. A failure inside the encoder raises TokenizerError."""
        if len(batch) == 0:
            return TokenBatch(np.zeros(0, np.uint32), np.zeros(1, np.int64))
        encoder = self._encoder
        try:
            layout = encoder.encode_batch(_awkward(batch), parallel=parallel).layout
        except BaseException as error:
            raise encoder_failure(error) from error
        offsets: NDArray[np.int64] = layout.offsets.data
        ids: NDArray[np.uint32] = layout.content.data
        del encoder  # or it outlives its replacement
        self._watch(int(batch.offsets[-1] - batch.offsets[0]))
        return TokenBatch(ids[: int(offsets[-1])], offsets)

    def _watch(self, n_bytes: int) -> None:
        """Count the text; make a new encoder if the old one has grown too large. One thread does, none waits."""
        if not self._lock.acquire(blocking=False):
            return
        try:
            self._bytes_since += n_bytes
            if self._is_outgrown():
                self._encoder = self._make()
                self._baseline = self._memory()
                self._bytes_since = 0
                self.n_replaced += 1
        finally:
            self._lock.release()

    def _is_outgrown(self) -> bool:
        size = self._memory()
        if size is None or self._baseline is None:
            return self._bytes_since >= _BLIND_BYTES
        if self._bytes_since * _MOST_GROWTH < self._cache_budget:
            self._baseline = min(self._baseline, size)  # the encoder before this one may only now be gone
            return False
        return size - self._baseline >= self._cache_budget


def _awkward(batch: TextBatch) -> Any:
    """The batch as an awkward array of bytestrings, without a copy."""
    content = ak.contents.NumpyArray(batch.data, parameters={"__array__": "byte"})
    return ak.Array(
        ak.contents.ListOffsetArray(ak.index.Index64(batch.offsets), content, parameters={"__array__": "bytestring"})
    )
