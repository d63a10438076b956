"""Write a token shard so that it is whole or absent: a part file, its header last, fsync, rename."""

from __future__ import annotations

import os
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokenriver.errors import FormatError, UsageError
from tokenriver.files import fsync_directory, naming, part_of, refuse_what_is_no_file, sha256_file, sole_writer
from tokenriver.shards.header import MAX_SHARD_TOKENS, VARIANTS, ShardHeader, Variant, variant_for
from tokenriver.storage.paths import is_remote, to_output
from tokenriver.storage.uploading import upload_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["ShardFacts", "ShardWriter", "narrow_ids", "write_shard"]


@dataclass(frozen=True, slots=True)
class ShardFacts:
    """A finished shard: its path, number of ids and the SHA-256 of the whole file in hex."""

    path: Path
    n_tokens: int
    sha256: str


def narrow_ids(ids: NDArray[Any], dtype: np.dtype[np.unsignedinteger], vocab_size: int = 0) -> NDArray[Any]:
    """Ids as `dtype`, refusing any that does not fit instead of wrapping it.

    Raises FormatError naming the largest (or the negative) id if one is outside the dtype or, where `vocab_size`
    is not 0, not below it.
    """
    if ids.dtype.kind not in "iu":
        raise FormatError(f"ids must be integers, not {ids.dtype}")
    if ids.size == 0:
        return ids.astype(dtype)
    highest = int(ids.max())
    limit = min(vocab_size or 1 << 32, 1 << (8 * dtype.itemsize))
    if highest >= limit:
        what = f"the vocabulary of {vocab_size:,} ids" if limit == vocab_size else f"{dtype.name} ids below {limit:,}"
        raise FormatError(f"id {highest} does not fit: the largest of these ids exceeds {what}")
    if ids.dtype.kind == "i" and int(ids.min()) < 0:
        raise FormatError(f"id {int(ids.min())} is negative")
    return ids.astype(dtype, copy=False)


_MOST_BUFFERS = 1024
"""Buffers that every system takes in one call (IOV_MAX)."""


def _write_first(handle: int, views: list[memoryview]) -> int:
    return os.write(handle, views[0])


_write_some: Callable[[int, list[memoryview]], int] = getattr(os, "writev", _write_first)


class ShardWriter:
    """A shard being written as `<name>.part`; it gets its name in `publish`, when it is whole and on disk.

    With `keep_tokens` it goes on with an existing part: the first `keep_tokens` ids stay, what follows is cut off.
    The digest is taken from the finished file, since the count in the header comes before the ids.
    """

    def __init__(self, path: Path, *, variant: Variant, vocab_size: int = 0, keep_tokens: int = 0) -> None:
        refuse_what_is_no_file(path)
        self.path = path
        self.part = part_of(path)
        self.n_tokens = keep_tokens
        self._header = ShardHeader(variant, keep_tokens, vocab_size)
        self._vocab_size = vocab_size
        self._file = open(self.part, "r+b" if keep_tokens else "w+b", buffering=0)  # noqa: SIM115
        try:
            if keep_tokens and os.fstat(self._file.fileno()).st_size < self._header.file_bytes:
                what = f"{self.part}: shorter than the {keep_tokens:,} ids that the journal recorded"
                raise FormatError(what, advice=("build with --restart to begin anew",))
            self._file.truncate(self._header.file_bytes)
            self._file.seek(self._header.file_bytes)
        except BaseException:
            self._file.close()
            raise

    def append(self, ids: NDArray[Any]) -> None:
        """Add ids (any integer dtype); FormatError if one does not fit or the shard would pass 2^31 - 1 ids."""
        narrow = narrow_ids(ids, self._header.dtype, self._vocab_size)
        self._require_room(narrow.size)
        with naming(self.part):
            self._write([np.ascontiguousarray(narrow).data.cast("B")])
        self.n_tokens += narrow.size

    def append_all(self, pieces: Sequence[NDArray[Any]]) -> None:
        """Add ids that whoever made them has checked, in the shard's own dtype, without joining them first."""
        n_tokens = sum(piece.size for piece in pieces)
        assert all(piece.dtype == self._header.dtype for piece in pieces), "ids in another dtype than the shard's"
        self._require_room(n_tokens)
        with naming(self.part):
            for first in range(0, len(pieces), _MOST_BUFFERS):
                self._write([piece.data.cast("B") for piece in pieces[first : first + _MOST_BUFFERS] if piece.size])
        self.n_tokens += n_tokens

    def _write(self, views: list[memoryview]) -> None:
        """Write buffers one after the other, in as few calls as the system takes them in."""
        while views:
            n = _write_some(self._file.fileno(), views)
            while views and n >= len(views[0]):
                n -= len(views.pop(0))
            if n:
                views[0] = views[0][n:]

    def _require_room(self, n_tokens: int) -> None:
        if self.n_tokens + n_tokens > MAX_SHARD_TOKENS:
            raise UsageError(f"{self.path}: over {MAX_SHARD_TOKENS:,} ids (2^31 - 1), the most that a shard can hold")

    def sync(self) -> None:
        """Put what was appended on disk, so that a journal may name its length. May be called by another thread."""
        with naming(self.part):
            os.fsync(self._file.fileno())

    def complete(self) -> None:
        """Write the header: the file, under its part name, has all its bytes, which `sync` puts on disk."""
        header = ShardHeader(self._header.variant, self.n_tokens, self._vocab_size)
        with naming(self.part):
            self._file.seek(0)
            self._file.write(header.to_bytes())

    def seal(self) -> ShardFacts:
        """Write the header, fsync, close and hash; the file still has its part name."""
        self.complete()
        # The disk writes while the core hashes.
        with naming(self.part), ThreadPoolExecutor(1) as syncing:
            synced = syncing.submit(os.fsync, self._file.fileno())
            sha256 = sha256_file(self.part)
            synced.result()
        self._file.close()
        return ShardFacts(self.path, self.n_tokens, sha256)

    def publish(self) -> None:
        """Give a sealed shard its name, durably."""
        self.part.replace(self.path)
        fsync_directory(self.path.parent)

    def close(self) -> None:
        """Stop writing and leave the part as it is (to go on later); harmless when already sealed."""
        self._file.close()

    def discard(self) -> None:
        """Stop writing and remove the part."""
        self._file.close()
        self.part.unlink(missing_ok=True)


def _write_remote(path: Path, ids: NDArray[Any], variant: Variant, vocab_size: int) -> ShardFacts:
    with tempfile.TemporaryDirectory(prefix="tokenriver-") as folder:
        facts = write_shard(Path(folder) / "shard.bin", ids, vocab_size, variant)
        upload_whole(facts.path, str(path))
    return replace(facts, path=path)


def write_shard(
    path: str | os.PathLike[str],
    ids: ArrayLike,
    vocab_size: int = 0,
    variant: Variant | Literal["auto"] = "auto",
) -> ShardFacts:
    """Write one shard from ids [n_tokens] of any integer dtype; the file, or object behind a URL, is whole or absent.

    `variant` "auto" takes uint16 when every id below `vocab_size` fits (65,536), else uint32; with `vocab_size` 0
    (unknown) the largest id decides. Raises, before any file exists, FormatError for an id that does not fit and
    UsageError for a variant or vocabulary that does not exist.
    """
    if variant not in ("auto", *VARIANTS):
        raise UsageError(f"variant {variant!r} is not known; choose one of auto, {', '.join(VARIANTS)}")
    if not 0 <= vocab_size <= MAX_SHARD_TOKENS:
        raise UsageError(f"a header names a vocabulary of 0 (unknown) to {MAX_SHARD_TOKENS:,} ids, not {vocab_size:,}")
    array = np.asarray(ids)
    if array.size == 0:
        array = array.astype(np.uint32)
    if array.ndim != 1:
        raise FormatError(f"ids must be one row, not an array of shape {array.shape}")
    if array.size > MAX_SHARD_TOKENS:
        raise UsageError(f"{array.size:,} ids, but a shard holds at most {MAX_SHARD_TOKENS:,} (2^31 - 1)")
    if variant == "auto":
        largest = int(array.max()) + 1 if array.size and array.dtype.kind in "iu" else 0
        variant = variant_for(vocab_size or largest)
    narrow = narrow_ids(array, ShardHeader(variant, 0).dtype, 0 if variant == "llama-3" else vocab_size)
    path = to_output(path)
    if is_remote(path):
        return _write_remote(path, narrow, variant, vocab_size)
    refuse_what_is_no_file(path)
    with sole_writer(part_of(path)):
        writer = ShardWriter(path, variant=variant, vocab_size=0 if variant == "llama-3" else vocab_size)
        try:
            writer.append(narrow)
            facts = writer.seal()
            writer.publish()
        except BaseException:
            writer.discard()
            raise
    return facts
