"""Whether shards still have the content that was recorded: what `verify=True` reads every byte for."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenriver.errors import IntegrityError, ResumeError, UsageError
from tokenriver.loader.fingerprint import Fingerprint
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
            f"{wrong[0]}: SHA-256 is not the one in {data.manifest or 'its manifest'}"
            + (f" (nor are {len(wrong) - 1} others')" if len(wrong) > 1 else "")
        )
    return hashes


def verify_against(sources: Mapping[str, ShardSource], saved: str | Mapping[str, str], *, check: bool) -> None:
    """Hash every shard and compare with the manifest's record and that of a saved state, source by source.

    `saved` is the fingerprint of one data set, called "", or those of a mixture's sources; a source that it does not
    know is held against its manifest alone. Raises IntegrityError, ResumeError (not what it was when the state was
    saved), UsageError (no record at all).
    """
    prints = {"": saved} if isinstance(saved, str) else saved
    for name, data in sources.items():
        current = data.fingerprint(hashes=recorded_hashes(data)).digests["sha256"]
        before = Fingerprint.parse(prints[name]).digests.get("sha256") if check and name in prints else current
        if before == current:
            continue
        if before is not None:
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
