"""Bytes of the objects below a URL, through fsspec, with patience: a store that is slow or failing is waited for.

The clients retry by themselves a few times within seconds; what gets through is tried again here with back-off and a
message, for an hour. A short answer is a failure like any other. What cannot pass by itself (no such object, no
permission) is raised at once.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from tokenriver.errors import TokenRiverError
from tokenriver.storage import shown
from tokenriver.storage.failures import explained, hidden_failure, may_pass
from tokenriver.storage.paths import filesystem_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["Objects", "StoppedError", "describe"]

T = TypeVar("T")

FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds before the second try and, doubling, at most between two; half as much more or less by chance."""

PATIENCE = 3600.0
"""Seconds without a byte after which a store that fails is given up."""

_AT_ONCE = 64
"""Ranges asked for at the same time: a latency of 30 ms then allows 2,000 a second."""

_LOG = logging.getLogger("tokenriver.cache")


class StoppedError(Exception):
    """Whoever asked no longer wants to know: a loader that was closed while it waited."""


class Objects:
    """Reads the objects below one URL; a name is relative to it. Threads may share it, and it survives fork and pickle.

    Methods raise FileNotFoundError, PermissionError, StorageError after an hour of failures (each names the object),
    and StoppedError once `stopped` is set.
    """

    def __init__(self, url: str) -> None:
        self.url = url.rstrip("/")
        self._fs: Any = None
        self._renew()

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["url"])  # type: ignore[misc]

    def _renew(self) -> None:
        self._pid, self._fs, self._root = os.getpid(), None, ""

    def _open(self) -> tuple[Any, str]:
        """fsspec's file system and the path of the URL in it, made anew in a forked child."""
        if self._fs is None or self._pid != os.getpid():
            self._renew()
            self._fs, self._root = filesystem_of(self.url)
        return self._fs, str(self._root).rstrip("/")

    def url_of(self, name: str) -> str:
        """The whole URL of an object."""
        return f"{self.url}/{name}"

    def listing(self, *, stopped: threading.Event | None = None) -> dict[str, dict[str, Any]]:
        """Objects directly below the URL by name, each with `size` and what else the store says. May be empty."""
        fs, root = self._open()

        def list_all() -> dict[str, dict[str, Any]]:
            fs.invalidate_cache(root)
            try:
                found = fs.ls(root, detail=True)
            except FileNotFoundError:
                return {}
            return {str(one["name"]).rstrip("/").rpartition("/")[2]: one for one in found if one["type"] == "file"}

        names = self._patiently(self.url, list_all, stopped)
        unknown = [name for name, one in names.items() if one.get("size") is None]  # a web server's list of links
        for name, size in self.sizes(unknown, stopped=stopped).items() if unknown else ():
            names[name] = {**names[name], "size": size}
        return names

    def sizes(self, names: Sequence[str], *, stopped: threading.Event | None = None) -> dict[str, int]:
        """Bytes of each object, for stores that list nothing: one request each."""
        fs, root = self._open()
        found = self._patiently(self.url, lambda: fs.sizes([f"{root}/{name}" for name in names]), stopped)
        if None in found:
            raise OSError(errno.EIO, "the store does not say how large it is", self.url_of(names[found.index(None)]))
        return dict(zip(names, map(int, found), strict=True))

    def facts(self, name: str, *, stopped: threading.Event | None = None) -> str:
        """What changes when an object does: size, entity tag, time of modification, as far as the store tells them."""
        return describe(self.info(name, stopped=stopped))

    def info(self, name: str, *, stopped: threading.Event | None = None) -> dict[str, Any]:
        """All that the store says of one object, `size` among it."""
        fs, root = self._open()

        def look() -> dict[str, Any]:
            fs.invalidate_cache(root)
            found: dict[str, Any] = fs.info(f"{root}/{name}")
            if found.get("size") is None:
                raise OSError(errno.ENOSYS, "the store does not say how large it is", self.url_of(name))
            return found

        return self._patiently(self.url_of(name), look, stopped)

    def whole(self, name: str, *, stopped: threading.Event | None = None) -> bytes:
        """All bytes of a small object."""
        fs, root = self._open()
        raw: bytes = self._patiently(self.url_of(name), lambda: fs.cat_file(f"{root}/{name}"), stopped)
        return raw

    def ranges(
        self,
        wanted: Sequence[tuple[str, int, int]],
        *,
        stopped: threading.Event | None = None,
        at_once: int = _AT_ONCE,
        got: Callable[[int, bytes], None] | None = None,
    ) -> list[bytes]:
        """Bytes [start, stop) of objects, each exactly so long; all asked for at the same time.

        `got(k, bytes)` is called for every one that arrived, before those that failed are tried again.
        """
        fs, root = self._open()
        found: list[bytes | None] = [None] * len(wanted)
        left = list(range(len(wanted)))
        while left:
            now = list(left)

            def ask(now: list[int] = now) -> None:
                failure: Exception | None = None
                paths = [f"{root}/{wanted[k][0]}" for k in now]
                options = {"batch_size": at_once} if fs.async_impl else {}
                answers = fs.cat_ranges(
                    paths, [wanted[k][1] for k in now], [wanted[k][2] for k in now], on_error="return", **options
                )
                for k, answer in zip(now, answers, strict=True):
                    name, start, stop = wanted[k]
                    if isinstance(answer, Exception):
                        failure = failure or answer
                    elif len(answer) != stop - start:
                        message, kind = (
                            f"{len(answer):,} bytes instead of {stop - start:,} from byte {start:,} on",
                            errno.EIO,
                        )
                        if len(answer) > stop - start:  # no patience helps
                            message, kind = f"the server knows no ranges ({message}); download the files", errno.ENOSYS
                        failure = failure or OSError(kind, message, self.url_of(name))
                    else:
                        found[k] = bytes(answer)
                        left.remove(k)
                        if got is not None:
                            got(k, found[k])  # type: ignore[arg-type]
                if failure is not None and (len(left) == len(now) or not may_pass(failure)):
                    raise failure

            self._patiently(self.url_of(wanted[left[0]][0]), ask, stopped)
        return found  # type: ignore[return-value]

    def _patiently(self, what: str, action: Callable[[], T], stopped: threading.Event | None) -> T:
        """What `action` gives, tried again with back-off; an action that got further begins its own patience."""
        begun, tries = time.monotonic(), 0
        stopped = stopped or threading.Event()
        while True:
            if stopped.is_set():
                raise StoppedError
            try:
                return action()
            except TokenRiverError:
                raise
            except Exception as failure:
                error = hidden_failure(failure) or failure
                waited, tries = time.monotonic() - begun, tries + 1
                if not may_pass(error) or waited > PATIENCE:
                    raise explained(error, what) from failure
                said = explained(error, what).strerror
                pause = min(FIRST_WAIT * 2 ** min(tries - 1, 20), LONGEST_WAIT) * (0.75 + random.random() / 2)
                _LOG.warning("%s: %s; %d tries in %.0f s, the next in %.1f s", shown(what), said, tries, waited, pause)
                stopped.wait(pause)


def describe(info: dict[str, Any]) -> str:
    """A store's facts about an object, in one line; what changes at every look (as nothing here) is left out."""
    names = ("size", "ETag", "etag", "LastModified", "last_modified", "mtime", "created", "md5Hash", "generation")
    return " ".join(f"{name}={info[name]}" for name in names if info.get(name) is not None)
