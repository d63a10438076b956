"""Documents behind URLs: which objects an input names, and their bytes in order.

The rules are those of finding.py for files: an object, a prefix taken as a directory, a corpus, or a glob; within a
prefix or glob the order is by name, whatever order the store lists in.
"""

from __future__ import annotations

import glob
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tokenriver.corpus.kinds import KINDS, holds_documents, require_kind
from tokenriver.corpus.manifest import corpus_directory, not_as_listed, read_corpus_manifest
from tokenriver.corpus.sources import Source
from tokenriver.corpus.streams import read_small
from tokenriver.errors import CorpusError
from tokenriver.storage.objects import RemoteFile, below, find_object, glob_objects, required_size
from tokenriver.storage.paths import is_web, last_name, shown, to_path
from tokenriver.storage.reading import read_from, read_whole

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence
    from concurrent.futures import Future

__all__ = ["SmallAhead", "find_remote", "remote_chunks"]

_SMALL_AHEAD = 16
"""Small objects under way at once."""


def find_remote(url: str) -> Iterator[Source]:
    """The sources that a URL names. Raises what `find_sources` does, PermissionError and StorageError."""
    found = find_object(url)
    if found is not None:
        yield _source(found, last_name(url))
        return
    if is_web(url):  # no web server lists what it has
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


class SmallAhead:
    """Fetches the small objects that will be read next while the ones before are read: each takes a store some 30 ms.

    `sources` in the order of reading; `read` gives the bytes of one of them, as `read_small` does.
    """

    def __init__(self, sources: Sequence[Source], is_small: Callable[[Source], bool]) -> None:
        self._sources = sources
        self._is_small = is_small
        self._pool = ThreadPoolExecutor(_SMALL_AHEAD, thread_name_prefix="tokenriver-small")
        self._fetched: dict[int, Future[bytes]] = {}
        self._places = {id(source): i for i, source in enumerate(sources)}
        self._next = 0

    def read(self, source: Source, on_raw: Callable[[bytes], None] | None) -> bytes:
        """The bytes of a small source. Raises what `read_small` raises."""
        if source.remote is None:
            return read_small(source, on_raw)
        index = self._places[id(source)]
        self._next = max(self._next, index)
        while self._next < min(len(self._sources), index + 2 * _SMALL_AHEAD):
            source = self._sources[self._next]
            if source.remote is not None and self._is_small(source):
                self._fetched[self._next] = self._pool.submit(read_whole, source.remote)
            self._next += 1
        data = self._fetched.pop(index).result()
        if on_raw is not None:
            if data:
                on_raw(data)
            on_raw(b"")
        return data

    def close(self) -> None:
        """Fetch no more; waits for what is under way."""
        self._pool.shutdown(cancel_futures=True)


def _source(found: RemoteFile, name: str) -> Source:
    kind = require_kind(name, shown(found.url))
    return Source(found.url, name, *kind, required_size(found), remote=found, sha256=found.sha256)


def _prefix_files(url: str, objects: dict[str, RemoteFile]) -> Iterator[Source]:
    wanted = [name for name in objects if _is_read(name)]
    if not wanted:
        raise CorpusError(f"{shown(url)}: no documents below this prefix; expected names ending in {', '.join(KINDS)}")
    for name in wanted:
        yield _source(objects[name], name)


def _is_read(name: str) -> bool:
    return not any(part.startswith((".", "_")) for part in name.split("/")) and holds_documents(name)


def _glob_files(pattern: str) -> Iterator[Source]:
    parts = pattern.partition("://")[2].split("/")
    fixed = next((i for i, part in enumerate(parts[:-1]) if glob.has_magic(part)), len(parts) - 1)
    asks_for_hidden = any(part.startswith(".") for part in parts[fixed:])  # else `*` passes them over, as everywhere
    matches = {}
    for found in glob_objects(pattern):
        # As deep below the pattern's fixed part as the object lies.
        below_fixed = found.url.partition("://")[2].lstrip("/").split("/")[fixed - (not parts[0]) :]
        if asks_for_hidden or not any(part.startswith(".") for part in below_fixed):
            matches["/".join(below_fixed)] = found
    wanted = {name: found for name, found in matches.items() if holds_documents(name)}
    if not wanted:
        what = f"{len(matches)} objects, none of a known kind" if matches else "nothing"
        raise CorpusError(f"{shown(pattern)}: the pattern matches {what}; expected names ending in {', '.join(KINDS)}")
    for name, found in wanted.items():
        yield _source(found, name)


def _corpus_files(url: str) -> Iterator[Source]:
    root = url.rstrip("/")
    there = below(url)
    for file in read_corpus_manifest(to_path(url)).files:
        found = there.get(file.name)
        if found is None or found.n_bytes != file.n_bytes:
            raise not_as_listed(file, f"{shown(root)}/{file.name}", None if found is None else found.n_bytes)
        yield replace(_source(found, file.name), sha256=file.sha256)
