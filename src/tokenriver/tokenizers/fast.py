"""gigatoken behind one method, with its memory bounded: flat arrays in, flat arrays out.

gigatoken 0.10 keeps every word it has seen. On text whose words never repeat (identifiers, base64, many
languages) that cache would take the machine, so the encoder objects are replaced once the process has grown by
a budget since the first was made; ids do not depend on it. A thread that still encodes with an old object finishes
with it.
"""

from __future__ import annotations

import sys
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.batches import TokenBatch
from tokenriver.tokenizers.base import encoder_failure
from tokenriver.tokenizers.marked import encode_marked
from tokenriver.tokenizers.memory import resident_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from numpy.typing import NDArray

    from tokenriver.batches import TextBatch

__all__ = ["CACHE_BUDGET", "FastEncoder"]

CACHE_BUDGET = 192 << 20
"""Growth of the process in bytes after which the encoder is replaced."""

_MOST_GROWTH = 10
"""Bytes of cache that a byte of text can cost (measured: 7.5 on words that never repeat). With less text than that
since the encoder was made, a larger process has other reasons."""

_WORTH_ANOTHER = 64 << 20
"""Bytes of text for which threads waited after which a second encoder is made (making one takes as long, 0.2 s); each
further one takes as many more, so that short builds on many cores make few."""

_MARKED_BYTES = 32 << 20
"""Bytes of text that are encoded with marks (marked.py) before awkward is worth its import."""

_MARK_BYTES = 256
"""What a mark costs, as bytes of text."""

_BLIND_BYTES = 512 << 20
"""Bytes of text after which it is replaced where the process cannot tell its size."""


class FastEncoder:
    """gigatoken encoders made by `make`, as many as threads encode at a time. Thread-safe.

    One encoder encodes for one thread (0.10 holds a lock meanwhile), so threads that shared it would take turns. All
    are made again when the process has grown by too much: `cache_budget` for one, half as much for each further one.
    `mark_id`: the id by which they know the mark of marked.py, if they do.
    """

    def __init__(
        self,
        make: Callable[[], Any],
        *,
        mark_id: int | None = None,
        cache_budget: int = CACHE_BUDGET,
        memory: Callable[[], int | None] = resident_bytes,
    ) -> None:
        self._make = make
        self._mark_id = mark_id
        self._marked_bytes = 0
        self._has_arrays = False
        self._importing = threading.Lock()
        self._cache_budget = cache_budget
        self._memory = memory
        self._idle = [make()]
        self._returned = threading.Condition()
        self._waited_bytes = 0
        self._watching = threading.Lock()
        self._baseline = memory()
        self._bytes_since = 0
        self.n_encoders = 1
        self.n_replaced = 0

    def encode(self, batch: TextBatch, *, parallel: bool) -> TokenBatch:
        """Ids of every text. A failure inside the encoder raises TokenizerError."""
        if len(batch) == 0:
            return TokenBatch(np.zeros(0, np.uint32), np.zeros(1, np.int64))
        n_bytes = int(batch.offsets[-1] - batch.offsets[0])
        self._has_arrays = self._has_arrays or "awkward" in sys.modules
        mark_id = None if parallel or self._has_arrays else self._mark_for(batch, n_bytes)
        if mark_id is None:
            import awkward  # noqa: F401 - 0.3 s, for which no encoder should be held

            self._has_arrays = True
        with self._encoder(n_bytes) as encoder:
            try:
                tokens = None if mark_id is None else encode_marked(encoder, batch, mark_id)
                if tokens is None:
                    tokens = _with_awkward(encoder, batch, parallel=parallel)
            except BaseException as error:
                raise encoder_failure(error) from error
            del encoder  # or it outlives its replacement
        self._watch(n_bytes)
        return tokens

    def _mark_for(self, batch: TextBatch, n_bytes: int) -> int | None:
        """The mark to encode a batch with, without awkward. None for the one thread that is to import awkward, once it
        is worth it: the others go on with marks meanwhile."""
        if n_bytes > _MARKED_BYTES:
            return None
        if self._marked_bytes + n_bytes > _MARKED_BYTES and self._importing.acquire(blocking=False):
            return None
        self._marked_bytes += n_bytes + _MARK_BYTES * len(batch)
        return self._mark_id

    @contextmanager
    def _encoder(self, n_bytes: int) -> Iterator[Any]:
        """An encoder for this thread alone: an idle one, another one where it pays, else the next that is returned."""
        encoder = None
        with self._returned:
            if not self._idle:
                self._waited_bytes += n_bytes
                if self._waited_bytes < _WORTH_ANOTHER * self.n_encoders:
                    self._returned.wait_for(lambda: self._idle or not self.n_encoders)
            if self._idle:
                encoder = self._idle.pop()
            else:
                self._waited_bytes = 0
                self.n_encoders += 1
            made_with = self.n_replaced
        try:
            if encoder is None:
                encoder = self._make()
            yield encoder
        finally:
            with self._returned:
                if made_with == self.n_replaced:
                    if encoder is None:
                        self.n_encoders -= 1
                    else:
                        self._idle.append(encoder)
                self._returned.notify()

    def _watch(self, n_bytes: int) -> None:
        """Count the text; make a new encoder if the old ones have grown too large. One thread does, none waits."""
        if not self._watching.acquire(blocking=False):
            return
        try:
            self._bytes_since += n_bytes
            if self._is_outgrown():
                with self._returned:  # those at work finish with theirs, which is not returned
                    self._idle = []  # gone before the new one is made, or both would be there at the same time
                    self.n_encoders = self._waited_bytes = 0
                    self.n_replaced += 1
                with self._encoder(0):
                    pass
                self._baseline = self._memory()
                self._bytes_since = 0
        finally:
            self._watching.release()

    def _is_outgrown(self) -> bool:
        size, budget = self._memory(), self._cache_budget * (1 + self.n_encoders) // 2
        if size is None or self._baseline is None:
            return self._bytes_since >= _BLIND_BYTES
        if self._bytes_since * _MOST_GROWTH < budget:
            self._baseline = min(self._baseline, size)  # the encoder before this one may only now be gone
            return False
        return size - self._baseline >= budget


def _with_awkward(encoder: Any, batch: TextBatch, *, parallel: bool) -> TokenBatch:
    """Ids of every text; the batch goes in as an array of bytestrings, without a copy."""
    import awkward as ak

    content = ak.contents.NumpyArray(batch.data, parameters={"__array__": "byte"})
    texts = ak.Array(
        ak.contents.ListOffsetArray(ak.index.Index64(batch.offsets), content, parameters={"__array__": "bytestring"})
    )
    layout = encoder.encode_batch(texts, parallel=parallel).layout
    offsets: NDArray[np.int64] = layout.offsets.data
    ids: NDArray[np.uint32] = layout.content.data
    return TokenBatch(ids[: int(offsets[-1])], offsets)
