"""The first bytes of a file that is being fetched: gone on with where a connection broke off, if it is the same file.

What has a hash is compared as a whole when it is there. Of a file without one (somewhere on the web) the server's ETag
and Last-Modified are noted beside its part, and compared before anything is put behind what came earlier.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tokenriver.errors import HubError, IntegrityError, TokenRiverError
from tokenriver.files import PART_SUFFIX, atomic_write, write_all
from tokenriver.hub.checks import Digest, Expected
from tokenriver.hub.client import raise_for_status
from tokenriver.hub.repository import explained

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tokenriver.hub.transfer import Remote

__all__ = ["Body", "forget_part"]

_BROKEN_BODIES = 5
"""Connections in a row that may end without one new byte before the transfer is given up."""


class Body:
    """The part of a file: how much of it is there, and the hash of that much."""

    def __init__(self, part: Path, expected: Expected) -> None:
        self._expected = expected
        self._file = open(part, "r+b" if part.exists() else "w+b", buffering=0)  # noqa: SIM115
        self._digest = Digest(expected)
        self.n_bytes = os.fstat(self._file.fileno()).st_size
        self._note = None if expected.sha256 or expected.git_id else _note(part)
        self._version = _noted(self._note)
        if self._note is not None:
            self._leave_something_to_ask()
        if expected.n_bytes is not None and self.n_bytes > expected.n_bytes:
            self.empty()
        else:
            self._digest.update_from(part)
            self._file.seek(self.n_bytes)

    def _leave_something_to_ask(self) -> None:
        """Of a file without a hash, so that the server says whether what is here is still a part of it."""
        if self._version is None:
            self.empty()
        elif self.n_bytes == self._expected.n_bytes:
            self.n_bytes -= 1
            self._file.truncate(self.n_bytes)

    def fill(self, repository: Remote, name: str, report: Callable[[int], None]) -> None:
        """Ask for what is missing until it is there; HubError when the connection keeps breaking."""
        idle, furthest = 0, self.n_bytes
        while self._expected.n_bytes is None or self.n_bytes < self._expected.n_bytes:
            failure = self._ask(repository, name, report)
            if failure is None and (self._expected.n_bytes is None or self.n_bytes >= self._expected.n_bytes):
                break
            # Not against where this try began: a body that is begun anew again and again would gain bytes for ever.
            idle, furthest = (0, self.n_bytes) if self.n_bytes > furthest else (idle + 1, furthest)
            if idle >= _BROKEN_BODIES:
                raise HubError(
                    f"{name}: the connection broke off {idle} times in a row without a new byte, at {furthest:,} "
                    f"of {self._expected.n_bytes or 0:,} ({failure or 'the server ended it early'}); run the same "
                    "command again, it goes on from there"
                )
        os.fsync(self._file.fileno())

    def _ask(self, repository: Remote, name: str, report: Callable[[int], None]) -> str | None:
        """One request; what broke it off, or None. A part that the server will not go on with is begun anew."""
        with (
            explained(f"{name} in {repository}", repository.server),
            repository.stream(name, self.n_bytes) as response,
        ):
            if response.status_code == 416:
                self.empty()
                return "HTTP 416, nothing at that position"
            raise_for_status(response)
            if self.n_bytes and not _goes_on_at(response, self.n_bytes):
                self.empty()
                if response.status_code == 206:
                    return "the server sent another range than asked for"
            if self._note is not None:
                self._check_readable(response, name)
                if not self._is_of(response):
                    return "the file on the server is another one than before"
            try:
                for chunk in response.iter_raw():
                    self._write(chunk)
                    report(self.n_bytes)
            except (TokenRiverError, OSError):
                raise
            except Exception as error:
                # Whatever broke the body off (the classes differ between versions of the client); it must not reach
                # the client's back-off, which can only try again before the first byte.
                return f"{type(error).__name__}: {error}"
        return None

    def _check_readable(self, response: Any, name: str) -> None:
        """HubError for an answer that could end early, or hold other bytes than the file, and no hash would tell."""
        headers = response.headers
        encoding = headers.get("Content-Encoding", "identity").strip().lower()
        if encoding not in ("", "identity") and not (encoding in _GZIP and name.lower().endswith((".gz", ".tgz"))):
            raise HubError(
                f"{name}: the server sends it compressed (Content-Encoding: {encoding}), though it was asked not to; "
                "download the file, and give it with --input"
            )
        told = self._expected.n_bytes is not None or "Content-Length" in headers
        if not told and "chunked" not in headers.get("Transfer-Encoding", "").lower():
            raise HubError(
                f"{name}: the server does not say how large it is, so a body cut short could not be noticed; download "
                "the file and give it with --input, or name its SHA-256 in the recipe"
            )

    def _is_of(self, response: Any) -> bool:
        """Whether a response goes on with what is here; else that is let go of. A body from its start is noted."""
        assert self._note is not None, "the caller looked"
        version = "\n".join(f"{name}: {response.headers[name]}" for name in _VERSION if name in response.headers)
        if self.n_bytes:
            if version != (self._version or ""):
                self.empty()
            return bool(self.n_bytes)
        self._version = version
        with atomic_write(self._note) as file:
            file.write(version.encode())
        return True

    def _write(self, chunk: bytes) -> None:
        limit = self._expected.n_bytes
        if limit is not None and self.n_bytes + len(chunk) > limit:
            raise IntegrityError(
                f"{self._file.name}: the server sends more than the {limit:,} bytes that there should be"
            )
        write_all(self._file.fileno(), chunk)
        self._digest.update(chunk)
        self.n_bytes += len(chunk)

    def empty(self) -> None:
        """Begin anew."""
        self._file.seek(0)
        self._file.truncate()
        self._digest = Digest(self._expected)
        self.n_bytes = 0

    def problem(self) -> str | None:
        """What is wrong with the whole body."""
        return self._expected.problem(self.n_bytes, self._digest)

    def close(self) -> None:
        """Leave the part as it is."""
        self._file.close()


_GZIP = ("gzip", "x-gzip")
"""Web servers tell so of files that are stored as .gz, and send them as they are."""

_VERSION = ("ETag", "Last-Modified")
"""Headers that tell one content under an address from the next."""


def _note(part: Path) -> Path:
    """Where the version is noted that a part comes from."""
    return part.with_name(f".{part.name.removesuffix(PART_SUFFIX)}.from{PART_SUFFIX}")


def _noted(note: Path | None) -> str | None:
    """The version in a note; None without one, or where the server told none."""
    try:
        return note.read_text(encoding="utf-8", errors="replace") or None if note is not None else None
    except FileNotFoundError:
        return None


def forget_part(part: Path) -> None:
    """Remove a part, if it is there, and the note of where it comes from."""
    part.unlink(missing_ok=True)
    _note(part).unlink(missing_ok=True)


def _goes_on_at(response: Any, start: int) -> bool:
    """Whether a response carries the bytes from `start` on (206 with that range), not the whole file (200)."""
    served: str = response.headers.get("Content-Range", "")
    return response.status_code == 206 and served.startswith(f"bytes {start}-")
