"""The document index of a shard that is being written: appended to in step with the shard, named just before it."""

from __future__ import annotations

import hashlib
import os
from typing import TYPE_CHECKING

from tokenriver.errors import FormatError
from tokenriver.files import fsync_directory, naming, part_of, write_all
from tokenriver.shards.index import INDEX_DTYPE

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

__all__ = ["IndexPart"]


class IndexPart:
    """`<shard>.bin.index.part`. With `keep` it goes on with an existing part: its first `keep` ends stay.

    How many belong to the journalled ids is the journal's to say: an empty document at the cut leaves no trace in
    the ids.
    """

    def __init__(self, path: Path, *, keep: int | None = None) -> None:
        self.path = path
        self.part = part_of(path)
        self._file = open(self.part, "w+b" if keep is None else "r+b", buffering=0)  # noqa: SIM115
        n_bytes = (keep or 0) * INDEX_DTYPE.itemsize
        try:
            kept = self._file.read(n_bytes) if n_bytes else b""
            if len(kept) < n_bytes:
                what = f"{self.part}: shorter than the {keep:,} documents that the journal recorded"
                raise FormatError(what, advice=("build with --restart to begin anew",))
            self._digest = hashlib.sha256(kept)
            self._file.truncate(n_bytes)
            self._file.seek(n_bytes)
        except BaseException:
            self._file.close()
            raise

    def append(self, ends: NDArray[np.int64]) -> None:
        """Add documents' ends, counted from the shard's first id."""
        raw = ends.astype(INDEX_DTYPE).tobytes()
        self._digest.update(raw)
        with naming(self.part):
            write_all(self._file.fileno(), raw)

    @property
    def sha256(self) -> str:
        """SHA-256 in hex of what was appended, and kept, so far."""
        return self._digest.hexdigest()

    def sync(self) -> None:
        """Put what was appended on disk."""
        with naming(self.part):
            os.fsync(self._file.fileno())

    def seal(self) -> None:
        """Fsync and close; the file still has its part name."""
        try:
            self.sync()
        finally:
            self._file.close()

    def publish(self) -> None:
        """Give a sealed index its name, durably."""
        self.part.replace(self.path)
        fsync_directory(self.path.parent)

    def close(self) -> None:
        """Stop writing and leave the part as it is; harmless when already sealed."""
        self._file.close()
