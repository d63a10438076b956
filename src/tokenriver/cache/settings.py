"""Where the cache is and how large it may grow: from arguments, else from the environment, else a default."""

from __future__ import annotations

import os
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenriver.errors import UsageError
from tokenriver.storage.paths import local_path, no_folder, user_cache, word_of

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["CacheSettings", "cache_settings", "parse_bytes"]

_UNITS = {"": 1, "K": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15}
_MOST_DIGITS = 40

_SIZE = re.compile(r"\s*(\d+(?:\.\d+)?)\s*([KMGTP]?)(I?)B?\s*", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class CacheSettings:
    """The folder of the cache, and its limit in bytes; None: as much as leaves 5 % of the disk free."""

    root: Path
    limit: int | None


def cache_settings(
    cache_dir: str | os.PathLike[str] | None = None, cache_limit: int | str | None = None
) -> CacheSettings:
    """As given, else by TOKENRIVER_CACHE_DIR and TOKENRIVER_CACHE_LIMIT, else tokenriver/shards in the user's cache.

    Raises UsageError for a limit that is no size, and for a cache that is not on this machine or no directory.
    """
    given = os.environ.get("TOKENRIVER_CACHE_DIR") if cache_dir is None else word_of(cache_dir)
    if given:
        root = local_path(given, what="the cache").expanduser()
    else:
        root = user_cache("shards")
    if (found := no_folder(root.absolute())) is not None:
        raise UsageError(f"the cache is a directory, and {found} is none; name another by cache_dir")
    limit = os.environ.get("TOKENRIVER_CACHE_LIMIT") or None if cache_limit is None else cache_limit
    return CacheSettings(root.absolute(), None if limit is None else parse_bytes(limit, what="cache_limit"))


def parse_bytes(value: int | str, *, what: str = "a size") -> int:
    """ "200GB" → 200·10^9, "1.5 GiB" → 1.5·2^30, a number is bytes. Raises UsageError for anything else."""
    if isinstance(value, int) and not isinstance(value, bool):
        if value >= 0:
            return value
    elif isinstance(value, str) and (match := _SIZE.fullmatch(value)):
        number, unit, binary = match[1], match[2].upper(), match[3]
        if (not binary or unit) and len(number) < _MOST_DIGITS:
            scale = 1024 ** "_KMGTP".index(unit) if binary else _UNITS[unit]
            return int(float(number) * scale)
    raise UsageError(f"{what} is a number of bytes such as 200GB, 1.5TB or 500GiB, not {value!r}")
