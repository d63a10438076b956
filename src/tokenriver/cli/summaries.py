"""What commands print at their end: results as JSON for programs, counts and texts for people."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = ["ascii_controls", "counted", "plural", "print_json"]


def print_json(summary: Any) -> None:
    """Print a dataclass as JSON with two spaces of indent; paths are texts."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(msgspec.to_builtins(summary, enc_hook=str)), indent=2).decode())


def plural(n: int, noun: str, nouns: str | None = None) -> str:
    """ "1 shard", "1,000 shards"; `nouns` where an s is not enough."""
    return f"{n:,} {noun if n == 1 else nouns or noun + 's'}"


def counted(counts: Mapping[str, int]) -> str:
    """ "2 missing, 1,000 null": how many of each kind, in their order."""
    return ", ".join(f"{n:,} {kind}" for kind, n in counts.items())


def ascii_controls(text: str) -> str:
    """Text on one line, with control characters escaped: those of a document must not reach the terminal."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)
