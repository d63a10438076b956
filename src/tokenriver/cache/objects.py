"""Bytes of the objects below a URL, through fsspec, with patience: a store that is slow or failing is waited for.

Ranges come by signed URLs where the store has such, else (and where that fails) through its client. The clients retry
by themselves a few times within seconds; what gets through is tried again here with back-off and a message, for an
hour. A short answer is a failure like any other. What cannot pass by itself (no such object, no permission) is raised
at once.
"""

from __future__ import annotations

import errno
import logging
import os
import random
import threading
import time
from typing import TYPE_CHECKING, Any, TypeVar

from tokenriver.cache.signed_reads import SignedReads
from tokenriver.errors import IntegrityError, TokenRiverError
from tokenriver.storage import plain_http, shown
from tokenriver.storage.failures import explained, hidden_failure, may_pass
from tokenriver.storage.objects import plain_tag
from tokenriver.storage.paths import filesystem_of, is_s3, scheme_of
from tokenriver.storage.patience import seconds_asked_by
from tokenriver.storage.plain_http import RefusedError

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

__all__ = ["AT_ONCE", "Objects", "StoppedError", "describe"]

T = TypeVar("T")

Range = tuple[str, int, int]
"""(name, first byte, byte after the last)."""

FIRST_WAIT, LONGEST_WAIT = 0.5, 30.0
"""Seconds before the second try and, doubling, at most between two; half as much more or less by chance."""

PATIENCE = 3600.0
"""Seconds without a byte after which a store that fails is given up."""

AT_ONCE = 64
"""Ranges asked for at the same time: a latency of 30 ms then allows 2,000 a second."""

_LOOK_AGAIN = 60.0
"""Seconds after which an object is asked for its version again, where ranges do not tell it: a request of its own."""

_LOG = logging.getLogger("tokenriver.cache")


class StoppedError(Exception):
    """Whoever asked no longer wants to know: a loader that was closed while it waited."""


class Objects:
    """Reads the objects below one URL; a name is relative to it. Threads may share it, and it survives fork and pickle.

    Methods raise FileNotFoundError, PermissionError, StorageError after an hour of failures (each names the object),
    and StoppedError once `stopped` is set.
    """

    def __init__(self, url: str, *, versions: dict[str, str] | None = None, listed: bool = False) -> None:
        self.url = url.rstrip("/")
        self._fs: Any = None
        self._versions, self._listed = versions or {}, listed
        self._renew()

    def __getstate__(self) -> dict[str, Any]:
        return {"url": self.url, "versions": self._versions, "listed": self._listed}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(**state)  # type: ignore[misc]

    def _renew(self) -> None:
        self._pid, self._fs, self._root = os.getpid(), None, ""
        self._signed: SignedReads | None = None
        self._looked: dict[str, float] = {}
        self._lock = threading.Lock()

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
        names = self._patiently(self.url, self._list_now, stopped)
        if is_s3(self.url):  # elsewhere a listing's tag is another than an answer's
            self._versions, self._listed = _tags(names), True
        unknown = [name for name, one in names.items() if one.get("size") is None]  # a web server's list of links
        for name, size in self.sizes(unknown, stopped=stopped).items() if unknown else ():
            names[name] = {**names[name], "size": size}
        return names

    def _list_now(self) -> dict[str, dict[str, Any]]:
        fs, root = self._open()
        fs.invalidate_cache(root)
        try:
            found = fs.ls(root, detail=True)
        except FileNotFoundError:
            return {}
        return {str(one["name"]).rstrip("/").rpartition("/")[2]: one for one in found if one["type"] == "file"}

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
        wanted: Sequence[Range],
        *,
        stopped: threading.Event | None = None,
        at_once: int = AT_ONCE,
        any_version: bool = False,
    ) -> list[bytes]:
        """Bytes [start, stop) of objects, each exactly so long; all asked for at the same time.

        IntegrityError when an object is another than the one that was listed, or than the first one that was read,
        as far as the store tells; not with `any_version`, where a checksum decides.
        """
        self._open()
        found: list[bytes | None] = [None] * len(wanted)

        def ask() -> None:
            left = [k for k, one in enumerate(found) if one is None]
            by_client = self._ask_signed(wanted, left, found, at_once=at_once, any_version=any_version)
            if by_client:
                self._ask_client(wanted, by_client, found, at_once=at_once, any_version=any_version)

        while None in found:
            self._patiently(lambda: self.url_of(wanted[found.index(None)][0]), ask, stopped)
        return found  # type: ignore[return-value]

    def _ask_signed(
        self, wanted: Sequence[Range], left: list[int], found: list[bytes | None], *, at_once: int, any_version: bool
    ) -> list[int]:
        """Fill in what signed URLs give of those that are left; gives what they do not. RefusedError where the server
        asks to be left alone for a while."""
        fs, root = self._open()
        if self._signed is None:
            self._signed = SignedReads(fs)
        busy: RefusedError | None = None
        answers = self._signed.ranges([(f"{root}/{wanted[k][0]}", *wanted[k][1:]) for k in left], at_once=at_once)
        for k, answer in zip(left, answers, strict=True):
            if isinstance(answer, RefusedError):
                busy = answer
            elif answer is not None:
                if answer[1] is not None and not any_version:
                    self._compare(wanted[k][0], answer[1])
                found[k] = answer[0]
        if busy is not None:  # its client would be refused too
            raise busy
        return [k for k in left if found[k] is None]

    def _ask_client(
        self, wanted: Sequence[Range], left: list[int], found: list[bytes | None], *, at_once: int, any_version: bool
    ) -> None:
        """Fill in what the store's client gives; raises the first failure if nothing came, or if it cannot pass."""
        fs, root = self._open()
        failure: Exception | None = None
        options = {"batch_size": at_once} if fs.async_impl else {}
        paths = [f"{root}/{wanted[k][0]}" for k in left]
        starts, stops = [wanted[k][1] for k in left], [wanted[k][2] for k in left]
        if scheme_of(self.url) == "hf" and plain_http.available():
            answers = [_from_the_hub(fs, *one) for one in zip(paths, starts, stops, strict=True)]
        else:
            answers = fs.cat_ranges(paths, starts, stops, on_error="return", **options)
        came: set[str] = set()
        for k, answer in zip(left, answers, strict=True):
            name, start, stop = wanted[k]
            if isinstance(answer, Exception):
                failure = failure or answer
            elif len(answer) != stop - start:
                message, kind = f"{len(answer):,} bytes instead of {stop - start:,} from byte {start:,} on", errno.EIO
                if len(answer) > stop - start:  # no patience helps
                    message, kind = f"the server knows no ranges ({message}); download the files", errno.ENOSYS
                failure = failure or OSError(kind, message, self.url_of(name))
            else:
                found[k] = bytes(answer)
                came.add(name)
        if failure is not None and (not came or not may_pass(failure)):
            raise failure
        if not any_version:
            for name in came & self._versions.keys():
                self._look_again(name)

    def _look_again(self, name: str) -> None:
        """Compare versions after reading through the client, which does not tell of which its bytes are."""
        now = time.monotonic()
        if now - self._looked.get(name, -_LOOK_AGAIN) < _LOOK_AGAIN:
            return
        self._looked[name] = now
        fs, root = self._open()
        fs.invalidate_cache(f"{root}/{name}")
        if tag := fs.info(f"{root}/{name}").get("ETag"):
            self._compare(name, tag)

    def _compare(self, name: str, version: str) -> None:
        """Hold an object to the version that was listed, else to the one that was read first."""
        now = plain_tag(version)
        with self._lock:
            known = self._versions.setdefault(name, now)
            if known == now:
                return
            if self._listed and _tags(self._list_now()).get(name) == known:
                # It has not changed: this store's listings tell other tags than its answers.
                self._versions, self._listed = {name: now}, False
                return
        raise IntegrityError(
            f"{self.url_of(name)}: changed on the store since the loader opened (its version was {known}, and is "
            f"{now}); open it anew, or put back what was there"
        )

    def _patiently(self, what: str | Callable[[], str], action: Callable[[], T], stopped: threading.Event | None) -> T:
        """What `action` gives, tried again with back-off; an action that got further begins its own patience.

        `what` is named in errors: where it is a function, as it stands when `action` has failed.
        """
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
                error, name = hidden_failure(failure) or failure, what if isinstance(what, str) else what()
                waited, tries = time.monotonic() - begun, tries + 1
                if not may_pass(error) or waited > PATIENCE:
                    raise explained(error, name) from failure
                said = explained(error, name).strerror
                pause = min(FIRST_WAIT * 2 ** min(tries - 1, 20), LONGEST_WAIT) * (0.75 + random.random() / 2)
                pause = max(pause, seconds_asked_by(error) or 0.0)
                _LOG.warning("%s: %s; %d tries in %.0f s, the next in %.1f s", shown(name), said, tries, waited, pause)
                stopped.wait(pause)


def _tags(listing: dict[str, dict[str, Any]]) -> dict[str, str]:
    return {name: plain_tag(one["ETag"]) for name, one in listing.items() if one.get("ETag")}


def describe(info: dict[str, Any]) -> str:
    """A store's facts about an object, in one line; what changes at every look (as nothing here) is left out."""
    names = ("size", "ETag", "etag", "LastModified", "last_modified", "mtime", "created", "md5Hash", "generation")
    return " ".join(f"{name}={info[name]}" for name in names if info.get(name) is not None)


_SENT_WHOLE = 16 << 20
"""Bytes up to which the Hub may send a file itself (10 MB), instead of saying where it is."""


def _from_the_hub(fs: Any, path: str, start: int, stop: int) -> bytes | Exception:
    """A range of a small file, read whole. The Hub's client takes a whole body for a range where a server ignores that
    one was asked for, so of a large file only signed reads count, which are tried again."""
    try:
        if fs.info(path)["size"] > _SENT_WHOLE:
            return OSError(errno.EIO, "no range came from where the Hub keeps the file", path)
        return bytes(fs.cat_file(path)[start:stop])
    except Exception as error:  # handed over, as `on_error="return"` does
        return error
