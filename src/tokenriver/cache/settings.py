"""Where the cache is and how large it may grow: from arguments, else from the environment, else a default."""

from __future__ import annotations

import operator
import os
import re
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING

from tokenriver.errors import UsageError
from tokenriver.storage.paths import local_path, no_folder, user_cache, word_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

__all__ = ["CacheSettings", "cache_settings", "parse_bytes", "settings_when_needed"]

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
    limit = os.environ.get("TOKENRIVER_CACHE_LIMIT") or None if cache_limit is None else cache_limit
    return CacheSettings(_root(cache_dir), None if limit is None else parse_bytes(limit, what="cache_limit"))


def settings_when_needed(
    cache_dir: str | os.PathLike[str] | None, cache_limit: int | str | None
) -> Callable[[], CacheSettings]:
    """`cache_settings` to be asked for where data lie behind a URL. What was given is checked now, the environment
    then: files of this machine are read without a cache, and by a user without a home."""
    if cache_dir:
        _root(cache_dir)
    if cache_limit is not None:
        parse_bytes(cache_limit, what="cache_limit")
    return partial(cache_settings, cache_dir, cache_limit)


def _root(cache_dir: str | os.PathLike[str] | None) -> Path:
    try:
        given = os.environ.get("TOKENRIVER_CACHE_DIR") if cache_dir is None else word_of(cache_dir)
    except TypeError:
        raise UsageError(f"cache_dir is the path of a directory, not {cache_dir!r}") from None
    if given:
        root = local_path(given, what="the cache")
    else:
        root = user_cache("shards", instead="cache_dir or TOKENRIVER_CACHE_DIR")
    if (found := no_folder(root.absolute())) is not None:
        raise UsageError(f"the cache is a directory, and {found} is none; name another by cache_dir")
    return root.absolute()


def parse_bytes(value: int | str, *, what: str = "a size") -> int:
    """ "200GB" → 200·10^9, "1.5 GiB" → 1.5·2^30, a number is bytes. Raises UsageError for anything else."""
    if not isinstance(value, str):
        if hasattr(value, "__index__") and not isinstance(value, bool) and (size := operator.index(value)) >= 0:
            return size  # NumPy's too
    elif match := _SIZE.fullmatch(value):
        number, unit, binary = match[1], match[2].upper(), match[3]
        if (not binary or unit) and len(number) < _MOST_DIGITS:
            scale = 1024 ** "_KMGTP".index(unit) if binary else _UNITS[unit]
            return int(float(number) * scale)
    raise UsageError(f"{what} is a number of bytes such as 200GB, 1.5TB or 500GiB, not {value!r}")
