"""URLs under which an object may be read by plain HTTP for a while: signed by a store's client, or told by the Hub.

A client signs every request anew, which for a small range costs ten times what the request itself does. Such a URL is a
secret: it is kept in memory only, and never part of a message.
"""

from __future__ import annotations

import threading
import time
from collections import OrderedDict
from concurrent.futures import Future
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["SIGNED_SECONDS", "SignedUrl", "SignedUrls", "signer_of"]

SIGNED_SECONDS = 6 * 3600
"""How long a signature is asked to hold; at most until the credentials behind it end. Half of it is used."""

_HUB_SECONDS = 1800
"""The Hub says by itself how long, an hour at the least; half of that is used."""

_KEPT = 1 << 14
"""URLs kept; of 150,000 shards in a shuffled order nearly every row then costs a signature, 0.9 ms, all the same."""


@dataclass(frozen=True, slots=True)
class SignedUrl:
    """A URL that needs no further credentials. `version` is what the store said of the object when it gave the URL."""

    url: str
    until: float
    version: str | None = None

    def __repr__(self) -> str:
        return "SignedUrl(…)"


class SignedUrls:
    """The signed URLs of paths in one file system, each made when first asked for and again before it ends."""

    def __init__(self, sign: Callable[[str], SignedUrl]) -> None:
        self._sign, self._lock = sign, threading.Lock()
        self._kept: OrderedDict[str, SignedUrl] = OrderedDict()
        self._under_way: dict[str, Future[SignedUrl]] = {}

    def of(self, path: str) -> SignedUrl:
        """A URL that holds for a while. Raises what the client raises that cannot sign."""
        with self._lock:
            found = self._kept.get(path)
            if found is not None and found.until > time.monotonic():
                return found
            theirs = self._under_way.get(path)
            if theirs is None:
                mine = self._under_way[path] = Future()
        return self._make(path, mine) if theirs is None else theirs.result()

    def _make(self, path: str, to_tell: Future[SignedUrl]) -> SignedUrl:
        """Sign, and tell the other threads that want the same URL."""
        try:
            made = self._sign(path)
        except BaseException as error:
            with self._lock:
                del self._under_way[path]
            to_tell.set_exception(error)
            raise
        with self._lock:
            del self._under_way[path]
            self._kept[path] = made
            while len(self._kept) > _KEPT:
                self._kept.popitem(last=False)
        to_tell.set_result(made)
        return made

    def drop(self, path: str, refused: SignedUrl) -> None:
        """A URL was refused: sign anew when it is asked for again, unless that was done meanwhile."""
        with self._lock:
            if self._kept.get(path) is refused:
                del self._kept[path]


def signer_of(fs: Any) -> Callable[[str], SignedUrl] | None:
    """What signs paths of fsspec's file system; None for those that cannot, or whose requests need more than a URL."""
    names = {fs.protocol} if isinstance(fs.protocol, str) else set(fs.protocol)
    if names & {"http", "https"}:
        plain = not (fs.kwargs or fs.client_kwargs)  # else with headers or credentials of its own
        return (lambda path: SignedUrl(str(fs.encode_url(path)), float("inf"))) if plain else None
    if "hf" in names:
        return lambda path: _from_the_hub(fs, path)
    if "s3" in names:
        if fs.req_kw:  # a requester who pays says so in a header
            return None
        # Without being told, botocore signs URLs (not requests) by the version that newer regions and buckets refuse.
        version_4 = {"signature_version": "s3v4", **fs.config_kwargs}
        fs = type(fs)(*fs.storage_args, **{**fs.storage_options, "config_kwargs": version_4})
    elif getattr(type(fs), "sign", None) is _abstract_sign():
        return None
    return lambda path: SignedUrl(fs.sign(path, expiration=SIGNED_SECONDS), time.monotonic() + SIGNED_SECONDS / 2)


def _abstract_sign() -> Any:
    from fsspec.spec import AbstractFileSystem

    return AbstractFileSystem.sign


def _from_the_hub(fs: Any, path: str) -> SignedUrl:
    """Where the Hub sends whoever asks for a large file; a small one it sends itself, to whom has the token."""
    from huggingface_hub import get_hf_file_metadata

    facts = get_hf_file_metadata(fs.url(path), token=fs.token, endpoint=fs.endpoint)
    if facts.location.startswith(fs.endpoint.rstrip("/") + "/"):
        raise NotImplementedError("the Hub sends the file itself")
    return SignedUrl(facts.location, time.monotonic() + _HUB_SECONDS, facts.etag)
