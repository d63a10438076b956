"""Several files at once, and everything that stays in doubt named together at the end."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tokenriver.errors import TokenRiverError, UsageError
from tokenriver.hub.transfer import fetch_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenriver.hub.landing import Landing
    from tokenriver.hub.transfer import FetchJob, Remote, TransferSink

__all__ = ["DEFAULT_CONNECTIONS", "Stoppable", "check_connections", "fetch_files"]

DEFAULT_CONNECTIONS = 8
"""Files under way at the same time; the Hub serves each from another place, so a few together fill a line."""


class _StoppedError(TokenRiverError):
    """What a file was fetched for has ended, or was stopped, while it was on its way; the part that came stays."""


class Stoppable:
    """Progress that ends the transfers that tell it, at their next bytes, once `stop` was called."""

    def __init__(self, progress: TransferSink | None) -> None:
        self._progress = progress
        self._stopped = threading.Event()

    @property
    def is_stopped(self) -> bool:
        """Whether `stop` was called."""
        return self._stopped.is_set()

    def stop(self) -> None:
        """End the transfers."""
        self._stopped.set()

    def __call__(self, name: str, done: int, total: int) -> None:
        """Say how far a file is."""
        if self.is_stopped:
            raise _StoppedError(f"{name}: not needed any more")
        if self._progress is not None:
            self._progress(name, done, total)


def check_connections(connections: int) -> None:
    """UsageError for a number of connections that cannot be; for who asks before the Hub is."""
    if connections < 1:
        raise UsageError(f"--connections is {connections}; it must be 1 or more")


def fetch_files(
    repository: Remote,
    jobs: Sequence[FetchJob],
    *,
    connections: int = DEFAULT_CONNECTIONS,
    progress: TransferSink | None = None,
    landing: Landing | None = None,
) -> list[FetchJob]:
    """Fetch files, the first ones first; the jobs that were not there already. With a landing they go behind its URL.

    The first failure stops what has not begun; it is raised when what is under way has ended. Ctrl-C ends that too.
    """
    check_connections(connections)
    fetch = fetch_file if landing is None else landing.fetch
    sink = Stoppable(progress)
    with ThreadPoolExecutor(connections, thread_name_prefix="tokenriver-fetch") as pool:
        futures = [pool.submit(fetch, repository, job, progress=sink) for job in jobs]
        try:
            return [job for job, future in zip(jobs, futures, strict=True) if future.result()]
        except BaseException as error:
            if not isinstance(error, Exception):
                sink.stop()
            pool.shutdown(wait=False, cancel_futures=True)
            raise
