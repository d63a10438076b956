"""A summary for programs: any of the library's result classes as JSON."""

from __future__ import annotations

from typing import Any

__all__ = ["print_json"]


def print_json(summary: Any) -> None:
    """Print a dataclass as JSON with two spaces of indent; paths are texts."""
    import msgspec

    print(msgspec.json.format(msgspec.json.encode(msgspec.to_builtins(summary, enc_hook=str)), indent=2).decode())
