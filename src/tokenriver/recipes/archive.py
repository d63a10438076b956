"""The files inside an archive (tar in any compression, zip), each written whole or not at all, and nothing outside."""

from __future__ import annotations

import io
import os
import shutil
import tarfile
import zipfile
import zlib
from dataclasses import dataclass
from lzma import LZMAError
from typing import IO, TYPE_CHECKING

from tokenriver.errors import CorpusError
from tokenriver.files import atomic_write, open_binary
from tokenriver.hub.names import below

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_DAMAGES = (tarfile.TarError, zipfile.BadZipFile, zlib.error, LZMAError, EOFError, RuntimeError)
"""What the libraries raise for archives that are not whole; RuntimeError is a zip file with a password, or packed in a
way that they do not know."""

__all__ = ["ARCHIVES", "extract", "is_archive"]

ARCHIVES = (".tar", ".tar.gz", ".tgz", ".tar.bz2", ".tar.xz", ".zip")

_WHEN = 1_000_000_000
"""Time that extracted files get: extracting again changes nothing about them."""


@dataclass(frozen=True, slots=True)
class _Member:
    name: str
    n_bytes: int
    body: IO[bytes]


def is_archive(name: str) -> bool:
    """Whether a file's name says that it is an archive."""
    return name.lower().endswith(ARCHIVES)


def extract(archive: Path, folder: Path, *, wanted: Callable[[str], bool]) -> list[str]:
    """Write the wanted regular files of an archive below `folder` here; their names, sorted. What is there is kept.

    Raises CorpusError for a damaged archive or one without such files, IntegrityError for a name that leads out of
    the folder.
    """
    names = []
    try:
        for member in _members(archive, wanted):
            path = below(folder, member.name, source=str(archive))
            names.append(member.name)
            if path.exists() and path.stat().st_size == member.n_bytes:
                continue
            path.parent.mkdir(parents=True, exist_ok=True)
            with atomic_write(path) as file:
                shutil.copyfileobj(member.body, file, 1 << 20)
                n_bytes = file.tell()
            if n_bytes != member.n_bytes:
                path.unlink()
                raise CorpusError(f"{archive}: {member.name} is cut short; fetch the archive again")
            os.utime(path, (_WHEN, _WHEN))
    except (*_DAMAGES, OSError) as error:
        if isinstance(error, OSError) and error.errno is not None:
            raise
        for name in names:  # a checksum at the archive's end counts for all of them
            below(folder, name, source=str(archive)).unlink(missing_ok=True)
        raise CorpusError(f"{archive}: not a whole archive ({error}); fetch it again") from error
    if not names:
        raise CorpusError(f"{archive}: none of the files that the recipe names is in it")
    return sorted(names)


def _members(archive: Path, wanted: Callable[[str], bool]) -> Iterator[_Member]:
    if archive.name.lower().endswith(".zip"):
        with _opened(archive) as file, zipfile.ZipFile(file) as zipped:
            for info in zipped.infolist():
                if not info.is_dir() and wanted(info.filename):
                    with zipped.open(info) as body:
                        yield _Member(info.filename, info.file_size, body)
        return
    with _opened(archive) as file, tarfile.open(fileobj=file, mode="r:*") as tar:
        for member in tar:
            name = member.name.removeprefix("./")
            if not wanted(name) or member.isdir():
                continue
            if not member.isfile():
                raise CorpusError(
                    f"{archive}: {name} is a link or a device, not a file; make the archive of files alone"
                )
            content = tar.extractfile(member)
            assert content is not None, "a regular file has a body"
            yield _Member(name, member.size, content)
        while tar.fileobj is not None and tar.fileobj.read(1 << 20):
            pass  # to the end, where gzip's checksum stands


def _opened(archive: Path) -> io.BufferedReader:
    """An archive here or behind a URL, which is read as a stream."""
    return io.BufferedReader(open_binary(archive), 1 << 20)
