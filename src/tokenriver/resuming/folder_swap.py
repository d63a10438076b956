"""A new data set in the place of an old one in a folder of this disk: made in a folder below it, then moved up.

The old one stays until the new one is whole. Then its files are removed, a mark says so, and the new ones are renamed
to their places, the record that makes them a data set last. Killed anywhere in between, the next run goes on.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenriver.files import fsync_directory

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["FolderSwap"]

_CLEARED = "_CLEARED"
"""Stands in the folder of a new data set once the old one is removed: from then on what lies there is the new one's."""


@dataclass(frozen=True, slots=True)
class FolderSwap:
    """What takes the place of the files in the folder above `anew`; `final` is the name of the last record."""

    anew: Path
    final: str

    @property
    def whole(self) -> bool:
        """Whether the new data set is whole: then `end` has to be called."""
        return (self.anew / self.final).exists()

    @property
    def cleared(self) -> bool:
        """Whether the old data set is gone."""
        return (self.anew / _CLEARED).exists()

    def prepare(self) -> None:
        """Make the folder, with nothing in it."""
        self.drop()
        self.anew.mkdir(exist_ok=True)

    def drop(self) -> None:
        """Remove what was made so far. A task of a node that was given up may still write there for a moment."""
        if self.anew.exists():
            shutil.rmtree(self.anew, ignore_errors=True)

    def end(self, clear: Callable[[], None]) -> None:
        """Do what is left of the swap; `clear` removes the old data set."""
        there, mark = self.anew.parent, self.anew / _CLEARED
        if not self.cleared:
            clear()
            mark.touch()
            fsync_directory(self.anew)
        files = [path for path in self.anew.iterdir() if path != mark]
        for path in sorted(files, key=lambda path: path.name == self.final):
            if path.name == self.final:
                fsync_directory(there)
            path.replace(there / path.name)
        fsync_directory(there)
        self.drop()
