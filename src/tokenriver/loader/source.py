"""Where the tokens of a split are: from what a user names to an ordered, checked list of shards.

The order of shards is the manifest's, or the names', never the directory listing's. Headers are read in parallel and
nothing is mapped. NumPy and the standard library are all it needs: a training node may have nothing else.
"""

from __future__ import annotations

import glob
import hashlib
import json
import os
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenriver.errors import FormatError, IntegrityError, UsageError
from tokenriver.loader.arguments import shown
from tokenriver.loader.fingerprint import Fingerprint
from tokenriver.loader.listing import (
    check_counts,
    choose_names,
    each_once,
    files_of_split,
    one_split,
    one_vocabulary,
    tokenizer_of,
    without_indexes,
)
from tokenriver.loader.shard_file import ShardFile, read_shard_file, read_shard_files
from tokenriver.shards.layouts import MANIFEST, SPLITS
from tokenriver.storage import is_url, to_path
from tokenriver.storage.paths import named as require_name

if TYPE_CHECKING:
    from collections.abc import Callable

    from tokenriver.cache.settings import CacheSettings

__all__ = ["ShardSource", "Source", "resolve", "shards_like", "together"]

Source = str | os.PathLike[str] | Sequence[str | os.PathLike[str]]
"""A data set directory, a manifest, a shard, a glob, or a list of shards."""


@dataclass(frozen=True, slots=True)
class ShardSource:
    """The shards of one split in order, the manifest they came from (if any), and the facts that name them."""

    split: str
    shards: tuple[ShardFile, ...]
    manifest: Path | None = None
    manifest_sha256: str | None = None
    tokenizer: str | None = None
    separator_id: int | None = None
    separator_position: str = "before"

    @property
    def n_tokens(self) -> int:
        """Ids in the whole split."""
        return sum(shard.n_tokens for shard in self.shards)

    def fingerprint(self, *, hashes: Sequence[str] | None = None) -> Fingerprint:
        """What identifies this data in a saved state; content by the manifest's sha256, else by samples, and also by
        `hashes` where they are given."""
        recorded, content = [shard.sha256 for shard in self.shards if shard.sha256], []
        if len(recorded) < len(self.shards):
            content.append("sample:" + _digest(shard.sample.hex() for shard in self.shards))
            recorded = []
        if known := hashes or recorded:
            content.append("sha256:" + _digest(known))
        return Fingerprint(
            manifest=self.manifest_sha256 or "-",
            tokenizer=(self.tokenizer or "-").replace(";", ","),
            shards=len(self.shards),
            tokens=self.n_tokens,
            names=_digest(os.path.basename(shard.file) for shard in self.shards),  # noqa: PTH119
            headers=_digest(f"{s.header.variant} {s.n_tokens} {s.header.vocab_size}" for s in self.shards),
            content=",".join(content),
        )


def resolve(source: Source, *, split: str, cache: Callable[[], CacheSettings] | None = None) -> ShardSource:
    """Find and check the shards of a split; those behind URLs are read through the cache.

    Raises UsageError for a source that names nothing or two things, IntegrityError for a shard that is missing or
    disagrees with its manifest, FormatError for a file that is no shard, and OSError when a file cannot be read.
    """
    if split not in SPLITS:
        raise UsageError(f"split is 'train' or 'val', not {shown(split)}")
    single = isinstance(source, str | os.PathLike) or hasattr(source, "fs")
    if not single and (isinstance(source, bytes | Mapping) or not isinstance(source, Iterable)):
        raise UsageError(f"a source is a path or URL, a list of them, or a Mixture, not {shown(source)}")
    if isinstance(source, set | frozenset):
        raise UsageError("a set of shards has no order, and each process would read another; give a list")
    named = [_word_of(path) for path in ([source] if single else source)]  # type: ignore[union-attr]
    if any(is_url(path) for path in named):
        from tokenriver.loader.remote import resolve_urls

        return resolve_urls(named, split=split, cache=cache)
    if any(path.lower().startswith("file://") for path in named):
        named = [str(to_path(path)) for path in named]
    if not single:
        return _from_paths(named, split=split, named="the list")
    source = named[0]
    path = Path(source)
    if path.is_dir():
        return _from_directory(path, split=split)
    if path.is_file():
        return _from_manifest(path, split=split) if path.suffix == ".json" else _from_paths([str(path)], split=split)
    if glob.has_magic(source):
        found = without_indexes(sorted(match for match in glob.glob(source) if Path(match).is_file()))  # noqa: PTH207
        if not found:
            raise UsageError(f"no file matches {source}")
        return _from_paths(found, split=split, named=source)
    raise UsageError(f"{source}: no such data set directory, manifest or shard")


def _word_of(path: Any) -> str:
    """One of a source's paths as a text, with its ~ replaced. UsageError for what is none."""
    word = str(path) if hasattr(path, "fs") else os.fspath(path) if isinstance(path, str | os.PathLike) else None
    if not isinstance(word, str):
        raise UsageError(f"a source is a path or URL, a list of them, or a Mixture; {shown(path)} is neither")
    return require_name(word)


def _from_directory(directory: Path, *, split: str) -> ShardSource:
    """A data set directory: by its manifest, by a build record, or by llm.c's and Parameter Golf's names."""
    if (directory / MANIFEST).is_file():
        return _from_manifest(directory / MANIFEST, split=split)
    names = sorted(entry.name for entry in os.scandir(directory))
    chosen = choose_names(str(directory), names, split=split, elsewhere=lambda: _below(directory))
    if isinstance(chosen, str):
        return _from_manifest(directory / chosen, split=split)
    return _from_paths([os.path.join(directory, name) for name in chosen], split=split)  # noqa: PTH118


def _below(directory: Path) -> str:
    """What was probably meant with a directory that is no data set: those below it, if there are any."""
    below = sorted(directory.glob(f"*/{MANIFEST}")) or sorted(directory.glob(f"tokens/*/*/{MANIFEST}"))
    below = below or sorted(directory.glob(f"*/*/{MANIFEST}"))
    more = f" and {len(below) - 1} more" if len(below) > 1 else ""
    return f"no data set itself; there is one in {below[0].parent}{more}" if below else ""


def _from_paths(paths: list[str], *, split: str, named: str = "") -> ShardSource:
    """Shards in the order given."""
    if not paths:
        raise UsageError(f"{named or 'the source'} names no shard")
    each_once(map(os.path.abspath, paths))
    one_split([os.path.basename(path) for path in paths], named, split=split)  # noqa: PTH119
    for path in paths:
        if os.path.isdir(path):  # noqa: PTH112
            raise UsageError(
                f"{path}: a directory, but a list is of shards; name a data set alone, several as a Mixture, or their "
                "shards one by one"
            )
    try:
        shards = read_shard_files(paths, [None] * len(paths))
    except FileNotFoundError as error:
        hint = "; a list is of shards, a pattern stands alone" if glob.has_magic(str(error.filename)) else ""
        raise UsageError(f"{error.filename}: no such shard{hint}") from None
    return ShardSource(split, tuple(together(shards)))


def together(shards: list[ShardFile]) -> list[ShardFile]:
    """These shards, which no manifest lists, if they can be of one tokenizer; UsageError otherwise."""
    one_vocabulary([(shard.file, shard.header.vocab_size) for shard in shards])
    return shards


def _from_manifest(path: Path, *, split: str) -> ShardSource:
    """The shards that a manifest (or a build record with the same `files` list) names, checked against it."""
    raw = path.read_bytes()
    try:
        manifest = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise FormatError(f"{path}: not JSON ({error})") from None
    chosen = files_of_split(manifest, path, split)
    present = {entry.name for entry in os.scandir(path.parent)}
    missing = [file["name"] for file in chosen if file["name"] not in present]
    if missing:
        raise IntegrityError(
            f"{path.parent}: {missing[0]} is missing ({len(missing)} of the manifest's {len(chosen)} {split} shards); "
            "fetch it, or name the shards that you want as a list or glob"
        )
    paths = [os.path.join(path.parent, file["name"]) for file in chosen]  # noqa: PTH118
    shards = read_shard_files(paths, [file.get("sha256") for file in chosen])
    check_counts(shards, chosen, path.name)
    is_manifest = path.name == MANIFEST
    tokenizer, separator_id, position = tokenizer_of(manifest, path)
    return ShardSource(
        split,
        tuple(shards),
        manifest=path,
        # A build record also tells of versions and paths; the shards' sha256 identify its data.
        manifest_sha256=hashlib.sha256(raw).hexdigest() if is_manifest else None,
        tokenizer=tokenizer,
        separator_id=separator_id,
        separator_position=position,
    )


def shards_like(pattern: str) -> list[ShardFile]:
    """The shards that a pattern of paths, or of a URL, matches, in the order of their names. UsageError without any."""
    if is_url(pattern):
        from tokenriver.cache.settings import cache_settings
        from tokenriver.loader.remote import shards_at

        return shards_at([pattern], cache_settings())
    path = to_path(pattern)
    matches = [str(path)] if path.is_file() else sorted(glob.glob(str(path)))  # noqa: PTH207 (may be absolute)
    found = without_indexes(matches)
    if not found:
        raise UsageError(f"no file matches {pattern}")
    return [read_shard_file(path) for path in found]


def _digest(lines: Any) -> str:
    """Sixteen hex digits that stand for a list of strings."""
    return hashlib.sha256("\n".join(lines).encode(errors="surrogateescape")).hexdigest()[:16]
