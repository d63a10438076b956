"""What is known of the bytes of an input: their number and SHA-256, whole or up to a mark, and how a file is hashed."""

from __future__ import annotations

import hashlib
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tokenriver.errors import CorpusError, IntegrityError, ResumeError
from tokenriver.files import sha256_file
from tokenriver.storage.objects import changed, check_unchanged

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tokenriver.corpus.sources import Source

__all__ = ["InputFacts", "InputMark", "check_known", "hash_source", "other_input", "written_to"]

_READ_BYTES = 1 << 20


class InputFacts(msgspec.Struct, frozen=True, gc=False):
    """Size of an input file in bytes and its SHA-256 in hex (of the file as it is, compressed or not)."""

    n_bytes: int
    sha256: str


class InputMark(msgspec.Struct, frozen=True):
    """SHA-256 in hex of the first `n_bytes` of a source: by it a build that goes on knows its input again."""

    source_index: int
    n_bytes: int
    sha256: str


def hash_source(source: Source, mark: InputMark | None = None) -> InputFacts:
    """Hash a source's file by reading it. IntegrityError when its size is not what it was when it was found.

    With a `mark` of the source, ResumeError when it does not begin with the same bytes.
    """
    if source.remote is not None:
        from tokenriver.storage.reading import read_from

        digest = _sha256_of(source, read_from(source.remote), mark)
        check_unchanged(source.remote)
        return InputFacts(source.n_bytes or 0, digest)
    try:
        digest = sha256_file(source.path) if mark is None else _sha256_past(source, mark)
        now = source.path.stat()
    except OSError as error:
        raise CorpusError(f"{source}: cannot be read ({error.strerror})") from error
    if now.st_size != source.n_bytes:
        raise changed(source, f"{now.st_size:,} bytes, but {source.n_bytes or 0:,} when it was found")
    if source.kind == "parquet" and source.modified_ns not in (None, now.st_mtime_ns):
        raise written_to(source)  # its rows were read before, by another reading
    return InputFacts(now.st_size, digest)


def written_to(source: Source) -> IntegrityError:
    """The error for a file of the same size whose time of modification became another one while it was read."""
    return IntegrityError(
        f"{source}: it was written to while it was read (its time of modification is another): wait until it is "
        "complete and start again"
    )


def check_known(source: Source, facts: InputFacts) -> None:
    """IntegrityError for a file of a corpus that is not what the corpus's manifest says."""
    if source.sha256 is not None and facts.sha256 != source.sha256:
        raise IntegrityError(
            f"{source}: sha256 is {facts.sha256}, but the corpus's manifest says {source.sha256}: "
            "the bytes changed; fetch or write it again"
        )


def other_input(source: object, n_bytes: int) -> ResumeError:
    """The error for a source whose first bytes are not those that were read before."""
    return ResumeError(
        f"{source}: its first {n_bytes:,} bytes are not those that the unfinished build read, so the input changed",
        advice=("give it as it was, or build with --restart to begin anew",),
    )


def _sha256_past(source: Source, mark: InputMark) -> str:
    with open(source.path, "rb") as file:
        return _sha256_of(source, iter(partial(file.read, _READ_BYTES), b""), mark)


def _sha256_of(source: Source, chunks: Iterable[bytes], mark: InputMark | None) -> str:
    """SHA-256 of all chunks; with a mark, ResumeError unless they begin with the bytes that it covers."""
    digest, left = hashlib.sha256(), 0 if mark is None else mark.n_bytes
    for chunk in chunks:
        head = chunk[:left]
        digest.update(head)
        left -= len(head)
        if head and not left and mark is not None and digest.hexdigest() != mark.sha256:
            raise other_input(source, mark.n_bytes)
        digest.update(chunk[len(head) :] if head else chunk)
    if left and mark is not None:
        raise other_input(source, mark.n_bytes)
    return digest.hexdigest()
