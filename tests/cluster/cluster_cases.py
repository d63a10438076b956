"""Documents for the tests of the engines, and what of a finished data set must not depend on the engine."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from pathlib import Path


def deterministic(directory: Path) -> dict[str, Any]:
    """SHA-256 of every file by name, and the build record without what depends on where blocks are cut."""
    found: dict[str, Any] = {}
    for path in sorted(directory.iterdir()):
        if path.name.endswith("_BUILD.json"):
            record = json.loads(path.read_bytes())
            for key in ("sample_checked", "sample_lossless"):
                del record["encoder"][key]
            found[path.name] = record
        else:
            found[path.name] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
