"""Files of the Hub on their way behind a URL: whole and checked in a folder here first, then uploaded and let go.

What was uploaded is noted with the object's version, so that a run which goes on knows it without reading it again.
"""

from __future__ import annotations

import os
import shutil
import threading
from contextlib import contextmanager
from typing import TYPE_CHECKING

import msgspec

from tokenriver.files import PART_SUFFIX, part_of
from tokenriver.hub.transfer import FetchJob, fetch_file, locked
from tokenriver.storage.directory import RemoteDirectory, staging_directory
from tokenriver.storage.objects import find_object
from tokenriver.storage.paths import is_remote
from tokenriver.storage.uploading import abort_left_over, upload_whole

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from tokenriver.hub.checks import Expected
    from tokenriver.hub.transfer import Remote, TransferSink

__all__ = ["Landing", "open_landing"]

_NOTES = "_UPLOADED"


class _Note(msgspec.Struct, array_like=True):
    """An object as it was when we had put it there, and the hash of what we put."""

    name: str
    n_bytes: int | None
    version: str | None
    digest: str | None


@contextmanager
def open_landing(folder: Path) -> Iterator[Landing | None]:
    """The landing of a folder behind a URL, None for one on this machine, for the time of a run.

    A second run on this machine waits for the first. What a killed run left is taken up; after a whole one nothing is
    left here. Raises UsageError for a kind of URL that nothing can be written to.
    """
    if not is_remote(folder):
        yield None
        return
    remote = RemoteDirectory.for_writing(str(folder))
    room = staging_directory(remote.url)
    room = room.with_name(f"{room.name}-fetched")
    room.parent.mkdir(parents=True, exist_ok=True)
    with locked(room):
        room.mkdir(exist_ok=True)
        try:
            yield Landing(remote, room)
            shutil.rmtree(room)
        finally:
            if not any(path.is_file() for path in room.rglob("*")):
                shutil.rmtree(room, ignore_errors=True)


class Landing:
    """Brings files to their places below a URL; several threads may.

    Use `open_landing`. A file is on this disk from its first byte until its upload is complete, no longer.
    """

    def __init__(self, remote: RemoteDirectory, room: Path) -> None:
        self._remote = remote
        self._room = room
        self._writing = threading.Lock()
        self._notes: dict[str, _Note] = {}
        notes = room / _NOTES
        if notes.exists():
            *lines, half = notes.read_bytes().split(b"\n")
            os.truncate(notes, notes.stat().st_size - len(half))
            for line in lines:
                note = msgspec.json.decode(line, type=_Note)
                self._notes[note.name] = note
        left = {path.relative_to(room).as_posix() for path in room.rglob("*") if path.is_file()}
        whole = {name for name in left if name != _NOTES and not name.endswith((PART_SUFFIX, ".lock"))}
        if whole:
            abort_left_over(remote.url, names=whole.__contains__)

    def staged(self, path: Path) -> Path:
        """Where the file that goes to `path` is made ready."""
        return self._room / self._name(path)

    def fetch(self, repository: Remote, job: FetchJob, *, progress: TransferSink | None = None) -> bool:
        """As `fetch_file`, with an object as the job's path: it gets its name when the file is whole and right."""

        def report(name: str, done: int, total: int) -> None:
            if progress is not None and done < total:  # the end is told when it is there
                progress(name, done, total)

        staged = self.staged(job.path)
        fetched = not self._holds(job)
        if fetched:
            fetch_file(repository, FetchJob(job.name, staged, job.expected), progress=report)
            there = upload_whole(staged, str(job.path))
            self._note(_Note(self._name(job.path), there.n_bytes, there.version, _digest(job.expected)))
        for left in (staged, part_of(staged)):
            left.unlink(missing_ok=True)
        if progress is not None:
            total = job.expected.n_bytes or 0
            progress(job.name, total, total)
        return fetched

    def _name(self, path: Path) -> str:
        return str(path).removeprefix(f"{self._remote.url}/")

    def _holds(self, job: FetchJob) -> bool:
        """Whether the right object is there: as we noted it, as its store says, or as its bytes say."""
        there = find_object(str(job.path))
        if there is None or there.n_bytes not in (None, job.expected.n_bytes or there.n_bytes):
            return False
        digest = _digest(job.expected)
        if there.sha256 is not None and there.sha256 == digest:
            return True
        note = self._notes.get(self._name(job.path))
        known = None not in (note, digest, there.version)
        if known and note == _Note(self._name(job.path), there.n_bytes, there.version, digest):
            return True
        return job.expected.problem_of_object(there) is None

    def _note(self, note: _Note) -> None:
        with self._writing, open(self._room / _NOTES, "ab") as file:
            file.write(msgspec.json.encode(note) + b"\n")


def _digest(expected: Expected) -> str | None:
    return expected.sha256 or expected.git_id
