"""What names and manifests say of a data set, wherever it lies: its shards in order, its tokenizer, its separator."""

from __future__ import annotations

import re
from collections import Counter
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenriver.errors import FormatError, IntegrityError, UsageError
from tokenriver.resuming.names import JOURNAL
from tokenriver.shards.index import INDEX_SUFFIX
from tokenriver.shards.layouts import BUILD_RECORD, MANIFEST

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Sequence

    from tokenriver.loader.shard_file import ShardFile

__all__ = [
    "check_counts",
    "choose_names",
    "each_once",
    "files_of_split",
    "manifest_files",
    "one_split",
    "one_vocabulary",
    "other_count",
    "tokenizer_of",
    "without_indexes",
]

_SHARD_NAME = re.compile(r"(?P<dataset>.+)_(?P<split>train|val)(?:_(?P<index>\d+))?\.bin")
_TOKENS_NAME = re.compile(r"(?:train|val)-\d+\.bin")


def choose_names(
    directory: str, names: list[str], *, split: str, elsewhere: Callable[[], str] = lambda: ""
) -> str | list[str]:
    """In a directory without a manifest: its one build record, or the shards of the split in order.

    `names` are sorted. Raises UsageError (with the words of `elsewhere`, if any, where nothing looks like shards) or
    IntegrityError.
    """
    journals = [name for name in names if name.endswith(JOURNAL)]
    if journals:
        raise UsageError(f"{directory}: unfinished, its build stopped ({journals[0]} is there); run the build again")
    records = [name for name in names if name.endswith(BUILD_RECORD) and name != BUILD_RECORD]
    if len(records) == 1:
        return records[0]
    matches = [match for name in names if (match := _SHARD_NAME.fullmatch(name))]
    if not matches:
        if any(_TOKENS_NAME.fullmatch(name) for name in names):
            problem = f"unfinished, shards without {MANIFEST}; run the build again, or name the shards as a glob"
        else:
            problem = elsewhere() or f"no {MANIFEST} and no shards such as NAME_train_000000.bin"
        raise UsageError(f"{directory}: {problem}")
    datasets = sorted({match["dataset"] for match in matches})
    if len(datasets) > 1:
        raise UsageError(
            f"{directory}: holds several data sets ({', '.join(datasets)}); name one, such as "
            f"{directory.rstrip('/')}/{datasets[0]}_{split}_*.bin"
        )
    chosen = sorted((match for match in matches if match["split"] == split), key=lambda match: match.string)
    if not chosen:
        raise UsageError(f"{directory}: no {split} shards, only {matches[0]['split']}")
    indices = [int(match["index"]) for match in chosen if match["index"]]
    for before, after in pairwise(indices):
        if after != before + 1:
            raise IntegrityError(
                f"{directory}: {split} shards jump from {before:06d} to {after:06d}; fetch what is missing, or name "
                "the shards that you want as a list or glob"
            )
    return [match.string for match in chosen]


def each_once(paths: Iterable[str]) -> None:
    """Raise UsageError for a shard that a list names twice."""
    twice = [path for path, times in Counter(paths).items() if times > 1]
    if twice:
        raise UsageError(f"{twice[0]} is listed twice; its tokens would be seen twice an epoch")


def one_split(names: Sequence[str], pattern: str, *, split: str) -> None:
    """Raise UsageError when the names that a pattern matched are of both splits, or of train where val is wanted.

    Val shards are taken without `split="val"`, which a pattern of them need not repeat.
    """
    splits = {match["split"] for name in names if (match := _SHARD_NAME.fullmatch(name))}
    splits |= {name.split("-")[0] for name in names if _TOKENS_NAME.fullmatch(name)}
    if len(splits) > 1:
        raise UsageError(f"{pattern} holds train and val shards; narrow it to one split")
    if split == "val" and splits == {"train"}:
        raise UsageError(f"{pattern or names[0]}: train shards by their names, but split='val' is asked for")


def one_vocabulary(shards: Sequence[tuple[str, int]]) -> None:
    """Raise UsageError when shards (path, vocabulary by its header, 0: unknown) are of two tokenizers, by their sizes.

    One model cannot read both, and nothing later would tell.
    """
    known = [(path, vocab_size) for path, vocab_size in shards if vocab_size]
    other = next((shard for shard in known if shard[1] != known[0][1]), None)
    if other is not None:
        raise UsageError(
            f"{known[0][0]} has a vocabulary of {known[0][1]:,} ids, {other[0]} one of {other[1]:,}: they are of two "
            "tokenizers; name shards of one"
        )


def without_indexes(names: Sequence[str]) -> list[str]:
    """What a pattern matched, without the document indexes of the shards: `train*` is meant for these alone."""
    return [name for name in names if not name.endswith(".bin" + INDEX_SUFFIX)]


def check_counts(shards: Sequence[ShardFile], files: Sequence[dict[str, Any]], where: str) -> None:
    """IntegrityError for a shard with another number of ids than a manifest or record, `where`, says."""
    for shard, file in zip(shards, files, strict=True):
        if shard.n_tokens != file["n_tokens"]:
            raise other_count(shard.path, shard.n_tokens, file["n_tokens"], where)


def other_count(path: object, n_tokens: int, listed: int, where: str) -> IntegrityError:
    """The error for a shard with another number of ids than the one that is listed."""
    return IntegrityError(
        f"{path}: {n_tokens:,} ids, but {where} says {listed:,}; the shard is not the one that was built"
    )


def tokenizer_of(manifest: dict[str, Any], where: object) -> tuple[str | None, int | None, str]:
    """Tokenizer (id and start of its SHA-256), separator and its position, from a manifest or a build record."""
    record = manifest.get("tokenizer")
    if isinstance(record, dict):
        name, digest, separator_id = record.get("tokenizer_id"), record.get("sha256"), record.get("separator_id")
        position = record.get("separator_position", "before")
        if position not in ("before", "after"):
            raise FormatError(f"{where}: separator_position is {position!r}, neither before nor after")
    else:
        name, digest, separator_id = (manifest.get(k) for k in ("tokenizer_id", "tokenizer_sha256", "doc_sep_id"))
        position = "before"
    tokenizer = f"{name}@{str(digest or '')[:16]}" if name else None
    return tokenizer, separator_id if isinstance(separator_id, int) else None, position


_SIDE = re.compile(r"(?:^|_)(train|val)(?:[-_]\d+)?\.bin$")


def manifest_files(manifest: Any, path: Path | str) -> list[dict[str, Any]]:
    """The `files` list, with everything checked that loading relies on; a name never leaves the directory."""
    files = manifest.get("files") if isinstance(manifest, dict) else None
    if not isinstance(files, list):
        raise FormatError(f"{path}: not a manifest of token shards, which has a list 'files'")
    if files and all(isinstance(file, dict) and "n_bytes" in file and "split" not in file for file in files):
        raise FormatError(
            f"{path}: lists documents (a corpus), not token shards; tokenriver build makes shards of them"
        )
    for i, file in enumerate(files):
        keys = {"name": str, "split": str, "n_tokens": int}
        wrong = [k for k, kind in keys.items() if not isinstance(file, dict) or not isinstance(file.get(k), kind)]
        if not wrong and not isinstance(file.get("sha256", ""), str | None):
            wrong = ["sha256"]
        if wrong or file["n_tokens"] < 0:
            raise FormatError(f"{path}: files[{i}] has no valid {(wrong or ['n_tokens'])[0]!r}")
        if Path(file["name"]).name != file["name"] or "\\" in file["name"]:
            raise FormatError(f"{path}: files[{i}] is called {file['name']!r}; a name has no directory in it")
        named = _SIDE.search(file["name"])
        if named is not None and named[1] != file["split"]:
            raise FormatError(f"{path}: files[{i}] is of {file['split']}, but is called {file['name']}")
    if len({file["name"] for file in files}) != len(files):
        twice = Counter(file["name"] for file in files).most_common(1)[0][0]
        raise FormatError(f"{path}: {twice} is listed twice; its tokens would be seen twice an epoch")
    return files


def files_of_split(manifest: Any, path: Path | str, split: str) -> list[dict[str, Any]]:
    """The entries of a manifest's `files` that are of a split. Raises UsageError when there are none, FormatError."""
    files = manifest_files(manifest, path)
    chosen = [file for file in files if file["split"] == split]
    if not chosen:
        raise UsageError(f"{path}: no {split} shards, only {', '.join(sorted({f['split'] for f in files})) or 'none'}")
    return chosen
