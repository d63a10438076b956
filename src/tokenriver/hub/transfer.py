"""One file from the Hub to its place: through a part beside it, hashed as it arrives, named when it is right.

huggingface_hub opens the connection (its session, headers, and back-off with Retry-After); a body that breaks off
is gone on with from where it stopped, and a part from an earlier run is too.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

import filelock

from tokenriver.errors import FormatError, HubError, IntegrityError
from tokenriver.files import fsync_directory, naming, part_of
from tokenriver.hub.body import Body, forget_part
from tokenriver.shards.header import HEADER_BYTES, parse_header
from tokenriver.shards.manifest import MAX_JSON_BYTES, read_limited

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager

    from tokenriver.hub.checks import Expected
    from tokenriver.hub.repository import Repository

__all__ = ["FetchJob", "Remote", "TransferSink", "fetch_bytes", "fetch_file", "locked"]

_WRONG_BODIES = 2
"""Whole bodies with a wrong hash before the file is given up: the second is asked for anew from its first byte."""


class Remote(Protocol):
    """Where files come from: a repository of the Hub, or addresses on the web."""

    @property
    def offline(self) -> bool:
        """There is only what a cache holds."""

    @property
    def server(self) -> str:
        """Who serves it, for messages."""

    def cached(self, name: str) -> Path | None:
        """A copy that is on this machine already."""

    def stream(self, name: str, start: int) -> AbstractContextManager[Any]:
        """The response that carries a file's bytes from `start` on."""


class TransferSink(Protocol):
    """Told of every file: its bytes there so far and in all; `done` = `total` comes last, also for one found whole."""

    def __call__(self, name: str, done: int, total: int) -> None: ...


@dataclass(frozen=True, slots=True)
class FetchJob:
    """A file of a repository, the path it goes to, and what it must be."""

    name: str
    path: Path
    expected: Expected


def fetch_file(repository: Remote, job: FetchJob, *, progress: TransferSink | None = None) -> bool:
    """Bring one file to its path, whole and right; True if it was fetched, False if it was there already.

    Processes that want the same file wait for the first, then find it. A file that is there and wrong is replaced; it
    keeps its name until the right one is there. Raises IntegrityError naming the file when what arrives stays wrong,
    HubError when it cannot be had.
    """
    total = job.expected.n_bytes or 0

    def report(done: int) -> None:
        if progress is not None:
            progress(job.name, done, max(total, done))

    part = part_of(job.path)
    job.path.parent.mkdir(parents=True, exist_ok=True)
    if _is_whole(job) and not part.exists() and not _lock_file(job.path).exists():
        report(total)
        return False
    with naming(job.path), locked(job.path):
        if _is_whole(job):
            forget_part(part)  # of a process that was killed
            report(total)
            return False
        if part.is_symlink() or (part.exists() and part.stat().st_nlink > 1):
            part.unlink()  # what is written here is not that file's: it may be the cache's, from a run that was killed
        cached = repository.cached(job.name)
        if cached is None or not _take_from_cache(cached, job, part):
            if repository.offline:
                raise HubError(f"{job.path}: HF_HUB_OFFLINE is set, and the cache holds no right copy of {job.name}")
            _download(repository, job, part, report)
        _check_shard(part, job)
        part.replace(job.path)
        forget_part(part)
        fsync_directory(job.path.parent)
    report(total)
    return True


def fetch_bytes(repository: Repository, name: str) -> bytes:
    """A small file's content, checked like any other; FormatError past the limit of manifests and records."""
    with tempfile.TemporaryDirectory(prefix="tokenriver-") as folder:
        job = FetchJob(name, Path(folder) / "file", repository.expected(name))
        if (job.expected.n_bytes or 0) > MAX_JSON_BYTES:
            raise FormatError(f"{name} in {repository}: {job.expected.n_bytes:,} bytes; such a file is far smaller")
        fetch_file(repository, job)
        return read_limited(job.path)


def _is_whole(job: FetchJob) -> bool:
    """Whether the file is there and right. A link counts by what it leads to; one that leads nowhere is replaced."""
    if not job.path.exists():
        return False
    if not job.path.is_file():
        what = "a folder" if job.path.is_dir() else "a device or a pipe"
        raise IntegrityError(f"{job.path}: {what} stands where the file {job.name} belongs; move it away")
    return job.expected.problem_of(job.path) is None


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold the lock of one file among all processes that want to write it; a process that ends lets go."""
    lock_file = _lock_file(path)
    lock = filelock.FileLock(lock_file)
    with lock:
        try:
            yield
        finally:
            lock_file.unlink(missing_ok=True)


def _lock_file(path: Path) -> Path:
    return path.with_name(f".{path.name}.lock")


def _take_from_cache(cached: Path, job: FetchJob, part: Path) -> bool:
    """Link (else copy) the cache's copy as the part; False when it is not right."""
    blob = cached.resolve()
    if job.expected.problem_of(blob) is not None:
        return False
    part.unlink(missing_ok=True)
    try:
        os.link(blob, part)
    except OSError:  # another file system, or one without hard links
        shutil.copyfile(blob, part)
        if (problem := job.expected.problem_of(part)) is not None:
            raise IntegrityError(
                f"{part}: copied from the cache with {problem}; is the disk full or failing?"
            ) from None
    return True


def _download(repository: Remote, job: FetchJob, part: Path, report: Callable[[int], None]) -> None:
    """Fill the part until its hash is right."""
    problem: str | None = None
    for _ in range(_WRONG_BODIES + part.exists()):  # what an earlier run left may be of another file
        body = Body(part, job.expected)
        try:
            body.fill(repository, job.name, report)
            problem = body.problem()
        except BaseException as error:
            if isinstance(error, IntegrityError) or not body.n_bytes:
                forget_part(part)
            raise
        finally:
            body.close()
        if problem is None:
            return
        forget_part(part)
    raise IntegrityError(
        f"{job.path}: {repository.server}'s copy arrived {_WRONG_BODIES} times with {problem}; it was not kept: "
        f"try again later, or tell the owner of {repository}"
    )


def _check_shard(part: Path, job: FetchJob) -> None:
    """A shard's header must be one, and agree with its size, even where no hash is known."""
    if not job.path.name.endswith(".bin"):
        return
    with open(part, "rb") as file:
        raw = file.read(HEADER_BYTES)
    try:
        parse_header(raw, part.stat().st_size, job.path)
    except FormatError:
        forget_part(part)
        raise
