"""The 1024 bytes before the ids: the only module that knows the bytes of a token shard.

Source: the `.bin` layout of llm.c (version 1 and its Llama-3 variant) and its uint32 version; see docs/format.md.
"""

from __future__ import annotations

import codecs
import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

import numpy as np

from tokenriver.errors import FormatError, UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "HEADER_BYTES",
    "MAX_SHARD_TOKENS",
    "VARIANTS",
    "ShardHeader",
    "Variant",
    "dtype_of",
    "parse_header",
    "variant_for",
]

Variant = Literal["uint16", "uint32", "llama-3"]

HEADER_INTS = 256
HEADER_BYTES = 4 * HEADER_INTS
MAX_SHARD_TOKENS = 2**31 - 1
"""The count is a signed 32-bit integer in the header."""

_MAGIC = 20240520
_MAGIC_LLAMA3 = 20240801
_MAGIC_EVAL = 20240522
_MAGIC_TOKENIZER = 20240328

VARIANTS: dict[Variant, tuple[int, int, np.dtype[np.unsignedinteger]]] = {
    "uint16": (_MAGIC, 1, np.dtype("<u2")),
    "uint32": (_MAGIC, 2, np.dtype("<u4")),
    "llama-3": (_MAGIC_LLAMA3, 7, np.dtype("<u4")),
}
"""Variant → (magic, version, dtype of an id)."""

_BY_MAGIC = {(magic, version): variant for variant, (magic, version, _) in VARIANTS.items()}
_NUMBERS = struct.Struct("<4i")


@dataclass(frozen=True, slots=True)
class ShardHeader:
    """What the header says: the variant, the number of ids, and the vocabulary's size (0 = unknown)."""

    variant: Variant
    n_tokens: int
    vocab_size: int = 0

    @property
    def dtype(self) -> np.dtype[np.unsignedinteger]:
        """Little-endian dtype of an id."""
        return dtype_of(self.variant)

    @property
    def file_bytes(self) -> int:
        """The exact size of the file: 1024 + n_tokens × width."""
        return HEADER_BYTES + self.n_tokens * self.dtype.itemsize

    def to_bytes(self) -> bytes:
        """The 1024 header bytes; the Llama-3 variant has no field for the vocabulary."""
        if not 0 <= self.n_tokens <= MAX_SHARD_TOKENS:
            raise UsageError(f"a shard holds at most {MAX_SHARD_TOKENS:,} ids (2^31 - 1), not {self.n_tokens:,}")
        magic, version, _ = VARIANTS[self.variant]
        header = np.zeros(HEADER_INTS, "<i4")
        header[:3] = magic, version, self.n_tokens
        if self.variant != "llama-3":
            header[3] = self.vocab_size
        return header.tobytes()


def dtype_of(variant: Variant) -> np.dtype[np.unsignedinteger]:
    """Little-endian dtype of an id."""
    return VARIANTS[variant][2]


def variant_for(vocab_size: int) -> Variant:
    """The narrowest variant in which every id below `vocab_size` fits: uint16 up to 65,536 ids."""
    return "uint16" if vocab_size <= 1 << 16 else "uint32"


def parse_header(raw: bytes, file_bytes: int, path: Path | str) -> ShardHeader:
    """Read a shard's first 1024 bytes and check them against the size of the file.

    Raises FormatError for a short file, a wrong magic, an unknown version, a negative count, or a size that is
    not exactly the one that the header promises.
    """
    if len(raw) < HEADER_BYTES:
        kind = "an empty file" if file_bytes == 0 else f"{file_bytes} bytes"
        raise FormatError(f"{path}: {kind}, but a token shard begins with a header of {HEADER_BYTES} bytes")
    magic, version, n_tokens, vocab_size = _NUMBERS.unpack_from(raw)
    variant = _BY_MAGIC.get((magic, version))
    if variant is None:
        raise FormatError(f"{path}: {_explain_magic(magic, version, raw)}")
    if n_tokens < 0:
        raise FormatError(f"{path}: the header counts {n_tokens} ids; a count is 0 or more")
    if vocab_size < 0:
        raise FormatError(f"{path}: the header names a vocabulary of {vocab_size} ids; it is 0 (unknown) or more")
    header = ShardHeader(variant, n_tokens, 0 if variant == "llama-3" else vocab_size)
    if header.file_bytes != file_bytes:
        raise FormatError(
            f"{path}: {file_bytes:,} bytes, but the header's {n_tokens:,} ids of {header.dtype.itemsize} bytes make "
            f"{header.file_bytes:,}; the file is {'cut short' if file_bytes < header.file_bytes else 'too long'}"
        )
    return header


def _as_text(raw: bytes) -> str | None:
    """A file's first bytes as text, if they are nothing else: UTF-8 without control characters, which ids hold soon."""
    try:
        text = codecs.getincrementaldecoder("utf-8-sig")().decode(raw)
    except UnicodeDecodeError:
        return None
    return None if any(c < " " and c not in "\t\n\r" for c in text) else text


def _explain_magic(magic: int, version: int, raw: bytes) -> str:
    """Say what a file that is no token shard most likely is."""
    expected = f"expected {_MAGIC} (version 1 or 2) or {_MAGIC_LLAMA3} (version 7)"
    if magic in (_MAGIC, _MAGIC_LLAMA3):
        return f"magic {magic} with version {version}, a version that is not known; {expected}"
    if magic == _MAGIC_EVAL:
        return f"magic {magic}: this is an evaluation file, not a token shard; {expected}"
    if magic == _MAGIC_TOKENIZER:
        return f"magic {magic}: this is a tokenizer file, not a token shard; {expected}"
    if (text := _as_text(raw)) is not None:
        return (
            f"text, not ids: it begins with {text[:24]!r}. A token shard begins with the number {_MAGIC}; "
            "tokenriver build makes shards of documents"
        )
    # A shard whose magic alone is damaged still has the 1008 zero bytes behind its four numbers; raw ids do not.
    if any(raw[16:HEADER_BYTES]):
        return (
            f"no header: the first number is {magic}, {expected}. If this is a nanoGPT file (raw uint16 ids without "
            "a header), tokenriver.write_shard(NEW, numpy.fromfile(OLD, numpy.uint16)) makes a shard of it"
        )
    return f"a damaged header: magic {magic}, {expected}"
