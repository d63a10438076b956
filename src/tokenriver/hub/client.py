"""The few calls of huggingface_hub's own HTTP client that its higher functions do not offer: one place that knows them.

They carry its session (proxies, HF_HUB_OFFLINE), its headers (HF_TOKEN) and its back-off (429 with Retry-After, 5xx,
refused connections).
"""

from __future__ import annotations

from contextlib import contextmanager
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["ask_json", "file_url", "head", "raise_for_status", "stream", "web_head", "web_stream"]


_AS_IT_IS = {"Accept-Encoding": "identity"}
"""No compression: sizes and ranges count the file's own bytes."""


def file_url(repo_id: str, name: str, *, revision: str) -> str:
    """Where a file of a data set repository is served."""
    from huggingface_hub import constants, hf_hub_url

    return hf_hub_url(repo_id, name, repo_type="dataset", revision=revision, endpoint=constants.ENDPOINT)


def ask_json(path: str, *parts: str) -> dict[str, Any]:
    """GET of the API: ENDPOINT/api/`path`/`parts`, each part quoted."""
    from huggingface_hub import constants
    from huggingface_hub.utils import http_backoff

    url = "/".join([constants.ENDPOINT, "api", path, *(quote(part, safe="") for part in parts)])
    response = http_backoff("GET", url, headers=_headers(), timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT)
    raise_for_status(response)
    answer = response.json()
    return answer if isinstance(answer, dict) else {}


def head(url: str) -> Any:
    """HEAD of a file, without following the redirect to where a large file is stored."""
    from huggingface_hub import constants
    from huggingface_hub.utils import http_backoff

    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    response = http_backoff("HEAD", url, headers=_headers(), timeout=timeout, follow_redirects=False)
    raise_for_status(response)
    return response


@contextmanager
def stream(url: str, *, start: int = 0) -> Iterator[Any]:
    """GET of a file's bytes from `start` on; what raises inside must not be an error of the client's transport."""
    from huggingface_hub import constants
    from huggingface_hub.utils import http_stream_backoff

    headers = {**_headers(), **_from(start)}
    with http_stream_backoff("GET", url, headers=headers, timeout=constants.HF_HUB_DOWNLOAD_TIMEOUT) as response:
        yield response


@contextmanager
def web_stream(url: str, *, start: int = 0) -> Iterator[Any]:
    """GET of a file anywhere else from `start` on: the same session and back-off, but no token goes there."""
    from huggingface_hub import constants
    from huggingface_hub.utils import http_stream_backoff

    headers = {**_AS_IT_IS, **_from(start)}
    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    with http_stream_backoff("GET", url, headers=headers, timeout=timeout, follow_redirects=True) as response:
        yield response


def web_head(url: str) -> Any:
    """HEAD of a file anywhere else, redirects followed, whatever the status; no token goes there."""
    from huggingface_hub import constants
    from huggingface_hub.utils import http_backoff

    timeout = constants.HF_HUB_DOWNLOAD_TIMEOUT
    return http_backoff("HEAD", url, headers={**_AS_IT_IS}, timeout=timeout, follow_redirects=True)


def raise_for_status(response: Any) -> None:
    """The library's own errors for an answer of 400 and up."""
    from huggingface_hub.utils import hf_raise_for_status

    hf_raise_for_status(response)


def _from(start: int) -> dict[str, str]:
    return {"Range": f"bytes={start}-"} if start else {}


def _headers() -> dict[str, str]:
    """The library's headers, and no compression."""
    from huggingface_hub.utils import build_hf_headers

    return {**build_hf_headers(library_name="tokenriver"), **_AS_IT_IS}
