"""`tokenriver.publish`: data sets to the Hub in one commit that ends with the manifests, so no reader sees half of one.

The shards are uploaded before; what was uploaded is compared with the manifest, and nothing is committed that differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenriver.errors import HubError, IntegrityError
from tokenriver.files import file_size, sha256_file
from tokenriver.hub.card import render_card
from tokenriver.hub.local_sets import Upload, find_uploads
from tokenriver.hub.repository import check_repository_id, explained, open_repository
from tokenriver.hub.sending import send_from_url
from tokenriver.hub.transfer import fetch_bytes
from tokenriver.shards.index import INDEX_SUFFIX
from tokenriver.shards.layouts import parse_shard_name
from tokenriver.storage.paths import is_remote, to_path

if TYPE_CHECKING:
    import os

    from tokenriver.hub.repository import Repository

__all__ = ["PublishSummary", "publish"]

_CARD = "README.md"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishSummary:
    """What was published, or with `dry_run` would be: paths in the repository with their sizes, in order; the card.

    `removed` are shards of the same data sets that the manifests no longer list. `url` is the commit's page, None
    after a dry run.
    """

    repo_id: str
    files: dict[str, int]
    removed: list[str] = field(default_factory=list)
    card: str = field(repr=False)
    url: str | None = None

    @property
    def n_bytes(self) -> int:
        """Bytes of all files."""
        return sum(self.files.values())


def publish(
    directory: str | os.PathLike[str], repo_id: str, *, private: bool = False, dry_run: bool = False
) -> PublishSummary:
    """Publish the data sets in a folder: one data set of any layout, an artifacts root, or a Parameter Golf export.

    Behind a URL they are copied here file by file, each checked, sent and let go; what the repository holds is not.
    The repository is created where there is none. A data set of the tokens layout goes to tokens/<tokenizer>/<dataset>,
    a Parameter Golf export below MATCHED_FINEWEB_REMOTE_ROOT_PREFIX ("datasets"), others where they are in the folder.
    The build records go along without the paths of this machine. Raises IntegrityError for a data set that is
    unfinished or is not what its manifest says, HubError when the Hub refuses.
    """
    check_repository_id(repo_id)
    root = to_path(directory)
    upload = find_uploads(root)
    if dry_run:
        return PublishSummary(repo_id=repo_id, files=_sizes(upload), card=render_card(None, repo_id, upload.facts))
    from huggingface_hub import CommitOperationAdd, CommitOperationDelete, HfApi

    api = HfApi()
    with explained(f"repository {repo_id}"):
        api.create_repo(repo_id, repo_type="dataset", private=private or None, exist_ok=True)
    repository = open_repository(repo_id)
    card = render_card(_existing_card(repository), repo_id, upload.facts)
    removed = _stale(repository, upload)
    with explained(f"repository {repo_id}"), _uploads_explained():
        if is_remote(root):
            sent = send_from_url(api, repository, upload)
        else:
            sent = _send(api, repo_id, upload)
        last = [CommitOperationAdd(name, content) for name, content in upload.listings.items()]
        commit = api.create_commit(
            repo_id,
            [
                *(CommitOperationDelete(name) for name in removed),
                *sent,
                CommitOperationAdd(_CARD, card.encode()),
                *last,
            ],
            repo_type="dataset",
            commit_message=f"Publish {', '.join(f.select for f in upload.facts)}",
            parent_commit=repository.commit,
        )
    return PublishSummary(repo_id=repo_id, files=_sizes(upload), removed=removed, card=card, url=commit.commit_url)


class _uploads_explained:  # noqa: N801 (a context manager)
    """The client wraps an upload's failure in RuntimeError; what it wraps says more."""

    def __enter__(self) -> None:
        return None

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> None:
        if isinstance(error, RuntimeError) and error.__cause__ is not None:
            raise HubError(f"{error} ({type(error.__cause__).__name__}: {error.__cause__})") from error


def _send(api: Any, repo_id: str, upload: Upload) -> list[Any]:
    """Upload shards and others of a folder here, and compare what was read with the manifests."""
    from huggingface_hub import CommitOperationAdd

    shards = [CommitOperationAdd(name, path) for name, path in upload.shards.items()]
    others = [CommitOperationAdd(name, content) for name, content in upload.others.items()]
    api.preupload_lfs_files(repo_id, additions=[*shards, *others], repo_type="dataset", free_memory=False)
    _refuse_changed(shards, upload)
    return [*shards, *others]


def _sizes(upload: Upload) -> dict[str, int]:
    return {
        name: len(content) if isinstance(content, bytes) else file_size(content)
        for part in (upload.shards, upload.others, upload.listings)
        for name, content in part.items()
    }


def _existing_card(repository: Repository) -> str | None:
    return fetch_bytes(repository, _CARD).decode(errors="replace") if _CARD in repository.files else None


def _stale(repository: Repository, upload: Upload) -> list[str]:
    """Shards, and their indexes, in the data sets' folders that belong to them by name and are theirs no more."""
    stale = []
    for name in repository.files:
        folder, _, own = name.rpartition("/")
        parsed = parse_shard_name(own.removesuffix(INDEX_SUFFIX))
        if parsed is not None and (folder, parsed.dataset) in upload.claimed and name not in upload.shards:
            stale.append(name)
    return sorted(stale)


def _refuse_changed(operations: list[Any], upload: Upload) -> None:
    """IntegrityError when what was read for the upload is not what the manifest, or the build record, says."""
    for operation in operations:
        expected = upload.sha256[operation.path_in_repo]
        info = operation.upload_info
        path = upload.shards[operation.path_in_repo]
        # A file that is in the repository already is not always hashed by the client.
        found = info.sha256.hex() if info.sha256 is not None else sha256_file(path)
        if found != expected:
            raise IntegrityError(
                f"{path}: sha256 is {found}, its data set says {expected}; nothing was published: tokenriver verify "
                "names all that is wrong"
            )
