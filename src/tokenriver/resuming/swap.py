"""A new data set in the place of an old one in an object store, where nothing can be renamed.

The new objects stand below a prefix of the target until all are there. Then, each step noted in a log on this machine:
the old manifest is removed, the store copies every object to its name, what is left of the old and below the prefix is
removed, and the records follow, the manifest last. Killed anywhere in between, the next run goes on from the log.
"""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenriver.errors import IntegrityError
from tokenriver.resuming.journal import RedoLog
from tokenriver.storage.directory import RemoteDirectory
from tokenriver.storage.paths import shown
from tokenriver.storage.uploading import copy_object

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence
    from pathlib import Path

__all__ = ["Swap"]

_AT_ONCE = 8
"""Copies and deletions under way: the store does the work, and each is one call."""


@dataclass(frozen=True, slots=True)
class Swap:
    """What takes the place of the objects in `there`; `path` is its log, by whose name the prefix is called."""

    there: RemoteDirectory
    path: Path

    @property
    def anew(self) -> RemoteDirectory:
        """Where the new objects stand until they are all there."""
        return RemoteDirectory(self.there.url_of(self.path.name))

    @property
    def under_way(self) -> bool:
        """Whether objects go below the prefix."""
        return self.path.exists()

    @property
    def begun(self) -> bool:
        """Whether the old data set may be gone: then `end` has to be called again, whatever is asked for."""
        return bool(self._read().files)

    def prepare(self) -> None:
        """Empty the prefix and send what is made from now on there."""
        self._remove(self.anew, self.anew.list())
        log = RedoLog(self.path)
        log.begin({"replaces": str(self.there)})
        log.close()

    def drop(self) -> None:
        """Remove what was made, and the log: objects go to their final places again."""
        self._remove(self.anew, self.anew.list())
        self.path.unlink(missing_ok=True)

    def begin(self, names: Iterable[str]) -> None:
        """All objects are below the prefix: from now on there is no way back. IntegrityError for one that is not."""
        found = self.anew.list()
        wanted = list(names)
        missing = next((name for name in wanted if name not in found), None)
        if missing is not None:
            raise IntegrityError(
                f"{shown(self.anew.url_of(missing))}: it was uploaded and is not there; something else writes there: "
                "give --restart to begin anew"
            )
        log = RedoLog(self.path)
        log.reopen_lines()
        log.append({"files": {name: found[name].n_bytes for name in wanted}})
        log.close()

    def end(self, records: Sequence[Path], *, ours: Callable[[str], object]) -> None:
        """Do what is left of the swap. `records` are uploaded in their order, the last one makes it a data set; `ours`
        tells the data set's objects by their names.
        """
        state = self._read()
        if not state.copied_all:
            self.there.remove(path.name for path in reversed(records))
            self._copy(state)
        there = self.there.list()
        for name, n_bytes in state.files.items():
            if name not in there or there[name].n_bytes != n_bytes:
                raise IntegrityError(
                    f"{shown(self.there.url_of(name))}: it was copied there and is not there whole; something else "
                    "writes there: give --restart to begin anew"
                )
        kept = {*state.files, *(path.name for path in records)}
        self._remove(self.there, [name for name in there if ours(name) and name not in kept])
        self._remove(self.anew, self.anew.list())
        for path in records:
            self.there.put(path)
        self.path.unlink()

    def _copy(self, state: _State) -> None:
        """Copy what the log does not name yet."""
        log = RedoLog(self.path)
        log.reopen_lines()
        found = self.anew.list()

        def copy(name: str) -> str:
            if name not in found or found[name].n_bytes != state.files[name]:
                raise IntegrityError(
                    f"{shown(self.anew.url_of(name))}: it is not there as it was uploaded",
                    advice=("give --restart to begin anew",),
                )
            copy_object(found[name], self.there.url_of(name))
            return name

        try:
            with ThreadPoolExecutor(_AT_ONCE, "tokenriver-copy") as pool:
                try:
                    for name in pool.map(copy, [name for name in state.files if name not in state.copied]):
                        log.append({"copied": name}, sync=False)
                except BaseException:
                    pool.shutdown(cancel_futures=True)
                    raise
            log.append({"copied": None})
        finally:
            log.close()

    def _remove(self, directory: RemoteDirectory, names: Iterable[str]) -> None:
        with ThreadPoolExecutor(_AT_ONCE, "tokenriver-remove") as pool:
            for _ in pool.map(lambda name: directory.remove([name]), list(names)):
                pass

    def _read(self) -> _State:
        log = RedoLog(self.path)
        entries = log.reopen_lines()
        log.close()
        files: dict[str, int | None] = next((entry["files"] for entry in entries if "files" in entry), {})
        copied = {entry["copied"] for entry in entries if "copied" in entry}
        return _State(files, copied, None in copied)


@dataclass(frozen=True, slots=True)
class _State:
    """What the log says: the new objects with their sizes once all are there, those copied, and that all are."""

    files: dict[str, int | None]
    copied: set[str | None]
    copied_all: bool
