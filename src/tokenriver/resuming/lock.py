"""The directory in which something is made: created, locked, and left as it was found when nothing came of it."""

from __future__ import annotations

from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING

import filelock

from tokenriver.errors import ResumeError

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

__all__ = ["locked"]


@contextmanager
def locked(
    lock_file: Path, *, where: object, busy: str | None = None, removable: Iterable[Path] = ()
) -> Iterator[None]:
    """Create the lock's directory and hold it; a second run there is a ResumeError, at once. `where` users find it.

    `busy` is what the error says of the other run: by default, that it is a build and writes there. Directories made
    here go again when they are empty; so do the `removable` ones, innermost first, whoever made them.
    """
    directory = lock_file.parent
    missing = [d for d in (directory, *directory.parents) if not d.exists()]
    directory.mkdir(parents=True, exist_ok=True)
    lock = filelock.FileLock(lock_file, timeout=0)
    try:
        lock.acquire()
    except filelock.Timeout:
        if busy is None:
            busy = f"another build is writing here (it holds {lock_file.name}); wait for it, or give another --out"
        raise ResumeError(f"{where}: {busy}") from None
    try:
        yield
    except BaseException:
        with suppress(OSError):  # a disk that fails: what it kept from being done is what the user must hear
            _release(lock, lock_file, [*removable, *missing])
        raise
    _release(lock, lock_file, [*removable, *missing])


def _release(lock: filelock.BaseFileLock, lock_file: Path, removable: Iterable[Path]) -> None:
    try:
        lock_file.unlink(missing_ok=True)
    finally:
        lock.release()
    for made in dict.fromkeys(removable):
        if not made.exists() or any(made.iterdir()):
            break
        made.rmdir()
