"""What a cached file's times say: of modification, as which SHA-256 it was verified; of access, when it is needed."""

from __future__ import annotations

import errno
import hashlib
import os
import time
from typing import TYPE_CHECKING

from tokenriver.files import naming

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["mark_needed", "mark_verified", "sound", "unharmed", "verified_ns", "whole_stat"]


def verified_ns(sha256: str) -> int:
    """The time of modification that says that a file was verified as this SHA-256: even seconds, 1998 to 2015.

    Whoever writes to the file afterwards changes it.
    """
    return (900_000_000 + 2 * int(sha256[:7], 16)) * 10**9


def mark_verified(path: Path, sha256: str) -> None:
    """Record in a file's time of modification that its bytes were found to be these."""
    with naming(path):
        os.utime(path, ns=(time.time_ns(), verified_ns(sha256)))


def mark_needed(path: Path, needed_ns: int) -> None:
    """Say when a file of the cache is needed, as far as we may: in a cache that is another user's, or is mounted to be
    read only, files are read all the same. Raises FileNotFoundError when it is not there."""
    try:
        os.utime(path, ns=(needed_ns, path.stat().st_mtime_ns))
    except OSError as error:
        if error.errno not in (errno.EPERM, errno.EACCES, errno.EROFS):
            raise


def sound(path: Path, size: int) -> bytes | None:
    """A small file's bytes, if they are those that were verified; and it is needed now."""
    try:
        raw, stat = path.read_bytes(), path.stat()
    except FileNotFoundError:
        return None
    if len(raw) != size or stat.st_mtime_ns != verified_ns(hashlib.sha256(raw).hexdigest()):
        return None
    mark_needed(path, time.time_ns())
    return raw


def whole_stat(path: Path, size: int, sha256: str | None) -> bool:
    """Whether a file is there, of the right size, and not written to since it was verified."""
    try:
        stat = path.stat()
    except FileNotFoundError:
        return False
    return unharmed(stat, size, sha256)


def unharmed(stat: os.stat_result, size: int, sha256: str | None) -> bool:
    """Whether a file is as long as it should be, and was not written to since it was verified (as this SHA-256)."""
    if stat.st_size != size:
        return False
    if sha256 is None:  # verified as something: nothing says as what
        return verified_ns("0" * 7) <= stat.st_mtime_ns <= verified_ns("f" * 7)
    return stat.st_mtime_ns == verified_ns(sha256)
