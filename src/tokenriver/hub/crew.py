"""Several files at once, and everything that stays in doubt named together at the end."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from tokenriver.errors import UsageError
from tokenriver.hub.transfer import fetch_file

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenriver.hub.landing import Landing
    from tokenriver.hub.transfer import FetchJob, Remote, TransferSink

__all__ = ["DEFAULT_CONNECTIONS", "check_connections", "fetch_files"]

DEFAULT_CONNECTIONS = 8
"""Files under way at the same time; the Hub serves each from another place, so a few together fill a line."""


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

    The first failure stops what has not begun; it is raised when what is under way has ended.
    """
    check_connections(connections)
    fetch = fetch_file if landing is None else landing.fetch
    with ThreadPoolExecutor(connections, thread_name_prefix="tokenriver-fetch") as pool:
        futures = [pool.submit(fetch, repository, job, progress=progress) for job in jobs]
        try:
            return [job for job, future in zip(jobs, futures, strict=True) if future.result()]
        except BaseException:
            pool.shutdown(wait=False, cancel_futures=True)
            raise
