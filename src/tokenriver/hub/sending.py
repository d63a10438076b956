"""Files behind a URL on their way to the Hub: copied here one by one, checked, sent, and let go.

One is copied while the one before it is sent, so the disk holds two at a time.
"""

from __future__ import annotations

import errno
import hashlib
import tempfile
from collections import deque
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenriver.errors import IntegrityError
from tokenriver.files import naming
from tokenriver.hub.checks import Expected
from tokenriver.storage.directory import staging_root
from tokenriver.storage.objects import find_object, required_size
from tokenriver.storage.reading import read_from, read_whole

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from concurrent.futures import Future

    from tokenriver.hub.local_sets import Upload
    from tokenriver.hub.repository import Repository

__all__ = ["send_from_url"]

_SMALL_BYTES = 8 << 20
"""What has no more and is no shard stays in memory: the Hub may want it inside the commit, which is made last."""


def send_from_url(api: Any, repository: Repository, upload: Upload) -> list[Any]:
    """Send shards and others; the commit's operations for all that the repository does not hold yet.

    Raises IntegrityError where a shard's bytes are not those of its data set, before any of it is sent.
    """
    from huggingface_hub import CommitOperationAdd

    held = {name for name, sha256 in upload.sha256.items() if repository.files.get(name, Expected()).sha256 == sha256}
    contents = {name: content for name, content in {**upload.shards, **upload.others}.items() if name not in held}
    operations = []
    for name, content in _copied(contents, upload.sha256):
        operation = CommitOperationAdd(name, content)
        api.preupload_lfs_files(repository.repo_id, additions=[operation], repo_type="dataset")
        operations.append(operation)
        if isinstance(content, Path):
            assert operation.upload_info.sha256, "the client takes it from the copy, which goes now"
            content.unlink()
    return operations


def _copied(contents: Mapping[str, bytes | Path], sha256: Mapping[str, str]) -> Iterator[tuple[str, bytes | Path]]:
    root = staging_root()
    root.mkdir(parents=True, exist_ok=True)
    with (
        tempfile.TemporaryDirectory(prefix="publish-", dir=root) as folder,
        ThreadPoolExecutor(1, thread_name_prefix="tokenriver-copy") as pool,
    ):
        coming: deque[tuple[str, Future[bytes | Path]]] = deque()
        for i, (name, content) in enumerate(contents.items()):
            coming.append((name, pool.submit(_here, content, Path(folder) / str(i), sha256.get(name))))
            if i:
                first, copy = coming.popleft()
                yield first, copy.result()
        for name, copy in coming:
            yield name, copy.result()


def _here(content: bytes | Path, copy: Path, sha256: str | None) -> bytes | Path:
    """The content in memory, or in a file of this machine whose hash is `sha256`."""
    if isinstance(content, bytes):
        return content
    there = find_object(str(content))
    if there is None:
        raise FileNotFoundError(errno.ENOENT, "it is gone", str(content))
    if sha256 is None and required_size(there) <= _SMALL_BYTES:
        return read_whole(there)
    digest = hashlib.sha256()
    with naming(copy), open(copy, "wb") as file:
        for chunk in read_from(there):
            file.write(chunk)
            digest.update(chunk)
    if sha256 not in (None, digest.hexdigest()):
        raise IntegrityError(
            f"{there}: sha256 is {digest.hexdigest()}, its data set says {sha256}; nothing was published: tokenriver "
            "verify names all that is wrong"
        )
    return copy
