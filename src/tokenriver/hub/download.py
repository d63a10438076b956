"""`tokenriver.download`: data sets of ours from the Hub, whole or in part, each file checked against the manifest.

The manifest is read first and gets its name last: while it is missing, or still an older one, nothing takes the
folder for more than it holds.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tokenriver.errors import FormatError, UsageError
from tokenriver.files import atomic_write, is_file, remove_file
from tokenriver.hub.crew import DEFAULT_CONNECTIONS, check_connections, fetch_files
from tokenriver.hub.landing import open_landing
from tokenriver.hub.names import below
from tokenriver.hub.remote_sets import RemoteSet, find_sets
from tokenriver.hub.repository import open_repository
from tokenriver.hub.transfer import FetchJob, locked
from tokenriver.shards.index import index_path
from tokenriver.shards.layouts import MANIFEST
from tokenriver.shards.manifest import parse_manifest, read_limited
from tokenriver.shards.record import parse_record
from tokenriver.storage.paths import is_remote, to_folder
from tokenriver.storage.uploading import upload_bytes

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tokenriver.hub.repository import Repository
    from tokenriver.hub.transfer import TransferSink
    from tokenriver.shards.layouts import Split
    from tokenriver.shards.manifest import ManifestFile

__all__ = ["DownloadSummary", "download"]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadSummary:
    """What a download made: the folders of the data sets, their shards, how many files came over the network.

    `n_bytes` and `n_tokens` count the shards asked for, those that were there already included.
    """

    repo_id: str
    commit: str
    directories: list[Path]
    files: list[Path] = field(repr=False)
    fetched: int
    n_bytes: int
    n_tokens: int


def download(
    repo_id: str,
    *,
    dataset: str | None = None,
    split: Split | None = None,
    shards: int | None = None,
    out: str | os.PathLike[str] = "data",
    revision: str = "main",
    connections: int = DEFAULT_CONNECTIONS,
    progress: TransferSink | None = None,
) -> DownloadSummary:
    """Fetch data sets of a repository into `out`, a folder or its URL, in the same folders as there.

    `dataset` names one (None: all); `split` "train" or "val" takes one side; `shards` takes the first train shards
    alone, val always whole. The manifest then lists what was taken. Files that are there and right are kept; a file
    gets its name when its SHA-256 is the manifest's. Raises HubError (not there, not reachable), IntegrityError (a file
    that stays wrong; a name that leads out of `out`), UsageError (more shards than there are), StorageError (the store
    behind a URL fails).
    """
    check_connections(connections)
    if shards is not None and shards < 0:
        raise UsageError(f"--shards is {shards}; it must be 0 or more")
    folder = to_folder(out, option="--out")
    fetched = 0
    with open_landing(folder) as landing:
        repository = open_repository(repo_id, revision=revision)
        plans = [
            _Plan.of(repository, found, found.chosen(split, shards), folder) for found in find_sets(repository, dataset)
        ]
        for plan in plans:
            plan.forget_other_listing()
            fetched += len(
                fetch_files(repository, plan.jobs, connections=connections, progress=progress, landing=landing)
            )
            plan.write_records()
    return DownloadSummary(
        repo_id=repo_id,
        commit=repository.commit,
        directories=[plan.directory for plan in plans],
        files=[job.path for plan in plans for job in plan.shards],
        fetched=fetched,
        n_bytes=sum(job.expected.n_bytes or 0 for plan in plans for job in plan.shards),
        n_tokens=sum(file.n_tokens for plan in plans for file in plan.files),
    )


@dataclass(frozen=True, slots=True)
class _Plan:
    """One data set: the jobs of its shards, all jobs, and what its records will say."""

    remote: RemoteSet
    record: bytes | None
    files: list[ManifestFile]
    directory: Path
    shards: list[FetchJob]
    jobs: list[FetchJob]

    @classmethod
    def of(cls, repository: Repository, remote: RemoteSet, files: list[ManifestFile], out: Path) -> _Plan:
        listing = remote.path(remote.listing)
        directory = below(out, listing, source=f"repository {repository.repo_id}").parent
        files = _with_those_there(remote, files, directory / remote.listing)

        def job(name: str, sha256: str) -> FetchJob:
            name = remote.path(name)
            expected = repository.expected(name).with_sha256(sha256, name=name, source=listing)
            return FetchJob(name, below(out, name, source=listing), expected)

        shards = [job(file.name, file.sha256) for file in files]
        record = remote.record(repository)
        indexes = {} if record is None else parse_record(record, Path(remote.path(remote.build_record))).indexes
        names = [index_path(Path(file.name)).name for file in files]
        there = [name for name in names if name in indexes and remote.path(name) in repository.files]
        jobs = [*(job(name, indexes[name]) for name in there), *shards]
        corpus = remote.path(remote.corpus_record)
        if corpus in repository.files:
            expected = repository.expected(corpus)
            if remote.manifest is not None:
                sha256 = remote.manifest.corpus_manifest_sha256
                expected = expected.with_sha256(sha256, name=corpus, source=listing)
            jobs.insert(0, FetchJob(corpus, below(out, corpus, source=listing), expected))
        return cls(remote, record, files, directory, shards, jobs)

    def forget_other_listing(self) -> None:
        """Remove a manifest or record that says of one of these files what will not be so."""
        path = self.directory / self.remote.listing
        new = {file.name: file.sha256 for file in self.remote.files}
        if any(new.get(file.name) != file.sha256 for file in _listed(path)):
            remove_file(path)

    def write_records(self) -> None:
        """Write the build record and, last, the manifest, for exactly the files that are there now."""
        if self.record is not None and self.remote.build_record != self.remote.listing:
            _write(self.directory / self.remote.build_record, self.remote.record_of(self.record, self.files))
        _write(self.directory / self.remote.listing, self.remote.listing_of(self.files))


def _with_those_there(remote: RemoteSet, files: Sequence[ManifestFile], listing: Path) -> list[ManifestFile]:
    """The files asked for and those of an earlier download that are of this publication too, in its order."""
    wanted = {file.name for file in files}
    earlier = _listed(listing)
    wanted |= {file.name for file in remote.files if file in earlier}
    return [file for file in remote.files if file.name in wanted]


def _listed(listing: Path) -> list[ManifestFile]:
    """What a manifest or record of an earlier download lists; nothing where there is none that can be read."""
    if not is_file(listing):
        return []
    try:
        raw = read_limited(listing)
        if listing.name == MANIFEST:
            return parse_manifest(raw, listing).files
        return parse_record(raw, listing).files
    except FormatError:
        return []  # it is replaced by the published one


def _write(path: Path, raw: bytes) -> None:
    if is_remote(path):
        if not is_file(path) or read_limited(path) != raw:
            upload_bytes(raw, str(path))
        return
    with locked(path):
        if path.is_file() and not path.is_symlink() and path.read_bytes() == raw:
            return
        with atomic_write(path) as file:
            file.write(raw)
