"""Read evaluation files: version 1 is llm.c's, version 2 ours (docs/evals.md); everything in them is checked.

Both are a header of 256 × int32, then one record an example. Version 1 is a stream of uint16 in which only the
delimiter is 65,535, so the places of all examples come from one look over the file; version 2 has an index.
"""

from __future__ import annotations

import mmap
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.errors import FormatError, UsageError
from tokenriver.evals.examples import Completion, EvalExample, Places
from tokenriver.evals.parse import DELIMITER, HEADER_BYTES, N_COMPLETIONS_V1, flat_runs, parse_v1, parse_v2
from tokenriver.files import open_binary
from tokenriver.storage.paths import is_remote, to_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from numpy.typing import NDArray

__all__ = ["MAGIC", "EvalFile", "open_eval_file", "require_example"]

MAGIC = 20240522
_STEP = 1 << 16


class EvalFile:
    """A mapped evaluation file: `n_examples`, `version`, `longest_tokens`, `max_completions`, and its examples.

    `file[k]` is example k in O(1); `places(start, stop)` gives many as flat arrays into `words`, checked. Use
    `open_eval_file`.
    """

    def __init__(self, path: Path, version: int, header: NDArray[np.int32], body: bytes | mmap.mmap) -> None:
        self.path = path
        self.version = version
        self.n_examples = _n_examples(header, version)
        self._declared_longest = int(header[3] if version == 1 else header[6])
        self.max_completions = N_COMPLETIONS_V1 if version == 1 else int(header[7])
        self.vocab_size = 0 if version == 1 else int(header[8])
        raw = np.frombuffer(body, np.uint8)[HEADER_BYTES:]
        if version == 1:
            if len(raw) % 2:
                raise FormatError(f"{path}: an odd number of bytes ({len(raw):,}) after the header; ids have two")
            self.words: NDArray[Any] = raw.view("<u2")
            self.starts = self._starts_v1()
        else:
            self.words, self.starts = self._split_v2(raw, header)

    def _starts_v1(self) -> NDArray[np.int64]:
        starts = np.flatnonzero(self.words == DELIMITER[1])
        if len(starts) != self.n_examples:
            raise FormatError(
                f"{self.path}: {len(starts):,} examples begin in it; its header says {self.n_examples:,}. "
                "It is cut off, too long or damaged"
            )
        if self.n_examples and starts[0]:
            raise FormatError(f"{self.path}: byte {HEADER_BYTES}: expected the delimiter 65535, found {self.words[0]}")
        if not self.n_examples and len(self.words):
            raise FormatError(f"{self.path}: {self.words.nbytes:,} bytes after a header of no examples")
        return np.append(starts, len(self.words)).astype(np.int64)

    def _split_v2(self, raw: NDArray[np.uint8], header: NDArray[np.int32]) -> tuple[NDArray[Any], NDArray[Any]]:
        index_bytes = 8 * (self.n_examples + 1)
        if len(raw) < index_bytes or len(raw) % 4:
            raise FormatError(
                f"{self.path}: {len(raw):,} bytes after the header; the index of {self.n_examples:,} examples alone "
                f"has {index_bytes:,}, and all words have 4 bytes"
            )
        starts = raw[:index_bytes].view("<u8")
        words = raw[index_bytes:].view("<u4")
        declared = int(header[4:6].view("<u8")[0])
        if int(starts[0]) != 0 or not int(starts[-1]) == len(words) == declared:
            raise FormatError(
                f"{self.path}: the index covers words {int(starts[0]):,} to {int(starts[-1]):,}; "
                f"the header says {declared:,}, the file holds {len(words):,} after it. It is cut off or damaged"
            )
        return words, starts

    def __len__(self) -> int:
        return self.n_examples

    def __getitem__(self, k: int) -> EvalExample:
        k = k + self.n_examples if k < 0 else k
        if not 0 <= k < self.n_examples:
            raise IndexError(f"example {k} of {self.n_examples:,}, counted from 0")
        at = self.places(k, k + 1)
        context = self.words[int(at.context_start[0]) :][: int(at.context_len[0])]
        completions = [
            Completion(self.words[start : start + n], skip, n_bytes, n_chars)
            for start, n, skip, n_bytes, n_chars in zip(
                at.start.tolist(),
                at.length.tolist(),
                at.n_unscored.tolist(),
                at.n_bytes.tolist(),
                at.n_chars.tolist(),
                strict=True,
            )
        ]
        return EvalExample(context, completions, int(at.label[0]))

    def __iter__(self) -> Iterator[EvalExample]:
        return (self[k] for k in range(self.n_examples))

    def places(self, start: int, stop: int) -> Places:
        """Examples [start, stop) as arrays of places; FormatError names the first example that is not well formed."""
        parser = parse_v1 if self.version == 1 else parse_v2
        bounds = np.asarray(self.starts[start : stop + 1]).astype(np.int64)
        return parser(self, start, bounds[:-1], bounds[1:])

    def check(self) -> None:
        """Read every example, in steps, and compare the header's figures; FormatError for anything wrong."""
        longest = most = 0
        for start in range(0, self.n_examples, _STEP):
            at = self.places(start, min(start + _STEP, self.n_examples))
            longest = max(longest, int(at.longest().max()))
            most = max(most, int(np.diff(at.first_row).max()))
            self._check_ids(at)
        if self.version == 1 and self.n_examples:
            longest = 2 * int(np.diff(self.starts).max())
        if self._declared_longest != longest:
            unit, at_byte = ("bytes", 12) if self.version == 1 else ("ids", 24)
            raise FormatError(
                f"{self.path}: byte {at_byte}: the header's longest example has {self._declared_longest:,} {unit}, "
                f"the file's has {longest:,}"
            )
        if self.version == 2 and self.max_completions != most:
            raise FormatError(
                f"{self.path}: byte 28: the header's examples have at most {self.max_completions:,} completions, the "
                f"file's {most:,}"
            )

    def _check_ids(self, at: Places) -> None:
        if not self.vocab_size:
            return
        for starts, lengths in ((at.context_start, at.context_len), (at.start, at.length)):
            ids = self.words[flat_runs(starts, lengths)]
            if len(ids) and int(ids.max()) >= self.vocab_size:
                raise FormatError(
                    f"{self.path}: id {int(ids.max())} in examples from {at.first} is not below the header's "
                    f"vocabulary of {self.vocab_size:,}"
                )

    def fail(self, k: int, problem: str) -> FormatError:
        """An error about example k, with the byte it begins at."""
        first = HEADER_BYTES if self.version == 1 else HEADER_BYTES + 8 * (self.n_examples + 1)
        at = first + int(self.starts[k]) * self.words.itemsize
        return FormatError(f"{self.path}: example {k} (byte {at:,}): {problem}")


def open_eval_file(path: str | os.PathLike[str], *, check: bool = True) -> EvalFile:
    """Map an evaluation file, version 1 or 2; behind a URL it is fetched into memory.

    With `check` (the default) every example is looked at once;
    without, only the header and, in version 2, the ends of the index, so that opening costs the same for any size.
    Raises FormatError naming file, example and byte, or OSError when it cannot be read.
    """
    path = to_path(path)
    with open_binary(path) as file:
        raw = file.read(HEADER_BYTES) or b""
        size = file.seek(0, os.SEEK_END)
        if len(raw) < HEADER_BYTES:
            raise FormatError(f"{path}: {size:,} bytes; an evaluation file has a header of {HEADER_BYTES:,}")
        header = np.frombuffer(raw, "<i4")
        if header[0] != MAGIC:
            raise FormatError(f"{path}: magic {header[0]} at byte 0; expected {MAGIC}, that of an evaluation file")
        version = int(header[1])
        if version not in (1, 2):
            raise FormatError(f"{path}: version {version} at byte 4; expected 1 or 2")
        file.seek(0)
        body = (file.read() or b"") if is_remote(path) else mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
        opened = EvalFile(path, version, header, body)
    if check:
        opened.check()
    return opened


def _n_examples(header: NDArray[np.int32], version: int) -> int:
    """Version 1 counts in [2]; version 2 in the 64 bits of [2] and [3]."""
    return int(header[2]) if version == 1 else int(header[2:4].view("<u8")[0])


def require_example(file: EvalFile, k: int) -> EvalExample:
    """Example k of a file, UsageError when there is none."""
    if not 0 <= k < len(file):
        raise UsageError(f"{file.path}: there is no example {k}; it has {len(file):,}, counted from 0")
    return file[k]
