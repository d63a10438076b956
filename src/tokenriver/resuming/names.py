"""What stands in a folder while something is made there, under these names or behind a data set's."""

from __future__ import annotations

__all__ = ["JOURNAL", "LOCK", "OVERWRITE", "SEGMENTS"]

JOURNAL = "_JOURNAL"
LOCK = "_LOCK"
OVERWRITE = "_OVERWRITE"
"""Folder beside what is finished in which `--overwrite` makes what takes its place."""
SEGMENTS = "_SEGMENTS"
"""Folder in which a cluster works, while it does."""
