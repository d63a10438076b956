"""Many texts encoded as one, with a mark between them: what a process encodes first, without a library of arrays.

gigatoken gives the ids of many texts as an awkward array, and awkward takes 0.3 s to import; of one text it gives them
in NumPy. The copies that this needs cost 1 to 3 core-ms a MB, so what encodes much has arrays after all (fast.py).
"""

from __future__ import annotations

from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.batches import TokenBatch, places_of_true

if TYPE_CHECKING:
    from tokenriver.batches import TextBatch

__all__ = ["MARK", "encode_marked"]

MARK = "\U0010fffe"
"""A code point that no version of Unicode will assign: what stands around it in a text goes to the reference anyway
(unicode14.py), so an encoder to which it is a special token is exact."""


def encode_marked(encoder: Any, batch: TextBatch, mark_id: int) -> TokenBatch | None:
    """Ids of every text by a gigatoken encoder that knows the mark by its id; None where a text holds the mark."""
    from gigatoken import BytesSource

    texts: memoryview = batch.data.data
    joined = MARK.encode().join([texts[start:stop] for start, stop in pairwise(batch.offsets.tolist())])
    ids = encoder.encode_batch_padded(BytesSource(joined), pad_id=0, parallel=False)[0].reshape(-1)
    marks = places_of_true(ids == mark_id)
    if len(marks) != len(batch) - 1:
        return None
    edges = [-1, *marks.tolist(), len(ids)]
    offsets = np.array(edges, np.int64) - np.arange(-1, len(batch))
    return TokenBatch(np.concatenate([ids[before + 1 : mark] for before, mark in pairwise(edges)]), offsets)
