"""What the cache holds, data set by data set: what `tokenriver cache` shows."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from tokenriver.cache.folder import CacheFolder

__all__ = ["CachedDataSet", "cached_data_sets"]


@dataclass(frozen=True, slots=True)
class CachedDataSet:
    """One data set in the cache: its folder, where it lies, how many files are whole and how many are not, their bytes,
    and when one of them was needed last (seconds since 1970)."""

    key: str
    url: str
    files: int
    parts: int
    bytes: int
    last_used: float


def cached_data_sets(folder: CacheFolder) -> list[CachedDataSet]:
    """All data sets in the cache, the one used last first. A part counts with the bytes that are there."""
    by_key: dict[str, list[tuple[bool, int, float]]] = {}
    for entry in folder.entries():
        try:
            size = entry.path.stat().st_size if entry.part else entry.bytes
        except FileNotFoundError:
            continue
        by_key.setdefault(entry.key, []).append((entry.part, size, entry.needed))
    found = [
        CachedDataSet(
            key,
            str(folder.source_of(key).get("url", "")),
            sum(not part for part, _, _ in files),
            sum(part for part, _, _ in files),
            sum(size for _, size, _ in files),
            max(needed for _, _, needed in files),
        )
        for key, files in by_key.items()
    ]
    return sorted(found, key=lambda one: -one.last_used)
