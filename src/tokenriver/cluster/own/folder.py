"""The folder of a cluster begun here, for its sockets and logs: private, of a short name, and gone with the command.

A socket's name has 107 bytes, of which Ray takes 64 below the folder that it is given; temporary folders of jobs, and
of macOS, are longer than what remains. So the first folder that will do is taken. A command that was killed leaves its
own, which the next one removes: the owner of a folder keeps a lock on it.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from tokenriver.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["own_folder"]

_NAME = "tokenriver-ray-"
_BEING_MADE = ".tokenriver-ray-"
"""Until the lock is there, so that nobody takes it for one that was left."""

_MOST_NAME = 107 - 64 - len(_NAME) - 9
_PLAIN = re.compile(r"/[\w./+@=,-]*", re.ASCII)
"""What Ray, which joins names into commands, has no trouble with."""

_LEAST_ROOM = 8 << 20
"""Bytes: a session's logs have less than one MB."""

_TRIES = 10


@contextmanager
def own_folder() -> Iterator[Path]:
    """Make the folder; it is removed when the context ends. ClusterError where none can be."""
    reasons = []
    for base in _bases():
        if (reason := _unfit(base)) is None:
            try:
                path, lock = _made(base)
                break
            except OSError as error:
                reason = error.strerror or str(error)
        reasons.append(f"{base}: {reason}")
    else:
        raise ClusterError(
            f"no folder for the sockets and logs of a Ray cluster ({'; '.join(reasons)}); set RAY_TMPDIR to one, or "
            "take --engine local, which needs none"
        )
    try:
        _remove_left(base)
        yield path
    finally:
        _remove(path)
        if lock is not None:
            os.close(lock)


def _bases() -> list[Path]:
    """Where temporary folders are: as Ray looks for it, and what every system has."""
    named = [os.environ.get("RAY_TMPDIR"), os.environ.get("TMPDIR"), tempfile.gettempdir(), "/tmp"]
    return list(dict.fromkeys(Path(name) for name in named if name))


def _unfit(base: Path) -> str | None:
    """Why a cluster's folder cannot be in this one, if so."""
    if os.name != "posix":
        return None
    if not _PLAIN.fullmatch(str(base)):
        return "its name is not absolute, or has characters that Ray has trouble with"
    if len(str(base)) > _MOST_NAME:
        return f"a name of more than {_MOST_NAME} bytes is too long for sockets"
    try:
        room = os.statvfs(base)
    except OSError as error:
        return error.strerror
    return "no space left" if room.f_bavail * room.f_frsize < _LEAST_ROOM else None


def _made(base: Path) -> tuple[Path, int | None]:
    """A new folder with its lock, if this file system has locks."""
    hidden = Path(tempfile.mkdtemp(prefix=_BEING_MADE, dir=base))
    lock = _locked(hidden)
    path = hidden.with_name(hidden.name.removeprefix("."))
    hidden.rename(path)
    return path, lock


def _locked(folder: Path) -> int | None:
    """The folder, open and locked; None where that cannot be, or another process has the lock."""
    if os.name != "posix":
        return None
    import fcntl

    file = None
    try:
        file = os.open(folder, os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW)
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        if file is not None:
            os.close(file)
        return None
    return file


def _remove_left(base: Path) -> None:
    """Remove the folders of commands that were killed."""
    with suppress(OSError):
        for path in base.glob(f"{_NAME}*"):
            if (lock := _locked(path)) is not None:
                _remove(path)
                os.close(lock)


def _remove(folder: Path) -> None:
    """Remove it with all that is in it; what just ends may still be writing there."""
    for _ in range(_TRIES):
        shutil.rmtree(folder, ignore_errors=True)
        if not folder.exists():
            return
        time.sleep(0.1)
