"""The thread that puts a data set on disk: it appends, syncs, completes and journals shards, in the order it was told.

Their SHA-256 is taken, and they are renamed, by threads beside it (sealing.py).
"""

from __future__ import annotations

import queue
import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from tokenriver.building.index_part import IndexPart
from tokenriver.building.sealing import ShardSealing
from tokenriver.corpus.threads import JoinedThread
from tokenriver.resuming.uploads import Uploads
from tokenriver.shards.index import index_path
from tokenriver.shards.manifest import ManifestFile
from tokenriver.shards.writer import ShardWriter

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from numpy.typing import NDArray

    from tokenriver.building.journal import Checkpoint, Journal
    from tokenriver.building.shape import Shape
    from tokenriver.corpus.inputs import InputFacts, InputMark
    from tokenriver.storage.directory import RemoteDirectory

    Place: TypeAlias = tuple[int, int]
    InputState: TypeAlias = tuple[dict[int, InputFacts], InputMark | None]

__all__ = ["Closing", "Pieces", "WriterThread"]

_QUEUE_BYTES = 64 << 20
"""Ids waiting for the writing thread, at most; beyond it the build waits."""

_SYNC_BYTES = 32 << 20
"""Bytes appended to a part after which it is synced in the background, so that little is left to do at its end."""


@dataclass(slots=True)
class Pieces:
    """Ids that follow each other in file `index` of a split, and the ends of their documents in it (none without an
    index)."""

    index: int
    ids: list[NDArray[Any]] = field(default_factory=list)
    ends: list[NDArray[np.int64]] = field(default_factory=list)

    @property
    def n_bytes(self) -> int:
        """Bytes of the ids."""
        return sum(one.nbytes for one in self.ids)


@dataclass(frozen=True, slots=True)
class Closing:
    """What the journal notes of a complete shard (Journal.record); `entry` is the manifest's, but for the SHA-256."""

    entry: dict[str, Any]
    checkpoint: Checkpoint
    sources: dict[str, int]
    inputs: InputState


class WriterThread:
    """Appends, completes and journals, in the order in which the steps were put; finished shards go to `files`, the
    SHA-256 of their document indexes to `indexes`, by the shards' names."""

    def __init__(
        self,
        shape: Shape,
        journal: Journal,
        files: list[ManifestFile],
        indexes: dict[str, str],
        *,
        sealing_threads: int = 1,
        remote: RemoteDirectory | None = None,
    ) -> None:
        self._shape = shape
        self._files = files
        self._indexes = indexes
        self._sealing = ShardSealing(journal, files, threads=sealing_threads)
        self._journal = journal
        self._open: dict[int, ShardWriter] = {}
        self._index: dict[int, IndexPart] = {}
        self._unsynced = 0
        self._syncing = ThreadPoolExecutor(1, thread_name_prefix="tokenriver-sync")
        self._synced: Future[None] | None = None
        self._uploads = None if remote is None else Uploads(remote)
        self._queue: queue.SimpleQueue[tuple[int, Pieces | Closing] | None] = queue.SimpleQueue()
        self._room = threading.Condition()
        self._waiting_bytes = 0
        self._error: BaseException | None = None
        self.durable = (0, 0)
        self.journalled = False
        """The journal speaks of a shard that this run made."""
        self._stopped = False
        self._thread = JoinedThread(self._run, name="tokenriver-writer")
        self._thread.start()

    def reopen(self, split: int, path: Path, tokens: int, indexed: int) -> None:
        """Go on with a part of so many ids, and its index of so many documents; only before the first `put`."""
        self._open[split] = self._writer(path, tokens)
        if self._shape.doc_index:
            self._index[split] = IndexPart(index_path(path), keep=indexed)

    def put(self, split: int, pieces: Pieces) -> None:
        """Queue pieces for the open file of a split, waiting while too much is queued."""
        with self._room:
            self._room.wait_for(lambda: self._waiting_bytes < _QUEUE_BYTES or self._error is not None)
            self._waiting_bytes += pieces.n_bytes
        self._raise()
        self._queue.put((split, pieces))

    def close_shard(self, split: int, closing: Closing) -> None:
        """Queue the closing of a split's file; its facts are in `files` once it has its name."""
        self._raise()
        self._queue.put((split, closing))

    @property
    def abandoned_upload(self) -> bool:
        """Whether a shard may still get to the store, after `stop`, without the journal speaking of it."""
        return self._uploads is not None and self._uploads.abandoned

    def join(self) -> None:
        """Wait until all is done; raises what went wrong."""
        self._queue.put(None)
        self._thread.join()
        self._raise()

    def stop(self) -> None:
        """End the thread without finishing what is queued, and leave the parts."""
        self._stopped = True
        self._queue.put(None)
        self._thread.join()
        parts: list[ShardWriter | IndexPart] = [*self._open.values(), *self._index.values()]
        for writer in parts:
            writer.close()

    def _raise(self) -> None:
        if self._error is not None:
            raise self._error

    def _writer(self, path: Path, tokens: int = 0) -> ShardWriter:
        shape = self._shape
        return ShardWriter(path, variant=shape.variant, vocab_size=shape.header_vocab_size, keep_tokens=tokens)

    def _run(self) -> None:
        try:
            while (item := self._queue.get()) is not None and not self._stopped:
                split, what = item
                if isinstance(what, Pieces):
                    self._append(split, what)
                else:
                    self._seal(split, what)
            if not self._stopped:
                self._sealing.wait()
                if self._uploads is not None:
                    self._uploads.wait()
        except BaseException as error:  # handed to the building thread, which raises it
            with self._room:
                self._error = error
                self._room.notify_all()
        finally:
            self._syncing.shutdown()
            self._sealing.close()
            if self._uploads is not None:
                self._uploads.close()

    def _append(self, split: int, pieces: Pieces) -> None:
        writer = self._open.get(split)
        if writer is None:
            path = self._shape.path(split, pieces.index)
            writer = self._open[split] = self._writer(path)
            if self._shape.doc_index:
                self._index[split] = IndexPart(index_path(path))
        writer.append_all(pieces.ids)
        if pieces.ends:
            self._index[split].append(np.concatenate(pieces.ends))
        self._sealing.raise_errors()
        self._unsynced += pieces.n_bytes
        if self._unsynced >= _SYNC_BYTES and (self._synced is None or self._synced.done()):
            self._wait_for_sync()
            self._synced = self._syncing.submit(writer.sync)
            self._unsynced = 0
        with self._room:
            self._waiting_bytes -= pieces.n_bytes
            self._room.notify_all()

    def _wait_for_sync(self) -> None:
        """Let a sync in the background end, raising what it met: its file is about to be closed."""
        if self._synced is not None:
            self._synced.result()
            self._synced = None

    def _seal(self, split: int, closing: Closing) -> None:
        """Put a shard and its index on disk, then a line about it into the journal, while its SHA-256 is taken."""
        writer, index = self._open[split], self._index.get(split)
        writer.complete()
        shard = self._sealing.hash(writer, index)
        try:
            self._wait_for_sync()
            writer.sync()
            assert writer.n_tokens == closing.entry["n_tokens"], "the plan and the file disagree"
            self._open.pop(split).close()
            if index is not None:
                self._index.pop(split).seal()
                self._indexes[writer.path.name] = index.sha256
            others: list[ShardWriter | IndexPart] = [*self._open.values(), *self._index.values()]
            for other in others:
                other.sync()
            if self._uploads is None:
                file = ManifestFile(**closing.entry, sha256=shard.sha256)
                self._note(file, closing)
                self.journalled = True
                self._sealing.name(shard, file)
        finally:
            self._sealing.give_up(shard)  # or its thread would wait for ever
        if self._uploads is not None:
            self._sealing.wait()
            file = ManifestFile(**closing.entry, sha256=shard.sha256)

            def record() -> None:
                self._note(file, closing)
                self._files.append(file)

            files_of = [(writer.part, writer.path.name)]
            if index is not None:
                files_of.insert(0, (index.part, index.path.name))
            self._uploads.put(files_of, record=record)

    def _note(self, file: ManifestFile, closing: Closing) -> None:
        """Write the line about a shard into the journal."""
        self._journal.record(
            msgspec.to_builtins(file),
            closing.checkpoint,
            closing.sources,
            closing.inputs,
            index_sha256=self._indexes.get(file.name, ""),
        )
        self.durable = closing.checkpoint.position
