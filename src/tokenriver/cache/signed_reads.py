"""Ranges past a store's client: by URLs signed once for many requests, ten times cheaper than a request through it.

Only what is right counts: a whole range of the object that was expected. Everything else is asked for through the
client, which knows the store's errors and has a patience of its own; so a store that cannot sign, or refuses what was
signed, is read as it would be without this.
"""

from __future__ import annotations

import logging
import time
from typing import TYPE_CHECKING, Any

from tokenriver.storage import plain_http, shown
from tokenriver.storage.failures import PASSING_STATUS, may_pass
from tokenriver.storage.patience import seconds_asked_by
from tokenriver.storage.plain_http import RefusedError, get_ranges
from tokenriver.storage.signing import SignedUrls, signer_of

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenriver.storage.plain_http import Answer

__all__ = ["SignedReads"]

_AGAIN = 60.0
"""Seconds after which a store is tried again that gave nothing this way."""

_TO_SIGN_ANEW = (400, 401, 403)
"""What an old signature, or one with credentials that have ended, is answered with; each store has its own."""

_LOG = logging.getLogger("tokenriver.cache")

Came = tuple[bytes, str | None] | RefusedError | None
"""Bytes and version, or why there are none."""


class SignedReads:
    """Reads ranges of the objects of one file system; may be used by several threads."""

    def __init__(self, fs: Any) -> None:
        sign = signer_of(fs) if plain_http.available() else None
        self._urls = None if sign is None else SignedUrls(sign)
        self._not_before = 0.0

    def ranges(self, wanted: Sequence[tuple[str, int, int]], *, at_once: int) -> list[Came]:
        """Bytes [start, stop) of paths, with the object's version; None for what did not come, the refusal for what a
        server does not give now and says when to ask again."""
        found: list[Came] = [None] * len(wanted)
        urls = self._urls
        if urls is None or not wanted or time.monotonic() < self._not_before:
            return found
        left, problems = list(range(len(wanted))), dict[int, Exception]()
        for _ in range(2):  # once more with new signatures where the old ones are refused
            try:
                signed = {path: urls.of(path) for path in {wanted[k][0] for k in left}}
            except Exception as error:  # whatever a client says that cannot sign
                problems.update(dict.fromkeys(left, error))
                break
            asked = [(signed[wanted[k][0]].url, *wanted[k][1:]) for k in left]
            refused = []
            for k, answer in zip(left, get_ranges(asked, at_once=at_once), strict=True):
                path = wanted[k][0]
                if not isinstance(answer, Exception):
                    found[k] = answer[0], signed[path].version or answer[1]
                    problems.pop(k, None)
                    continue
                problems[k] = answer
                if isinstance(answer, RefusedError) and _passing(answer) and seconds_asked_by(answer) is not None:
                    found[k] = answer
                if _outdated(answer):
                    refused.append(k)
                    urls.drop(path, signed[path])
            left = refused
            if not left:
                break
        if problems:
            first = next(iter(problems.values()))
            self._note(first, wanted[0][0], hopeless=len(problems) == len(wanted) and not _passing(first))
        return found

    def _note(self, failure: Exception, path: str, *, hopeless: bool) -> None:
        """What failed is said at length by the client, if it fails there too."""
        what = str(failure) if isinstance(failure, RefusedError) else type(failure).__name__  # others may say the URL
        if hopeless:
            self._not_before = time.monotonic() + _AGAIN
            _LOG.info("%s: not to be read by signed URLs (%s); its client is asked for a while", shown(path), what)
        else:
            _LOG.debug("%s: by a signed URL %s; its client is asked", shown(path), what)


def _outdated(answer: Answer) -> bool:
    return isinstance(answer, RefusedError) and answer.status in _TO_SIGN_ANEW


def _passing(failure: Exception) -> bool:
    if isinstance(failure, RefusedError):
        return failure.status == 404 or failure.status >= 500 or failure.status in (200, 206, *PASSING_STATUS)
    return may_pass(failure) and "Certificate" not in type(failure).__name__ and "SSL" not in type(failure).__name__
