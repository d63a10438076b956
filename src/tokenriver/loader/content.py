"""Whether shards still have the content that was recorded: what `verify=True` reads every byte for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenriver.errors import IntegrityError, ResumeError, UsageError
from tokenriver.loader.shard_file import hash_shards

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from tokenriver.loader.source import ShardSource

__all__ = ["part_fingerprints", "recorded_hashes", "verify_against"]


def recorded_hashes(data: ShardSource) -> list[str]:
    """SHA-256 of every shard, read whole; IntegrityError names those that differ from a recorded one."""
    hashes = hash_shards(data.shards)
    wrong = [s.path for s, found in zip(data.shards, hashes, strict=True) if s.sha256 not in (None, found)]
    if wrong:
        raise IntegrityError(
            f"{wrong[0]}: SHA-256 is not the one in {data.manifest}"
            + (f" (nor are {len(wrong) - 1} others')" if len(wrong) > 1 else "")
        )
    return hashes


def verify_against(data: ShardSource, saved: str, *, check: bool) -> None:
    """Hash every shard and compare with the manifest's record and that of a saved state.

    Raises IntegrityError, ResumeError (not what it was when the state was saved), UsageError (no record at all).
    """
    current = data.fingerprint(hashes=recorded_hashes(data))
    if not check or f"content={current.content}" in saved.split(";"):
        return
    if "content=sha256:" in saved:
        raise ResumeError("the shards' content (SHA-256) is not what it was when the state was saved")
    raise UsageError(
        "verify has nothing to compare with: there is no manifest, and the state was saved by a loader without "
        "verify=True, which records samples only"
    )


def part_fingerprints(parts: Mapping[str, ShardSource], hashes: Sequence[str] | None) -> dict[str, str]:
    """The fingerprint of each source of a mixture, by name; `hashes` are those of all shards, source after source."""
    found, at = {}, 0
    for name, part in parts.items():
        own = None if hashes is None else hashes[at : at + len(part.shards)]
        found[name] = str(part.fingerprint(hashes=own))
        at += len(part.shards)
    return found
