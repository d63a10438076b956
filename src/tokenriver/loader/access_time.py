"""The time of last access of files that are read a million times: written when it matters, not looked at each time.

Linux looks at a file's times at every read, a tenth of what reading 2 kB costs. Clusters clear scratch disks by the
time of last access, though, so it is not left alone either: a byte is read as anyone reads, which moves that time by
the rules of the file system, and then again every hour.
"""

from __future__ import annotations

import os
import sys

__all__ = ["note_access"]


if sys.platform == "linux":
    import fcntl

    def note_access(descriptor: int) -> None:
        """Let the open file's time of last access be noted now, and by no later read where the file is our own."""
        flags = fcntl.fcntl(descriptor, fcntl.F_GETFL) & ~os.O_NOATIME
        fcntl.fcntl(descriptor, fcntl.F_SETFL, flags)
        os.pread(descriptor, 1, 0)
        try:
            fcntl.fcntl(descriptor, fcntl.F_SETFL, flags | os.O_NOATIME)
        except PermissionError:  # somebody else's file: each read notes it
            return

else:

    def note_access(descriptor: int) -> None:
        """Elsewhere every read notes it."""
