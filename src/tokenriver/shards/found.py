"""What verification found at a path, by names, manifests and records alone: data sets, loose shards, problems."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

from tokenriver.shards.index import index_path
from tokenriver.shards.layouts import BUILD_RECORD, CORPUS_RECORD, record_prefix

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.shards.layouts import Layout
    from tokenriver.shards.manifest import ManifestFile, TokensManifest
    from tokenriver.shards.record import BuildRecord

__all__ = ["DataSet", "Finding", "Found", "without_path"]


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that is wrong, and the file or directory that it is wrong with."""

    path: Path
    problem: str


@dataclass(frozen=True, slots=True)
class DataSet:
    """Shards that one manifest or build record lists. `only` limits the check to one of them (None: all)."""

    directory: Path
    source: Path
    layout: Layout
    files: tuple[ManifestFile, ...]
    vocab_size: int
    separator_id: int | None
    separator_position: Literal["before", "after"]
    manifest: TokensManifest | None
    record: BuildRecord | None
    only: str | None = None

    @property
    def checked_files(self) -> tuple[ManifestFile, ...]:
        """The files to look into."""
        return self.files if self.only is None else tuple(f for f in self.files if f.name == self.only)

    def recorded_index(self, shard: Path) -> tuple[str, str] | None:
        """SHA-256 of a shard's document index as it was built, and the name of the record that says so."""
        if self.record is None or (sha256 := self.record.indexes.get(index_path(shard).name)) is None:
            return None
        return sha256, record_prefix(self.layout, self.record.dataset) + BUILD_RECORD

    @property
    def corpus_sha256(self) -> str:
        """SHA-256 of the corpus's manifest or of the facts about raw files; "" where nothing says it."""
        if self.manifest is not None:
            return self.manifest.corpus_manifest_sha256
        return "" if self.record is None else self.record.corpus_manifest_sha256

    @property
    def corpus_facts(self) -> Path:
        """Where the facts about raw files lie, if the shards were made from such."""
        dataset = "" if self.record is None else self.record.dataset
        return self.directory / (record_prefix(self.layout, dataset) + CORPUS_RECORD)


@dataclass(slots=True)
class Found:
    """Everything that the paths stand for, each thing once."""

    data_sets: list[DataSet] = field(default_factory=list)
    loose: list[Path] = field(default_factory=list)
    findings: list[Finding] = field(default_factory=list)

    def __bool__(self) -> bool:
        return bool(self.data_sets or self.loose or self.findings)

    def add(self, other: Found) -> None:
        """Take in another's things that are not here yet; a whole data set takes the place of single shards of it."""
        whole = {d.source for d in [*self.data_sets, *other.data_sets] if d.only is None}
        self.data_sets = [d for d in self.data_sets if d.only is None or d.source not in whole]
        known = {(d.source, d.only) for d in self.data_sets}
        self.data_sets += [
            d for d in other.data_sets if (d.source, d.only) not in known and (d.only is None or d.source not in whole)
        ]
        self.loose += [p for p in other.loose if p not in self.loose]
        self.findings += [f for f in other.findings if f not in self.findings]


def without_path(error: Exception, path: Path) -> str:
    """What an error says of a file, for a finding, which names the file itself."""
    text = error.strerror or str(error) if isinstance(error, OSError) else str(error)
    return text.removeprefix(f"{path}: ")
