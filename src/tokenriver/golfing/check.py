"""Can every file of a published export be had? Asked of the server, without fetching any but the manifest."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import TYPE_CHECKING

from tokenriver.errors import HubError
from tokenriver.golfing.fetch import GolfSource, file_job, plan_files
from tokenriver.hub.client import head
from tokenriver.hub.crew import DEFAULT_CONNECTIONS, check_connections
from tokenriver.hub.names import checked_name
from tokenriver.hub.repository import Repository, explained, open_repository
from tokenriver.hub.transfer import fetch_bytes
from tokenriver.shards.golf_manifest import GOLF_MANIFEST, parse_golf_manifest
from tokenriver.storage.paths import to_output

if TYPE_CHECKING:
    import os

__all__ = ["GolfCheck", "check_golf"]


@dataclass(frozen=True, slots=True, kw_only=True)
class GolfCheck:
    """What `check_golf` found: files asked for, and for each that cannot be had, why."""

    commit: str
    checked: int
    problems: dict[str, str]

    @property
    def ok(self) -> bool:
        """Whether every file of the manifest can be had."""
        return not self.problems


def check_golf(
    *,
    repo_id: str | None = None,
    remote_root: str | None = None,
    revision: str = "main",
    root: str | os.PathLike[str] = "data",
    connections: int = DEFAULT_CONNECTIONS,
) -> GolfCheck:
    """Ask the server for every file that the manifest lists, all variants, without fetching any but the manifest.

    Nothing is left in `root`: a manifest there would speak of files that are not.
    """
    check_connections(connections)
    source = GolfSource.chosen(repo_id, remote_root, revision=revision)
    folder = to_output(root)
    repository = open_repository(source.repo_id, revision=source.revision)
    job = file_job(repository, source, folder, GOLF_MANIFEST)
    manifest = parse_golf_manifest(fetch_bytes(repository, job.name), job.path)
    names: dict[str, None] = {}
    for dataset in manifest.datasets:
        names |= dict.fromkeys(plan_files(manifest, variant=dataset.name, train_shards=None))
    with ThreadPoolExecutor(connections) as pool:
        remote = [source.remote(checked_name(name, source=str(job.path))) for name in names]
        found = list(pool.map(lambda name: _problem(repository, name), remote))
    problems = {name: problem for name, problem in zip(names, found, strict=True) if problem is not None}
    return GolfCheck(commit=repository.commit, checked=len(names), problems=problems)


def _problem(repository: Repository, name: str) -> str | None:
    """Why a file cannot be had, or None: listed, and served with the size that is listed."""
    if name not in repository.files:
        return "not in the repository"
    if repository.offline:
        return None
    try:
        with explained(name):
            response = head(repository.url(name))
    except HubError as error:
        return str(error).removeprefix(f"{name}: ")
    size = response.headers.get("X-Linked-Size") or response.headers.get("Content-Length")
    expected = repository.files[name].n_bytes
    if response.status_code == 200 and size is not None and int(size) != expected:
        return f"served with {int(size):,} bytes, listed with {expected:,}"
    return None
