"""What goes wrong with a store: which failures pass by themselves, and one sentence for each that does not.

The clients retry by themselves (s3fs and botocore five times each, with back-off); what gets through is tried again
here, a few times, with a warning, so that an outage of a minute costs a minute and no build.
"""

from __future__ import annotations

import errno
import random
import threading
import warnings
from contextlib import contextmanager
from typing import TYPE_CHECKING, TypeVar

from tokenriver.errors import StorageError, TokenRiverError
from tokenriver.storage.paths import shown
from tokenriver.storage.patience import seconds_asked_by

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = [
    "PASSING_STATUS",
    "RETRY_SECONDS",
    "StorageWarning",
    "explained",
    "hidden_failure",
    "may_pass",
    "no_bucket",
    "retried",
    "translating",
    "wait_out",
]

T = TypeVar("T")

RETRY_SECONDS = (1.0, 3.0, 9.0, 27.0)
"""Waits between our own tries, up to a fourth more by chance, so that many readers do not come back together."""

PASSING_STATUS = (408, 425, 429)
"""Refusals (4xx) that pass by themselves: too slow, too early, too many."""

_GONE_STATUS = (404, 410)
_CLIENTS = ("aiohttp", "botocore", "aiobotocore", "requests", "httpx")
"""Packages whose errors are a connection's, unless they are said to be something else."""

_wait = threading.Event().wait


class StorageWarning(UserWarning):
    """A store failed and is tried again."""


@contextmanager
def translating(url: str, *, offset: int | None = None) -> Iterator[None]:
    """Turn what a client raises into FileNotFoundError, PermissionError or StorageError that names the URL."""
    try:
        yield
    except TokenRiverError:
        raise
    except Exception as error:
        raise explained(error, url, offset) from error


def retried(url: str, action: Callable[[], T], *, offset: int | None = None) -> T:
    """The result of `action`, tried again with back-off after failures that may pass; raises as `translating` does."""
    for wait in RETRY_SECONDS:
        try:
            return action()
        except TokenRiverError:
            raise
        except Exception as error:
            if not may_pass(error):
                raise explained(error, url, offset) from error
            wait_out(error, url, offset, at_least=wait * (1 + random.random() / 4))
    with translating(url, offset=offset):
        return action()


def wait_out(error: Exception, url: str, offset: int | None, *, at_least: float) -> None:
    """Wait before the next try, for as long as the server asks, and say so."""
    told = explained(error, url, offset)
    pause = max(at_least, seconds_asked_by(error) or 0.0)
    warnings.warn(f"{told.filename}: {told.strerror}; trying again in {pause:.0f} s", StorageWarning, stacklevel=3)
    _wait(pause)


def explained(error: Exception, url: str, offset: int | None = None) -> OSError:
    """The error for a user; without credentials, whatever the client put into its own."""
    where, said = shown(url), shown(_first_line(error))
    status = _status(error)
    if isinstance(error, FileNotFoundError) or status in _GONE_STATUS:
        what = "the bucket does not exist" if no_bucket(error) else "no such object or prefix"
        return FileNotFoundError(errno.ENOENT, what, where)
    if isinstance(error, PermissionError) or status in (401, 403):
        return PermissionError(
            errno.EACCES, f"the store refuses access ({said}); check the credentials and what they allow", where
        )
    if getattr(error, "errno", None) == errno.ENOSYS:
        return StorageError(said, where)  # a server without ranges (cache/objects.py): it says what to do
    name = type(error).__name__
    if "Credential" in name or "Token" in name or "credential" in said.lower():
        return PermissionError(
            errno.EACCES,
            f"no usable credentials ({said}); set them in the environment or the client's own files",
            where,
        )
    at = "" if offset is None else f" at byte {offset:,}"
    todo = "look at the address and the network, and try again later" if may_pass(error) else "look at the address"
    return StorageError(f"the store failed{at} ({said or name})", where, (todo,))


def hidden_failure(error: Exception) -> Exception | None:
    """What a client took for a missing object, though the server was not reached or did not say so; else None.

    fsspec's HTTP client raises FileNotFoundError for every failure of its first request.
    """
    cause = error.__cause__
    if isinstance(error, FileNotFoundError) and isinstance(cause, Exception):
        module = type(cause).__module__.partition(".")[0]
        if (module == "aiohttp" or isinstance(cause, TimeoutError)) and _status(cause) not in _GONE_STATUS:
            return cause
    return None


def no_bucket(error: Exception) -> bool:
    """Whether it is not the object that is missing, but the whole bucket."""
    return "bucket does not exist" in str(error).lower()


def _first_line(error: Exception) -> str:
    text = (getattr(error, "strerror", None) or str(error)) if isinstance(error, OSError) else str(error)
    return (text.strip().splitlines() or [type(error).__name__])[0][:300]


def _status(error: Exception) -> int | None:
    """The HTTP status that a client's error tells, each client in its own way."""
    told = getattr(error, "status", None) or getattr(getattr(error, "response", None), "status_code", None)
    if told is None:
        told = getattr(error, "code", None)  # after the others: asking aiohttp's errors for it is a warning
    return told if isinstance(told, int) and 100 <= told < 600 else None


def may_pass(error: Exception) -> bool:
    """Whether trying again makes sense: connections, time-outs, refusals for load, bodies cut short."""
    if isinstance(error, (FileNotFoundError, PermissionError, IsADirectoryError, NotADirectoryError, FileExistsError)):
        return False
    status = _status(error)
    if status is not None and 400 <= status < 500:
        return status in PASSING_STATUS
    if "Credential" in type(error).__name__:
        return False
    if isinstance(error, OSError):
        return error.errno not in (errno.EINVAL, errno.EPERM, errno.ENOSYS, errno.ENOSPC)
    module = type(error).__module__.partition(".")[0]
    return isinstance(error, (TimeoutError, EOFError)) or module in _CLIENTS
