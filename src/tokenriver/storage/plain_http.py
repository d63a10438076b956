"""Ranges over HTTP from URLs that need no client of a store: many under way in one session, each whole or an error.

aiohttp, which fsspec's clients bring with them, on the loop that they use: 0.2 to 0.4 core-ms a small range, where s3fs
takes 2.3 to 4, and two thirds of what s3fs takes for a large one.
"""

from __future__ import annotations

import asyncio
import atexit
import os
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies, proxy_bypass

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

__all__ = ["RefusedError", "available", "get_ranges"]

_CONNECTIONS = 256
"""Of all threads together: at 30 ms to an answer some 8,000 ranges a second."""

_CONNECT_SECONDS, _READ_SECONDS = 10.0, 30.0
"""Without a connection, or without a byte, for so long a range has failed."""

_BUFFER = 1 << 20
"""Bytes of a body after which reading pauses until they are taken; with 64 KiB a MB costs up to twice the CPU."""

Wanted = tuple[str, int, int]
"""(URL, first byte, byte after the last)."""

Answer = tuple[bytes, str | None] | Exception
"""The bytes and the object's entity tag, or what went wrong."""


class RefusedError(Exception):
    """The server answered, but not with the range."""

    def __init__(self, status: int) -> None:
        super().__init__(f"the server answered {status}")
        self.status = status


def available() -> bool:
    """Whether aiohttp is installed."""
    try:
        import aiohttp  # noqa: F401
    except ImportError:
        return False
    return True


def get_ranges(wanted: Sequence[Wanted], *, at_once: int) -> list[Answer]:
    """What came of each range, in the order given; none is tried twice, and nothing is raised for one alone."""
    from fsspec.asyn import get_loop, sync

    return list(sync(get_loop(), _get_all, wanted, at_once))


async def _get_all(wanted: Sequence[Wanted], at_once: int) -> list[Answer]:
    session = _session()
    found: list[Answer] = [EOFError("not asked for")] * len(wanted)
    left = iter(enumerate(wanted))
    await asyncio.gather(*(_take_turns(session, left, found) for _ in range(min(at_once, len(wanted)))))
    return found


async def _take_turns(session: Any, left: Iterator[tuple[int, Wanted]], found: list[Answer]) -> None:
    for k, (url, start, stop) in left:
        try:
            found[k] = await _get(session, url, start, stop)
        except Exception as error:  # handed over: the caller decides for each
            found[k] = error


async def _get(session: Any, url: str, start: int, stop: int) -> tuple[bytes, str | None]:
    from yarl import URL

    place, wanted = URL(url, encoded=True), {"Range": f"bytes={start}-{stop - 1}"}
    async with session.get(place, headers=wanted, proxy=_proxy_of(place.scheme, place.host or "")) as answer:
        told = answer.headers.get("Content-Range", "")
        if answer.status != 206 or not told.startswith(f"bytes {start}-{stop - 1}/"):
            answer.close()  # what would follow may be the whole object
            raise RefusedError(answer.status)
        body: bytes = await answer.read()
        if len(body) != stop - start:
            raise EOFError(f"{len(body):,} bytes came of {stop - start:,}")
        return body, answer.headers.get("ETag")


@lru_cache(maxsize=64)
def _proxy_of(scheme: str, host: str) -> str | None:
    """As the environment has it, which botocore follows too; aiohttp itself would look it up for every request."""
    return None if proxy_bypass(host) else getproxies().get(scheme)


_sessions: dict[int, tuple[Any, Any]] = {}
"""Process → its loop and session. Those of a parent are kept, unused, so that nothing closes its connections here."""


def _session() -> Any:
    """The session of this process's loop; called on the loop."""
    import aiohttp

    loop = asyncio.get_running_loop()
    known = _sessions.get(os.getpid())
    if known is None or known[0] is not loop:
        if not _sessions:
            atexit.register(_close)
        session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=_CONNECTIONS, ttl_dns_cache=60),
            cookie_jar=aiohttp.DummyCookieJar(),
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS),
            auto_decompress=False,
            read_bufsize=_BUFFER,
            skip_auto_headers=("Accept", "Accept-Encoding"),
        )
        known = _sessions[os.getpid()] = loop, session
    return known[1]


def _close() -> None:
    """At the end of the process: an open session would say so on stderr."""
    known = _sessions.get(os.getpid())
    if known is None or not known[0].is_running() or threading.current_thread().name == "fsspecIO":
        return
    asyncio.run_coroutine_threadsafe(known[1].close(), known[0]).result(timeout=1.0)
