"""A source of documents, one file or standard input, and the options by which documents are read from it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import msgspec

from tokenriver.corpus.splits import TRAIN, VAL
from tokenriver.errors import CorpusError, UsageError
from tokenriver.storage.paths import is_unicode

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenriver.corpus.kinds import Compression, Kind
    from tokenriver.corpus.stdin import Pushback
    from tokenriver.storage.objects import RemoteFile

__all__ = ["BLOCK_BYTES", "OnBadRecord", "Source", "SourceOptions", "split_by_file"]

BLOCK_BYTES = 8 << 20
"""Text in a block: large enough that calls cost nothing, small enough that a dozen in flight fit anywhere."""

OnBadRecord = Literal["error", "skip"]


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
        for word in (self.text_field, self.split_field, self.id_field, self.document_separator, self.document_start):
            if word is not None and not is_unicode(word):
                raise UsageError(f"{word!r} is not UTF-8, which documents are; give it as it stands in them")
        if self.document_separator == "":
            raise UsageError("the document separator is empty: give a text such as '\\n\\n', or none at all")
        if self.document_start is not None:
            try:
                re.compile(self.document_start)
            except re.error as error:
                raise UsageError(f"document start {self.document_start!r} is no regular expression: {error}") from error


class Source(msgspec.Struct, frozen=True, gc=False):  # a dataclass takes ten times as long, and there may be many
    """One file (or standard input) that holds documents.

    `file` is its path as it was found, or its URL; `name` the path relative to the input that found it, with "/" (never
    absolute), CorpusError for one of bytes that are not UTF-8, which no record can hold; `n_bytes` the size of the file
    when it was found, None for standard input, and `modified_ns` its time of modification then, None for anything but a
    file; `stream` only for standard input; `remote` only for an object behind a URL; `sha256` what a corpus manifest
    says of the file. `pin` names the content where it is known before the file is read ("sha256:…" or "git:…"). `side`
    (0 train, 1 val) is that of all documents in it where files are split, and `shuffle_seed` puts the records of an
    array in the order of Python's `random.Random(seed).shuffle`.
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

    def __post_init__(self) -> None:
        if not is_unicode(self.file + self.name):
            raise CorpusError(
                f"{self.file}: its name is not UTF-8, so no record can hold it; rename the file or folder"
            )

    @property
    def path(self) -> Path:
        """The file."""
        return Path(self.file)

    def __str__(self) -> str:
        return "<stdin>" if self.stream is not None else self.file if self.remote is None else str(self.remote)


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
        split.append(source if same else msgspec.structs.replace(source, side=side, shuffle_seed=seed))
    return split
