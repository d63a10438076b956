"""Where the documents of a split begin: from the shards' indexes, else from the separators, found in the background."""

from __future__ import annotations

import os
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokenriver.errors import UsageError
from tokenriver.shards.header import HEADER_BYTES
from tokenriver.shards.index import find_ends, index_path, read_index

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.loader.shard_file import ShardFile
    from tokenriver.loader.source import ShardSource

__all__ = ["DocumentFinder", "Documents", "indexed_ends"]

_THREADS = 8
_MIX = np.uint64(0x9E3779B97F4A7C15)


@dataclass(frozen=True, slots=True, eq=False)
class Documents:
    """Documents of a split: document d is tokens [starts[d], starts[d + 1]); `starts` int64 [n + 1], none is empty.

    `separator` is the id that each begins with (None: none known, or it stands behind). `fragment` says that the
    first document lacks it: it is the end of one that began outside the split. `digest` stands for all borders.
    """

    starts: NDArray[np.int64]
    separator: int | None
    fragment: bool
    digest: str

    @property
    def n(self) -> int:
        """How many documents there are."""
        return len(self.starts) - 1


class DocumentFinder:
    """Finds the documents of a source once: at once where every shard has its index, else in a thread of its own."""

    def __init__(self, source: ShardSource) -> None:
        self._source = source
        self._found: Documents | None = None
        self._error: BaseException | None = None
        self._thread: threading.Thread | None = None
        self._pid = os.getpid()
        missing = [shard.path for shard in source.shards if not _has_index(shard)]
        if missing and source.separator_id is None:
            raise UsageError(
                f"{missing[0]}: has no document index and no manifest or build record that names a separator, so its "
                "documents are not known; build with --doc-index, run tokenriver index, or give separator="
            )
        if missing:
            self._thread = threading.Thread(target=self._find, name="tokenriver-documents", daemon=True)
            self._thread.start()
        else:
            self._found = _read_documents(source)

    def _find(self) -> None:
        try:
            self._found = _read_documents(self._source)
        except BaseException as error:  # handed over whole: whoever asks raises it
            self._error = error

    @property
    def ready(self) -> bool:
        """Whether `get` would not wait."""
        return self._thread is None

    def get(self) -> Documents:
        """The documents, waiting for the thread that looks for them; raises what it met."""
        if self._thread is not None and self._pid == os.getpid():
            self._thread.join()
        if self._error is not None:
            raise self._error
        if self._found is None:  # in a forked child, where the thread is missing
            self._found = _read_documents(self._source)
        self._thread = None
        return self._found

    def __getstate__(self) -> dict[str, Any]:
        return {"_source": self._source, "_found": self.get(), "_error": None, "_thread": None, "_pid": -1}


def _read_documents(source: ShardSource) -> Documents:
    """All documents of a split, those that a shard's border cuts made whole again."""
    with ThreadPoolExecutor(_THREADS) as pool:
        parts = list(pool.map(lambda shard: _shard_ends(shard, source), source.shards))
    starts, base = [np.zeros(1, np.int64)], 0
    previous: int | None = None
    before = source.separator_position == "before"
    for k, (ends, first, last) in enumerate(parts):
        n_tokens = source.shards[k].n_tokens
        if not n_tokens:
            continue
        if base and source.separator_id is not None:
            # One document goes on here: with the separator before, if this shard begins without; with it behind, if
            # the shard before ended without.
            goes_on = first != source.separator_id if before else previous != source.separator_id
            if goes_on:
                starts[-1] = starts[-1][:-1]
        starts.append(ends + base)
        base += n_tokens
        previous = last
    joined = np.unique(np.concatenate(starts))
    first_id = next((first for _, first, _ in parts if first is not None), None)
    return Documents(
        joined,
        source.separator_id if before else None,
        source.separator_id is not None and before and first_id != source.separator_id,
        _digest(joined),
    )


def _has_index(shard: ShardFile) -> bool:
    if shard.origin is None:
        return index_path(shard.path).exists()
    from tokenriver.loader.remote_documents import has_index

    return has_index(shard)


def indexed_ends(shard: ShardFile) -> NDArray[np.int64] | None:
    """The documents' ends in a shard by the index beside it; None without one."""
    if not _has_index(shard):
        return None
    if shard.origin is None:
        return read_index(index_path(shard.path), shard.n_tokens)
    from tokenriver.loader.remote_documents import remote_ends

    return remote_ends(shard, separator_id=None, position="before")[0]


def _shard_ends(shard: ShardFile, source: ShardSource) -> tuple[NDArray[np.int64], int | None, int | None]:
    """Ends in one shard, and its first and last id (None without any)."""
    position: Literal["before", "after"] = "before" if source.separator_position == "before" else "after"
    if shard.origin is not None:
        from tokenriver.loader.remote_documents import remote_ends

        return remote_ends(shard, separator_id=source.separator_id, position=position)
    path = index_path(shard.path)
    if path.exists():
        ends = read_index(path, shard.n_tokens)
    else:
        assert source.separator_id is not None, "DocumentFinder made sure"
        ends = find_ends(shard.path, separator_id=source.separator_id, position=position, threads=1)
    if not shard.n_tokens or source.separator_id is None:
        return ends, None, None
    dtype = shard.header.dtype
    with open(shard.path, "rb", buffering=0) as file:
        file.seek(HEADER_BYTES)
        first = int(np.frombuffer(file.read(dtype.itemsize), dtype)[0])
        file.seek(shard.header.file_bytes - dtype.itemsize)
        last = int(np.frombuffer(file.read(dtype.itemsize), dtype)[0])
    return ends, first, last


def _digest(starts: NDArray[np.int64]) -> str:
    """The number of documents and a hash of all borders: a sum of keyed products, at memory speed."""
    values = starts.view(np.uint64)
    total = np.uint64(0)
    with np.errstate(over="ignore"):
        for k in range(0, len(values), 1 << 16):
            part = values[k : k + (1 << 16)]
            mixed = (part + _MIX) * (np.arange(k, k + len(part), dtype=np.uint64) * np.uint64(2) + _MIX)
            total += (mixed ^ (mixed >> np.uint64(29))).sum(dtype=np.uint64)
    return f"{len(starts) - 1}:{int(total):016x}"
