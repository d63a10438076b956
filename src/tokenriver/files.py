"""Files that are whole or absent: atomic writes, checksums, and numbers for people."""

from __future__ import annotations

import errno
import hashlib
import os
import stat
import time
import warnings
from contextlib import contextmanager, suppress
from typing import IO, TYPE_CHECKING

from tokenriver.storage.paths import is_remote, is_web, no_folder

if TYPE_CHECKING:
    from collections.abc import Iterator
    from io import RawIOBase
    from pathlib import Path

__all__ = [
    "PART_SUFFIX",
    "atomic_write",
    "file_exists",
    "file_size",
    "fsync_directory",
    "human_bytes",
    "is_file",
    "is_same_file",
    "make_directory",
    "naming",
    "open_binary",
    "part_of",
    "refuse_what_is_no_file",
    "remove_file",
    "require_folder_for",
    "sha256_file",
    "sole_writer",
    "write_all",
]

PART_SUFFIX = ".part"
"""Ending of a file that is not whole yet. Nothing that reads data ever matches it."""

_HASH_CHUNK = 1 << 20

_LOOK_SECONDS, _SILENT_LOOKS = 0.05, 60
"""How another process's lock is looked at, and how often before it is told that we wait."""


def part_of(path: Path) -> Path:
    """Where a file is while it is not whole yet."""
    return path.with_name(path.name + PART_SUFFIX)


@contextmanager
def naming(path: Path) -> Iterator[None]:
    """Give an OSError of a file that is open already (a full disk above all) the name of the file."""
    try:
        yield
    except OSError as error:
        if error.filename is None:
            error.filename = str(path)
        raise


def write_all(descriptor: int, data: bytes | memoryview) -> None:
    """Write every byte to an open file; one call of the system may take a part of them."""
    view = memoryview(data)
    while view:
        view = view[os.write(descriptor, view) :]


@contextmanager
def atomic_write(path: Path) -> Iterator[IO[bytes]]:
    """Open a binary file that appears under its name only when it is whole and on disk.

    Written as `<name>.part` in the same directory, then fsync, rename, fsync of the directory. Of several processes and
    threads that write one file each waits for the one before it. On any error the part is removed and the error goes
    on; an older file of that name stays as it was. Behind a URL the object is uploaded when it is whole. OSError where
    a folder, a device or a pipe has the name: the rename would replace it.
    """
    if is_remote(path):
        from tokenriver.storage.uploading import whole_object

        with whole_object(str(path)) as file:
            yield file
        return
    refuse_what_is_no_file(path)
    part = part_of(path)
    try:
        with sole_writer(part):
            try:
                with naming(part), open(part, "wb") as file:
                    yield file
                    file.flush()
                    os.fsync(file.fileno())
                part.replace(path)
            except BaseException:
                part.unlink(missing_ok=True)
                raise
    except OSError as error:
        if error.filename == str(part):
            raise _at_its_place(error, path) from error
        raise
    fsync_directory(path.parent)


@contextmanager
def sole_writer(part: Path) -> Iterator[None]:
    """Create a part and hold it until it has its name or is gone; who else wants to write it waits for that.

    What a killed process left there is held like a new one, unless it is another file too (a hard link), or none:
    that is let go of. Where there are no such locks (Windows, some network file systems) nothing is held.
    """
    if os.name == "nt":
        yield
        return
    handle = _hold(part)
    try:
        yield
    finally:
        os.close(handle)


def _hold(part: Path) -> int:
    """A descriptor that has the lock of the file that has this name."""
    while True:
        handle = os.open(str(part), os.O_RDWR | os.O_CREAT, 0o666)
        try:
            with suppress(OSError):
                _lock(handle, part)
            ours = os.fstat(handle)
            with suppress(FileNotFoundError):  # who was before us has given it its name, or removed it
                if os.path.samestat(ours, part.stat()):
                    if ours.st_nlink <= 1 and stat.S_ISREG(ours.st_mode):
                        return handle
                    part.unlink()
        except BaseException:
            os.close(handle)
            raise
        os.close(handle)


def _lock(handle: int, part: Path) -> None:
    """Lock the file; a warning where another process keeps its lock for longer than a small file takes."""
    import fcntl

    for _ in range(_SILENT_LOOKS):
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            time.sleep(_LOOK_SECONDS)
        else:
            return
    warnings.warn(f"{part}: another process is writing this file; waiting for it", stacklevel=2)
    fcntl.flock(handle, fcntl.LOCK_EX)


def refuse_what_is_no_file(path: Path) -> None:
    """OSError where a folder, a device or a pipe has the name of a file that is to be put in its place by a rename."""
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, "a directory, where a file is to be written; name a file", str(path))
    if path.exists() and not path.is_file():
        raise OSError(errno.EINVAL, "a device or a pipe, where a file is to be written; name a file", str(path))


def _at_its_place(error: OSError, path: Path) -> OSError:
    """An error of the part as one of the file that was asked for, saying what is in the way."""
    if isinstance(error, FileNotFoundError) and not path.parent.exists():
        return FileNotFoundError(errno.ENOENT, f"there is no folder {path.parent} to write it in", str(path))
    if isinstance(error, NotADirectoryError) and (found := no_folder(path.parent)) is not None:
        return NotADirectoryError(errno.ENOTDIR, f"{found} is no folder to write it in", str(path))
    return type(error)(error.errno, error.strerror, str(path))


def require_folder_for(path: Path) -> None:
    """OSError where a file could not be written for want of its folder: to be asked before the work, not after it."""
    if not is_remote(path) and not path.parent.is_dir():
        missing = FileNotFoundError if not path.parent.exists() else NotADirectoryError
        raise _at_its_place(missing(errno.ENOENT, "no folder"), path)


def open_binary(path: Path, *, ahead: bool = True) -> RawIOBase:
    """A file for reading from front to back, unbuffered; behind a URL fetched ahead in pieces, which may seek too.

    Without `ahead` exactly what is read is fetched, where the store sends ranges. Raises OSError (also StorageError,
    which is one).
    """
    if is_remote(path):
        from tokenriver.storage.seeking import open_url

        return open_url(str(path), ahead=ahead or is_web(str(path)))
    return open(path, "rb", buffering=0, opener=_open_at_once)


def _open_at_once(path: str, flags: int) -> int:
    """Open a file for reading. A named pipe in its place would be waited for without end, so it is an OSError.

    One that a shell made (`<(…)`, /dev/stdin) has a writer.
    """
    descriptor = os.open(path, flags | getattr(os, "O_NONBLOCK", 0))
    if stat.S_ISFIFO(os.fstat(descriptor).st_mode):
        if not path.startswith(("/dev/", "/proc/")):
            os.close(descriptor)
            raise OSError(errno.EINVAL, "a named pipe, not a file", path)
        os.set_blocking(descriptor, True)
    return descriptor


def file_exists(path: Path) -> bool:
    """Whether there is something at a path; behind a URL, an object of that name. Raises OSError if none can tell."""
    if is_remote(path):
        from tokenriver.storage.objects import find_object

        return find_object(str(path)) is not None
    return path.exists()


def is_file(path: Path) -> bool:
    """Whether there is a file at a path, and no folder; behind a URL, an object of that name. Raises as file_exists."""
    return file_exists(path) if is_remote(path) else path.is_file()


def is_same_file(one: Path, other: Path) -> bool:
    """Whether two paths lead to one file (or object) that is there."""
    if is_remote(one) or is_remote(other):
        return str(one) == str(other) and file_exists(one)
    return one.exists() and other.exists() and one.samefile(other)


def file_size(path: Path) -> int:
    """Bytes of a file or an object. Raises OSError where there is none or its store does not say."""
    if not is_remote(path):
        return path.stat().st_size
    with open_binary(path) as file:
        return file.seek(0, os.SEEK_END)


def remove_file(path: Path) -> None:
    """Delete a file or an object, if it is there."""
    if is_remote(path):
        from tokenriver.storage.objects import remove_objects

        remove_objects([str(path)])
    else:
        path.unlink(missing_ok=True)


def make_directory(directory: Path) -> None:
    """Create a directory and those above it; an object store has none to create."""
    if not is_remote(directory):
        directory.mkdir(parents=True, exist_ok=True)


def fsync_directory(directory: Path) -> None:
    """Make the names in a directory durable. Does nothing where directories cannot be opened (Windows)."""
    if os.name == "nt":
        return
    handle = os.open(directory, os.O_RDONLY)
    try:
        with naming(directory):
            os.fsync(handle)
    finally:
        os.close(handle)


def sha256_file(path: Path) -> str:
    """SHA-256 of a file's bytes in hex, read in 1 MiB pieces (hashlib releases the GIL)."""
    digest = hashlib.sha256()
    buffer = bytearray(_HASH_CHUNK)
    view = memoryview(buffer)
    with open_binary(path) as file:
        while n := file.readinto(buffer):
            digest.update(view[:n])
    return digest.hexdigest()


def human_bytes(n: float) -> str:
    """1536 → '1.5 kB' (powers of 1000, as disks and networks count)."""
    for unit in ("B", "kB", "MB", "GB", "TB"):
        if abs(n) < 1000:
            return f"{n:.0f} {unit}" if unit == "B" else f"{n:.1f} {unit}"
        n /= 1000
    return f"{n:.1f} PB"
