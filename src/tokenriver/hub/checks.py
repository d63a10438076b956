"""What a file must be to get its name: its size and its hash, from a manifest or from the Hub's own listing."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from tokenriver.errors import IntegrityError
from tokenriver.storage.objects import required_size
from tokenriver.storage.reading import read_from

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.storage.objects import RemoteFile

__all__ = ["Digest", "Expected"]

_READ_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class Expected:
    """Size in bytes and hash of a file; None where it is not known.

    The Hub knows the SHA-256 of large files and, of the small ones, git's object id: SHA-1 of "blob <size>\\0" and the
    content.
    """

    n_bytes: int | None = None
    sha256: str | None = None
    git_id: str | None = None

    def with_sha256(self, sha256: str, *, name: str, source: str) -> Expected:
        """The same with a manifest's SHA-256; IntegrityError when the Hub's copy is known to be another file."""
        if self.sha256 is not None and self.sha256 != sha256:
            raise IntegrityError(
                f"{name}: the repository holds a file with sha256 {self.sha256}, but {source} says {sha256}; "
                "they do not belong together: ask its owner to publish again"
            )
        return replace(self, sha256=sha256)

    def _wrong_size(self, n_bytes: int) -> str | None:
        if self.n_bytes is None or n_bytes == self.n_bytes:
            return None
        return f"{n_bytes:,} bytes instead of {self.n_bytes:,}"

    def problem(self, n_bytes: int, digest: Digest) -> str | None:
        """What is wrong with a file of `n_bytes` and this digest; None when nothing is."""
        if (problem := self._wrong_size(n_bytes)) is not None:
            return problem
        found = digest.hex()
        if found != (self.sha256 or self.git_id or found):
            return f"{'sha256' if self.sha256 else 'git object id'} {found} instead of {self.sha256 or self.git_id}"
        return None

    def problem_of(self, path: Path) -> str | None:
        """What is wrong with a file on disk, read once; None when nothing is."""
        n_bytes = path.stat().st_size
        if (problem := self._wrong_size(n_bytes)) is not None:
            return problem
        digest = Digest(self, n_bytes)
        digest.update_from(path)
        return self.problem(n_bytes, digest)

    def problem_of_object(self, there: RemoteFile) -> str | None:
        """What is wrong with an object behind a URL, read once as a stream; None when nothing is."""
        n_bytes = required_size(there)
        if (problem := self._wrong_size(n_bytes)) is not None:
            return problem
        digest = Digest(self, n_bytes)
        for chunk in read_from(there):
            digest.update(chunk)
        return self.problem(n_bytes, digest)


class Digest:
    """The running hash of a body; of git's kind (it begins with the size) where there is no other to compare with."""

    def __init__(self, expected: Expected, n_bytes: int | None = None) -> None:
        size = expected.n_bytes if expected.n_bytes is not None else n_bytes
        self._hash = hashlib.sha256()
        if expected.sha256 is None and expected.git_id is not None and size is not None:
            self._hash = hashlib.sha1(b"blob %d\0" % size, usedforsecurity=False)

    def update(self, chunk: bytes | memoryview) -> None:
        """Take the next bytes."""
        self._hash.update(chunk)

    def update_from(self, path: Path, n_bytes: int | None = None) -> None:
        """Take the first `n_bytes` of a file (None: all of it)."""
        left = os.path.getsize(path) if n_bytes is None else n_bytes  # noqa: PTH202
        with open(path, "rb", buffering=0) as file:
            while left > 0 and (chunk := file.read(min(left, _READ_BYTES))):
                self._hash.update(chunk)
                left -= len(chunk)

    def hex(self) -> str:
        """The hash so far."""
        return self._hash.hexdigest()
