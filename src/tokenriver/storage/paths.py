"""Where files lie: on this machine or behind a URL that fsspec knows (s3, gs, hf, http, memory, …).

A word of the user becomes a path once, here; the code behind asks only whether it is remote. Credentials and endpoints
come from fsspec's own configuration and environment (FSSPEC_S3_ENDPOINT_URL, AWS_ACCESS_KEY_ID, …).
"""

from __future__ import annotations

import os
import posixpath
import re
from pathlib import Path
from typing import Any

from tokenriver.errors import MissingDependencyError, StorageError, UsageError

__all__ = [
    "filesystem_of",
    "is_remote",
    "is_s3",
    "is_unicode",
    "is_url",
    "is_web",
    "last_name",
    "local_path",
    "named",
    "named_in",
    "no_folder",
    "refuse_read_only",
    "scheme_of",
    "shown",
    "to_folder",
    "to_output",
    "to_path",
    "user_cache",
    "word_of",
]

_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+://")
"""At least two letters: `c://` is a drive."""

_SURROGATE = re.compile(r"[\ud800-\udfff]")

_USER = re.compile(r"(://)[^/@\s]+@")
_SECRET = re.compile(
    r"([?&;](?:x-amz-\w+|x-goog-\w+|awsaccesskeyid|googleaccessid|[\w-]*(?:sig|signature|token|secret|credential|"
    r"password|key))=)[^&\s'\"<>,)]+",
    re.IGNORECASE,
)

_READ_ONLY = ("http", "https", "github", "git", "data", "zip", "tar")

_EXTRAS = {"s3": "s3", "s3a": "s3"}
"""Scheme → our extra that brings its package; for others the message names the package itself."""


def is_url(value: str | os.PathLike[str]) -> bool:
    """Whether a word is a URL of a file that is not on this machine; `file://` is, so it is none."""
    text = os.fspath(value) if isinstance(value, (str, Path)) else str(value)
    return bool(_SCHEME.match(text)) and not text.lower().startswith("file://")


def is_unicode(text: str) -> bool:
    """Whether UTF-8 can hold a text. The name of a file may be any bytes; those that are none are lone surrogates."""
    return text.isascii() or not _SURROGATE.search(text)


def scheme_of(url: str) -> str:
    """ "S3://bucket/key" → "s3"."""
    return url.partition("://")[0].lower()


def is_web(url: str) -> bool:
    """Whether a URL is a web server's, which lists nothing and whose address may end in a query."""
    return scheme_of(url) in ("http", "https")


def is_s3(url: str) -> bool:
    """Whether a URL names an object of an S3 store."""
    return scheme_of(url) in ("s3", "s3a")


def shown(text: object) -> str:
    """A URL (or a message with URLs in it) as it may be printed and recorded: no user, no password, no signature."""
    return _SECRET.sub(r"\1…", _USER.sub(r"\1…@", str(text)))


def last_name(url: str) -> str:
    """The last part of a URL's path: the file's name, or the prefix's; for a bucket alone the bucket's."""
    rest = url.partition("://")[2]
    if is_web(url):
        rest = re.split(r"[?#]", rest, maxsplit=1)[0]
    return rest.rstrip("/").rpartition("/")[2]


_BUCKETS = ("s3", "s3a", "gs", "gcs")
"""Where the first part of a URL is a bucket, so that three slashes in a row name none."""


def to_path(value: str | os.PathLike[str]) -> Path:
    """A path of this machine, or for a URL a `upath.UPath`, which has pathlib's methods over fsspec.

    UsageError for an empty path (which would be the working directory) and for a scheme that fsspec does not know,
    MissingDependencyError where its package is not installed.
    """
    if is_remote(value):
        return value  # type: ignore[return-value]
    if isinstance(value, Path):
        return Path(_at_home(str(value))) if value.parts[:1] and value.parts[0].startswith("~") else value
    text = named(os.fspath(value))
    if not is_url(text):
        return Path(named(text[7:])) if text.lower().startswith("file://") else Path(text)
    filesystem_of(text)
    from upath import UPath

    scheme, _, rest = text.partition("://")
    return UPath(f"{scheme.lower()}://{rest}")  # type: ignore[return-value]


def named(word: str) -> str:
    """A path or URL that a user gave, with its ~ replaced as a shell does, which leaves that of --out=~/data alone.

    UsageError for one that is empty (an unset variable, mostly) or holds a NUL.
    """
    if not word:
        raise UsageError("a path is empty; name a file, a folder or a URL (the working directory is .)")
    if "\0" in word:
        raise UsageError(f"{word!r}: holds a NUL, which no path can")
    return _at_home(word) if word.startswith("~") else word


def _at_home(word: str) -> str:
    """The word from the home directory on, unless there is something here that is called so."""
    return word if os.path.lexists(word) else os.path.expanduser(word)  # noqa: PTH111


def to_output(value: str | os.PathLike[str]) -> Path:
    """`to_path` for what will be written; UsageError also for a kind of URL that nothing can be written to."""
    path = to_path(value)
    if is_remote(path):
        refuse_read_only(str(path))
    return path


def to_folder(value: str | os.PathLike[str], *, option: str) -> Path:
    """`to_output` for a folder, which need not be there yet; UsageError, naming the option, where a file stands."""
    path = to_output(value)
    if not is_remote(path) and (found := no_folder(path)) is not None:
        raise UsageError(f"{path}: {'' if found == path else f'{found} is '}not a directory; name one with {option}")
    return path


def no_folder(path: Path) -> Path | None:
    """What stands in the way of a folder at a path of this machine (a file, a link to nothing), there or above it."""
    nearest = next((there for there in (path, *path.parents) if os.path.lexists(there)), None)
    return None if nearest is None or nearest.is_dir() else nearest


def refuse_read_only(url: str) -> None:
    """UsageError for a kind of URL that nothing can be written to."""
    if (scheme := scheme_of(url)) in _READ_ONLY:
        raise UsageError(f"{shown(url)}: nothing can be written to {scheme}://; name an object store or a folder")


_shared: dict[tuple[int, str, str], Any] = {}
"""Process, scheme and host or bucket → the file system that all threads use: fsspec makes one a thread, each with
connections of its own. Those with asynchronous clients do all their work in one thread anyway."""


def local_path(value: str | os.PathLike[str], *, what: str) -> Path:
    """A path of this machine; UsageError, naming `what` is given so, for a URL where only such a path will do."""
    path = to_path(value) if not is_url(str(value)) else None
    if path is None or is_remote(path):
        raise UsageError(f"{what} {shown(value)}: a URL, but this has to be a path on this machine")
    return path


def user_cache(name: str, *, instead: str) -> Path:
    """A folder of ours in the user's cache (XDG_CACHE_HOME, else ~/.cache), which is not created.

    UsageError, naming what to use `instead`, for a user without a home directory.
    """
    try:
        cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache")
    except RuntimeError:
        raise UsageError(
            f"this user has no home directory, in which a cache would be; name a folder with {instead}"
        ) from None
    return cache / "tokenriver" / name


def named_in(file: Path, word: str) -> str:
    """A path or URL that stands in the text of a file: a relative one counts from the file's folder, or prefix."""
    if is_url(named(word)) or word.lower().startswith("file://"):
        return str(to_path(word))
    if not is_remote(file):
        return str(file.parent / word)
    if os.path.isabs(word):  # noqa: PTH117 - of this machine, though the file is not
        return word
    scheme, _, folder = str(file.parent).partition("://")
    return f"{scheme}://{posixpath.normpath(posixpath.join(folder, word))}"


def filesystem_of(url: str) -> tuple[Any, str]:
    """fsspec's file system of a URL, and the path in it. Raises what `to_path` raises."""
    scheme, rest = scheme_of(url), url.partition("://")[2]
    if not rest.strip("/"):
        raise UsageError(f"{url}: names no bucket and no path")
    if scheme in _BUCKETS and rest.startswith("/"):
        raise UsageError(f"{shown(url)}: names no bucket; expected {scheme}://BUCKET/{rest.lstrip('/')}")
    key = (os.getpid(), scheme, rest.partition("/")[0])
    if (shared := _shared.get(key)) is not None:
        return shared, str(shared._strip_protocol(url))
    from fsspec.core import url_to_fs

    try:
        fs, path = url_to_fs(url)
    except ImportError as error:
        how = f"pip install 'tokenriver[{_EXTRAS[scheme]}]'" if scheme in _EXTRAS else "install the package named"
        raise MissingDependencyError(
            f"{shown(url)}: {scheme}:// needs a package that is missing ({error}); {how}"
        ) from error
    except ValueError as error:
        raise UsageError(f"{shown(url)}: {scheme}:// is no storage that fsspec knows ({shown(error)})") from error
    except OSError as error:  # some clients connect at once
        raise StorageError(f"{scheme}:// cannot be opened ({shown(error)})", shown(url)) from error
    if fs.async_impl:
        _shared[key] = fs
    return fs, str(path)


def word_of(value: Any) -> str:
    """A path or URL as a text: of a str, a path, or a `UPath` (which behind a URL is no os.PathLike)."""
    return str(value) if is_remote(value) else os.fspath(value)


def is_remote(path: Any) -> bool:
    """Whether a path that `to_path` made lies behind a URL."""
    return not isinstance(path, (str, Path)) and hasattr(path, "fs")
