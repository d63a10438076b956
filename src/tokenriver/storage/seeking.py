"""An object as a binary file that can seek, for what reads a file here and there: Parquet, shards, archives.

with open_url("s3://bucket/data.parquet") as opened: ...
"""

from __future__ import annotations

import errno
import io
from typing import TYPE_CHECKING

from tokenriver.errors import StorageError
from tokenriver.storage.objects import RemoteFile, find_object, required_size
from tokenriver.storage.paths import shown
from tokenriver.storage.reading import Ranges, read_from

if TYPE_CHECKING:
    from collections.abc import Generator

    from typing_extensions import Buffer

__all__ = ["RemoteReader", "open_url"]


class RemoteReader(io.RawIOBase):
    """An object as a binary file that can seek. A read asks for its range, in pieces; with `ahead`, reads that follow
    each other are served from a stream whose next pieces are under way.
    """

    def __init__(self, file: RemoteFile, *, ahead: bool = False) -> None:
        super().__init__()
        self.file = file
        self.n_bytes = required_size(file)
        self._ranges = Ranges(file)
        self._at = 0
        self._reads_ahead = ahead
        self._stream: Generator[bytes] | None = None
        self._stream_at = 0
        self._left = memoryview(b"")
        if not self._ranges.possible and not ahead:
            raise StorageError("the server sends no ranges; download the file first", shown(file.url))

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """Where the next read begins."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Move to an offset; nothing is asked of the store."""
        base = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self.n_bytes}[whence]
        self._at = max(0, base + offset)
        return self._at

    def readinto(self, buffer: Buffer) -> int:
        """Fill the buffer, less only at the end."""
        view = memoryview(buffer).cast("B")
        n = min(len(view), max(0, self.n_bytes - self._at))
        if self._reads_ahead:
            self._take(view[:n])
        elif n:
            view[:n] = self._ranges.join(self._at, self._at + n)
        self._at += n
        return n

    def read(self, n: int | None = -1) -> bytes:
        """The next `n` bytes (None or negative: all that follow)."""
        stop = self.n_bytes if n is None or n < 0 else min(self.n_bytes, self._at + n)
        if self._reads_ahead:
            into = bytearray(max(0, stop - self._at))
            self.readinto(into)
            return bytes(into)
        data = self._ranges.join(self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        """All that follows."""
        return self.read()

    def _take(self, view: memoryview) -> None:
        """Fill the view from the stream, which begins anew where the reader was moved."""
        if self._stream is None or self._stream_at != self._at:
            self._drop_stream()
            self._stream, self._stream_at = read_from(self.file, start=self._at), self._at
        n = 0
        while n < len(view):
            if not self._left:
                self._left = memoryview(next(self._stream))
            take = min(len(view) - n, len(self._left))
            view[n : n + take] = self._left[:take]
            self._left = self._left[take:]
            n += take
        self._stream_at += n
        if self._stream_at == self.n_bytes:
            next(self._stream, None)  # its end compares the version

    def _drop_stream(self) -> None:
        stream, self._stream, self._left = self._stream, None, memoryview(b"")
        if stream is not None:
            stream.close()

    def close(self) -> None:
        """Let go of what is under way."""
        if not self.closed:
            self._drop_stream()
        super().close()


def open_url(url: str, *, ahead: bool = False) -> RemoteReader:
    """Open the object of a URL; `ahead` for reading from front to back.

    Raises FileNotFoundError, PermissionError or StorageError.
    """
    file = find_object(url)
    if file is None:
        raise FileNotFoundError(errno.ENOENT, "no such object", shown(url))
    return RemoteReader(file, ahead=ahead)
