"""One commit of a repository: which files it holds, and where each is to be had (the Hub, its cache, or both).

The Hub is asked once for the commit and once for the list of files; with HF_HUB_OFFLINE both come from the cache.
"""

from __future__ import annotations

import re
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenriver.errors import HubError, IntegrityError, TokenRiverError, UsageError
from tokenriver.hub.checks import Expected
from tokenriver.hub.client import ask_json, file_url, list_tree, stream
from tokenriver.hub.names import checked_name

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from contextlib import AbstractContextManager

__all__ = ["Repository", "check_repository_id", "explained", "open_repository"]

_REPO_ID = re.compile(r"[A-Za-z0-9._-]+(/[A-Za-z0-9._-]+)?")
_SHA256 = re.compile(r"[0-9a-f]{64}")


@dataclass(frozen=True, slots=True)
class Repository:
    """The files of a data set repository at one commit. `offline`: there is only what the cache holds."""

    repo_id: str
    commit: str
    files: Mapping[str, Expected]
    offline: bool = False
    server = "the Hub"

    def __str__(self) -> str:
        return f"{self.repo_id}@{self.commit[:8]}"

    def expected(self, name: str) -> Expected:
        """Size and hash of a file; HubError when the repository has none of that name."""
        if name not in self.files:
            raise HubError(f"{name}: not in the repository {self}")
        return self.files[name]

    def url(self, name: str) -> str:
        """Where the file is served, at exactly this commit."""
        return file_url(self.repo_id, name, revision=self.commit)

    def stream(self, name: str, start: int) -> AbstractContextManager[Any]:
        """The response that carries the file's bytes from `start` on."""
        return stream(self.url(name), start=start)

    def cached(self, name: str) -> Path | None:
        """The file in huggingface_hub's cache, if it is there."""
        from huggingface_hub import try_to_load_from_cache

        found = try_to_load_from_cache(self.repo_id, name, repo_type="dataset", revision=self.commit)
        return Path(found) if isinstance(found, str) else None


def check_repository_id(repo_id: str) -> None:
    """UsageError for what cannot be a repository's id."""
    if not _REPO_ID.fullmatch(repo_id) or ".." in repo_id:
        raise UsageError(f"{repo_id!r} is no repository id; expected OWNER/NAME")


def open_repository(repo_id: str, *, revision: str = "main") -> Repository:
    """Ask the Hub (HF_ENDPOINT) for a data set repository's commit and files.

    Raises UsageError for an id that cannot be one, HubError when the repository or revision does not exist, cannot be
    read with the token at hand or cannot be reached, IntegrityError for a listing with a name that is no plain path.
    """
    check_repository_id(repo_id)
    from huggingface_hub import constants
    from huggingface_hub.hf_api import RepoFolder

    if constants.HF_HUB_OFFLINE:
        return _from_cache(repo_id, revision)
    with explained(f"repository {repo_id}"):
        commit = _commit(repo_id, revision)
        entries = list_tree(repo_id, revision=commit)
    files = {}
    for entry in entries:
        if isinstance(entry, RepoFolder):
            continue
        name = checked_name(entry.path, source=f"repository {repo_id}")
        sha256 = entry.lfs.sha256 if entry.lfs is not None else None
        size = entry.lfs.size if entry.lfs is not None else entry.size
        if not isinstance(size, int) or size < 0 or not (sha256 is None or _SHA256.fullmatch(str(sha256))):
            raise IntegrityError(
                f"repository {repo_id}: the Hub lists {name} with {size!r} bytes and sha256 {sha256!r}"
            )
        files[name] = Expected(size, sha256, None if sha256 else entry.blob_id)
    return Repository(repo_id, commit, files)


def _commit(repo_id: str, revision: str) -> str:
    """The commit that a branch, tag or commit id stands for."""
    commit = ask_json(f"datasets/{repo_id}/revision", revision).get("sha")
    if not isinstance(commit, str) or not re.fullmatch(r"[0-9a-f]{40}", commit):
        raise IntegrityError(f"repository {repo_id}: the Hub names the commit {commit!r}, expected 40 hex digits")
    return commit


def _from_cache(repo_id: str, revision: str) -> Repository:
    """What the cache holds of a repository; the names of its large files there are their SHA-256."""
    from huggingface_hub import snapshot_download
    from huggingface_hub.errors import LocalEntryNotFoundError

    try:
        folder = Path(snapshot_download(repo_id, repo_type="dataset", revision=revision, local_files_only=True))
    except (LocalEntryNotFoundError, FileNotFoundError) as error:
        raise HubError(
            f"repository {repo_id}: HF_HUB_OFFLINE is set, and the cache holds nothing of {revision}; unset it, or "
            "fetch the repository into the cache where there is a network"
        ) from error
    files = {}
    for path in sorted(folder.rglob("*")):
        if path.is_file():
            blob = path.resolve().name
            sha256 = blob if _SHA256.fullmatch(blob) else None
            files[path.relative_to(folder).as_posix()] = Expected(path.stat().st_size, sha256)
    return Repository(repo_id, folder.name, files, offline=True)


@contextmanager
def explained(what: str, server: str = "the Hub") -> Iterator[None]:
    """Turn what the client raises into a HubError of one line about `what`; its messages hold no token."""
    from huggingface_hub import errors

    try:
        yield
    except TokenRiverError:
        raise
    except errors.GatedRepoError as error:
        raise HubError(f"{what}: its owner grants access on request; ask on its page, and set HF_TOKEN") from error
    except errors.RepositoryNotFoundError as error:
        raise HubError(
            f"{what}: there is no such data set repository, or it is private and HF_TOKEN is not set for it"
        ) from error
    except errors.RevisionNotFoundError as error:
        raise HubError(f"{what}: it has no such revision") from error
    except errors.HfHubHTTPError as error:
        raise HubError(f"{what}: {_status(error, server)}") from error
    except OSError:
        raise
    except (LookupError, TypeError, ValueError) as error:
        raise HubError(
            f"{what}: {server} gave an answer that cannot be read ({type(error).__name__}: {_first_line(error)})"
        ) from error
    except Exception as error:  # the client's errors of transport are of other classes in other versions of it
        address = "at HF_ENDPOINT where it is set" if server == "the Hub" else "at the address"
        raise HubError(
            f"{what}: no answer from {server} ({type(error).__name__}: {_first_line(error)})",
            advice=(f"look at the network, and {address}, and try again later",),
        ) from error


def _status(error: Any, server: str) -> str:
    status = getattr(getattr(error, "response", None), "status_code", None)
    if status in (401, 403) and server == "the Hub":
        return f"HTTP {status}: no permission; set HF_TOKEN to a token that has it"
    return f"{server} answered with HTTP {status}" if status else _first_line(error)


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), "no message")
