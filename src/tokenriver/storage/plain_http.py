"""Ranges over HTTP from URLs that need no client of a store: many under way in one session, each whole or an error.

aiohttp, which fsspec's clients bring with them, on the loop that they use: 0.2 to 0.4 core-ms a small range, where s3fs
takes 2.3 to 4, and two thirds of what s3fs takes for a large one.
"""

from __future__ import annotations

import asyncio
import atexit
import contextlib
import os
import threading
from functools import lru_cache
from typing import TYPE_CHECKING, Any
from urllib.request import getproxies, proxy_bypass

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

__all__ = ["Answer", "RefusedError", "available", "get_ranges"]

_SMALL_BYTES = 1 << 20
_SMALL_AT_ONCE, _BESIDE_LARGE, _LARGE_AT_ONCE = 256, 96, 64
"""Ranges of up to so many bytes under way at the same time (fewer beside larger ones), and larger ones, of all threads.

At 30 ms to an answer 96 are 3,000 a second, more than the loop can do. With more of them waiting for it, it would come
round to the large ones too seldom: beside a reader that takes all it can (two busy cores) whole shards came at 8 MB/s,
with 96 at 30.
"""

_CONNECT_SECONDS, _READ_SECONDS = 10.0, 30.0
"""Without a connection, or without a byte, for so long a range has failed."""

_BUFFER = 1 << 20
"""Bytes of a body after which reading pauses until they are taken; with 64 KiB a MB costs up to twice the CPU."""

Wanted = tuple[str, int, int]
"""(URL, first byte, byte after the last)."""

Answer = tuple[bytes, str | None] | Exception
"""The bytes and the object's entity tag, or what went wrong."""


class RefusedError(OSError):
    """The server answered, but not with the range."""

    def __init__(self, status: int, headers: Mapping[str, str]) -> None:
        super().__init__(f"the server answered {status}")
        self.status = status
        self.headers = headers


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
    client = _client()
    found: list[Answer] = [EOFError("not asked for")] * len(wanted)
    left = iter(enumerate(wanted))
    await asyncio.gather(*(_take_turns(client, left, found) for _ in range(min(at_once, len(wanted)))))
    return found


async def _take_turns(client: _Client, left: Iterator[tuple[int, Wanted]], found: list[Answer]) -> None:
    for k, (url, start, stop) in left:
        try:
            found[k] = await client.get(url, start, stop)
        except Exception as error:  # handed over: the caller decides for each
            found[k] = error


class _Client:
    """The sessions of one process, on the loop on which it was made."""

    def __init__(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._small, self._large = _session(_SMALL_AT_ONCE), _session(_LARGE_AT_ONCE)
        self._beside_large = asyncio.Semaphore(_BESIDE_LARGE)
        self._n_large = 0

    async def get(self, url: str, start: int, stop: int) -> tuple[bytes, str | None]:
        if stop - start <= _SMALL_BYTES:
            async with self._beside_large if self._n_large else contextlib.nullcontext():
                return await _get(self._small, url, start, stop)
        self._n_large += 1
        try:
            return await _get(self._large, url, start, stop)
        finally:
            self._n_large -= 1

    async def close(self) -> None:
        await self._small.close()
        await self._large.close()


async def _get(session: Any, url: str, start: int, stop: int) -> tuple[bytes, str | None]:
    from yarl import URL

    place, wanted = URL(url, encoded=True), {"Range": f"bytes={start}-{stop - 1}"}
    async with session.get(place, headers=wanted, proxy=_proxy_of(place.scheme, place.host or "")) as answer:
        told = answer.headers.get("Content-Range", "")
        if answer.status != 206 or not told.startswith(f"bytes {start}-{stop - 1}/"):
            answer.close()  # what would follow may be the whole object
            raise RefusedError(answer.status, answer.headers)
        body: bytes = await answer.read()
        if len(body) != stop - start:
            raise EOFError(f"{len(body):,} bytes came of {stop - start:,}")
        return body, answer.headers.get("ETag")


@lru_cache(maxsize=64)
def _proxy_of(scheme: str, host: str) -> str | None:
    """As the environment has it, which botocore follows too; aiohttp itself would look it up for every request."""
    return None if proxy_bypass(host) else getproxies().get(scheme)


def _session(connections: int) -> Any:
    import aiohttp

    return aiohttp.ClientSession(
        connector=aiohttp.TCPConnector(limit=connections, ttl_dns_cache=60),
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=aiohttp.ClientTimeout(total=None, sock_connect=_CONNECT_SECONDS, sock_read=_READ_SECONDS),
        auto_decompress=False,
        read_bufsize=_BUFFER,
        skip_auto_headers=("Accept", "Accept-Encoding"),
    )


_clients: dict[int, _Client] = {}
"""By process. A parent's is kept, unused, so that nothing closes its connections here."""


def _client() -> _Client:
    """This process's; called on the loop."""
    known = _clients.get(os.getpid())
    if known is None or known.loop is not asyncio.get_running_loop():
        if not _clients:
            atexit.register(_close)
        known = _clients[os.getpid()] = _Client()
    return known


def _close() -> None:
    """At the end of the process: an open session would say so on stderr."""
    known = _clients.get(os.getpid())
    if known is not None and known.loop.is_running() and threading.current_thread().name != "fsspecIO":
        asyncio.run_coroutine_threadsafe(known.close(), known.loop).result(timeout=1.0)
