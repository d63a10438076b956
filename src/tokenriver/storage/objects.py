"""Objects behind URLs: what there is below a prefix, how large each is, and by what a changed one is known."""

from __future__ import annotations

from dataclasses import dataclass
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

from tokenriver.errors import IntegrityError, StorageError
from tokenriver.storage.failures import hidden_failure, no_bucket, retried
from tokenriver.storage.paths import filesystem_of, shown

if TYPE_CHECKING:
    from collections.abc import Mapping

__all__ = [
    "RemoteFile",
    "below",
    "changed",
    "check_unchanged",
    "find_object",
    "glob_objects",
    "plain_tag",
    "remove_objects",
    "required_size",
]


@dataclass(frozen=True, slots=True)
class RemoteFile:
    """One object as it was found: `n_bytes` None where the store does not say.

    `version` is by what another content under the same name is known (an ETag, a checksum, or when it was last
    modified), None where the store says nothing of that kind. `sha256` in hex where the store keeps it (the Hugging
    Face Hub does for large files).
    """

    url: str
    n_bytes: int | None
    version: str | None
    sha256: str | None = None

    def __str__(self) -> str:
        return shown(self.url)


_VERSIONS = (
    "ETag", "etag", "md5Hash", "blob_id", "content_md5", "Content-MD5", "LastModified", "last_modified", "mtime",
    "updated", "Last-Modified", "created",
)  # fmt: skip
"""Keys under which file systems of fsspec tell a version, the surest first."""


def find_object(url: str) -> RemoteFile | None:
    """The object of that very name, asked for now, or None. Raises PermissionError or StorageError."""
    fs, path = filesystem_of(url)

    def ask() -> Mapping[str, Any] | None:
        fs.invalidate_cache()
        try:
            facts: Mapping[str, Any] = fs.info(path)
        except (FileNotFoundError, NotADirectoryError, IsADirectoryError) as error:
            if (failure := hidden_failure(error)) is not None:
                raise failure from None
            return None
        return facts

    facts = retried(url, ask)
    if facts is None or facts.get("type") != "file" or url.endswith("/"):
        return None
    return _remote_file(url, facts)


def below(url: str, *, deep: bool = True) -> dict[str, RemoteFile]:
    """Every object below a URL taken as a directory, by its name relative to it (with "/"), sorted by its parts.

    Not `deep`: only those directly in it. Nothing there gives {}; a bucket that does not exist, FileNotFoundError.
    """
    fs, path = filesystem_of(url)
    root = path.rstrip("/")

    def ask() -> dict[str, Any]:
        fs.invalidate_cache()
        try:
            found: dict[str, Any] = (
                fs.find(root + "/", detail=True)
                if deep
                else {entry["name"]: entry for entry in fs.ls(root + "/", detail=True) if entry["type"] == "file"}
            )
        except NotADirectoryError:
            return {}
        except FileNotFoundError as error:
            if no_bucket(error):
                raise
            return {}
        return found

    prefix = _same(fs, root) + "/"
    names = {}
    for name, facts in retried(url, ask).items():
        full = _same(fs, name)
        # A marker of a directory ("folder/") and the object that is called like the prefix are no files in it.
        if full.startswith(prefix) and not name.endswith("/") and facts.get("type") == "file":
            names[full.removeprefix(prefix)] = facts
    base = url.rstrip("/")
    return {
        name: _remote_file(f"{base}/{name}", names[name]) for name in sorted(names, key=lambda name: name.split("/"))
    }


def glob_objects(url: str) -> list[RemoteFile]:
    """The objects that match a pattern (`*`, `?`, `[…]`, `**`), sorted by their names' parts."""
    fs, path = filesystem_of(url)

    def ask() -> dict[str, Any]:
        fs.invalidate_cache()
        try:
            found: dict[str, Any] = fs.glob(path, detail=True)
        except NotADirectoryError:
            return {}
        return found

    found = {name: facts for name, facts in retried(url, ask).items() if facts.get("type") == "file"}
    return [
        _remote_file(str(fs.unstrip_protocol(name)), found[name]) for name in sorted(found, key=lambda n: n.split("/"))
    ]


def remove_objects(urls: list[str]) -> None:
    """Delete objects; those that are gone already are no error."""
    for url in urls:
        fs, path = filesystem_of(url)

        def remove(fs: Any = fs, path: str = path) -> None:
            fs.invalidate_cache()
            try:
                fs.rm_file(path)
            except FileNotFoundError:
                return

        retried(url, remove)


def required_size(file: RemoteFile) -> int:
    """The size; StorageError where the store does not say it, since a body cut short could then pass as whole."""
    if file.n_bytes is None:
        raise StorageError(
            "the server does not say how large it is, so a body cut short could not be noticed; download it first",
            shown(file.url),
        )
    return file.n_bytes


def check_unchanged(file: RemoteFile) -> None:
    """IntegrityError when an object is not the one any more that was found."""
    now = find_object(file.url)
    if now is None:
        raise changed(file, "it is gone")
    if now.n_bytes != file.n_bytes:
        raise changed(file, f"it has {now.n_bytes or 0:,} bytes, and had {file.n_bytes or 0:,} when it was found")
    told_alike = now.version and file.version and now.version.split(" ", 1)[0] == file.version.split(" ", 1)[0]
    if told_alike and now.version != file.version:
        raise changed(file, f"its version is {now.version}, and was {file.version} when it was found")


def changed(file: object, what: str) -> IntegrityError:
    """The error for an object (or a file here) that is not the one any more that was found."""
    return IntegrityError(f"{file}: {what}; it changes while it is read: wait until it is complete and start again")


def _same(fs: Any, name: str) -> str:
    return str(fs._strip_protocol(name)).rstrip("/")


def _plain(value: Any) -> str:
    """A version as text that is the same from a listing and from asking for one object."""
    if isinstance(value, (int, float)):
        value = datetime.fromtimestamp(value, tz=UTC)
    return value.astimezone(UTC).isoformat() if isinstance(value, datetime) else plain_tag(str(value))


def plain_tag(tag: str) -> str:
    """An ETag as it is in a listing: without quotes, and without the sign that it is a weak one."""
    return tag.removeprefix("W/").strip('"')


def _remote_file(url: str, facts: Mapping[str, Any]) -> RemoteFile:
    size = facts.get("size", facts.get("Size"))
    version = next((f"{key} {_plain(facts[key])}" for key in _VERSIONS if facts.get(key)), None)
    large = facts.get("lfs") or {}
    sha256 = large.get("sha256", large.get("oid"))
    return RemoteFile(url, None if size is None else int(size), version, sha256)
