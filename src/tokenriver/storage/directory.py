"""A prefix of an object store used as a directory for output, and the place on this disk where it is made ready.

What is written there is made whole in a staging directory first. Its name follows from the URL, so that the same
command finds an interrupted one again.
"""

from __future__ import annotations

import hashlib
import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenriver.errors import UsageError
from tokenriver.storage.objects import RemoteFile, below, find_object, remove_objects
from tokenriver.storage.paths import (
    filesystem_of,
    last_name,
    local_path,
    refuse_read_only,
    scheme_of,
    shown,
    to_folder,
    user_cache,
)
from tokenriver.storage.reading import read_whole
from tokenriver.storage.uploading import upload_whole

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

__all__ = ["STAGING_VARIABLE", "RemoteDirectory", "staging_directory", "staging_root"]

STAGING_VARIABLE = "TOKENRIVER_STAGING"
"""Environment variable that names the root of all staging directories."""


@dataclass(frozen=True, slots=True)
class RemoteDirectory:
    """Objects directly below a URL, by name. `url` has no "/" at its end."""

    url: str

    @classmethod
    def for_writing(cls, url: str) -> RemoteDirectory:
        """The directory; UsageError for a kind of URL that nothing can be written to, or without the repository in it.

        On the Hub every file becomes a commit.
        """
        refuse_read_only(url)
        if scheme_of(url) == "hf":
            fs, path = filesystem_of(url)
            try:
                fs.resolve_path(path)
            except FileNotFoundError:
                raise UsageError(
                    f"{shown(url)}: no such repository, or the token may not see it; create it, or write to a folder "
                    "and upload that with `tokenriver publish`, which is one commit"
                ) from None
        return cls(url.rstrip("/"))

    def __str__(self) -> str:
        return shown(self.url)

    def url_of(self, name: str) -> str:
        """The URL of an object in it."""
        return f"{self.url}/{name}"

    def list(self) -> dict[str, RemoteFile]:
        """The objects directly in it, sorted by name. Raises PermissionError or StorageError."""
        return below(self.url, deep=False)

    def holds(self, name: str) -> bool:
        """Whether there is an object of that name."""
        return find_object(self.url_of(name)) is not None

    def read(self, name: str) -> bytes | None:
        """The bytes of a small object; None without one."""
        found = find_object(self.url_of(name))
        return None if found is None else read_whole(found)

    def put(self, path: Path, name: str | None = None) -> RemoteFile:
        """Upload a whole file under its own name or another, and compare its size there."""
        return upload_whole(path, self.url_of(name or path.name))

    def remove(self, names: Iterable[str]) -> None:
        """Delete objects, in that order; absent ones are no error."""
        remove_objects([self.url_of(name) for name in names])


def staging_root(root: str | os.PathLike[str] | None = None) -> Path:
    """Where all staging directories lie: `root`, else TOKENRIVER_STAGING, else the user's cache.

    UsageError for one that is not on this machine, or where a file stands.
    """
    chosen = root or os.environ.get(STAGING_VARIABLE)
    if not chosen:
        chosen = user_cache("staging", instead=f"--staging or {STAGING_VARIABLE}")
    return to_folder(local_path(chosen, what="the staging directory"), option=f"--staging or {STAGING_VARIABLE}")


def staging_directory(url: str, root: str | os.PathLike[str] | None = None) -> Path:
    """Where the output behind a URL is made ready, below `staging_root`.

    The same URL gives the same directory. Nothing is created.
    """
    plain = url.rstrip("/")
    name = re.sub(r"[^A-Za-z0-9._-]+", "-", last_name(plain))[:40].strip(".-")
    return staging_root(root) / f"{hashlib.sha256(plain.encode()).hexdigest()[:16]}-{name or 'out'}"
