"""The few calls of huggingface_hub's own HTTP client that its higher functions do not offer: one place that knows them.

They carry its session (proxies, HF_HUB_OFFLINE), its headers (HF_TOKEN) and its back-off from connections that fail.
"""

from __future__ import annotations

import logging
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Literal
from urllib.parse import quote

from tokenriver.storage.paths import shown
from tokenriver.storage.patience import seconds_asked

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ask_json", "file_url", "head", "list_tree", "raise_for_status", "stream", "web_head", "web_stream"]

_PASSING = (408, 429, 500, 502, 503, 504)
_WAITS = (1.0, 2.0, 4.0, 8.0, 8.0)
"""Statuses that may pass, and seconds before each further try where the server names none: the library's own."""

_LOG = logging.getLogger("tokenriver.hub")


_AS_IT_IS = {"Accept-Encoding": "identity"}
"""No compression: sizes and ranges count the file's own bytes."""


def file_url(repo_id: str, name: str, *, revision: str) -> str:
    """Where a file of a data set repository is served."""
    from huggingface_hub import constants, hf_hub_url

    return hf_hub_url(repo_id, name, repo_type="dataset", revision=revision, endpoint=constants.ENDPOINT)


def ask_json(path: str, *parts: str) -> dict[str, Any]:
    """GET of the API: ENDPOINT/api/`path`/`parts`, each part quoted."""
    from huggingface_hub import constants

    url = "/".join([constants.ENDPOINT, "api", path, *(quote(part, safe="") for part in parts)])
    response = _answer("GET", url, headers=_headers())
    raise_for_status(response)
    answer = response.json()
    return answer if isinstance(answer, dict) else {}


def head(url: str) -> Any:
    """HEAD of a file, without following the redirect to where a large file is stored."""
    response = _answer("HEAD", url, headers=_headers(), follow_redirects=False)
    raise_for_status(response)
    return response


@contextmanager
def stream(url: str, *, start: int = 0) -> Iterator[Any]:
    """GET of a file's bytes from `start` on; what raises inside must not be an error of the client's transport."""
    with _streamed(url, headers={**_headers(), **_from(start)}) as response:
        yield response


@contextmanager
def web_stream(url: str, *, start: int = 0) -> Iterator[Any]:
    """GET of a file anywhere else from `start` on: the same session and back-off, but no token goes there."""
    with _streamed(url, headers={**_AS_IT_IS, **_from(start)}, follow_redirects=True) as response:
        yield response


def web_head(url: str) -> Any:
    """HEAD of a file anywhere else, redirects followed, whatever the status; no token goes there."""
    return _answer("HEAD", url, headers={**_AS_IT_IS}, follow_redirects=True)


def list_tree(repo_id: str, *, revision: str) -> list[Any]:
    """Everything that a data set repository holds. Here the library waits by itself, but not until a date."""
    from huggingface_hub import HfApi
    from huggingface_hub.errors import HfHubHTTPError

    def ask() -> list[Any]:
        return list(HfApi().list_repo_tree(repo_id, recursive=True, revision=revision, repo_type="dataset"))

    try:
        return ask()
    except HfHubHTTPError as error:
        if not _waited(error.response, None if seconds_asked(error.response.headers) is None else _WAITS[-1]):
            raise
    return ask()


def raise_for_status(response: Any) -> None:
    """The library's own errors for an answer of 400 and up."""
    from huggingface_hub.utils import hf_raise_for_status

    hf_raise_for_status(response)


def _from(start: int) -> dict[str, str]:
    return {"Range": f"bytes={start}-"} if start else {}


def _answer(method: Literal["GET", "HEAD"], url: str, **options: Any) -> Any:
    """One answer, after what passes by itself was waited out."""
    from huggingface_hub import constants
    from huggingface_hub.utils import http_backoff

    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    for wait in (*_WAITS, None):
        response = http_backoff(method, url, timeout=timeout, retry_on_status_codes=(), **options)
        if not _waited(response, wait):
            break
    return response


@contextmanager
def _streamed(url: str, **options: Any) -> Iterator[Any]:
    """The same for an answer whose body is still to come."""
    from huggingface_hub import constants
    from huggingface_hub.utils import http_stream_backoff

    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    for wait in (*_WAITS, None):
        with http_stream_backoff("GET", url, timeout=timeout, retry_on_status_codes=(), **options) as response:
            if response.status_code not in _PASSING or wait is None:
                yield response
                return
        _waited(response, wait)


def _waited(response: Any, wait: float | None) -> bool:
    """Whether to ask again, when it is time to: as the server says (the library knows no dates), else after `wait`."""
    from huggingface_hub.utils import parse_ratelimit_headers

    if response.status_code not in _PASSING or wait is None:
        return False
    limit = parse_ratelimit_headers(response.headers) if response.status_code == 429 else None
    asked = limit.reset_in_seconds + 1.0 if limit and not limit.remaining else seconds_asked(response.headers)
    pause = wait if asked is None else asked
    _LOG.warning("%s: HTTP %d; trying again in %.0f s", shown(str(response.url)), response.status_code, pause)
    time.sleep(pause)
    return True


def _headers() -> dict[str, str]:
    """The library's headers, and no compression."""
    from huggingface_hub.utils import build_hf_headers

    return {**build_hf_headers(library_name="tokenriver"), **_AS_IT_IS}
