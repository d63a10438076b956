"""Standard input as a source of documents: what was read too early is put back, since nothing else can seek in it."""

from __future__ import annotations

import hashlib
import io
from typing import IO

from tokenriver.corpus.inputs import other_input

__all__ = ["STDIN", "Pushback"]

STDIN = "-"
"""The input that means JSONL on standard input."""


class Pushback:
    """A stream that cannot seek, with room to put back what was read too early."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._back = b""
        self._expected: tuple[int, int, str] | None = None
        self._passed = 0
        self._digest = hashlib.sha256()

    def __reduce__(self) -> tuple[type[Pushback], tuple[IO[bytes]]]:
        """In another process there is nothing to read; that it is no file is all that must be known there."""
        return Pushback, (io.BytesIO(),)

    def read(self, n: int) -> bytes:
        """Up to `n` bytes, b"" at the end. Raises ResumeError when they are not what `expect` was told."""
        data = self._take(n)
        if self._expected is not None:
            data = self._compare(data)
        return data

    def unread(self, data: bytes) -> None:
        """Put bytes back in front."""
        self._back = data + self._back

    def expect(self, unchecked: int, n_bytes: int, sha256: str) -> None:
        """Compare the first `n_bytes` with their SHA-256 before giving out any after the first `unchecked`.

        So nothing new is made from another input than the one that an interrupted run read.
        """
        self._expected = (unchecked, n_bytes, sha256)

    def _take(self, n: int) -> bytes:
        if self._back:
            data, self._back = self._back[:n], self._back[n:]
            return data
        return self._stream.read(n)

    def _compare(self, data: bytes) -> bytes:
        """The same bytes, once they are known to be the expected ones where that matters."""
        assert self._expected is not None
        unchecked, n_bytes, sha256 = self._expected
        pieces = [data]
        while True:
            self._digest.update(data[: n_bytes - self._passed])
            self._passed += len(data)
            if self._passed >= n_bytes or not data or self._passed <= unchecked:
                break
            data = self._take(1 << 20)
            pieces.append(data)
        if self._passed >= n_bytes or not data:
            if self._passed < n_bytes or self._digest.hexdigest() != sha256:
                raise other_input("<stdin>", n_bytes)
            self._expected = None
        self.unread(b"".join(pieces[1:]))
        return pieces[0]
