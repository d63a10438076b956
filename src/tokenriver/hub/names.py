"""Names that come from a manifest or a server, and the paths below a folder that they may stand for: no others."""

from __future__ import annotations

import re
from pathlib import Path, PurePosixPath

from tokenriver.errors import IntegrityError, UsageError
from tokenriver.storage.paths import is_remote

__all__ = ["below", "checked_name", "checked_root"]

_NOT_IN_A_PART = re.compile(r'[\x00-\x1f\x7f\\:*?"<>|]')
_DEVICES = re.compile(r"(con|prn|aux|nul|com[0-9]|lpt[0-9])(\..*)?", re.IGNORECASE)
_MOST_CHARACTERS = 1024


def checked_name(name: object, *, source: str) -> str:
    """`name` if it is a plain relative path with "/" between its parts, else IntegrityError saying why.

    Refused: nothing, absolute paths, "..", ".", empty parts, backslashes, drive letters, control characters, names of
    Windows devices, and parts that end with a dot or a space. `source` says where the name came from.
    """
    if not isinstance(name, str) or not name:
        problem = "is not a name"
    elif len(name) > _MOST_CHARACTERS:
        problem = f"has {len(name):,} characters"
    elif name.startswith("/"):
        problem = "is an absolute path"
    elif bad := _NOT_IN_A_PART.search(name):
        problem = f"holds {bad.group()!r}"
    else:
        part = next((p for p in name.split("/") if _is_bad(p)), None)
        if part is None:
            return name
        problem = f"has the part {part!r}"
    shown = repr(name)[:200]
    raise IntegrityError(f"{source}: the file name {shown} {problem}; a name may not lead out of its folder")


def checked_root(root: str, *, source: str) -> str:
    """The folder in a repository that a user names, without "/" at its ends; "" is the repository itself.

    UsageError for one that `checked_name` refuses.
    """
    root = root.strip("/")
    if root in ("", "."):
        return ""
    try:
        return checked_name(root, source=source)
    except IntegrityError as error:
        raise UsageError(str(error)) from error


def _is_bad(part: str) -> bool:
    return part in ("", ".", "..") or part.endswith((".", " ")) or _DEVICES.fullmatch(part) is not None


def below(root: Path, name: str, *, source: str) -> Path:
    """The path of `name` below `root`. IntegrityError for a name that `checked_name` refuses, or where a link in the
    way leads out of `root`.
    """
    path = root.joinpath(*PurePosixPath(checked_name(name, source=source)).parts)
    if is_remote(root):
        return path  # a store has no links
    real_root = root.resolve()
    if not path.parent.resolve().is_relative_to(real_root):
        raise IntegrityError(
            f"{path}: a link in the way leads to {path.parent.resolve()}, outside {real_root}; remove the link, or "
            "give the folder that it leads to"
        )
    return path
