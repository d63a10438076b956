"""What a path given to verification stands for: data sets, loose shards, and what a directory lacks or has too much.

Nothing is read here but names, manifests and build records.
"""

from __future__ import annotations

import os
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from tokenriver.errors import FormatError
from tokenriver.files import PART_SUFFIX, open_binary
from tokenriver.resuming.names import JOURNAL, OVERWRITE
from tokenriver.shards.found import DataSet, Finding, Found, without_path
from tokenriver.shards.index import INDEX_SUFFIX
from tokenriver.shards.layouts import (
    BUILD_RECORD,
    CORPUS_RECORD,
    MANIFEST,
    parse_shard_name,
    record_prefix,
)
from tokenriver.shards.manifest import parse_manifest, read_limited
from tokenriver.shards.record import BuildRecord, read_record
from tokenriver.storage.objects import below, find_object
from tokenriver.storage.paths import is_remote

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

__all__ = ["find_data"]


def find_data(paths: Iterable[Path]) -> Found:
    """Resolve shards, manifests, records, data set directories and roots above them; problems become findings."""
    found = Found()
    look = cache(_look_into)
    for path in paths:
        try:
            found.add(_find_remote(path, look) if is_remote(path) else _find_one(path, look))
        except OSError as error:
            found.findings.append(_finding(path, error))
    return found


def _find_remote(path: Path, look: Callable[[Path], Found]) -> Found:
    """What a URL stands for: the object of that name, else what lies below it as a prefix."""
    url = str(path)
    if find_object(url) is not None:
        found = _find_file(path, look)
        return found or _look_into(path.parent, _beside(path))  # a web server lists nothing
    found = Found()
    folders: dict[str, list[str]] = {}
    for name in below(url):
        folder, _, last = name.rpartition("/")
        if any(part.endswith(OVERWRITE) for part in folder.split("/")):
            continue
        folders.setdefault(folder, []).append(last)
    for folder in sorted(folders):
        where = path / folder if folder else path
        found.add(_look_into(where, folders[folder], skip_corpus=bool(folder)))
    if not folders:
        found.findings.append(Finding(path, "no such object or prefix"))
    elif not found:
        found.findings.append(Finding(path, "no token shards, manifests or build records here or below"))
    return found


def _beside(path: Path) -> list[str]:
    """The file itself and the records that may lie beside it, asked for one by one."""
    records = [path.with_name(name) for name in (MANIFEST, BUILD_RECORD, CORPUS_RECORD)]
    return sorted({path.name, *(record.name for record in records if find_object(str(record)) is not None)})


def _names_in(directory: Path) -> list[str]:
    if is_remote(directory):
        return list(below(str(directory), deep=False))
    return [entry.name for entry in os.scandir(directory) if entry.is_file()]


def _find_one(path: Path, look: Callable[[Path], Found]) -> Found:
    if path.is_dir():
        return _walk(path)
    if not path.exists():
        return Found(findings=[Finding(path, "no such file or directory")])
    if not path.is_file():
        return Found(findings=[Finding(path, "not a regular file")])
    return _find_file(path, look)


def _find_file(path: Path, look: Callable[[Path], Found]) -> Found:
    if path.name.endswith(PART_SUFFIX):
        return Found(findings=[Finding(path, "unfinished: a part that was never renamed")])
    if path.name.endswith(INDEX_SUFFIX):
        path = path.with_name(path.name.removesuffix(INDEX_SUFFIX))  # checked with its shard
        if (find_object(str(path)) is None) if is_remote(path) else not path.is_file():
            return Found(findings=[Finding(path, "missing: there is a document index of it")])
    if path.name.endswith((MANIFEST, BUILD_RECORD, CORPUS_RECORD, JOURNAL)):
        return look(path.parent)
    return _find_shard(path, look(path.parent))


def _find_shard(path: Path, beside: Found) -> Found:
    """One shard, with what a manifest or record beside it says of it."""
    listing = next((d for d in beside.data_sets if any(f.name == path.name for f in d.files)), None)
    if listing is not None:
        return Found(data_sets=[replace(listing, only=path.name)])
    return Found(loose=[path], findings=[f for f in beside.findings if f.path == path])


def _walk(root: Path) -> Found:
    found = Found()
    unreadable: list[OSError] = []
    for directory, children, _ in os.walk(root, onerror=unreadable.append):
        children[:] = sorted(name for name in children if not name.endswith(OVERWRITE))
        found.add(_look_into(Path(directory), _names_in(Path(directory)), skip_corpus=Path(directory) != root))
    found.findings += [Finding(Path(e.filename), e.strerror or str(e)) for e in unreadable]
    if not found:
        found.findings.append(Finding(root, "no token shards, manifests or build records here or below"))
    return found


def _look_into(directory: Path, names: list[str] | None = None, *, skip_corpus: bool = False) -> Found:
    """The data sets, loose shards and name-level findings of one directory, without those below it.

    `names` are those of its files where the caller has listed it.
    """
    names = sorted(_names_in(directory) if names is None else names)
    shards = [n for n in names if n.endswith(".bin")]
    found = Found()
    found.findings += [
        Finding(directory / n, "unfinished: a part that was never renamed; run the build again to go on")
        for n in names
        if n.endswith(PART_SUFFIX)
    ]
    found.findings += [
        Finding(directory / n, "unfinished: a build stopped here or is still running; run it again to go on")
        for n in names
        if n.endswith(JOURNAL)
    ]
    found.findings += [
        Finding(directory / n, "additional: a document index without its shard")
        for n in names
        if n.endswith(".bin" + INDEX_SUFFIX) and n.removesuffix(INDEX_SUFFIX) not in shards
    ]
    if MANIFEST in names:
        if not shards and BUILD_RECORD not in names and _is_corpus(directory / MANIFEST, surely=not skip_corpus):
            if not skip_corpus:
                what = "a corpus (documents), not token shards; build checks it when it reads it"
                found.findings.append(Finding(directory, what))
            return found
        _add_tokens(found, directory, has_record=BUILD_RECORD in names)
    elif {BUILD_RECORD, CORPUS_RECORD, JOURNAL} & set(names) or any(_is_tokens_name(n) for n in names):
        found.findings.append(
            Finding(directory, "unfinished: no _MANIFEST.json, which a build writes last; run the build again")
        )
    for name in names:
        if name.endswith(BUILD_RECORD) and name != BUILD_RECORD:
            _add_prefixed(found, directory / name)
        record = name.removesuffix(CORPUS_RECORD) + BUILD_RECORD
        if name.endswith(CORPUS_RECORD) and name != CORPUS_RECORD and record not in names:
            found.findings.append(
                Finding(directory, f"unfinished: no {record}, which a build writes last; run the build again")
            )
    _sort_out_rest(found, directory, shards)
    return found


def _is_corpus(path: Path, *, surely: bool) -> bool:
    """Whether a manifest is that of a corpus: an artifacts root holds those too, and they are not checked here."""
    with open_binary(path) as file:
        head = file.read(1 << 16) or b""
    return b'"tokenizer_id"' not in head and (b'"n_bytes"' in head or not surely)


def _is_tokens_name(name: str) -> bool:
    parsed = parse_shard_name(name.removesuffix(PART_SUFFIX))
    return parsed is not None and parsed.dataset == ""


def _add_tokens(found: Found, directory: Path, *, has_record: bool) -> None:
    path = directory / MANIFEST
    try:
        manifest = parse_manifest(read_limited(path), path)
    except (FormatError, OSError) as error:
        found.findings.append(_finding(path, error))
        return
    record = _record_or_finding(found, directory / BUILD_RECORD) if has_record else None
    found.data_sets.append(
        DataSet(
            directory=directory,
            source=path,
            layout="tokens",
            files=tuple(manifest.files),
            vocab_size=manifest.vocab_size,
            separator_id=manifest.doc_sep_id,
            separator_position=record.tokenizer.separator_position if record else "before",
            manifest=manifest,
            record=record,
        )
    )


def _add_prefixed(found: Found, path: Path) -> None:
    record = _record_or_finding(found, path)
    if record is None:
        return
    if record_prefix(record.layout, record.dataset) + BUILD_RECORD != path.name:
        found.findings.append(
            Finding(path, f"its name does not go with layout {record.layout!r} and dataset {record.dataset!r}")
        )
    found.data_sets.append(
        DataSet(
            directory=path.parent,
            source=path,
            layout=record.layout,
            files=tuple(record.files),
            vocab_size=record.tokenizer.vocab_size,
            separator_id=record.tokenizer.separator_id,
            separator_position=record.tokenizer.separator_position,
            manifest=None,
            record=record,
        )
    )


def _record_or_finding(found: Found, path: Path) -> BuildRecord | None:
    try:
        return read_record(path)
    except (FormatError, OSError) as error:
        found.findings.append(_finding(path, error))
        return None


def _finding(path: Path, error: FormatError | OSError) -> Finding:
    if isinstance(error, OSError) and error.filename and not is_remote(path):
        path = Path(error.filename)
    return Finding(path, without_path(error, path))


def _sort_out_rest(found: Found, directory: Path, shards: list[str]) -> None:
    """Shards that nothing lists: additional where a list claims their kind of name, loose elsewhere."""
    listed = {f.name for d in found.data_sets for f in d.files}
    prefixes = {record_prefix(d.layout, d.record.dataset if d.record else "") for d in found.data_sets}
    numbers: dict[str, list[int]] = {}
    for name in shards:
        if name in listed:
            continue
        parsed = parse_shard_name(name)
        prefix = parsed.dataset if parsed else None
        if (directory / MANIFEST) in {d.source for d in found.data_sets} or prefix in prefixes:
            source = next(d.source.name for d in found.data_sets)
            found.findings.append(Finding(directory / name, f"additional: {source} does not list it"))
            continue
        found.loose.append(directory / name)
        if parsed and parsed.index is not None:
            numbers.setdefault(parsed.dataset, []).append(parsed.index)
    for prefix, indices in numbers.items():
        gaps = [a + 1 for a, b in pairwise(sorted(set(indices))) if b > a + 1]
        found.findings += [
            Finding(directory, f"missing: {prefix or 'the data set'} has no shard number {gap}") for gap in gaps
        ]
