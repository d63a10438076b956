"""Files brought one by one while they are read: the next one comes while the build reads this one."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tokenriver.hub.crew import Stoppable
from tokenriver.hub.transfer import fetch_file

if TYPE_CHECKING:
    from collections.abc import Sequence
    from concurrent.futures import Future
    from types import TracebackType

    from tokenriver.hub.transfer import FetchJob, Remote, TransferSink

__all__ = ["FileSupply"]


class FileSupply:
    """Brings the file of a source when it is needed and the next one ahead; a context manager.

    At most the file that is read, the one after it, and those that a build which goes on would still read are on
    disk. Unless `keep`, a file is deleted when no such build would; one whose SHA-256 the Hub does not tell (it tells
    that of all large ones) stays until the end, because its own bytes must be hashed.
    """

    def __init__(
        self, remote: Remote, jobs: Sequence[FetchJob], *, keep: bool, progress: TransferSink | None = None
    ) -> None:
        self._remote = remote
        self._jobs = jobs
        self._keep = keep
        self._sink = Stoppable(progress)
        self._pool = ThreadPoolExecutor(1, thread_name_prefix="tokenriver-supply")
        self._coming: dict[int, Future[bool]] = {}
        self._passed = 0
        self.fetched = 0

    def __enter__(self) -> FileSupply:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self._sink.stop()
        self._pool.shutdown(cancel_futures=True)
        if kind is None and not self._keep:
            for job in self._jobs:
                job.path.unlink(missing_ok=True)

    def need(self, source_index: int) -> None:
        """Return when the file is there, whole and right; the next one is asked for."""
        for index in (source_index, source_index + 1):
            if index < len(self._jobs) and index not in self._coming:
                self._coming[index] = self._pool.submit(self._fetch, index)
        self._coming[source_index].result()

    def passed(self, source_index: int) -> None:
        """Delete the files before this one."""
        while self._passed < source_index:
            job = self._jobs[self._passed]
            if not self._keep and job.expected.sha256 is not None:
                job.path.unlink(missing_ok=True)
            self._passed += 1

    def _fetch(self, index: int) -> bool:
        if self._sink.is_stopped:
            return False
        fetched = fetch_file(self._remote, self._jobs[index], progress=self._sink)
        self.fetched += fetched
        return fetched
