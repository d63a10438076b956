"""The keys that choose documents and put them in order, and the files in which lines are sorted by them."""

from __future__ import annotations

import struct
from itertools import pairwise
from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tokenriver.corpus.splits import mix64

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

    from tokenriver.batches import TextBatch

__all__ = ["chosen_lines", "document_keys", "sort_bucket", "threshold_key"]

_GAMMA = 0x9E3779B97F4A7C15
"""splitmix64's step, odd: seed + (i + 1) · gamma differs for every i below 2^64."""

_KEYS_AT_ONCE = 1 << 22
_HEAD = struct.Struct("<QQ")
"""Before each line of a bucket: its key and its length in bytes."""


def document_keys(seed: int, start: int, stop: int) -> NDArray[np.uint64]:
    """Keys of the documents [start, stop): uint64, no two alike for one seed."""
    origin = int(mix64(np.array([seed % 2**64], np.uint64))[0])
    steps = np.arange(start + 1, stop + 1, dtype=np.uint64) * np.uint64(_GAMMA)
    return mix64(steps + np.uint64(origin))


def threshold_key(seed: int, n: int, n_documents: int) -> int:
    """The n-th smallest key of all documents, in memory that does not depend on their number: counted by the
    keys' first 16 bits, then sorted where it must lie.
    """
    counts = np.zeros(1 << 16, np.int64)
    for keys in _all_keys(seed, n_documents):
        counts += np.bincount((keys >> np.uint64(48)).astype(np.int64), minlength=1 << 16)
    bin_of_nth = int(np.searchsorted(np.cumsum(counts), n))
    before = int(counts[:bin_of_nth].sum())
    near = [keys[(keys >> np.uint64(48)) == bin_of_nth] for keys in _all_keys(seed, n_documents)]
    return int(np.sort(np.concatenate(near))[n - before - 1])


def _all_keys(seed: int, n_documents: int) -> Iterator[NDArray[np.uint64]]:
    for start in range(0, n_documents, _KEYS_AT_ONCE):
        yield document_keys(seed, start, min(start + _KEYS_AT_ONCE, n_documents))


def chosen_lines(texts: TextBatch, seed: int, first: int, limit: int, n_buckets: int) -> Iterator[tuple[int, bytes]]:
    """(bucket, line with its head) of those of the documents first, first + 1, … whose keys are at most `limit`."""
    keys = document_keys(seed, first, first + len(texts))
    width = limit // n_buckets + 1
    for i in np.flatnonzero(keys <= np.uint64(limit)).tolist():
        line = msgspec.json.encode({"text": texts[i].decode()}) + b"\n"
        key = int(keys[i])
        yield key // width, _HEAD.pack(key, len(line)) + line


def sort_bucket(raw: bytes) -> Iterator[bytes]:
    """The lines of a bucket in the order of their keys, without their heads."""
    keys, starts, at = [], [], 0
    while at < len(raw):
        key, n_bytes = _HEAD.unpack_from(raw, at)
        keys.append(key)
        starts.append(at)
        at += _HEAD.size + n_bytes
    spans = list(pairwise([*starts, len(raw)]))
    for i in np.argsort(np.array(keys, np.uint64), kind="stable").tolist():
        yield raw[spans[i][0] + _HEAD.size : spans[i][1]]
