"""Which split a document belongs to: the words of `--split`, and the rules behind them as pure functions."""

from __future__ import annotations

import math
from dataclasses import dataclass
from fractions import Fraction
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokenriver.errors import UsageError
from tokenriver.storage.paths import is_unicode

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.batches import TextBatch

__all__ = [
    "SPLITS",
    "TRAIN",
    "VAL",
    "SplitRule",
    "first_docs_split",
    "hash_split",
    "mix64",
    "text_keys",
]

SPLITS = ("train", "val")
"""Names of the sides, at their numbers."""

TRAIN, VAL = 0, 1

SplitKind = Literal["column", "hash", "first-docs", "first-tokens", "first-files", "first-shard", "train"]

CHOICES = "column[:NAME], hash:FRACTION, first-docs:N, first-tokens:N, first-files:N, first-shard, train"


@dataclass(frozen=True, slots=True)
class SplitRule:
    """One rule: `kind`, and the `column`, `fraction` or `count` that it needs."""

    kind: SplitKind
    column: str = "split"
    fraction: Fraction = Fraction(0)
    count: int = 0

    @classmethod
    def parse(cls, words: str) -> SplitRule:
        """The rule in the words of `--split`. UsageError naming the choices for anything else.

        "column[:NAME]": the record's own field ("split" by default) says "train" or "val". "hash:FRACTION", 0 ≤
        FRACTION < 1: about that share of the texts is val, by the text's hash, so equal texts fall on one side.
        "first-docs:N": the first N documents are val. "first-tokens:N": the first N tokens are val, cut inside a
        document. "first-files:N": the documents of the first N input files are val. "first-shard": the
        first shard is val. "train": everything is train.
        """
        kind, colon, value = words.partition(":")
        if not is_unicode(words):
            raise UsageError(f"split {words!r} is not UTF-8, which documents are; name the field as it stands in them")
        if kind == "column" and (value or not colon):
            return cls("column", column=value or "split")
        if kind == "hash" and colon:
            return cls("hash", fraction=_fraction(words, value))
        if kind == "first-docs" and colon:
            return cls("first-docs", count=_count(words, value))
        if kind == "first-tokens" and colon:
            return cls("first-tokens", count=_count(words, value))
        if kind == "first-files" and colon:
            return cls("first-files", count=_count(words, value))
        if words == "first-shard":
            return cls("first-shard")
        if words == "train":
            return cls("train")
        raise UsageError(f"split {words!r} is not known; choose one of {CHOICES}")

    @property
    def hash_fraction(self) -> Fraction | None:
        """The share of val where each text's hash decides; None by any other rule."""
        return self.fraction if self.kind == "hash" else None

    def __str__(self) -> str:
        """The words again, in their one spelling."""
        if self.kind == "column":
            return f"column:{self.column}"
        if self.kind == "hash":
            return f"hash:{_decimal(self.fraction)}"
        return (
            f"{self.kind}:{self.count}" if self.kind.startswith("first-") and self.kind != "first-shard" else self.kind
        )


_LONGEST_NUMBER = 400
"""Digits; nothing that can be meant is longer (a double has at most 324 zeros behind the point)."""


def _fraction(words: str, value: str) -> Fraction:
    try:
        if len(value) > _LONGEST_NUMBER or abs(int(value.lower().partition("e")[2] or 0)) > _LONGEST_NUMBER:
            raise ValueError(value)  # an exact fraction of so many digits takes for ever
        fraction = Fraction(value)
    except (ValueError, ZeroDivisionError) as error:
        raise UsageError(f"split {words!r}: {value!r} is no number; give a share such as hash:0.01") from error
    if not 0 <= fraction < 1:
        raise UsageError(f"split {words!r}: the share of val must be at least 0 and below 1, such as hash:0.01")
    return fraction


def _decimal(fraction: Fraction) -> str:
    number = repr(float(fraction))
    return number if Fraction(number) == fraction else str(fraction)


def _count(words: str, value: str) -> int:
    digits = value.replace("_", "").replace(",", "")
    if not (digits.isascii() and digits.isdigit()) or len(digits) > _LONGEST_NUMBER:
        raise UsageError(f"split {words!r}: {value!r} is no whole number of at least 0; choose one of {CHOICES}")
    return int(digits)


def mix64(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """The finaliser of splitmix64 (Steele, Lea and Flood 2014): a bijection of uint64 that spreads every bit."""
    z = values.astype(np.uint64, copy=True)
    z ^= z >> np.uint64(30)
    z *= np.uint64(0xBF58476D1CE4E5B9)
    z ^= z >> np.uint64(27)
    z *= np.uint64(0x94D049BB133111EB)
    z ^= z >> np.uint64(31)
    return z


_GOLDEN = 0x9E3779B97F4A7C15
_N_WORDS = 17
_FACTORS = mix64(np.arange(1, _N_WORDS + 1, dtype=np.uint64) * np.uint64(_GOLDEN)) | np.uint64(1)
"""One odd factor a word, so that a text with one other word has another sum."""


def text_keys(texts: TextBatch) -> NDArray[np.uint64]:
    """A hash of each text, uint64 [n]: mix64(γ + n_bytes + Σ folded_k · factor_k), k from 0 to 16, modulo 2^64.

    Word k is the 8 bytes, little-endian, at (n_bytes - 8) · k // 16: both ends and 15 places evenly between, all of a
    text of up to 136 bytes; a text below 8 bytes is one word, filled with zeros, 17 times. folded_k is word_k with its
    upper half put on its lower one (word ^ word >> 32): a product alone leaves an upper byte in the upper bits.
    Gathered for a whole block at once: a checksum of every byte takes a loop that holds the GIL, and twice as long.
    """
    lengths = texts.lengths
    words = np.zeros((len(texts), _N_WORDS), np.uint64)
    long = np.flatnonzero(lengths >= 8)
    if len(long):
        data = np.ascontiguousarray(texts.data)
        # Opaque 8-byte items at every offset: NumPy moves those as they are, where unaligned integers cost four times.
        at_any_offset: NDArray[Any] = np.ndarray((len(data) - 7,), "V8", buffer=data.data, strides=(1,))
        places = (lengths[long] - 8)[:, None] * np.arange(_N_WORDS) >> 4
        words[long] = at_any_offset[texts.offsets[:-1][long, None] + places].view("<u8")
    for i in np.flatnonzero(lengths < 8).tolist():
        words[i] = int.from_bytes(texts[i], "little")
    words ^= words >> np.uint64(32)
    return mix64(np.uint64(_GOLDEN) + lengths.astype(np.uint64) + words @ _FACTORS)


def hash_split(texts: TextBatch, fraction: Fraction | float) -> NDArray[np.uint8]:
    """Sides uint8 [n] by the text's hash: val where its key (`text_keys`) < ⌈fraction · 2^64⌉.

    A function of each text alone: equal texts fall on one side, whatever stands around them.
    """
    threshold = min(math.ceil(Fraction(fraction) * 2**64), 2**64 - 1)
    return (text_keys(texts) < np.uint64(threshold)).astype(np.uint8)


def first_docs_split(count: int, n_before: int, n: int) -> int:
    """How many of the next `n` documents are val, when `n_before` documents came before them and `count` are val."""
    return min(n, max(0, count - n_before))
