"""The document index of a shard: where each document ends, in `<shard>.bin.index` beside it.

Raw little-endian uint64, one a document: cumulative ends in tokens, exclusive (datatrove's convention). A shard's end
closes its last document, also one that goes on in the next shard. Rules: docs/format.md, "Document index". NumPy is
all it needs, since loading uses it too.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokenriver.batches import places_of_true
from tokenriver.errors import FormatError, UsageError
from tokenriver.files import atomic_write, open_binary
from tokenriver.shards.header import HEADER_BYTES, ShardHeader
from tokenriver.shards.reader import read_header
from tokenriver.storage.paths import is_remote

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = [
    "INDEX_DTYPE",
    "INDEX_SUFFIX",
    "IndexFacts",
    "Separator",
    "ends_of",
    "find_ends",
    "index_path",
    "index_problem",
    "index_shard",
    "parse_index",
    "read_index",
]

INDEX_SUFFIX = ".index"
INDEX_DTYPE = np.dtype("<u8")

_PIECE_BYTES = 2 << 20
"""Ids compared in one step. What would stay in a core's own cache (256 KiB) is done so soon that two threads only hand
the interpreter's lock to each other: 78 ms for 100 M ids instead of 36."""


@dataclass(frozen=True, slots=True)
class IndexFacts:
    """An index that was written: its path, the documents in it, and the shard's ids."""

    path: Path
    n_docs: int
    n_tokens: int


@dataclass(frozen=True, slots=True)
class Separator:
    """The id that stands before (or after) each document."""

    id: int
    position: Literal["before", "after"] = "before"


def index_path(shard: Path) -> Path:
    """Where the index of a shard is."""
    return shard.with_name(shard.name + INDEX_SUFFIX)


def find_ends(
    path: Path, *, separator_id: int, position: Literal["before", "after"] = "before", threads: int | None = None
) -> NDArray[np.int64]:
    """The documents' ends in a shard, int64 [n_docs], from the separator before (or after) each.

    What stands before the first separator (or, with "after", behind the last) is a document of its own: the part
    here of one that began in the shard before (goes on in the next). A shard without ids has none. Two threads by
    default. Raises FormatError when the file is no shard, OSError when it cannot be read.
    """
    header = read_header(path)
    if separator_id > np.iinfo(header.dtype).max:
        found = np.zeros(0, np.int64)
    else:
        # Behind a URL one thread reads, in one stream that is fetched ahead.
        found = _positions(path, header, separator_id, 1 if is_remote(path) else threads or 2)
    return ends_of(found, header.n_tokens, position)


def ends_of(separators: NDArray[np.int64], n_tokens: int, position: Literal["before", "after"]) -> NDArray[np.int64]:
    """The documents' ends in a shard, from where its separators stand; rules as `find_ends`."""
    ends = separators[separators > 0] if position == "before" else separators + 1
    return np.append(ends, n_tokens) if n_tokens and (not len(ends) or ends[-1] != n_tokens) else ends


def _positions(path: Path, header: ShardHeader, wanted: int, threads: int) -> NDArray[np.int64]:
    """Where an id stands in a shard, ascending; each thread takes a run of pieces."""
    step = _PIECE_BYTES // header.dtype.itemsize
    per_thread = -(-header.n_tokens // (threads * step)) * step
    runs = [(a, min(a + per_thread, header.n_tokens)) for a in range(0, header.n_tokens, per_thread or 1)]
    value = header.dtype.type(wanted)

    def search(run: tuple[int, int]) -> list[NDArray[np.int64]]:
        ids = np.empty(step, header.dtype)
        equal = np.empty(step, np.bool_)
        view, found = ids.data.cast("B"), []
        with open_binary(path) as file:
            file.seek(HEADER_BYTES + run[0] * header.dtype.itemsize)
            for start in range(run[0], run[1], step):
                n = min(step, run[1] - start)
                _fill(file, view[: n * header.dtype.itemsize], path)
                np.equal(ids[:n], value, out=equal[:n])
                equal[n:] = False
                found.append(places_of_true(equal) + start)
        return found

    if len(runs) <= 1:
        parts = [search(run) for run in runs]
    else:
        with ThreadPoolExecutor(len(runs)) as pool:
            parts = list(pool.map(search, runs))
    return np.concatenate([np.zeros(0, np.int64), *(piece for part in parts for piece in part)])


def _fill(file: Any, view: memoryview, path: Path) -> None:
    """Read exactly len(view) bytes; FormatError when the file ends before."""
    while view:
        n = file.readinto(view)
        if not n:
            raise FormatError(f"{path}: cut short while it was read")
        view = view[n:]


def index_shard(
    path: Path, *, separator_id: int, position: Literal["before", "after"] = "before", threads: int | None = None
) -> IndexFacts:
    """Write the index of a shard, whole or not at all; an older one is replaced.

    Raises as `find_ends`, and UsageError for a separator that is no id of the shard: one document would replace all.
    """
    header = read_header(path)
    limit = header.vocab_size or int(np.iinfo(header.dtype).max) + 1
    if not 0 <= separator_id < limit:
        raise UsageError(f"{path}: separator {separator_id} is no id of this shard, which holds ids below {limit:,}")
    ends = find_ends(path, separator_id=separator_id, position=position, threads=threads)
    target = index_path(path)
    with atomic_write(target) as file:
        file.write(ends.astype(INDEX_DTYPE).data)
    return IndexFacts(target, len(ends), int(ends[-1]) if len(ends) else 0)


def read_index(path: Path, n_tokens: int) -> NDArray[np.int64]:
    """The ends in an index file, int64 [n_docs], checked against the shard's number of ids.

    Raises FormatError, with what is wrong and where, for anything but ascending ends of which the last is
    `n_tokens`; equal neighbours are an empty document.
    """
    with open_binary(path) as file:
        raw = file.read() or b""
    return parse_index(raw, path, n_tokens)


def parse_index(raw: bytes, path: Path | str, n_tokens: int) -> NDArray[np.int64]:
    """The ends in an index's bytes; `path` is for the message. Raises as `read_index`."""
    problem = index_problem(raw, n_tokens)
    if problem is not None:
        raise FormatError(f"{path}: {problem}; make it again with tokenriver index")
    return np.frombuffer(raw, INDEX_DTYPE).astype(np.int64)


def index_problem(raw: bytes, n_tokens: int) -> str | None:
    """What is wrong with the bytes of an index, None when nothing is."""
    if len(raw) % INDEX_DTYPE.itemsize:
        return f"{len(raw):,} bytes, not a whole number of 8-byte ends"
    ends = np.frombuffer(raw, INDEX_DTYPE)
    if not len(ends):
        return f"holds no document, but the shard has {n_tokens:,} tokens" if n_tokens else None
    down = np.flatnonzero(ends[1:] < ends[:-1])
    if len(down):
        k = int(down[0]) + 1
        return f"document {k} ends at {ends[k]:,}, before document {k - 1}, which ends at {ends[k - 1]:,}"
    if int(ends[-1]) != n_tokens:
        return f"the last document ends at {ends[-1]:,}, but the shard has {n_tokens:,} tokens"
    return None
