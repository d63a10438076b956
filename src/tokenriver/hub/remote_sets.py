"""The data sets of ours in a repository: found by their manifests and build records, and the part of each to fetch."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

from tokenriver.errors import HubError, UsageError
from tokenriver.hub.transfer import fetch_bytes
from tokenriver.shards.index import index_path
from tokenriver.shards.layouts import BUILD_RECORD, CORPUS_RECORD, GOLF_NAME, MANIFEST, SPLITS, Split
from tokenriver.shards.manifest import ManifestFile, TokensManifest, parse_manifest, render_json
from tokenriver.shards.record import parse_record

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tokenriver.hub.repository import Repository

__all__ = ["RemoteSet", "find_sets"]


@dataclass(frozen=True, slots=True)
class RemoteSet:
    """A data set in a repository. `directory` is its folder there ("" is the root), `listing` the manifest's or build
    record's name in it, `raw` that file's bytes; `prefix` stands before the names of its records.
    """

    directory: str
    listing: str
    raw: bytes
    files: tuple[ManifestFile, ...]
    manifest: TokensManifest | None

    @property
    def prefix(self) -> str:
        """What stands before `_BUILD.json` and `_CORPUS.json`."""
        return "" if self.manifest is not None else self.listing.removesuffix(BUILD_RECORD)

    def path(self, name: str) -> str:
        """Path in the repository of a file in the set's folder."""
        return f"{self.directory}/{name}" if self.directory else name

    @property
    def corpus_record(self) -> str:
        """Name of the facts about its inputs."""
        return self.prefix + CORPUS_RECORD

    @property
    def build_record(self) -> str:
        """Name of its build record."""
        return self.prefix + BUILD_RECORD

    def record(self, repository: Repository) -> bytes | None:
        """The build record as it was published, None where it was not."""
        if self.build_record == self.listing:
            return self.raw
        name = self.path(self.build_record)
        return fetch_bytes(repository, name) if name in repository.files else None

    def chosen(self, split: Split | None, shards: int | None) -> list[ManifestFile]:
        """The files to fetch: val whole, of train the first `shards`; only one side with `split`."""
        if split not in (None, *SPLITS):
            raise UsageError(f"--split is {split!r}; it must be train or val")
        n_train = sum(f.split == "train" for f in self.files)
        if shards is not None and not 0 <= shards <= n_train:
            raise UsageError(f"--shards is {shards}, but {self.path('')} was published with {n_train} train shards")
        taken, seen = [], 0
        for file in self.files:
            if file.split == "train":
                seen += 1
                if shards is not None and seen > shards:
                    continue
            if split in (None, file.split):
                taken.append(file)
        return taken

    def listing_of(self, files: Sequence[ManifestFile]) -> bytes:
        """The manifest (or record) of those files alone; the published bytes where they are all."""
        if len(files) == len(self.files):
            return self.raw
        if self.manifest is not None:
            return render_json(msgspec.structs.replace(self.manifest, files=list(files)))
        return self.record_of(self.raw, files)

    def record_of(self, raw: bytes, files: Sequence[ManifestFile]) -> bytes:
        """The build record `raw` for those files alone; as it is where they are all."""
        if len(files) == len(self.files):
            return raw
        kept = {file.name for file in files}
        return _reduced_record(raw, files, {file.split for file in self.files if file.name not in kept})


def _reduced_record(raw: bytes, files: Sequence[ManifestFile], left_out: set[Split]) -> bytes:
    """A build record for a part of the shards: the counts of a side that is not whole are left out."""
    record: dict[str, Any] = json.loads(raw)
    record["files"] = msgspec.to_builtins(list(files))
    kept = {index_path(Path(file.name)).name for file in files}
    record["indexes"] = {name: sha256 for name, sha256 in record.get("indexes", {}).items() if name in kept}
    whole = {side: counts for side, counts in record.get("splits", {}).items() if side not in left_out}
    # llm.c's cuts move documents over files, so there the sides only count together.
    record["splits"] = whole if record.get("layout") != "llmc" or not left_out else {}
    return render_json(record)


def find_sets(repository: Repository, dataset: str | None = None) -> list[RemoteSet]:
    """The repository's data sets; with `dataset` the one of that name, or of that path (as in gpt2/tales).

    Raises HubError, listing what there is, when there are none, and UsageError when the name fits several.
    """
    names = sorted(name for name in repository.files if _is_listing(name.rpartition("/")[2]))
    labels = {name: _label(name) for name in names}
    if dataset is not None:
        fitting = [name for name in names if _fits(labels[name], dataset)]
    else:
        fitting = names
    sets = [found for name in fitting if (found := _open(repository, name)) is not None]
    if not sets:
        there = ", ".join(sorted(set(labels.values()))) or "none made by tokenriver"
        raise HubError(f"repository {repository}: no data set {dataset or ''}; there are: {there}".replace("  ", " "))
    if dataset is not None and len(sets) > 1:
        listed = ", ".join(labels[s.path(s.listing)] for s in sets)
        raise UsageError(f"--dataset {dataset} is the name of {len(sets)} data sets; give one of {listed}")
    return sets


def _is_listing(name: str) -> bool:
    return name == MANIFEST or (name.endswith(BUILD_RECORD) and name != BUILD_RECORD)


def _label(name: str) -> str:
    """How a data set is called on the command line: its folder, and the name in it where several share one."""
    directory, _, listing = name.rpartition("/")
    own = "" if listing == MANIFEST or listing == GOLF_NAME + BUILD_RECORD else listing.removesuffix(BUILD_RECORD)
    return "/".join(part for part in (directory.removeprefix("tokens/"), own) if part) or "the repository itself"


def _fits(label: str, dataset: str) -> bool:
    wanted = dataset.strip("/").removeprefix("tokens/")
    return label == wanted or label.endswith("/" + wanted)


def _open(repository: Repository, name: str) -> RemoteSet | None:
    """Read a manifest or record; None for the manifest of a corpus."""
    raw = fetch_bytes(repository, name)
    directory, _, listing = name.rpartition("/")
    path = Path(name)
    if listing != MANIFEST:
        return RemoteSet(directory, listing, raw, tuple(parse_record(raw, path).files), None)
    if b'"tokenizer_id"' not in raw:
        return None
    manifest = parse_manifest(raw, path)
    return RemoteSet(directory, listing, raw, tuple(manifest.files), manifest)
