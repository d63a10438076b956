"""Which files the documents come from, in which order: inputs on the command line → a list of sources.

The order is the order given; within a directory or a glob it is by name, so it never depends on the listing.
"""

from __future__ import annotations

import glob
import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from msgspec.structs import replace

from tokenriver.corpus.kinds import KINDS, holds_documents, is_json, kind_if_found, require_kind
from tokenriver.corpus.manifest import is_corpus, not_as_listed, read_corpus_manifest
from tokenriver.corpus.sources import Source
from tokenriver.corpus.stdin import STDIN, Pushback
from tokenriver.errors import CorpusError, UsageError
from tokenriver.storage.paths import is_unicode, is_url, named, word_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenriver.corpus.kinds import Compression, Kind
    from tokenriver.corpus.sources import SourceOptions

__all__ = ["find_sources"]


def find_sources(inputs: Sequence[str | os.PathLike[str]], options: SourceOptions | None = None) -> list[Source]:
    """The sources that the inputs name, in the order given.

    An input is a file, a directory (searched through; names that begin with "." or "_", the records of builds and
    files of other kinds are passed over; sorted by relative path), a corpus directory (the files of its manifest,
    sizes checked), a glob (sorted by path), a URL of any of these, or "-" (JSONL on standard input). Raises
    CorpusError for an input that is missing, of an unknown kind, or matches nothing, IntegrityError for a corpus whose
    files are missing or of another size.
    """
    if not inputs:
        raise CorpusError("no input given: name files, directories or globs, or - for JSONL on standard input")
    words = [named(word_of(word)) for word in inputs]
    if words.count(STDIN) > 1:
        raise UsageError("standard input (-) can be read only once")
    if not all(is_url(word) or os.path.isabs(word) for word in words) and not is_unicode(str(Path.cwd())):  # noqa: PTH117
        raise CorpusError(f"{Path.cwd()}: the name of this folder is not UTF-8, so no record can hold it; rename it")
    sources = [source for word in words for source in _find(word)]
    if options is not None and options.json_arrays:
        sources = [replace(s, kind="array") if is_json(s.file) else s for s in sources]
    return sources


def _find(word: str) -> Iterator[Source]:
    if word == STDIN:
        if sys.stdin is None:
            raise CorpusError("standard input is closed; pipe JSONL into it, or name a file")
        yield Source(STDIN, STDIN, "jsonl", "", None, Pushback(sys.stdin.buffer))
        return
    if is_url(word):
        from tokenriver.corpus.remote import find_remote

        yield from find_remote(word)
        return
    is_file_url = word.lower().startswith("file://")
    path = Path(word[7:] if is_file_url else word)
    if path.is_dir():
        yield from _corpus_files(path) if is_corpus(path) else _directory_files(path)
    elif path.is_file():
        yield _source(str(path) if is_file_url else word, path.name)
    elif path.exists():
        raise CorpusError(f"{path}: not a regular file; to read JSONL from a pipe, give - and redirect it")
    elif glob.has_magic(word):
        yield from _glob_files(word[7:] if is_file_url else word)
    else:
        raise CorpusError(f"{path}: no such file or directory; check the path (inputs are relative to {Path.cwd()})")


def _source(file: str, name: str) -> Source:
    return _file_source(file, name, *require_kind(file, file))


def _file_source(file: str, name: str, kind: Kind, compression: Compression) -> Source:
    try:
        facts = os.stat(file)  # noqa: PTH116 (a Path each costs as much as all the rest, with ten thousand files)
    except OSError as error:
        raise CorpusError(f"{file}: cannot be read ({error.strerror}); remove it, or mend the link") from error
    if not stat.S_ISREG(facts.st_mode):
        raise CorpusError(f"{file}: not a regular file; to read JSONL from a pipe, give - and redirect it")
    return Source(file, name, kind, compression, facts.st_size, modified_ns=facts.st_mtime_ns)


def _directory_files(directory: Path) -> Iterator[Source]:
    found: dict[str, tuple[Kind, Compression]] = {}  # by the parts of the path, joined by what sorts them as a tuple's
    for folder, subfolders, files in os.walk(directory, onerror=_raise):
        subfolders[:] = [name for name in subfolders if not name.startswith((".", "_"))]
        above = "".join(part + "\0" for part in Path(folder).relative_to(directory).parts)
        for name in files:
            kind = None if name.startswith((".", "_")) else kind_if_found(name)
            if kind is not None:
                found[above + name] = kind
    if not found:
        raise CorpusError(f"{directory}: no documents in this directory; expected files ending in {', '.join(KINDS)}")
    root = os.path.join(directory, "")  # noqa: PTH118 - a Path a file costs, with ten thousand
    for parts in sorted(found):  # as tuples they would sort in ten times the time
        yield _file_source(root + parts.replace("\0", os.sep), parts.replace("\0", "/"), *found[parts])


def _raise(error: OSError) -> None:
    raise CorpusError(f"{error.filename}: cannot be listed ({error.strerror})") from error


def _glob_files(pattern: str) -> Iterator[Source]:
    matches = [Path(match) for match in glob.iglob(pattern, recursive=True)]  # noqa: PTH207
    files = sorted(
        (path for path in matches if path.is_file() and holds_documents(path.name)), key=lambda path: path.parts
    )
    if not files:
        what = f"{len(matches)} matches, none of them a file of a known kind" if matches else "nothing"
        raise CorpusError(f"{pattern}: the pattern matches {what}; expected files ending in {', '.join(KINDS)}")
    root = Path(*_before_magic(Path(pattern).parts))
    for path in files:
        yield _source(str(path), path.relative_to(root).as_posix())


def _before_magic(parts: tuple[str, ...]) -> Iterator[str]:
    for part in parts[:-1]:
        if glob.has_magic(part):
            return
        yield part


def _corpus_files(directory: Path) -> Iterator[Source]:
    for file in read_corpus_manifest(directory).files:
        path = directory / file.name
        if not path.is_file():
            raise not_as_listed(file, path, None)
        source = _source(str(path), file.name)
        if source.n_bytes != file.n_bytes:
            raise not_as_listed(file, path, source.n_bytes)
        yield replace(source, sha256=file.sha256)
