"""Writing where nothing can be renamed: an object appears under its final name whole, or not at all.

An upload in several parts shows nothing until it is completed; a failed one is aborted by the client, and what a
killed process left is aborted by the next (`abort_uploads`), since parts that no one completes cost money unseen.
"""

from __future__ import annotations

import tempfile
import warnings
from contextlib import contextmanager
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from tokenriver.errors import StorageError
from tokenriver.storage.failures import StorageWarning, retried
from tokenriver.storage.objects import RemoteFile, find_object, required_size
from tokenriver.storage.paths import filesystem_of, is_s3, refuse_read_only, shown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["abort_left_over", "abort_uploads", "copy_object", "upload_bytes", "upload_whole", "whole_object"]

PART_BYTES = 16 << 20
"""A part of an upload; S3 takes 5 MiB to 5 GiB, and 10,000 of them."""

_PARTS_AT_ONCE = 4


def upload_whole(path: Path, url: str) -> RemoteFile:
    """Upload a finished file under its final name and compare its size there; the object as it is then.

    Raises PermissionError or StorageError, and has then left nothing new under the name.
    """
    n_bytes = path.stat().st_size
    fs, remote = filesystem_of(url)
    options: dict[str, Any] = {}
    if is_s3(url):
        part_bytes = max(PART_BYTES, -(-n_bytes // 10_000))
        options = {"chunksize": part_bytes, "max_concurrency": _PARTS_AT_ONCE}
    return _put(url, n_bytes, lambda: fs.put_file(str(path), remote, **options))


def upload_bytes(raw: bytes, url: str) -> RemoteFile:
    """The same for a small object in memory: a record, a manifest."""
    fs, remote = filesystem_of(url)
    return _put(url, len(raw), lambda: fs.pipe_file(remote, raw))


def copy_object(source: RemoteFile, url: str) -> RemoteFile:
    """Copy an object to another place in its store and compare the size; the store does it itself where it can.

    Raises FileNotFoundError, PermissionError or StorageError.
    """
    fs, path = filesystem_of(source.url)
    to = filesystem_of(url)[1]

    def copy() -> None:
        try:
            fs.cp_file(path, to)  # of S3 also what is over 5 GB, in parts
        except NotImplementedError:  # some clients know no copying: through this machine then
            with tempfile.TemporaryDirectory(prefix="tokenriver-") as folder:
                here = str(Path(folder) / "copy")
                fs.get_file(path, here)
                fs.put_file(here, to)

    return _put(url, required_size(source), copy)


@contextmanager
def whole_object(url: str) -> Iterator[IO[bytes]]:
    """Open a binary file that appears behind the URL when it is whole; until then it is a temporary file here."""
    refuse_read_only(url)
    with tempfile.TemporaryDirectory(prefix="tokenriver-") as folder:
        path = Path(folder) / "part"
        with open(path, "wb") as file:
            yield file
        upload_whole(path, url)


def _put(url: str, n_bytes: int, put: Callable[[], object]) -> RemoteFile:
    refuse_read_only(url)
    retried(url, put)
    there = find_object(url)
    if there is None or there.n_bytes not in (None, n_bytes):
        found = "nothing" if there is None else f"{there.n_bytes:,} bytes"
        raise StorageError(
            f"{n_bytes:,} bytes were uploaded, but the store says that there is {found}; try again", shown(url)
        )
    return there


def abort_left_over(directory: str, *, names: Callable[[str], object]) -> None:
    """Abort what a killed run left under way, as `abort_uploads`; a store that does not let us is only a warning."""
    try:
        abort_uploads(directory, names=names)
    except OSError as error:  # not every store lets us list them, and nothing of ours depends on it
        warnings.warn(
            f"{shown(directory)}: uploads that a killed run left could not be looked for ({error.strerror})",
            StorageWarning,
            stacklevel=2,
        )


def abort_uploads(directory: str, *, names: Callable[[str], object]) -> int:
    """Abort uploads under way to objects in a directory whose names are ours (S3 alone keeps such); how many."""
    if not is_s3(directory):
        return 0
    fs, path = filesystem_of(directory)
    bucket, key, _ = fs.split_path(path)
    prefix = f"{key.rstrip('/')}/" if key else ""
    answer = retried(directory, lambda: fs.call_s3("list_multipart_uploads", Bucket=bucket, Prefix=prefix))
    ours = [u for u in answer.get("Uploads", []) if names(u["Key"].removeprefix(prefix))]
    for upload in ours:
        retried(
            directory,
            lambda upload=upload: fs.call_s3(  # type: ignore[misc]
                "abort_multipart_upload", Bucket=bucket, Key=upload["Key"], UploadId=upload["UploadId"]
            ),
        )
    return len(ours)
