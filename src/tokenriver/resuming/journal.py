"""A log of what is finished, on disk, so that the next run goes on from there: one JSON object a line.

The first line, the heading, says what is being made and from what; each later one is about a thing that is finished.
"""

from __future__ import annotations

import os
import threading
from typing import TYPE_CHECKING, Any

import msgspec

from tokenriver.errors import ResumeError
from tokenriver.files import fsync_directory, naming, write_all

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["RedoLog", "refuse_changes", "refuse_engine"]


class RedoLog:
    """An open log; every `append` is on disk when it returns, unless it says otherwise. `begun`: this run started it.

    The heading's "engine" is who writes it, "local" where it names none; engines share the file, not what is in it.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self.begun = False
        self._file: int | None = None
        self._appending = threading.Lock()

    def begin(self, heading: dict[str, Any]) -> None:
        """Start a new log, replacing any old one."""
        self._file = os.open(self.path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        self.begun = True
        self.append(heading)
        fsync_directory(self.path.parent)

    def reopen_lines(self) -> list[dict[str, Any]]:
        """The entries of an existing log, heading first, to go on after; [] when there is none, or no whole line.

        A last line that was cut by a crash is dropped (and truncated away): nobody has relied on what it spoke of,
        which is made again. Damage anywhere else is a ResumeError.
        """
        try:
            raw = self.path.read_bytes()
        except FileNotFoundError:
            return []
        whole = raw[: raw.rfind(b"\n") + 1]
        try:
            entries = [msgspec.json.decode(line, type=dict[str, Any]) for line in whole.splitlines()]
        except msgspec.MsgspecError as error:
            raise self.damaged(error) from error
        if entries:
            self._file = os.open(self.path, os.O_RDWR)
            os.ftruncate(self._file, len(whole))
            os.lseek(self._file, 0, os.SEEK_END)
        return entries

    def damaged(self, error: Exception) -> ResumeError:
        """The error for a log whose lines are not what they should be."""
        return ResumeError(f"{self.path}: damaged ({error})", advice=("give --restart to begin anew",))

    def close(self) -> None:
        """Stop writing; the file stays."""
        if self._file is not None:
            os.close(self._file)
            self._file = None

    def remove(self) -> None:
        """Delete it: the work is complete, or has left nothing."""
        self.close()
        self.path.unlink(missing_ok=True)

    def append(self, entry: dict[str, Any], *, sync: bool = True) -> None:
        """Add a line; with `sync` it is on disk, and all before it, when this returns. From any thread."""
        assert self._file is not None, "begin or reopen first"
        line = msgspec.json.encode(entry) + b"\n"
        with self._appending, naming(self.path):
            write_all(self._file, line)
            if sync:
                os.fsync(self._file)


def refuse_engine(path: Path, entries: list[dict[str, Any]], engine: str) -> None:
    """ResumeError when another engine has finished something by this log: what is half done is kept otherwise."""
    found = entries[0].get("engine", "local")
    if found != engine and len(entries) > 1:
        raise ResumeError(
            f"{path.parent}: what is unfinished there was begun with --engine {found}, and only that can go on with it",
            advice=(f"give --engine {found}, or --restart to begin anew with {engine}",),
        )


def refuse_changes(now: dict[str, Any], then: dict[str, Any], where: object) -> None:
    """ResumeError naming the first thing in the headings in which this run differs from the unfinished one."""
    for key in now:
        if now[key] == then.get(key):
            continue
        found, expected = now[key], then.get(key)
        changed = f"{key} was {expected} and is now {found}"
        if key == "inputs" and isinstance(expected, list):
            changed = _changed_input(found, expected)
        raise ResumeError(
            f"{where}: what is unfinished there was made otherwise: {changed}",
            advice=("give the command as before, or with --restart to begin anew",),
        )


def _changed_input(found: list[Any], expected: list[Any]) -> str:
    """The first difference between two lists of inputs: one more, one less, one that changed, or their order."""
    names = [{one[0] for one in inputs} for inputs in (found, expected)]
    for inputs, others, what in ((expected, names[0], "not given any more"), (found, names[1], "new")):
        other = next((one[0] for one in inputs if one[0] not in others), None)
        if other is not None:
            return f"input {other} is {what}"
    if len(found) != len(expected):
        return f"there were {len(expected):,} inputs and are now {len(found):,}, some of one name"
    at = next(i for i in range(len(found)) if found[i] != expected[i])
    if found[at][0] != expected[at][0]:
        return f"input {at} (counted from 0) was {expected[at][0]} and is now {found[at][0]}; the order matters"
    return f"input {found[at][0]} was [name, bytes, modified (ns) or version] = {expected[at]} and is now {found[at]}"
