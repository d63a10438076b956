"""llm.c's tokenizer file (docs/format.md): a table from id to bytes, for programs that only need to print ids.

Layout: 256 × uint32 little-endian (magic, version, number of ids, in version 2 the id that ends a text), then for
each id one length byte and that many raw bytes. Version 1 has no end-of-text id: it is GPT-2's table of 50,257.
"""

from __future__ import annotations

import sys
import warnings
from typing import IO, TYPE_CHECKING

import numpy as np

from tokenriver.errors import FormatError, TokenizerError
from tokenriver.files import atomic_write, open_binary
from tokenriver.storage.paths import to_output, to_path

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from tokenriver.tokenizers.base import Tokenizer as AnyTokenizer

__all__ = ["Tokenizer", "printable", "render_tokenizer_file", "write_tokenizer_file"]

MAGIC = 20240328
_HEADER_BYTES = 1024
_GPT2_VOCAB, _GPT2_EOT = 50257, 50256
_LONGEST = 255
_PRINTABLE = frozenset(range(0x20, 0x7F)) | frozenset(b"\t\n\v\f\r")
"""Single bytes worth printing: printable ASCII and white space."""


class Tokenizer:
    """Ids to text by table look-up, with the names of llm.c's C struct: `init_ok`, `vocab_size`, `eot_token`.

    A missing file is a warning, and decoding falls back to the id in digits (`init_ok` is then 0); a damaged one is
    a FormatError that names the byte offset.
    """

    def __init__(self, path: str | os.PathLike[str]) -> None:
        self.path = to_path(path)
        self.init_ok = 0
        self.vocab_size = 0
        self.eot_token = -1
        self._pieces: list[bytes] = []
        try:
            with open_binary(self.path) as file:
                raw = file.read() or b""
        except FileNotFoundError:
            warnings.warn(
                f"{self.path}: no tokenizer file; ids are shown as numbers. `tokenriver tokenizer-file` writes one",
                stacklevel=2,
            )
            return
        self._pieces, self.eot_token = _parse(raw, self.path)
        self.vocab_size = len(self._pieces)
        self.init_ok = 1

    def decode_bytes(self, token_id: int) -> bytes | None:
        """The bytes of an id exactly as the file holds them; None for an id that it does not have.

        Without a file: the id in digits.
        """
        if not self.init_ok:
            return str(int(token_id)).encode()
        return self._pieces[token_id] if 0 <= token_id < self.vocab_size else None

    def decode(self, token_id: int) -> str | None:
        """The text of an id; bytes that are no UTF-8 by themselves become U+FFFD. None where there is no such id."""
        piece = self.decode_bytes(token_id)
        return None if piece is None else piece.decode(errors="replace")

    def safe_print(self, token: int | str | bytes | None, *, file: IO[str] | None = None) -> None:
        """Print an id (or a piece) unless it is empty or a single byte that no terminal should see.

        Bytes go out as they are, so that a character spread over several ids comes out whole. Without a tokenizer
        file the id is printed with a space after it. An id that the file does not have prints nothing.
        """
        if isinstance(token, str):
            piece: bytes | None = token.encode()
        elif token is None or isinstance(token, bytes):
            piece = token
        else:
            piece = self.decode_bytes(token)
            if not self.init_ok and piece is not None:
                piece += b" "
        shown = printable(piece or b"")
        if not shown:
            return
        stream = sys.stdout if file is None else file
        raw = getattr(stream, "buffer", None)
        if raw is None:
            stream.write(shown.decode(errors="replace"))
            return
        stream.flush()
        raw.write(shown)


def printable(piece: bytes) -> bytes:
    """What safe printing lets through: b"" for an empty piece, or for one byte neither printable nor white space."""
    if len(piece) == 1 and piece[0] not in _PRINTABLE:
        return b""
    return b"" if piece.startswith(b"\0") else piece


def _parse(raw: bytes, path: Path) -> tuple[list[bytes], int]:
    """(bytes of every id, end-of-text id)."""
    if len(raw) < _HEADER_BYTES:
        raise FormatError(f"{path}: {len(raw):,} bytes; a tokenizer file has a header of {_HEADER_BYTES:,}")
    magic, version, size, eot = np.frombuffer(raw, "<u4", 4).tolist()
    if magic != MAGIC:
        raise FormatError(f"{path}: magic {magic} at byte 0; expected {MAGIC}, that of an llm.c tokenizer file")
    if version == 1:
        if size != _GPT2_VOCAB:
            raise FormatError(f"{path}: version 1 with {size:,} ids; version 1 has GPT-2's {_GPT2_VOCAB:,}")
        eot = _GPT2_EOT
    elif version != 2:
        raise FormatError(f"{path}: version {version} at byte 4; expected 1 or 2")
    elif eot >= size:
        raise FormatError(f"{path}: end-of-text id {eot} at byte 12 is not below the vocabulary of {size:,}")
    pieces = []
    at = _HEADER_BYTES
    for i in range(size):
        end = at + 1 + raw[at] if at < len(raw) else len(raw) + 1
        if end > len(raw):
            raise FormatError(f"{path}: cut off inside id {i} of {size:,}, at byte {at:,} of {len(raw):,}")
        pieces.append(raw[at + 1 : end])
        at = end
    if at != len(raw):
        raise FormatError(f"{path}: {len(raw) - at:,} bytes after the last of {size:,} ids, at byte {at:,}")
    return pieces, eot


def render_tokenizer_file(pieces: Sequence[bytes], *, eot: int, version: int = 2) -> bytes:
    """The file for a table of pieces. TokenizerError for what the format cannot hold, naming the id."""
    if not 0 <= eot < len(pieces):
        raise TokenizerError(f"end-of-text id {eot} is outside the vocabulary of {len(pieces):,} ids")
    if version not in (1, 2):
        raise TokenizerError(f"tokenizer file version {version} is unknown; expected 1 or 2")
    if version == 1 and (len(pieces), eot) != (_GPT2_VOCAB, _GPT2_EOT):
        raise TokenizerError(
            f"version 1 is for {_GPT2_VOCAB:,} ids with end of text {_GPT2_EOT}; this has {len(pieces):,} and {eot}: "
            "write version 2"
        )
    for i, piece in enumerate(pieces):
        if not 0 < len(piece) <= _LONGEST:
            raise TokenizerError(f"id {i} stands for {len(piece)} bytes; the file holds 1 to {_LONGEST} for each id")
    header = np.zeros(_HEADER_BYTES // 4, "<u4")
    header[:4] = [MAGIC, version, len(pieces), eot if version == 2 else 0]
    return header.tobytes() + b"".join(bytes([len(piece)]) + piece for piece in pieces)


def write_tokenizer_file(
    path: str | os.PathLike[str], tokenizer: AnyTokenizer, *, eot: int | None = None, version: int = 2
) -> int:
    """Write a tokenizer's table as llm.c reads it, and return its bytes. `eot` is the separator's id unless given.

    A special id is written as its name ("<|endoftext|>"); an id without bytes or name as "<ID>", because the format
    has no empty pieces. TokenizerError where an id has more than 255 bytes or there is no end of text.
    """
    path = to_output(path)
    chosen = tokenizer.separator_id if eot is None else eot
    if chosen is None:
        raise TokenizerError(f"{tokenizer.tokenizer_id} names no separator: give the id that ends a text (--eot)")
    names = tokenizer.special_ids
    pieces = [
        piece or names.get(i, "").encode() or f"<{i}>".encode() for i, piece in enumerate(tokenizer.token_bytes_table())
    ]
    rendered = render_tokenizer_file(pieces, eot=chosen, version=version)
    with atomic_write(path) as file:
        file.write(rendered)
    return len(rendered)
