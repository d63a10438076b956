"""Where a recipe's files are: named and sized, on the Hub, on the web or on this machine, before any is fetched."""

from __future__ import annotations

import os
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

import msgspec

from tokenriver.errors import CorpusError, HubError, UsageError
from tokenriver.files import atomic_write, file_size, is_file, part_of, sha256_file
from tokenriver.hub.body import forget_part
from tokenriver.hub.checks import Expected
from tokenriver.hub.names import below, checked_name
from tokenriver.hub.repository import Repository, open_repository
from tokenriver.hub.transfer import FetchJob
from tokenriver.hub.web import WebFiles
from tokenriver.recipes.archive import is_archive
from tokenriver.shards.manifest import decode_json, read_limited
from tokenriver.storage.objects import below as objects_below
from tokenriver.storage.paths import is_remote, shown

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from tokenriver.hub.transfer import Remote
    from tokenriver.recipes.recipe import Recipe

__all__ = [
    "FoundFiles",
    "chosen_names",
    "chosen_sides",
    "find_local",
    "find_remote",
    "forget_unpinned",
    "open_pinned",
    "under",
    "within",
    "write_pin",
]

_PIN = "_SOURCE.json"


@dataclass(frozen=True, slots=True)
class FoundFiles:
    """What is to be fetched and read, val first: `remote` and a job a file, or `local` paths with their names.

    `n_val` of them are val (None: the recipe's rule decides). With an archive there is one file, the archive.
    """

    names: list[str]
    n_bytes: list[int]
    n_val: int | None
    facts: dict[str, Any]
    remote: Remote | None = None
    jobs: list[FetchJob] = field(default_factory=list)
    local: list[Path] = field(default_factory=list)

    @property
    def total_bytes(self) -> int:
        """Bytes of all files."""
        return sum(self.n_bytes)

    @property
    def n_unsized(self) -> int:
        """How many files the server tells no size of; they count as 0 bytes."""
        return sum(job.expected.n_bytes is None for job in self.jobs)

    @property
    def missing_bytes(self) -> int:
        """Bytes that are not on this machine yet, parts of an earlier run counted as there."""
        left = 0
        for job, size in zip(self.jobs, self.n_bytes, strict=False):
            there = next((p.stat().st_size for p in (job.path, part_of(job.path)) if p.exists()), 0)
            left += max(0, size - there)
        return left


def chosen_names(names: Iterable[str], patterns: Sequence[str]) -> list[str]:
    """The names that one of the patterns matches, in the order of their parts."""
    chosen = (name for name in names if any(fnmatchcase(name, pattern) for pattern in patterns))
    return sorted(chosen, key=lambda name: PurePosixPath(name).parts)


def chosen_sides(
    names: Sequence[str], val_patterns: Sequence[str], patterns: Sequence[str]
) -> tuple[list[str], list[str]]:
    """Names of val and train in a copy that may lie in other folders: as much of the patterns' folders as is there.

    Tried with all of a pattern's parts, then without its first, and so on, down to the file name alone.
    """
    depth = max(pattern.count("/") for pattern in [*val_patterns, *patterns])
    for cut in range(depth + 1):
        val = chosen_names(names, _shortened(val_patterns, cut))
        train = [name for name in chosen_names(names, _shortened(patterns, cut)) if name not in set(val)]
        if val or train:
            return val, train
    return [], []


def _shortened(patterns: Sequence[str], cut: int) -> list[str]:
    tails = ["/".join(parts[min(cut, len(parts) - 1) :]) for parts in (pattern.split("/") for pattern in patterns)]
    return [*tails, *(f"*/{tail}" for tail in tails)]


def find_local(recipe: Recipe, patterns: Sequence[str], given: Path) -> FoundFiles:
    """The files of a copy, here or behind a URL: a file or archive as it is, or what the recipe names in a folder.

    Raises CorpusError where there are none.
    """
    source = recipe.source
    facts: dict[str, Any] = {"input": shown(given if is_remote(given) else given.resolve())}
    if is_file(given):
        n_val = 0 if source.val_files and not is_archive(given.name) else None
        return FoundFiles([given.name], [file_size(given)], n_val, facts, local=[given])
    names = under(given)
    if not names and (is_remote(given) or not given.is_dir()):
        what = f"a copy of {_wanted(recipe, patterns)}"
        raise CorpusError(f"{shown(given)}: no such file or folder; --input names {what}")
    if source.archive is not None:
        archives = chosen_names(names, _shortened([source.archive], 0))
        if archives:
            path = given / archives[0]
            return FoundFiles([archives[0]], [names[archives[0]]], None, facts, local=[path])
    val, train = chosen_sides(list(names), source.val_files, patterns)
    found = val + train
    if not found:
        there = ", ".join([*names][:5]) or "nothing"
        raise CorpusError(f"{shown(given)}: holds none of {_wanted(recipe, patterns)}; it holds {there}")
    paths = [given / name for name in found]
    n_val = len(val) if source.val_files else None
    return FoundFiles(found, [names[name] for name in found], n_val, facts, local=paths)


def under(folder: Path) -> dict[str, int]:
    """Files below a folder or a URL, relative, with "/", and their sizes; hidden ones are passed over."""
    if is_remote(folder):
        there = objects_below(str(folder)).items()
        return {name: file.n_bytes or 0 for name, file in there if not any(p.startswith(".") for p in name.split("/"))}
    names: dict[str, int] = {}
    for directory, children, files in os.walk(folder):
        children[:] = [c for c in children if not c.startswith(".")]
        paths = [Path(directory) / name for name in files if not name.startswith(".")]
        names |= {path.relative_to(folder).as_posix(): path.stat().st_size for path in paths if path.is_file()}
    return names


def within(found: FoundFiles, subset: str) -> FoundFiles:
    """Those of the files that lie in a folder of that name (or path); UsageError where there are none."""
    wanted = PurePosixPath(subset).parts

    def inside(name: str) -> bool:
        parts = PurePosixPath(name).parent.parts
        return any(parts[i : i + len(wanted)] == wanted for i in range(len(parts) - len(wanted) + 1))

    keep = [i for i, name in enumerate(found.names) if inside(name)]
    if not keep:
        folders = sorted({str(PurePosixPath(name).parent) for name in found.names})
        shown = ", ".join(folders[:8]) + (", …" if len(folders) > 8 else "")
        raise UsageError(f"--subset {subset}: no files in a folder of that name; there are {shown}")
    return FoundFiles(
        [found.names[i] for i in keep],
        [found.n_bytes[i] for i in keep],
        None if found.n_val is None else sum(i < found.n_val for i in keep),
        {**found.facts, "subset": subset},
        found.remote,
        [found.jobs[i] for i in keep] if found.jobs else [],
        [found.local[i] for i in keep] if found.local else [],
    )


def find_remote(
    recipe: Recipe, patterns: Sequence[str], folder: Path, *, revision: str, anew: bool, restart: bool = False
) -> FoundFiles:
    """The files as the Hub or the web has them; they go into `folder`. `anew`: whatever an unfinished run began with.

    Raises HubError saying what to download by hand, and where to put it, when nothing can be reached.
    """
    try:
        if recipe.source.hub is not None:
            return _on_the_hub(recipe, patterns, folder, revision=revision, anew=anew)
        return _on_the_web(recipe, folder, restart=restart)
    except HubError as error:
        raise HubError(
            f"{error}. Without a network: download {_wanted(recipe, patterns)} on another machine, copy it here, and "
            "name the file or its folder with --input PATH"
        ) from error


def _wanted(recipe: Recipe, patterns: Sequence[str]) -> str:
    source = recipe.source
    if source.hub is None:
        return " and ".join(source.urls)
    listed = [source.archive] if source.archive else [*source.val_files, *patterns]
    return f"{', '.join(map(str, listed))} of https://huggingface.co/datasets/{source.hub}"


def _on_the_hub(recipe: Recipe, patterns: Sequence[str], folder: Path, *, revision: str, anew: bool) -> FoundFiles:
    source = recipe.source
    assert source.hub is not None, "the caller looked"
    repository = open_pinned(source.hub, folder, revision=revision, anew=anew)
    val = chosen_names(repository.files, [] if source.archive else source.val_files)
    train = chosen_names(repository.files, [source.archive] if source.archive else patterns)
    names = val + [name for name in train if name not in val]
    if not names:
        raise CorpusError(
            f"{repository} holds no file like {', '.join(patterns)}; its owner may have moved them: name another "
            "--revision, or use hub:REPO"
        )
    jobs = []
    for name in names:
        expected = repository.expected(name)
        if name in source.sha256:
            expected = expected.with_sha256(source.sha256[name], name=name, source=f"recipe {recipe.name}")
        jobs.append(FetchJob(name, below(folder, name, source=str(repository)), expected))
    facts = {"repository": repository.repo_id, "revision": revision, "commit": repository.commit}
    n_val = len(val) if source.val_files and source.archive is None else None
    return FoundFiles(names, [job.expected.n_bytes or 0 for job in jobs], n_val, facts, repository, jobs)


class _Pin(msgspec.Struct, kw_only=True):
    """A repository's commit and files as they were when the work began."""

    repository: str
    revision: str
    commit: str
    files: dict[str, tuple[int | None, str | None, str | None]]


def open_pinned(repo_id: str, folder: Path, *, revision: str, anew: bool) -> Repository:
    """The repository at the commit that an earlier, unfinished run began with, else at `revision` as it is now."""
    path = folder / _PIN
    if not anew and path.exists():
        pin = decode_json(read_limited(path), _Pin, path)
        if (pin.repository, pin.revision) == (repo_id, revision):
            return Repository(repo_id, pin.commit, {name: Expected(*facts) for name, facts in pin.files.items()})
    return open_repository(repo_id, revision=revision)


def write_pin(found: FoundFiles, folder: Path) -> None:
    """Remember the commit and its files until the data set is finished."""
    if not isinstance(found.remote, Repository) or found.remote.offline:
        return
    files = {job.name: (job.expected.n_bytes, job.expected.sha256, job.expected.git_id) for job in found.jobs}
    pin = _Pin(
        repository=found.remote.repo_id, revision=found.facts["revision"], commit=found.remote.commit, files=files
    )
    folder.mkdir(parents=True, exist_ok=True)
    with atomic_write(folder / _PIN) as file:
        file.write(msgspec.json.encode(pin))


def forget_unpinned(found: FoundFiles) -> None:
    """Delete what is here of files without a hash, for a run that begins anew: nothing tells if they are right."""
    for job in found.jobs:
        if job.expected.sha256 is None and job.expected.git_id is None:
            job.path.unlink(missing_ok=True)
            forget_part(part_of(job.path))


def _on_the_web(recipe: Recipe, folder: Path, *, restart: bool) -> FoundFiles:
    """A file that is here already counts as the server's where it has the recipe's SHA-256, or, where that names none,
    until the user wants to begin anew (`restart`).
    """
    source = recipe.source
    urls: dict[str, str] = {}
    for url in source.urls:
        name = checked_name(unquote(urlsplit(url).path.rpartition("/")[2]), source=f"recipe {recipe.name}")
        if urlsplit(url).scheme not in ("http", "https"):
            raise UsageError(f"recipe {recipe.name}: {url!r} is no http or https address")
        urls[name] = url
    web = WebFiles(urls)
    jobs = []
    for name in urls:
        path = below(folder, name, source=f"recipe {recipe.name}")
        sha256 = source.sha256.get(name)
        is_here = path.is_file() and (sha256_file(path) == sha256 if sha256 is not None else not restart)
        jobs.append(FetchJob(name, path, Expected(path.stat().st_size if is_here else web.n_bytes(name), sha256)))
    n_bytes_all = [job.expected.n_bytes or 0 for job in jobs]
    return FoundFiles(list(urls), n_bytes_all, None, {"urls": list(urls.values())}, web, jobs)
