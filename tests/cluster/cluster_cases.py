"""What the tests of the engines share, also with the workers: what must not depend on the engine, a slow tokenizer."""

from __future__ import annotations

import hashlib
import json
import threading
import time
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


class SlowTokenizer:
    """A tokenizer that stops at a text with `marker` in it until the file `until` is there; five minutes at most."""

    def __init__(self, inner: Any, marker: str, until: Path) -> None:
        self.inner, self.marker, self.until = inner, marker.encode(), until

    def __getattr__(self, name: str) -> Any:
        if name.startswith("__") or name == "inner":  # asked for while it is unpickled
            raise AttributeError(name)
        return getattr(self.inner, name)

    def encode_batch(self, texts: Any, **words: Any) -> Any:
        if self.marker in texts.data.tobytes():
            deadline = time.monotonic() + 300
            while not self.until.exists():
                assert time.monotonic() < deadline, "nobody has let the slow task go"
                threading.Event().wait(0.05)
        return self.inner.encode_batch(texts, **words)


def note_node(folder):
    """Leave a file called like the node."""
    import ray

    folder.mkdir(exist_ok=True)
    (folder / ray.get_runtime_context().get_node_id()).touch()
    time.sleep(0.3)  # or one worker would do it for all
