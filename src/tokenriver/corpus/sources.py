"""Which files the documents come from, in which order: inputs on the command line → a list of sources.

The order is the order given; within a directory or a glob it is by name, so it never depends on the listing.
"""

from __future__ import annotations

import glob
import hashlib
import io
import os
import re
import stat
import sys
from dataclasses import dataclass, replace
from pathlib import Path
from typing import IO, TYPE_CHECKING, Literal

from tokenriver.corpus.manifest import CORPUS_MANIFEST, is_corpus, read_corpus_manifest
from tokenriver.corpus.splits import TRAIN, VAL
from tokenriver.errors import CorpusError, IntegrityError, ResumeError, UsageError
from tokenriver.storage.paths import is_url, word_of

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenriver.storage.objects import RemoteFile

__all__ = [
    "KINDS",
    "STDIN",
    "OnBadRecord",
    "Pushback",
    "Source",
    "SourceOptions",
    "find_sources",
    "holds_documents",
    "kind_of",
    "require_kind",
    "split_by_file",
]

Kind = Literal["jsonl", "parquet", "txt", "array"]
Compression = Literal["", "gz", "zst"]
OnBadRecord = Literal["error", "skip"]

STDIN = "-"
"""The input that means JSONL on standard input."""

KINDS: dict[str, tuple[Kind, Compression]] = {
    ".jsonl": ("jsonl", ""),
    ".jsonl.gz": ("jsonl", "gz"),
    ".jsonl.zst": ("jsonl", "zst"),
    ".ndjson": ("jsonl", ""),
    ".ndjson.gz": ("jsonl", "gz"),
    ".ndjson.zst": ("jsonl", "zst"),
    ".json": ("jsonl", ""),
    ".json.gz": ("jsonl", "gz"),
    ".json.zst": ("jsonl", "zst"),
    ".parquet": ("parquet", ""),
    ".txt": ("txt", ""),
    ".txt.gz": ("txt", "gz"),
    ".txt.zst": ("txt", "zst"),
}
"""Ending of a file (in any case) → what it holds and how it is compressed. `.json` is read as JSON lines."""

_RECORDS = ("_BUILD.json", "_CORPUS.json", "_MANIFEST.json")
"""Records that stand beside shards, with a data set's name before them (docs/format.md): never documents."""


@dataclass(frozen=True, slots=True)
class SourceOptions:
    """How documents are read from sources.

    `text_field`: the JSON field or Parquet column with the text. `split_field`: the one with "train" or "val", read
    where not None. `id_field`: read where not None (a record may lack it). `on_bad_record`: "error" stops at the
    first bad record, "skip" counts it by kind. `keep_empty` keeps texts of no bytes. `document_separator` cuts .txt
    files into documents (None: one document a file); `keep_document_separator` leaves it at each document's end, and
    one at the very end of the file then opens a last, empty document. `document_start` joins the rows of a Parquet
    file into documents: a row that this regular expression is found in begins one, and each file does. `json_arrays`
    reads a .json file as one array of records. `strip` takes the white space off both ends of every text.
    """

    text_field: str = "text"
    split_field: str | None = None
    id_field: str | None = None
    on_bad_record: OnBadRecord = "error"
    keep_empty: bool = False
    document_separator: str | None = None
    keep_document_separator: bool = False
    document_start: str | None = None
    json_arrays: bool = False
    strip: bool = False

    def __post_init__(self) -> None:
        if self.on_bad_record not in ("error", "skip"):
            raise UsageError(f"on_bad_record is {self.on_bad_record!r}: give 'error' or 'skip'")
        if self.document_separator == "":
            raise UsageError("the document separator is empty: give a text such as '\\n\\n', or none at all")
        if self.document_start is not None:
            try:
                re.compile(self.document_start)
            except re.error as error:
                raise UsageError(f"document start {self.document_start!r} is no regular expression: {error}") from error


class Pushback:
    """A stream that cannot seek, with room to put back what was read too early."""

    def __init__(self, stream: IO[bytes]) -> None:
        self._stream = stream
        self._back = b""
        self._expected: tuple[int, int, str] | None = None
        self._passed = 0
        self._digest = hashlib.sha256()

    def __reduce__(self) -> tuple[type[Pushback], tuple[IO[bytes]]]:
        """In another process there is nothing to read; that it is no file is all that must be known there."""
        return Pushback, (io.BytesIO(),)

    def read(self, n: int) -> bytes:
        """Up to `n` bytes, b"" at the end. Raises ResumeError when they are not what `expect` was told."""
        data = self._take(n)
        if self._expected is not None:
            data = self._compare(data)
        return data

    def unread(self, data: bytes) -> None:
        """Put bytes back in front."""
        self._back = data + self._back

    def expect(self, unchecked: int, n_bytes: int, sha256: str) -> None:
        """Compare the first `n_bytes` with their SHA-256 before giving out any after the first `unchecked`.

        So nothing new is made from another input than the one that an interrupted run read.
        """
        self._expected = (unchecked, n_bytes, sha256)

    def _take(self, n: int) -> bytes:
        if self._back:
            data, self._back = self._back[:n], self._back[n:]
            return data
        return self._stream.read(n)

    def _compare(self, data: bytes) -> bytes:
        """The same bytes, once they are known to be the expected ones where that matters."""
        assert self._expected is not None
        unchecked, n_bytes, sha256 = self._expected
        pieces = [data]
        while True:
            self._digest.update(data[: n_bytes - self._passed])
            self._passed += len(data)
            if self._passed >= n_bytes or not data or self._passed <= unchecked:
                break
            data = self._take(1 << 20)
            pieces.append(data)
        if self._passed >= n_bytes or not data:
            if self._passed < n_bytes or self._digest.hexdigest() != sha256:
                raise ResumeError(
                    f"<stdin>: its first {n_bytes:,} bytes are not those that the unfinished build read, so the input "
                    "changed; give it as it was, or build with --restart to begin anew"
                )
            self._expected = None
        self.unread(b"".join(pieces[1:]))
        return pieces[0]


@dataclass(frozen=True, slots=True)
class Source:
    """One file (or standard input) that holds documents.

    `file` is its path as it was found, or its URL; `name` the path relative to the input that found it, with "/" (never
    absolute); `n_bytes` the size of the file when it was found, None for standard input, and `modified_ns` its time of
    modification then, None for anything but a file; `stream` only for standard input;
    `remote` only for an object behind a URL; `sha256` what a corpus manifest says of the file. `pin` names the content
    where it is known before the file is read ("sha256:…" or "git:…"). `side` (0 train, 1 val) is that of all documents
    in it where files are split, and `shuffle_seed` puts the records of an array in the order of Python's
    `random.Random(seed).shuffle`.
    """

    file: str
    name: str
    kind: Kind
    compression: Compression
    n_bytes: int | None
    stream: Pushback | None = None
    remote: RemoteFile | None = None
    sha256: str | None = None
    pin: str | None = None
    side: int | None = None
    shuffle_seed: int | None = None
    modified_ns: int | None = None

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.file)

    def __str__(self) -> str:
        return "<stdin>" if self.stream is not None else self.file if self.remote is None else str(self.remote)


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
    words = [word_of(word) for word in inputs]
    if words.count(STDIN) > 1:
        raise UsageError("standard input (-) can be read only once")
    sources = [source for word in words for source in _find(word)]
    if options is not None and options.json_arrays:
        sources = [replace(s, kind="array") if _is_json(s.file) else s for s in sources]
    return sources


def _is_json(file: str) -> bool:
    return file.lower().removesuffix(".gz").removesuffix(".zst").endswith(".json")


def kind_of(name: str, options: SourceOptions) -> tuple[Kind, Compression] | None:
    """What a file of this name holds and how it is compressed; None for a name that no document source has."""
    found = _kind_of(name)
    return ("array", found[1]) if found is not None and options.json_arrays and _is_json(name) else found


def split_by_file(sources: Sequence[Source], n_val: int | None, shuffle_seed: int | None) -> list[Source]:
    """The sources with their sides, the first `n_val` being val (None: files have no side), and their seeds.

    File k of its side (of all, where files have no side) is shuffled with `shuffle_seed` + k.
    """
    split = []
    for i, source in enumerate(sources):
        side = None if n_val is None else VAL if i < n_val else TRAIN
        k = i - (n_val or 0) if side == TRAIN else i
        seed = None if shuffle_seed is None else shuffle_seed + k
        same = source.side == side and source.shuffle_seed == seed  # a copy of each counts, with ten thousand
        split.append(source if same else replace(source, side=side, shuffle_seed=seed))
    return split


def _find(word: str) -> Iterator[Source]:
    if word == STDIN:
        yield Source(STDIN, STDIN, "jsonl", "", None, Pushback(sys.stdin.buffer))
        return
    if is_url(word):
        from tokenriver.corpus.remote import find_remote

        yield from find_remote(word)
        return
    path = Path(word.removeprefix("file://"))
    if path.is_dir():
        yield from _corpus_files(path) if is_corpus(path) else _directory_files(path)
    elif path.is_file():
        yield _source(str(path) if word.startswith("file://") else word, path.name)
    elif path.exists():
        raise CorpusError(f"{path}: not a regular file; to read JSONL from a pipe, give - and redirect it")
    elif glob.has_magic(word):
        yield from _glob_files(word.removeprefix("file://"))
    else:
        raise CorpusError(f"{path}: no such file or directory; check the path (inputs are relative to {Path.cwd()})")


def _kind_of(name: str) -> tuple[Kind, Compression] | None:
    lower = name.lower()
    dot = lower.rfind(".")
    if lower[dot:] in (".gz", ".zst"):
        dot = lower.rfind(".", 0, dot)
    return KINDS.get(lower[dot:]) if dot >= 0 else None


def require_kind(name: str, shown: str) -> tuple[Kind, Compression]:
    """What a file of this name holds and how it is compressed; CorpusError for a name that no document source has."""
    kind = _kind_of(name)
    if kind is None:
        raise CorpusError(f"{shown}: unknown kind of file; expected a name ending in {', '.join(KINDS)}")
    return kind


def holds_documents(name: str) -> bool:
    """Whether a file found in a directory is read, by its name."""
    return _kind_of(name) is not None and not name.endswith(_RECORDS)


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
    found: list[tuple[tuple[str, ...], tuple[Kind, Compression]]] = []
    for folder, subfolders, files in os.walk(directory, onerror=_raise):
        subfolders[:] = [name for name in subfolders if not name.startswith((".", "_"))]
        parts = Path(folder).relative_to(directory).parts
        for name in files:
            kind = None if name.startswith((".", "_")) or name.endswith(_RECORDS) else _kind_of(name)
            if kind is not None:
                found.append(((*parts, name), kind))
    if not found:
        raise CorpusError(f"{directory}: no documents in this directory; expected files ending in {', '.join(KINDS)}")
    root = os.path.join(directory, "")  # noqa: PTH118 - a Path a file costs, with ten thousand
    for parts, kind in sorted(found):
        yield _file_source(root + os.sep.join(parts), "/".join(parts), *kind)  # noqa: PTH118


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
            raise IntegrityError(
                f"{path}: missing, though {directory / CORPUS_MANIFEST} lists it; fetch or write it again"
            )
        source = _source(str(path), file.name)
        if source.n_bytes != file.n_bytes:
            raise IntegrityError(
                f"{path}: {source.n_bytes:,} bytes, but {CORPUS_MANIFEST} says {file.n_bytes:,}; "
                "fetch or write it again"
            )
        yield replace(source, sha256=file.sha256)
