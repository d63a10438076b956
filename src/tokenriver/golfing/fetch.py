"""Fetch a published Parameter Golf export: manifest first, all val shards, the first train shards, the tokenizer.

Its manifest holds no hashes, so a file is right when its SHA-256 is the one that the Hub's listing gives, its header
agrees with its size, and the val tokens in all are those of the manifest.
"""

from __future__ import annotations

import os
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from tokenriver.errors import HubError, IntegrityError, TokenRiverError, UsageError
from tokenriver.files import is_file, remove_file
from tokenriver.hub.crew import DEFAULT_CONNECTIONS, check_connections, fetch_files
from tokenriver.hub.landing import open_landing
from tokenriver.hub.names import below, checked_root
from tokenriver.hub.repository import Repository, open_repository
from tokenriver.hub.transfer import FetchJob, fetch_bytes
from tokenriver.shards.golf_manifest import (
    GOLF_MANIFEST,
    GOLF_SIDECAR,
    REMOTE_ROOT,
    REMOTE_ROOT_VARIABLE,
    GolfManifest,
    parse_golf_manifest,
    parse_golf_sidecar,
)
from tokenriver.shards.layouts import BUILD_RECORD, CORPUS_RECORD, GOLF_NAME
from tokenriver.shards.manifest import read_limited
from tokenriver.shards.reader import read_headers
from tokenriver.storage.paths import to_folder

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from tokenriver.hub.landing import Landing
    from tokenriver.hub.transfer import TransferSink
    from tokenriver.shards.golf_manifest import GolfDataset

__all__ = [
    "DEFAULT_REPO_ID",
    "DEFAULT_TRAIN_SHARDS",
    "GolfFetched",
    "GolfSource",
    "fetch_golf",
    "file_job",
    "plan_files",
]

DEFAULT_REPO_ID = "willdepueoai/parameter-golf"
"""The challenge's own repository; MATCHED_FINEWEB_REPO_ID names another."""

DEFAULT_TRAIN_SHARDS = 80


@dataclass(frozen=True, slots=True)
class GolfSource:
    """Where an export is published: the repository and the folder in it that becomes the local root."""

    repo_id: str
    remote_root: str
    revision: str = "main"

    @classmethod
    def chosen(
        cls,
        repo_id: str | None = None,
        remote_root: str | None = None,
        *,
        revision: str = "main",
        environment: Mapping[str, str] | None = None,
    ) -> GolfSource:
        """What is given, else MATCHED_FINEWEB_REPO_ID and MATCHED_FINEWEB_REMOTE_ROOT_PREFIX, else the challenge's."""
        env = os.environ if environment is None else environment
        repo_id = repo_id or env.get("MATCHED_FINEWEB_REPO_ID") or DEFAULT_REPO_ID
        if remote_root is None:
            remote_root = env.get(REMOTE_ROOT_VARIABLE, REMOTE_ROOT)
        remote_root = checked_root(remote_root, source="--remote-root")
        return cls(repo_id, remote_root, revision)

    def remote(self, name: str) -> str:
        """The path in the repository of a file named relative to the root."""
        return f"{self.remote_root}/{name}" if self.remote_root else name


@dataclass(frozen=True, slots=True, kw_only=True)
class GolfFetched:
    """What `fetch_golf` did: paths of all files asked for, how many came over the network, and their bytes in all."""

    root: Path
    repo_id: str
    commit: str
    dataset: str
    files: list[Path] = field(repr=False)
    fetched: int
    n_bytes: int
    val_tokens: int
    train_tokens: int


def plan_files(
    manifest: GolfManifest, *, variant: str, train_shards: int | None = DEFAULT_TRAIN_SHARDS, with_docs: bool = False
) -> list[str]:
    """The files of a fetch, relative to the root: val shards, train shards, tokenizer, documents.

    Raises UsageError for a variant that the manifest does not have (listing those it has) and for more train shards
    than were published; None means all of them.
    """
    dataset = _dataset(manifest, variant)
    published = dataset.stats.files_train
    if train_shards is not None and not 0 <= train_shards <= published:
        raise UsageError(
            f"--train-shards is {train_shards}, but {dataset.name} was published with {published} train shards; "
            f"give 0 to {published}"
        )
    tokenizer = manifest.tokenizer(dataset.tokenizer_name)
    files = dataset.shards("val") + dataset.shards("train", train_shards)
    files += tokenizer.artifacts if tokenizer is not None else []
    if with_docs:
        files += [manifest.docs_jsonl, GOLF_SIDECAR]
    return files


def _dataset(manifest: GolfManifest, variant: str) -> GolfDataset:
    dataset = manifest.dataset(variant)
    if dataset is None:
        there = ", ".join(d.variant for d in manifest.datasets) or "none"
        raise UsageError(f"--variant {variant} is not in the manifest; there are: {there}")
    return dataset


def fetch_golf(
    *,
    variant: str = "sp1024",
    train_shards: int | None = DEFAULT_TRAIN_SHARDS,
    with_docs: bool = False,
    root: str | os.PathLike[str] = "data",
    repo_id: str | None = None,
    remote_root: str | None = None,
    revision: str = "main",
    connections: int = DEFAULT_CONNECTIONS,
    progress: TransferSink | None = None,
) -> GolfFetched:
    """Fetch an export into `root`, a folder or its URL; what is there and whole is not fetched again, what is wrong is.

    Raises UsageError (unknown variant, too many shards), HubError (not published, not reachable), IntegrityError (a
    file that stays wrong, a name that leads out of `root`), FormatError (a manifest or shard that is none).
    """
    check_connections(connections)
    if train_shards is not None and train_shards < 0:
        raise UsageError(f"--train-shards is {train_shards}; it must be 0 or more")
    source = GolfSource.chosen(repo_id, remote_root, revision=revision)
    folder = to_folder(root, option="--root")
    with open_landing(folder) as landing:
        repository = open_repository(source.repo_id, revision=source.revision)
        fetch = _Fetch(repository, landing, connections, progress)
        manifest_job = file_job(repository, source, folder, GOLF_MANIFEST)
        was_there = is_file(manifest_job.path)
        raw = fetch.content(manifest_job)
        try:
            manifest = parse_golf_manifest(raw, manifest_job.path)
            names = plan_files(manifest, variant=variant, train_shards=train_shards, with_docs=with_docs)
            dataset = _dataset(manifest, variant)
            if _has_no_sidecar(manifest) and source.remote(GOLF_SIDECAR) not in repository.files:
                names = [name for name in names if name != GOLF_SIDECAR]
            _refuse_missing(repository, source, dataset, names)
            jobs = [file_job(repository, source, folder, name) for name in names]
        except TokenRiverError:
            if not was_there:  # nothing comes that it could speak of
                remove_file(manifest_job.path)
            raise
        records = []
        if train_shards is None or train_shards == dataset.stats.files_train:
            records = _records(repository, source, dataset)
        last = [file_job(repository, source, folder, name) for name in records]
        if with_docs and names[-1] == GOLF_SIDECAR:
            *jobs, docs, sidecar = jobs
            jobs.append(_as_sidecar_says(docs, sidecar.path, fetch.content(sidecar)))
            last.append(sidecar)
        fetch(jobs)
        fetch(last, connections=1)
        val, train = (_tokens(folder, names, split) for split in ("val", "train"))
        if val != dataset.stats.tokens_val:
            raise IntegrityError(
                f"{folder / dataset.path}: the val shards hold {val:,} tokens, {manifest_job.path} says "
                f"{dataset.stats.tokens_val:,}; the publication contradicts itself: tell the owner of {source.repo_id}"
            )
        fetch([manifest_job])  # behind a URL it gets there last
    return GolfFetched(
        root=folder,
        repo_id=source.repo_id,
        commit=repository.commit,
        dataset=dataset.name,
        files=[manifest_job.path, *(job.path for job in [*jobs, *last])],
        fetched=len(fetch.fetched),
        n_bytes=sum(job.expected.n_bytes or 0 for job in [manifest_job, *jobs, *last]),
        val_tokens=val,
        train_tokens=train,
    )


def file_job(repository: Repository, source: GolfSource, folder: Path, name: str) -> FetchJob:
    """The job of a file named relative to the root, which `folder` is. Raises as `fetch_golf`."""
    where = f"{GOLF_MANIFEST} of {repository.repo_id}"
    path = below(folder, name, source=where)
    remote = source.remote(name)
    if name == GOLF_MANIFEST and remote not in repository.files:
        raise HubError(
            f"{remote}: not in the repository {repository}, so it holds no Parameter Golf export there; give its "
            "folder with --remote-root"
        )
    return FetchJob(remote, path, repository.expected(remote))


class _Fetch:
    """Fetches files of a repository to their places, here or behind a URL; `fetched` are those that were not there."""

    def __init__(
        self, repository: Repository, landing: Landing | None, connections: int, progress: TransferSink | None
    ) -> None:
        self._repository = repository
        self._landing = landing
        self._connections = connections
        self._progress = progress
        self.fetched: set[str] = set()

    def __call__(self, jobs: list[FetchJob], *, connections: int | None = None) -> None:
        done = fetch_files(
            self._repository,
            jobs,
            connections=connections or self._connections,
            progress=self._progress,
            landing=self._landing,
        )
        self.fetched.update(job.name for job in done)

    def content(self, job: FetchJob) -> bytes:
        """What is in a file that says what others must be. It gets its place here, but none behind a URL yet."""
        if self._landing is not None:
            raw = fetch_bytes(self._repository, job.name)
            if is_file(job.path) and read_limited(job.path) != raw:
                remove_file(job.path)  # it speaks of other files than those that come now
            return raw
        self([job])
        return read_limited(job.path)


def _as_sidecar_says(docs: FetchJob, path: Path, raw: bytes) -> FetchJob:
    """The documents, held to their sidecar's docs_sha256."""
    facts, _ = parse_golf_sidecar(raw, path)
    if facts.docs_sha256 is None:
        return docs
    return replace(docs, expected=docs.expected.with_sha256(facts.docs_sha256, name=docs.name, source=GOLF_SIDECAR))


def _refuse_missing(repository: Repository, source: GolfSource, dataset: GolfDataset, names: list[str]) -> None:
    missing = [name for name in names if source.remote(name) not in repository.files]
    if not missing:
        return
    shards = [name for name in missing if name.startswith(f"{dataset.path}/")]
    if len(shards) == len([name for name in names if name.startswith(f"{dataset.path}/")]):
        raise HubError(
            f"{dataset.name}: the manifest lists it, but the repository {repository} holds none of its shards "
            f"({source.remote(dataset.path)}/…): it was never uploaded"
        )
    listed = ", ".join(missing[:3]) + (f" and {len(missing) - 3} more" if len(missing) > 3 else "")
    raise HubError(f"{dataset.name}: the manifest lists files that the repository {repository} does not hold: {listed}")


def _has_no_sidecar(manifest: GolfManifest) -> bool:
    """Whether the documents were exported without one, as they may be; an older exporter does not say."""
    return manifest.docs_meta.get("source_manifest", GOLF_SIDECAR) is None


def _records(repository: Repository, source: GolfSource, dataset: GolfDataset) -> list[str]:
    """Our own records beside the shards, with which `verify` knows every hash; only with all shards."""
    names = [f"{dataset.path}/{GOLF_NAME}{record}" for record in (CORPUS_RECORD, BUILD_RECORD)]
    return [name for name in names if source.remote(name) in repository.files]


def _tokens(folder: Path, names: list[str], split: str) -> int:
    paths = [folder / name for name in names if f"_{split}_" in name.rpartition("/")[2]]
    return sum(header.n_tokens for header in read_headers(paths))
