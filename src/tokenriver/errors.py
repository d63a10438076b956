"""The errors a user can meet: each says what was found, what was expected, where, and what to do."""

from __future__ import annotations

import errno
import re
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

__all__ = [
    "ClusterError",
    "CorpusError",
    "FormatError",
    "HubError",
    "IntegrityError",
    "MissingDependencyError",
    "ResumeError",
    "StorageError",
    "TokenRiverError",
    "TokenizerError",
    "UsageError",
    "advising_only",
]


class TokenRiverError(Exception):
    """Base of all errors that tokenriver raises on purpose; on the command line one line and exit code 1.

    `advice` are words on what to do that name options, and end the message: a caller without these options takes them
    off (`advising_only`).
    """

    def __init__(self, *words: object, advice: tuple[str, ...] = ()) -> None:
        super().__init__(*words)
        self.advice = advice

    def __str__(self) -> str:
        return "; ".join([super().__str__(), *self.advice])


_OPTION = re.compile(r"--[a-z][a-z-]*")


@contextmanager
def advising_only(*offered: str, instead: Mapping[str, str] | None = None) -> Iterator[None]:
    """Have errors advise no option but those offered, as in "--workers"; `instead` gives other advice for one.

    For what is done with the functions of a command that has more options.
    """
    try:
        yield
    except TokenRiverError as error:
        known = instead or {}
        fitting = []
        for piece in error.advice:
            missing = next((one for one in _OPTION.findall(piece) if one not in offered), None)
            if missing is None or missing in known:
                fitting.append(piece if missing is None else known[missing])
        error.advice = tuple(dict.fromkeys(fitting))
        raise


class UsageError(TokenRiverError, ValueError):
    """An option or argument that cannot work (a number out of range, words that contradict); exit code 2."""


class ClusterError(TokenRiverError):
    """A cluster cannot be reached, lost a task for good, or has a node that does not see the shared folder.

    Also: a process that encoded for a build is lost.
    """


class CorpusError(TokenRiverError):
    """A document source is missing, empty or holds a bad record; names the file, line and byte offset."""


class TokenizerError(TokenRiverError):
    """A tokenizer cannot be found, loaded or trusted, or an id does not fit its vocabulary.

    `document` is the index in its batch of the text that could not be encoded, where there is one.
    """

    document: int | None = None


class FormatError(TokenRiverError, ValueError):
    """A file is not what its format says: magic, version, size, id range or schema."""


class HubError(TokenRiverError):
    """The Hugging Face Hub refused or could not be reached, or does not hold what was asked for."""


class IntegrityError(TokenRiverError):
    """Bytes differ from what was recorded: a checksum, a count, a missing or additional file."""


class ResumeError(TokenRiverError):
    """A saved state or journal does not belong to what it is loaded into; names what changed."""


class StorageError(TokenRiverError, OSError):
    """A store behind a URL could not be reached, or failed, after every retry.

    An OSError too, `filename` being the URL and `strerror` what happened, so that whoever handles files handles it.
    """

    def __init__(self, message: str, url: str, advice: tuple[str, ...] = ()) -> None:
        super().__init__(errno.EIO, message, url, advice=advice)

    def __str__(self) -> str:
        return "; ".join([f"{self.filename}: {self.strerror}", *self.advice])

    def __reduce__(self) -> tuple[type[StorageError], tuple[str, str, tuple[str, ...]]]:
        return StorageError, (str(self.strerror), str(self.filename), self.advice)


class MissingDependencyError(TokenRiverError, ImportError):
    """An optional package is not installed; names the extra that brings it."""
