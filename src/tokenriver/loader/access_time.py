"""The time of last access of files that are read a million times: written when it matters, not looked at each time.

Linux looks at a file's times at every read, a tenth of what reading 2 kB costs. Clusters clear scratch disks by the
time of last access, though, so it is not left alone either: a byte is read as anyone reads, which moves that time by
the rules of the file system, and then again every hour.
"""

from __future__ import annotations

import os
import sys

__all__ = ["note_access", "prepare_reads"]


if sys.platform == "linux":
    import fcntl

    def prepare_reads(descriptor: int, *, note: bool) -> None:
        """Let a file that was just opened be read whatever comes: reads wait for the disk, and leave its time of last
        access alone where it is our own. With `note` that time is written first."""
        if note:
            os.pread(descriptor, 1, 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, os.O_NOATIME)  # and so not O_NONBLOCK any more
        except OSError:  # somebody else's file, or a system without this: each read notes it
            fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)

    def note_access(descriptor: int) -> None:
        """Write the time of last access of a file that has been open for long."""
        fcntl.fcntl(descriptor, fcntl.F_SETFL, 0)
        prepare_reads(descriptor, note=True)

else:

    def prepare_reads(descriptor: int, *, note: bool) -> None:  # noqa: ARG001
        """Let reads wait for the disk; every read writes the time of last access here."""
        if os.name == "posix":
            os.set_blocking(descriptor, True)

    def note_access(descriptor: int) -> None:
        """Every read does."""
