"""Open a token shard as a read-only memory map, and refuse whatever is not exactly one."""

from __future__ import annotations

import mmap
import os
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.errors import FormatError
from tokenriver.files import open_binary
from tokenriver.shards.header import HEADER_BYTES, ShardHeader, Variant, parse_header
from tokenriver.storage.paths import is_remote, to_path

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["Shard", "check_ids", "open_shard", "read_header", "read_headers"]

_HEADERS_AT_ONCE = 16

_CHECK_IDS = 1 << 22
"""Ids looked at in one step when the range is checked: 8 to 16 MB, so a pass does not fill the memory."""


class Shard(np.ndarray[Any, np.dtype[np.unsignedinteger]]):
    """The ids of a shard: a read-only array [n_tokens] over the file, uint16 or uint32 by the header.

    It also knows its `path`, `variant` ("uint16", "uint32", "llama-3") and `vocab_size` (0 = unknown); parts of
    it keep these. `ids` is the same memory as a plain array.
    """

    path: Path
    variant: Variant
    vocab_size: int

    def __array_finalize__(self, parent: object) -> None:
        self.path = getattr(parent, "path", Path())
        self.variant = getattr(parent, "variant", "uint16")
        self.vocab_size = getattr(parent, "vocab_size", 0)

    @property
    def ids(self) -> NDArray[np.unsignedinteger]:
        """The ids as a plain read-only array."""
        return self.view(np.ndarray)

    @property
    def n_tokens(self) -> int:
        """How many ids there are."""
        return self.size


def read_header(path: str | os.PathLike[str]) -> ShardHeader:
    """The checked header of a shard, without mapping its ids.

    Raises FormatError when the file is not a token shard or its size disagrees with the header, and OSError when
    it cannot be read.
    """
    path = to_path(path)
    with open_binary(path, ahead=False) as file:
        return parse_header(file.read(HEADER_BYTES) or b"", file.seek(0, os.SEEK_END), path)


def read_headers(paths: Sequence[Path]) -> list[ShardHeader]:
    """The headers of many shards, those behind URLs several at a time: a store takes long to begin an answer."""
    if not any(map(is_remote, paths)):
        return [read_header(path) for path in paths]
    with ThreadPoolExecutor(_HEADERS_AT_ONCE, thread_name_prefix="tokenriver-headers") as pool:
        return list(pool.map(read_header, paths))


def open_shard(path: str | os.PathLike[str], *, check: bool = True) -> Shard:
    """Map a token shard: the ids as a read-only array that knows `n_tokens`, `vocab_size` and `variant`.

    Behind a URL it is fetched into memory whole. Every rule of docs/format.md is enforced. With `check` (the default) a
    shard that names its vocabulary is read once to make sure that each id is below it (about 10 GB/s from memory);
    without, the header alone is checked. Raises FormatError, or OSError when the file cannot be read.
    """
    path = to_path(path)
    with open_binary(path) as file:
        header = parse_header(file.read(HEADER_BYTES) or b"", file.seek(0, os.SEEK_END), path)
        if header.n_tokens == 0:
            plain = np.zeros(0, header.dtype)
        elif is_remote(path):
            file.seek(HEADER_BYTES)
            plain = np.frombuffer(file.read() or b"", header.dtype, header.n_tokens)
        else:
            mapped = mmap.mmap(file.fileno(), header.file_bytes, access=mmap.ACCESS_READ)
            plain = np.frombuffer(mapped, header.dtype, header.n_tokens, HEADER_BYTES)
    plain.flags.writeable = False
    shard = plain.view(Shard)
    shard.path, shard.variant, shard.vocab_size = path, header.variant, header.vocab_size
    if check and header.vocab_size:
        check_ids(plain, header.vocab_size, path)
    return shard


def check_ids(ids: NDArray[np.unsignedinteger], vocab_size: int, path: Path) -> None:
    """Raise FormatError, with the position and the id, if any id is `vocab_size` or more."""
    for start in range(0, len(ids), _CHECK_IDS):
        part = ids[start : start + _CHECK_IDS]
        if int(part.max()) >= vocab_size:
            at = int(np.argmax(part >= vocab_size))
            raise FormatError(
                f"{path}: id {part[at]} at token {start + at:,} is not below the header's vocabulary of {vocab_size:,}"
            )
