"""What a recipe is going to do, in numbers, before it does anything: bytes, tokens, disk and time."""

from __future__ import annotations

import shutil
import time
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

from tokenriver.errors import UsageError
from tokenriver.files import human_bytes

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["EncodingSpeed", "RecipePlan", "disk_needed", "free_bytes", "measure", "text_bytes_of"]

_EXPANSION = {"": 1.0, "gz": 2.5, "zst": 2.5, "parquet": 1.7}
"""Bytes of text in a byte of file, about: 200 documents of FineWeb written in these forms (Parquet with snappy)."""

_SAMPLE_BYTES = 1 << 20
_SAMPLE_SECONDS = 0.3
_RESERVE = 1.02
"""Estimates of the ids are no upper bound."""


@dataclass(frozen=True, slots=True)
class EncodingSpeed:
    """Measured here: bytes of English text encoded in a second on all cores, and bytes a token."""

    bytes_per_second: float
    bytes_per_token: float


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipePlan:
    """The plan of a run. `tokens` is one number a tokenizer, `None` for evaluation files; all but files and
    `fetch_bytes` are estimates, which know nothing of the `n_unsized` files. `disk_bytes` is what is still to be
    written, the source's files included.
    """

    recipe: str
    source: str
    outputs: list[str]
    files: int
    fetch_bytes: int
    n_unsized: int = 0
    tokens: dict[str, int] | None
    disk_bytes: int
    free_bytes: int
    seconds: float
    bytes_per_second: float

    def lines(self) -> list[str]:
        """The plan for people."""
        noun = "file" if self.files == 1 else "files"
        fetch = f"{human_bytes(self.fetch_bytes)} to fetch" if self.fetch_bytes else "nothing to fetch"
        if self.n_unsized:
            fetch = f"{self.n_unsized:,} to fetch of a size that the server does not tell, not counted below"
        lines = [
            f"recipe {self.recipe}: {self.files:,} {noun} of {self.source}, {fetch}",
        ]
        if self.tokens is not None:
            listed = ", ".join(f"{n:,} ({name})" for name, n in self.tokens.items())
            lines.append(f"tokens: about {listed}")
        lines.append(f"disk: about {human_bytes(self.disk_bytes)} needed, {human_bytes(self.free_bytes)} free")
        if self.seconds:
            lines.append(
                f"time: about {_duration(self.seconds)} of encoding at {self.bytes_per_second / 1e6:.0f} MB/s, "
                "measured here; fetching goes on beside it, as fast as the line is"
            )
        lines += [f"goes to: {output}" for output in self.outputs]
        return lines

    def check_disk(self) -> None:
        """UsageError where the disk is too small for it."""
        if self.disk_bytes > self.free_bytes:
            raise UsageError(
                f"{self.outputs[0]}: about {human_bytes(self.disk_bytes)} needed, {human_bytes(self.free_bytes)} free; "
                "make room, name another --out, or take less with --max-tokens"
            )


def _duration(seconds: float) -> str:
    if seconds < 90:
        return f"{max(1, round(seconds))} s"
    return f"{round(seconds / 60)} min" if seconds < 5400 else f"{seconds / 3600:.1f} h"


def free_bytes(directory: Path) -> int:
    """Bytes free where a directory is or will be."""
    there = next(p for p in (directory.absolute(), *directory.absolute().parents) if p.exists())
    return shutil.disk_usage(there).free


@cache
def _sample() -> list[str]:
    """Some English text that Python itself brings, in pieces of a document's size."""
    from pydoc_data.topics import topics

    return [text[i : i + 4000] for text in topics.values() for i in range(0, len(text), 4000)]


def measure(tokenizer: Tokenizer) -> EncodingSpeed:
    """Encode English text for about a third of a second, as a build would."""
    texts, n_bytes, n_tokens = _sample(), 0, 0
    tokenizer.encode_batch(texts[:8])
    start = time.perf_counter()
    at, step = 0, 64
    while n_bytes < _SAMPLE_BYTES and time.perf_counter() - start < _SAMPLE_SECONDS:
        piece = texts[at % len(texts) : at % len(texts) + step]
        n_tokens += len(tokenizer.encode_batch(piece).ids)
        n_bytes += sum(map(len, piece))
        at += step
    seconds = max(time.perf_counter() - start, 1e-6)
    return EncodingSpeed(n_bytes / seconds, n_bytes / max(1, n_tokens))


def text_bytes_of(names: Sequence[str], n_bytes: Sequence[int]) -> int:
    """About how much text files hold, by their endings."""
    total = 0.0
    for name, size in zip(names, n_bytes, strict=True):
        ending = name.lower().rpartition(".")[2]
        total += size * _EXPANSION.get("gz" if ending == "tgz" else ending, 1.0)
    return round(total)


def disk_needed(*, tokens: int, width: int, present: int = 0) -> int:
    """Bytes to be written: ids with a reserve, less what is there already."""
    return max(0, round(tokens * width * _RESERVE) + 4096 - present)
