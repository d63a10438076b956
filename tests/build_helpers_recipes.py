"""Build records below a folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def build_records(root: Path) -> list[dict[str, Any]]:
    """Every build record below `root`, by path."""
    return [json.loads(p.read_bytes()) for p in sorted(root.rglob("*_BUILD.json"))]
