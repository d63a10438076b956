"""Sealed shards on their way to an object store: uploaded whole, then journalled, then let go here; one at a time.

While one shard travels the next one is written, so local disk holds the open shards and one more. Order of steps: the
index, the shard, the journal line, the removal of the local parts. Killed anywhere, the next run finds either a journal
line and a whole object, or the part and no line, and then writes the shard again, with the same bytes.
"""

from __future__ import annotations

import threading
from concurrent.futures import Future
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenriver.building.index_part import IndexPart
    from tokenriver.shards.writer import ShardWriter
    from tokenriver.storage.directory import RemoteDirectory

__all__ = ["PATIENCE_SECONDS", "ShardUploads"]

PATIENCE_SECONDS = 15.0
"""How long an upload under way may take to end when a build is stopped: Ctrl-C must not wait for a slow store."""


class ShardUploads:
    """Uploads sealed shards to a remote directory in the order given. `abandoned`: one was left to itself."""

    def __init__(self, remote: RemoteDirectory) -> None:
        self._remote = remote
        self._under_way: Future[None] | None = None
        self._recording = threading.Lock()
        self.abandoned = False

    def put(self, shard: ShardWriter, index: IndexPart | None, *, record: Callable[[], None]) -> None:
        """Begin with a shard once the one before is there; raises what went wrong with that one."""
        self.wait()
        self._under_way = Future()
        # A thread that the process does not wait for at its end, unlike those of an executor.
        threading.Thread(
            target=self._run,
            args=(self._under_way, shard, index, record),
            name="tokenriver-upload",
            daemon=True,
        ).start()

    def wait(self) -> None:
        """Return when all is there; raises what went wrong."""
        if self._under_way is not None:
            self._under_way.result()
            self._under_way = None

    def close(self) -> None:
        """Give the one under way a little time to end, whatever comes of it; then it counts no more."""
        if self._under_way is None:
            return
        with suppress(Exception):  # it has been told, or something worse has
            self._under_way.exception(PATIENCE_SECONDS)
        with self._recording:
            self.abandoned = not self._under_way.done()

    def _run(self, done: Future[None], shard: ShardWriter, index: IndexPart | None, record: Callable[[], None]) -> None:
        try:
            self._upload(shard, index)
            with self._recording:
                if not self.abandoned:
                    record()
                    shard.part.unlink()
                    if index is not None:
                        index.part.unlink()
                done.set_result(None)
        except BaseException as error:  # handed to whoever waits
            done.set_exception(error)

    def _upload(self, shard: ShardWriter, index: IndexPart | None) -> None:
        if index is not None:
            self._remote.put(index.part, index.path.name)
        try:
            self._remote.put(shard.part, shard.path.name)
        except BaseException:
            if index is not None:
                with suppress(OSError):  # what stopped the shard is what the user must hear
                    self._remote.remove([index.path.name])
            raise
