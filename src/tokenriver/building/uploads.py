"""Sealed shards on their way to an object store: uploaded whole, then journalled, then let go here; one at a time.

While one shard travels the next one is written, so local disk holds the open shards and one more. Order of steps: the
index, the shard, the journal line, the removal of the local parts. Killed anywhere, the next run finds either a journal
line and a whole object, or the part and no line, and then writes the shard again, with the same bytes.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable
    from concurrent.futures import Future

    from tokenriver.building.index_part import IndexPart
    from tokenriver.shards.writer import ShardWriter
    from tokenriver.storage.directory import RemoteDirectory

__all__ = ["ShardUploads"]


class ShardUploads:
    """Uploads sealed shards to a remote directory in the order given."""

    def __init__(self, remote: RemoteDirectory) -> None:
        self._remote = remote
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tokenriver-upload")
        self._under_way: Future[None] | None = None

    def put(self, shard: ShardWriter, index: IndexPart | None, *, record: Callable[[], None]) -> None:
        """Begin with a shard once the one before is there; raises what went wrong with that one."""
        self.wait()
        self._under_way = self._pool.submit(self._upload, shard, index, record)

    def wait(self) -> None:
        """Return when all is there; raises what went wrong."""
        under_way, self._under_way = self._under_way, None
        if under_way is not None:
            under_way.result()

    def close(self) -> None:
        """Let the one under way end, whatever comes of it."""
        self._pool.shutdown()

    def _upload(self, shard: ShardWriter, index: IndexPart | None, record: Callable[[], None]) -> None:
        if index is not None:
            self._remote.put(index.part, index.path.name)
        try:
            self._remote.put(shard.part, shard.path.name)
        except BaseException:
            if index is not None:
                with suppress(OSError):  # what stopped the shard is what the user must hear
                    self._remote.remove([index.path.name])
            raise
        record()
        shard.part.unlink()
        if index is not None:
            index.part.unlink()
