"""Bytes of an object by ranges: several under way at once, each whole or asked for again, none ever silently short.

    for chunk in read_from(file, start=5_000_000): ...     # in order, from any offset
    data = Ranges(file).join(1_000, 2_000)                 # any part, where the server sends parts

A piece is asked for by its range and its length is checked; what the client could not mend is tried again from the
piece's first byte, and in the end an error names the URL and the byte.
"""

from __future__ import annotations

from collections import deque
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

from tokenriver.errors import IntegrityError
from tokenriver.storage.failures import explained, retried, wait_out
from tokenriver.storage.objects import RemoteFile, changed, check_unchanged, required_size
from tokenriver.storage.paths import filesystem_of, is_web
from tokenriver.storage.patience import seconds_asked_by

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator
    from concurrent.futures import Future

__all__ = ["PIECE_BYTES", "Ranges", "read_from", "read_whole"]

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
    ranges = Ranges(file)
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


def _ahead(ranges: Ranges, start: int, stop: int) -> Iterator[bytes]:
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


class Ranges:
    """Reads ranges of one object; may be used by several threads at once.

    Asynchronous clients (s3fs, gcsfs, adlfs) are asked for ranges by name; of others, and of web servers, one opened
    file without a cache is kept, so that nothing is asked for twice.
    """

    def __init__(self, file: RemoteFile) -> None:
        self._file = file
        self._size = required_size(file)
        self._fs, self._path = filesystem_of(file.url)
        self._is_web = is_web(file.url)
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

    def join(self, start: int, stop: int) -> bytes:
        """The bytes [start, stop), in pieces that are under way together."""
        if stop - start <= PIECE_BYTES:
            return self.read(start, stop)
        return b"".join(_ahead(self, start, stop))

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
            raise changed(self._file, f"it has more than the {self._size:,} bytes that it had when it was found")
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
            if (asked := seconds_asked_by(error)) is not None:
                wait_out(error, file.url, at, at_least=asked)


def _stream_once(file: RemoteFile, start: int) -> Iterator[bytes]:
    fs, path = filesystem_of(file.url)
    size = required_size(file)
    at = 0
    with fs.open(path, "rb", block_size=0) as opened:
        while chunk := opened.read(_STREAM_BYTES):
            at += len(chunk)
            if at > size:
                raise changed(file, f"it has more than the {size:,} bytes that it had when it was found")
            if at > start:
                yield chunk[max(0, len(chunk) - (at - start)) :]
