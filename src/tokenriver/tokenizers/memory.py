"""How much memory this process holds, as its operating system counts it."""

from __future__ import annotations

import os
import sys
from pathlib import Path

__all__ = ["resident_bytes"]

_STATM = Path("/proc/self/statm")


def resident_bytes() -> int | None:
    """Resident bytes now without mapped files (Linux), at most so far (macOS), or None where neither can be asked."""
    if _STATM.exists():
        _, resident, shared = _STATM.read_bytes().split()[:3]
        return (int(resident) - int(shared)) * os.sysconf("SC_PAGE_SIZE")
    if sys.platform == "darwin":
        import resource

        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return None
