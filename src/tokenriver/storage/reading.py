"""Bytes of an object by ranges: several under way at once, each whole or asked for again, none ever silently short.

    for chunk in read_from(file, start=5_000_000): ...     # in order, from any offset
    with RemoteReader(file) as opened: ...                 # a binary file that can seek (Parquet, shards)

A piece is asked for by its range and its length is checked; what the client could not mend is tried again from the
piece's first byte, and in the end an error names the URL and the byte.
"""

from __future__ import annotations

import errno
import io
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tokenriver.errors import IntegrityError, StorageError
from tokenriver.storage.failures import explained, retried, translating
from tokenriver.storage.objects import RemoteFile, find_object, required_size
from tokenriver.storage.paths import filesystem_of, scheme_of, shown

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from concurrent.futures import Future

    from typing_extensions import Buffer

__all__ = ["PIECE_BYTES", "RemoteReader", "check_unchanged", "open_url", "read_from", "read_whole"]

PIECE_BYTES = 8 << 20
"""Asked for at once: a store takes some 30 ms to begin an answer, in which 2 MB would have come."""

SMALL_BYTES = 1 << 20
"""An object of no more is asked for in one request."""

_FIRST_BYTES = 256 << 10

_AHEAD = 4
"""Pieces of one object under way: a store gives one connection 50 to 100 MB/s."""

_STREAM_BYTES = 1 << 20


def read_from(file: RemoteFile, *, start: int = 0) -> Generator[bytes]:
    """The bytes from `start` to the end, in pieces of any size above 0.

    Raises FileNotFoundError, PermissionError or StorageError (which names the byte), and IntegrityError when the
    object's size or version is not what it was when it was found.
    """
    size = required_size(file)
    if start >= size:
        return
    ranges = _Ranges(file)
    if not ranges.possible:
        yield from _in_one_stream(file, start)
        return
    # Whoever only looks at the beginning is not sent what follows.
    first = size if size - start <= SMALL_BYTES or not ranges.in_parts else start + _FIRST_BYTES
    yield ranges.read(start, first)
    yield from _ahead(ranges, first, size)
    if start or first < size:  # one answer is of one version; several may be of two
        check_unchanged(file)


def read_whole(file: RemoteFile) -> bytes:
    """All bytes of an object. Raises what `read_from` raises."""
    return b"".join(read_from(file))


def check_unchanged(file: RemoteFile) -> None:
    """IntegrityError when an object is not the one any more that was found."""
    now = find_object(file.url)
    if now is None:
        raise _changed(file, "it is gone")
    if now.n_bytes != file.n_bytes:
        raise _changed(file, f"it has {now.n_bytes or 0:,} bytes, and had {file.n_bytes or 0:,} when it was found")
    told_alike = now.version and file.version and now.version.split(" ", 1)[0] == file.version.split(" ", 1)[0]
    if told_alike and now.version != file.version:
        raise _changed(file, f"its version is {now.version}, and was {file.version} when it was found")


def _changed(file: RemoteFile, what: str) -> IntegrityError:
    return IntegrityError(f"{file}: {what}; it changes while it is read: wait until it is complete and start again")


def _ahead(ranges: _Ranges, start: int, stop: int) -> Iterator[bytes]:
    """Pieces in order, some of them ahead of the reader; closing it waits for those that are under way."""
    waiting: deque[Future[bytes]] = deque()
    with ThreadPoolExecutor(_AHEAD, thread_name_prefix="tokenriver-fetch") as pool:
        try:
            for at in range(start, stop, PIECE_BYTES):
                waiting.append(pool.submit(ranges.read, at, min(at + PIECE_BYTES, stop)))
                if len(waiting) == _AHEAD:
                    yield waiting.popleft().result()
            while waiting:
                yield waiting.popleft().result()
        finally:
            for future in waiting:
                future.cancel()


class _Ranges:
    """Reads ranges of one object; may be used by several threads at once.

    Asynchronous clients (s3fs, gcsfs, adlfs) are asked for ranges by name; of others, and of web servers, one opened
    file without a cache is kept, so that nothing is asked for twice.
    """

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._size = required_size(file)
        self._fs, self._path = filesystem_of(file.url)
        self._is_web = scheme_of(file.url) in ("http", "https")
        self._opened: Any = None
        self.possible = True
        """False for a web server that knows no ranges: it sends everything or nothing."""
        self.in_parts = not self._is_web or self._size > PIECE_BYTES
        """False for what is small enough to be asked for whole, without knowing whether the server knows ranges."""
        if self._is_web and self.in_parts:
            self.possible = retried(file.url, self._open_web)
        elif not self._fs.async_impl:
            retried(file.url, self._open)

    def read(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop), all of them."""
        return retried(self._file.url, lambda: self._read_once(start, stop), offset=start)

    def _read_once(self, start: int, stop: int) -> bytes:
        # One byte more than there should be shows an object that grew.
        beyond = stop == self._size and self._opened is None
        try:
            data = self._fetch(start, stop + beyond)
        except OSError as error:
            if "range" in str(error).lower():  # it ends before: not the object that was found
                check_unchanged(self._file)
            raise
        if len(data) > stop - start:
            raise _changed(self._file, f"it has more than the {self._size:,} bytes that it had when it was found")
        if len(data) < stop - start:
            check_unchanged(self._file)
            raise EOFError(f"{len(data):,} bytes came of {stop - start:,} asked for")
        return data

    def _fetch(self, start: int, stop: int) -> bytes:
        if self._opened is not None:
            found: bytes = self._opened._fetch_range(start, stop)
        elif self._is_web:
            found = self._fs.cat_file(self._path)[start:stop]
        else:
            found = self._fs.cat_file(self._path, start=start, end=stop)
        return found

    def _open(self) -> None:
        from fsspec.spec import AbstractBufferedFile

        opened = self._fs.open(self._path, "rb", block_size=PIECE_BYTES, cache_type="none")
        if isinstance(opened, AbstractBufferedFile) and hasattr(opened, "_fetch_range"):
            self._opened = opened

    def _open_web(self) -> bool:
        """Whether a web server sends parts: asked for the second byte, does it send that alone?"""
        opened = self._fs.open(self._path, "rb", block_size=PIECE_BYTES, cache_type="none", size=self._size)
        try:
            if len(opened._fetch_range(1, 2)) != 1:
                return False
        except ValueError:
            return False
        self._opened = opened
        return True


def _in_one_stream(file: RemoteFile, start: int) -> Iterator[bytes]:
    """From a server without ranges: what comes before `start` is read and dropped, also after a failure."""
    size = required_size(file)
    at = start
    for tries_left in (3, 2, 1, 0):
        try:
            for chunk in _stream_once(file, at):
                yield chunk
                at += len(chunk)
            if at == size:
                return
            raise EOFError(f"it ended after {at:,} of {size:,} bytes")
        except IntegrityError:
            raise
        except Exception as error:
            if not tries_left:
                raise explained(error, file.url, at) from error


def _stream_once(file: RemoteFile, start: int) -> Iterator[bytes]:
    fs, path = filesystem_of(file.url)
    size = required_size(file)
    at = 0
    with fs.open(path, "rb", block_size=0) as opened:
        while chunk := opened.read(_STREAM_BYTES):
            at += len(chunk)
            if at > size:
                raise _changed(file, f"it has more than the {size:,} bytes that it had when it was found")
            if at > start:
                yield chunk[max(0, len(chunk) - (at - start)) :]


class RemoteReader(io.RawIOBase):
    """An object as a binary file that can seek. A read asks for its range, in pieces; with `ahead`, reads that follow
    each other are served from a stream whose next pieces are under way.
    """

    def __init__(self, file: RemoteFile, *, ahead: bool = False) -> None:
        super().__init__()
        self.file = file
        self.n_bytes = required_size(file)
        self._ranges = _Ranges(file)
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
            view[:n] = self._read(self._at, self._at + n)
        self._at += n
        return n

    def read(self, n: int | None = -1) -> bytes:
        """The next `n` bytes (None or negative: all that follow)."""
        stop = self.n_bytes if n is None or n < 0 else min(self.n_bytes, self._at + n)
        if self._reads_ahead:
            into = bytearray(max(0, stop - self._at))
            self.readinto(into)
            return bytes(into)
        data = self._read(self._at, stop) if stop > self._at else b""
        self._at += len(data)
        return data

    def readall(self) -> bytes:
        """All that follows."""
        return self.read()

    def _read(self, start: int, stop: int) -> bytes:
        if stop - start <= PIECE_BYTES:
            return self._ranges.read(start, stop)
        return b"".join(_ahead(self._ranges, start, stop))

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
    with translating(url):
        file = find_object(url)
    if file is None:
        raise FileNotFoundError(errno.ENOENT, "no such object", shown(url))
    return RemoteReader(file, ahead=ahead)
