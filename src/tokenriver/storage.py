"""Where files lie: on this machine or behind a URL that fsspec knows (s3, gs, hf, http, memory, …).

A word of the user becomes a path once, here; the code behind asks only whether it is remote. Credentials and endpoints
come from fsspec's own configuration and environment (FSSPEC_S3_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …).
"""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import Any

from tokenriver.errors import UsageError

__all__ = ["is_remote", "is_url", "to_path"]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
"""At least two letters: `c://` is a drive."""


def is_url(value: str | os.PathLike[str]) -> bool:
    """Whether a word is a URL of a file that is not on this machine; `file://` is, so it is none."""
    text = os.fspath(value) if isinstance(value, (str, Path)) else str(value)
    return bool(_SCHEME.match(text)) and not text.lower().startswith("file://")


def to_path(value: str | os.PathLike[str]) -> Path:
    """A path of this machine, or for a URL a `upath.UPath`, which has pathlib's methods over fsspec.

    UsageError for a scheme that fsspec does not know or whose package is missing, naming it.
    """
    if isinstance(value, Path) or is_remote(value):
        return value  # type: ignore[return-value]
    text = os.fspath(value)
    if not is_url(text):
        return Path(text[7:]) if text.lower().startswith("file://") else Path(text)
    from upath import UPath

    scheme = text.partition("://")[0]
    try:
        path = UPath(text)
        path.fs  # noqa: B018 - made here, so that what is missing is said here
    except ImportError as error:
        raise UsageError(f"{text}: {error}; pip install 'tokenriver[{scheme}]', or the package named") from error
    except ValueError as error:
        raise UsageError(f"{text}: {scheme}:// is no storage that fsspec knows ({error})") from error
    return path  # type: ignore[return-value]


def is_remote(path: Any) -> bool:
    """Whether a path that `to_path` made lies behind a URL."""
    return not isinstance(path, (str, Path)) and hasattr(path, "fs")
