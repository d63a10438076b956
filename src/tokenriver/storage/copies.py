"""Small files from behind a URL as files here, for libraries that take nothing else: tokenizers, specifications."""

from __future__ import annotations

import errno
import tempfile
from functools import cache
from pathlib import Path

from tokenriver.errors import UsageError
from tokenriver.storage.objects import RemoteFile, below, find_object
from tokenriver.storage.paths import last_name, shown
from tokenriver.storage.reading import read_from

__all__ = ["local_copy"]

_MAX_BYTES = 1 << 30
"""Of all files together: a tokenizer has some megabytes, and whoever names a corpus by mistake must not wait for it."""


def local_copy(url: str) -> Path:
    """The object of a URL, or what lies directly below it as a prefix, copied into a folder that goes with the process.

    Names stay: `s3://bucket/smollm2/tokenizer.json` becomes `…/smollm2/tokenizer.json`. Raises FileNotFoundError,
    PermissionError or StorageError, and UsageError past 1 GiB.
    """
    parent = last_name(url.rstrip("/").rpartition("/")[0]) or "fetched"
    folder = Path(tempfile.mkdtemp(dir=_root())) / parent
    folder.mkdir()
    found = find_object(url)
    if found is not None:
        path = folder / last_name(url)
        _fetch({path: found}, url)
        return path
    folder = folder / last_name(url)
    folder.mkdir()
    there = below(url, deep=False)
    if not there:
        raise FileNotFoundError(errno.ENOENT, "no such object or prefix", shown(url))
    _fetch({folder / name: file for name, file in there.items()}, url)
    return folder


def _fetch(files: dict[Path, RemoteFile], url: str) -> None:
    n_bytes = sum(file.n_bytes or 0 for file in files.values())
    if n_bytes > _MAX_BYTES:
        raise UsageError(f"{shown(url)}: {n_bytes:,} bytes, too much to be what is expected here; check the address")
    for path, file in files.items():
        with open(path, "wb") as out:
            for chunk in read_from(file):
                out.write(chunk)


@cache
def _root() -> str:
    keeper = tempfile.TemporaryDirectory(prefix="tokenriver-")
    _keepers.append(keeper)  # removed when the process ends
    return keeper.name


_keepers: list[tempfile.TemporaryDirectory[str]] = []
