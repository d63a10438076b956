"""What a SentencePiece .model file holds: pieces, trainer and normaliser settings, and the normaliser's own rules.

The file is a protocol-buffer message; the few fields needed are read here, so no protobuf package is.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.errors import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Iterator

    from numpy.typing import NDArray

__all__ = [
    "BYTE",
    "CONTROL",
    "NORMAL",
    "SPACE",
    "UNKNOWN",
    "UNUSED",
    "USER_DEFINED",
    "ModelFile",
    "Piece",
    "code_point_rules",
    "later_code_points",
]

SPACE = "▁"
"""How a piece spells a space."""

NORMAL, UNKNOWN, CONTROL, USER_DEFINED, UNUSED, BYTE = 1, 2, 3, 4, 5, 6
"""Kinds of piece, as numbered in the format."""
_BPE = 2


@dataclass(frozen=True, slots=True)
class Piece:
    """One entry of the vocabulary; its id is its place."""

    text: str
    score: float
    kind: int


@dataclass(frozen=True, slots=True)
class ModelFile:
    """The settings that decide how text becomes pieces. `charsmap` is the compiled normaliser (b"" = identity)."""

    pieces: tuple[Piece, ...]
    is_bpe: bool
    byte_fallback: bool
    whitespace_as_suffix: bool
    charsmap: bytes
    add_dummy_prefix: bool
    remove_extra_whitespaces: bool
    escape_whitespaces: bool
    unknown_surface: str

    @classmethod
    def parse(cls, raw: bytes, *, where: str) -> ModelFile:
        """Read the file's bytes; raises TokenizerError where they are no SentencePiece model."""
        try:
            top = list(_fields(raw))
            pieces = tuple(_piece(value) for number, value in top if number == 1 and isinstance(value, bytes))
            trainer = dict(_fields(_last(top, 2)))
            normalizer = dict(_fields(_last(top, 3)))
        except (IndexError, UnicodeDecodeError, ValueError, struct.error) as error:
            raise TokenizerError(f"{where}: not a SentencePiece model ({error})") from None
        if not pieces:
            raise TokenizerError(f"{where}: not a SentencePiece model (no pieces in it)")
        charsmap, surface = normalizer.get(2, b""), trainer.get(44, " \u2047 ".encode())
        return cls(
            pieces,
            is_bpe=trainer.get(3, 1) == _BPE,
            byte_fallback=bool(trainer.get(35, 0)),
            whitespace_as_suffix=bool(trainer.get(24, 0)),
            charsmap=charsmap if isinstance(charsmap, bytes) else b"",
            add_dummy_prefix=bool(normalizer.get(3, 1)),
            remove_extra_whitespaces=bool(normalizer.get(4, 1)),
            escape_whitespaces=bool(normalizer.get(5, 1)),
            unknown_surface=surface.decode() if isinstance(surface, bytes) else "",
        )


def _last(fields: list[tuple[int, int | bytes]], number: int) -> bytes:
    found = [value for n, value in fields if n == number and isinstance(value, bytes)]
    return found[-1] if found else b""


def _piece(raw: bytes) -> Piece:
    fields = dict(_fields(raw))
    text, score, kind = fields.get(1, b""), fields.get(2, b"\0\0\0\0"), fields.get(3, NORMAL)
    if not (isinstance(text, bytes) and isinstance(score, bytes) and isinstance(kind, int)):
        raise ValueError("a piece has fields of other types")
    return Piece(text.decode(), struct.unpack("<f", score)[0], kind)


def _fields(raw: bytes) -> Iterator[tuple[int, int | bytes]]:
    """(field number, value) of a message: varints as int, everything else as bytes."""
    at = 0
    while at < len(raw):
        key, at = _varint(raw, at)
        wire = key & 7
        if wire == 0:
            number, at = _varint(raw, at)
            yield key >> 3, number
            continue
        if wire == 2:
            size, at = _varint(raw, at)
        elif wire in (1, 5):
            size = 8 if wire == 1 else 4
        else:
            raise ValueError(f"wire type {wire} at byte {at}")
        if at + size > len(raw):
            raise ValueError(f"a field of {size} bytes at byte {at} runs past the end")
        yield key >> 3, raw[at : at + size]
        at += size


def _varint(raw: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = raw[at]
        value |= (byte & 0x7F) << shift
        at, shift = at + 1, shift + 7
        if byte < 0x80:
            return value, at


def later_code_points(charsmap: bytes) -> NDArray[np.int64]:
    """Code points that the compiled normaliser looks at after a first one: the 2nd, 3rd, … characters of its keys.

    Layout: u32 size of the trie in bytes, the trie as a double array of u32 units, then the replacements, each
    ended by NUL. A unit holds its label in the low byte (bit 31 set: a value, not a node), and its offset from bit
    10 on (shifted by 8 more where bit 9 is set); a child of unit i under byte b is unit i ^ offset ^ b. The trie
    has some 400,000 nodes, so all go one level down together, each finding its parent.
    """
    if len(charsmap) < 4:
        return np.zeros(0, np.int64)
    (size,) = struct.unpack_from("<I", charsmap)
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    number = np.arange(len(units))
    label = units & 0xFF
    is_node = (units & 0x80000000 == 0) & (label > 0)
    is_node[0] = False
    base = number ^ ((units >> 10) << ((units & 0x200) >> 6))
    children = np.flatnonzero(is_node)
    children = children[np.argsort(children ^ label[children], kind="stable")]
    wanted = children ^ label[children]
    found: list[NDArray[np.int64]] = []
    nodes, partial, left, is_first = np.zeros(1, np.int64), *np.zeros((2, 1), np.int64), np.zeros(1, np.bool_)
    is_root = True
    while len(nodes):
        start, stop = np.searchsorted(wanted, base[nodes]), np.searchsorted(wanted, base[nodes], side="right")
        parent = np.repeat(np.arange(len(nodes)), stop - start)
        skipped = np.repeat(stop - np.cumsum(stop - start), stop - start)
        nodes = children[np.arange(len(parent)) + skipped]
        byte = label[nodes]
        is_lead = byte & 0xC0 != 0x80
        n_more = (byte >= 0xC0).astype(np.int64) + (byte >= 0xE0) + (byte >= 0xF0)
        partial = np.where(is_lead, byte & (0xFF >> (n_more + (n_more > 0))), (partial[parent] << 6) | (byte & 0x3F))
        left = np.where(is_lead, n_more, left[parent] - 1)
        is_first = np.where(is_lead, is_root, is_first[parent])
        found.append(np.unique(partial[(left == 0) & ~is_first]))
        is_root = False
    return np.unique(np.concatenate(found))


def code_point_rules(charsmap: bytes) -> dict[int, bytes]:
    """Code points with a rule of their own in the compiled normaliser, and what each becomes, in UTF-8.

    The layout is that of `later_code_points`; a node with bit 8 set ends a key, and the unit at its offset holds
    where the replacement starts. All code points of one length go down the trie together.
    """
    if len(charsmap) < 4:
        return {}
    (size,) = struct.unpack_from("<I", charsmap)
    units = np.frombuffer(charsmap, "<u4", size // 4, 4).astype(np.int64)
    texts = charsmap[4 + size :]
    rules: dict[int, bytes] = {}
    for n_bytes, lead, first, stop in (
        (1, 0, 0, 0x80), (2, 0xC0, 0x80, 0x800), (3, 0xE0, 0x800, 0x10000), (4, 0xF0, 0x10000, 0x110000),
    ):  # fmt: skip
        points = np.arange(first, stop)
        nodes = np.zeros(len(points), np.int64)
        for k in range(n_bytes):
            byte = points >> (6 * (n_bytes - 1 - k))
            byte = (byte & 0x3F) | 0x80 if k else byte | lead
            nodes = _below(units, nodes) ^ byte
            is_there = nodes < len(units)
            is_there[is_there] = (units[nodes[is_there]] & 0x800000FF) == byte[is_there]
            points, nodes = points[is_there], nodes[is_there]
        is_key = units[nodes] & 0x100 != 0
        starts = units[_below(units, nodes[is_key])] & 0x7FFFFFFF
        for point, start in zip(points[is_key].tolist(), starts.tolist(), strict=True):
            if not 0xD800 <= point < 0xE000:
                rules[point] = texts[start : texts.index(b"\0", start)]
    return rules


def _below(units: NDArray[np.int64], nodes: NDArray[np.int64]) -> NDArray[np.int64]:
    """The place from which a node's children are reached."""
    unit = units[nodes]
    below: NDArray[np.int64] = nodes ^ ((unit >> 10) << ((unit & 0x200) >> 6))
    return below
