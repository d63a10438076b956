"""Documents behind URLs: which objects an input names, and their bytes in order.

The rules are those of sources.py for files: an object, a prefix taken as a directory, a corpus, or a glob; within a
prefix or glob the order is by name, whatever order the store lists in.
"""

from __future__ import annotations

import glob
from dataclasses import replace
from typing import TYPE_CHECKING

from tokenriver.corpus.manifest import CORPUS_MANIFEST, corpus_directory, read_corpus_manifest
from tokenriver.corpus.sources import KINDS, Source, holds_documents, require_kind
from tokenriver.errors import CorpusError, IntegrityError
from tokenriver.storage.objects import RemoteFile, below, find_object, glob_objects, required_size
from tokenriver.storage.paths import last_name, scheme_of, shown
from tokenriver.storage.reading import read_from

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["find_remote", "remote_chunks"]


def find_remote(url: str) -> Iterator[Source]:
    """The sources that a URL names. Raises what `find_sources` does, PermissionError and StorageError."""
    found = find_object(url)
    if found is not None:
        yield _source(found, last_name(url))
        return
    if scheme_of(url) in ("http", "https"):  # no web server lists what it has
        raise CorpusError(f"{shown(url)}: no such file on the server; check the address")
    directory = corpus_directory([url])
    if directory is not None:
        yield from _corpus_files(url)
        return
    objects = below(url)
    if objects:
        yield from _prefix_files(url, objects)
    elif glob.has_magic(url):
        yield from _glob_files(url)
    else:
        raise CorpusError(f"{shown(url)}: no such object, and none below it as a prefix; check the bucket and the key")


def remote_chunks(
    file: RemoteFile, read_bytes: int, on_raw: Callable[[bytes], None] | None, start: int
) -> Iterator[bytes]:
    """Bytes of an object from `start`, in pieces of at most `read_bytes`, each told to `on_raw`."""
    for piece in read_from(file, start=start):
        for at in range(0, len(piece), read_bytes):
            chunk = piece if len(piece) <= read_bytes else piece[at : at + read_bytes]
            if on_raw is not None:
                on_raw(chunk)
            yield chunk


def _source(found: RemoteFile, name: str) -> Source:
    kind = require_kind(name, shown(found.url))
    return Source(found.url, name, *kind, required_size(found), remote=found)


def _prefix_files(url: str, objects: dict[str, RemoteFile]) -> Iterator[Source]:
    wanted = [name for name in objects if _is_read(name)]
    if not wanted:
        raise CorpusError(f"{shown(url)}: no documents below this prefix; expected names ending in {', '.join(KINDS)}")
    for name in wanted:
        yield _source(objects[name], name)


def _is_read(name: str) -> bool:
    return not any(part.startswith((".", "_")) for part in name.split("/")) and holds_documents(name)


def _glob_files(pattern: str) -> Iterator[Source]:
    matches = glob_objects(pattern)
    wanted = [found for found in matches if holds_documents(found.url)]
    if not wanted:
        what = f"{len(matches)} objects, none of a known kind" if matches else "nothing"
        raise CorpusError(f"{shown(pattern)}: the pattern matches {what}; expected names ending in {', '.join(KINDS)}")
    path = pattern.partition("://")[2]
    parts = path.split("/")
    fixed = next((i for i, part in enumerate(parts[:-1]) if glob.has_magic(part)), len(parts) - 1)
    for found in wanted:
        # As deep below the pattern's fixed part as the object lies.
        yield _source(found, "/".join(found.url.partition("://")[2].lstrip("/").split("/")[fixed - (not parts[0]) :]))


def _corpus_files(url: str) -> Iterator[Source]:
    from tokenriver.storage.paths import to_path

    root = url.rstrip("/")
    there = below(url)
    for file in read_corpus_manifest(to_path(url)).files:
        found = there.get(file.name)
        if found is None:
            raise IntegrityError(
                f"{shown(root)}/{file.name}: missing, though {CORPUS_MANIFEST} lists it; fetch or write it again"
            )
        if found.n_bytes != file.n_bytes:
            raise IntegrityError(
                f"{found}: {found.n_bytes:,} bytes, but {CORPUS_MANIFEST} says {file.n_bytes:,}; "
                "fetch or write it again"
            )
        yield replace(_source(found, file.name), sha256=file.sha256)
