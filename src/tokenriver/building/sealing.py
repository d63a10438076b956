"""Shards on their way from complete to named: hashed by threads of their own, while the next ones are written.

One SHA-256 goes as fast as one core (1.4 GB/s), so several shards are hashed at a time. The journal may speak of a
shard before its SHA-256 is known: what is journalled is not made again, whatever happens while it is hashed.
"""

from __future__ import annotations

import threading
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import msgspec

from tokenriver.files import sha256_file

if TYPE_CHECKING:
    from concurrent.futures import Future

    from tokenriver.building.index_part import IndexPart
    from tokenriver.building.journal import Journal
    from tokenriver.shards.manifest import ManifestFile
    from tokenriver.shards.writer import ShardWriter

__all__ = ["CompleteShard", "ShardSealing", "sealing_threads"]


def sealing_threads(workers: int) -> int:
    """How many shards are hashed at a time.

    Hashing costs 0.35 core-ms a MB of text with 16-bit ids at 4.4 bytes each, 1.5 where every byte is an id, of 8 and 6
    in all: a thread for four workers keeps up with both.
    """
    return max(1, workers // 4)


@dataclass(slots=True)
class CompleteShard:
    """A shard with its last byte, in no journal yet, and its index."""

    writer: ShardWriter
    index: IndexPart | None
    file: ManifestFile | None = None
    """What the journal says of it; None: nothing, and it gets no name."""
    sha256: str = ""
    """"" until it is known."""
    _decided: threading.Event = field(default_factory=threading.Event)


class ShardSealing:
    """Hashes complete shards; those that were journalled get their SHA-256 into the journal, and their names."""

    def __init__(self, journal: Journal, files: list[ManifestFile], *, threads: int) -> None:
        self._journal = journal
        self._files = files
        self._threads = threads
        self._pool = ThreadPoolExecutor(threads, thread_name_prefix="tokenriver-seal")
        self._under_way: deque[Future[None]] = deque()

    def hash(self, writer: ShardWriter, index: IndexPart | None) -> CompleteShard:
        """Begin to hash a shard, once there is a thread for it; `give_up` must follow, or `name` before it.

        Raises what went wrong with those before.
        """
        self.raise_errors()
        while len(self._under_way) >= self._threads:
            self._under_way.popleft().result()
        shard = CompleteShard(writer, index)
        self._under_way.append(self._pool.submit(self._run, shard))
        return shard

    def name(self, shard: CompleteShard, file: ManifestFile) -> None:
        """Let a journalled shard have its name as soon as its SHA-256 is in the journal."""
        shard.file = file
        shard._decided.set()

    def give_up(self, shard: CompleteShard) -> None:
        """Leave a shard as it is, unless it was named."""
        shard._decided.set()

    def raise_errors(self) -> None:
        """Raise what went wrong with a shard, if anything has by now."""
        for _ in range(len(self._under_way)):
            one = self._under_way.popleft()
            if one.done():
                one.result()
            else:
                self._under_way.append(one)

    def wait(self) -> None:
        """Return when all have their names; raises what went wrong."""
        while self._under_way:
            self._under_way.popleft().result()

    def close(self) -> None:
        """Wait for what is under way, whatever comes of it."""
        self._pool.shutdown(cancel_futures=True)

    def _run(self, shard: CompleteShard) -> None:
        shard.sha256 = sha256_file(shard.writer.part)
        shard._decided.wait()
        if shard.file is None:
            return
        if not shard.file.sha256:
            self._journal.record_sha256(shard.file.name, shard.sha256)
        if shard.index is not None:
            shard.index.publish()  # before the shard, so that a named shard never waits for its index
        shard.writer.publish()
        self._files.append(msgspec.structs.replace(shard.file, sha256=shard.sha256))
