"""Files at addresses on the web, fetched as those of the Hub are: gone on with where they broke off, and hashed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenriver.hub.client import raise_for_status, web_head, web_stream
from tokenriver.hub.repository import explained

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

__all__ = ["WebFiles"]


@dataclass(frozen=True, slots=True)
class WebFiles:
    """Names and the address of each."""

    urls: Mapping[str, str]
    offline = False
    server = "the server"

    def __str__(self) -> str:
        return next(iter(self.urls.values()), "the web").rpartition("/")[0]

    def cached(self, name: str) -> Path | None:
        """There is no cache for these."""
        del name
        return None

    def stream(self, name: str, start: int) -> AbstractContextManager[Any]:
        """The response that carries the file's bytes from `start` on."""
        return web_stream(self.urls[name], start=start)

    def n_bytes(self, name: str) -> int | None:
        """The size that the server tells, None where it tells none. HubError where it cannot be asked."""
        with explained(self.urls[name], self.server):
            response = web_head(self.urls[name])
            if response.status_code in (404, 410):
                raise_for_status(response)
        length = response.headers.get("Content-Length", "")
        return int(length) if response.status_code == 200 and length.isdigit() else None  # some refuse HEAD alone
