"""Finished files on their way to an object store: uploaded whole, then journalled, then let go here; a few at a time.

While one travels the next one is made, so local disk holds the open files and those under way. Order of steps: the
files of one shard (its index first), the journal line, the removal of the local parts. Killed anywhere, the next run
finds either a journal line and whole objects, or the part and no line, and then makes the shard again, with the same
bytes.
"""

from __future__ import annotations

import threading
import time
from collections import deque
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tokenriver.storage.directory import RemoteDirectory

__all__ = ["PATIENCE_SECONDS", "Uploads"]

PATIENCE_SECONDS = 15.0
"""How long uploads under way may take to end when work is stopped: Ctrl-C must not wait for a slow store."""


class Uploads:
    """Uploads files to a remote directory, begun in the order given. `abandoned`: one was left to itself."""

    def __init__(self, remote: RemoteDirectory, *, at_once: int = 1) -> None:
        self._remote = remote
        self._at_once = at_once
        self._under_way: deque[Future[None]] = deque()
        self._recording = threading.Lock()
        self.abandoned = False

    def put(self, files: Sequence[tuple[Path, str]], *, record: Callable[[], None], keep: bool = False) -> None:
        """Begin with files that belong together, the one that counts last, each to be called by its name there.

        `record` is called once all are there, one call at a time; then they are removed here, unless `keep`. Waits
        while too many are under way; raises what went wrong with earlier ones.
        """
        while len(self._under_way) >= self._at_once:
            self._under_way.popleft().result()
        done: Future[None] = Future()
        self._under_way.append(done)
        # A thread that the process does not wait for at its end, unlike those of an executor.
        threading.Thread(
            target=self._run, args=(done, files, record, keep), name="tokenriver-upload", daemon=True
        ).start()

    def wait(self) -> None:
        """Return when all is there; raises what went wrong."""
        while self._under_way:
            self._under_way.popleft().result()

    def close(self) -> None:
        """Give those under way a little time to end, whatever comes of them; then they count no more."""
        until = time.monotonic() + PATIENCE_SECONDS
        for one in self._under_way:
            with suppress(Exception):  # it has been told, or something worse has
                one.exception(max(0.0, until - time.monotonic()))
        with self._recording:
            self.abandoned = not all(one.done() for one in self._under_way)

    def _run(
        self, done: Future[None], files: Sequence[tuple[Path, str]], record: Callable[[], None], keep: bool
    ) -> None:
        try:
            self._upload(files)
            with self._recording:
                if not self.abandoned:
                    record()
                    for path, _ in [] if keep else reversed(files):
                        path.unlink()
                done.set_result(None)
        except BaseException as error:  # handed to whoever waits
            done.set_exception(error)

    def _upload(self, files: Sequence[tuple[Path, str]]) -> None:
        there: list[str] = []
        try:
            for path, name in files:
                self._remote.put(path, name)
                there.append(name)
        except BaseException:
            with suppress(OSError):  # what stopped it is what the user must hear
                self._remote.remove(there)
            raise
