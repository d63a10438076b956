"""Where shards lie and what they are called, in each of the three layouts, and the way back from a name.

tokens: `DIR/tokens/<tokenizer_id>/<dataset>/<split>-<nnnnn>.bin`, records without a prefix (`_MANIFEST.json`).
llmc:   `DIR/<dataset>_{val|train}_<nnnnnn>.bin`, records with the data set's name (`<dataset>_BUILD.json`).
golf:   `DIR/fineweb_{val|train}_<nnnnnn>.bin`, records as `fineweb_BUILD.json`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal, get_args

from tokenriver.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "BUILD_RECORD",
    "CORPUS_RECORD",
    "GOLF_NAME",
    "LAYOUTS",
    "MANIFEST",
    "SPLITS",
    "Layout",
    "ShardName",
    "Split",
    "check_name",
    "data_set_directory",
    "parse_shard_name",
    "plain_shard_name",
    "record_prefix",
    "shard_name",
]

Layout = Literal["tokens", "llmc", "golf"]
LAYOUTS: tuple[Layout, ...] = get_args(Layout)

Split = Literal["train", "val"]
SPLITS: tuple[Split, ...] = get_args(Split)
"""Index 0 is train and 1 is val, wherever a split is stored as a number."""

GOLF_NAME = "fineweb"
"""Parameter Golf's shards are called so whatever the documents are; its programs look for that name."""

MANIFEST = "_MANIFEST.json"
BUILD_RECORD = "_BUILD.json"
CORPUS_RECORD = "_CORPUS.json"

_DIGITS: dict[Layout, int] = {"tokens": 5, "llmc": 6, "golf": 6}
_TOKENS_NAME = re.compile(r"(?P<split>train|val)-(?P<index>[0-9]{5})\.bin")
# Without a number: the two outputs of the TinyStories and tinyshakespeare recipes.
_PREFIXED_NAME = re.compile(r"(?P<dataset>.+)_(?P<split>train|val)(?:_(?P<index>[0-9]{6}))?\.bin", re.DOTALL)
_NOT_IN_A_NAME = re.compile(r'[\x00-\x1f\x7f/\\:*?"<>|\ud800-\udfff]')


@dataclass(frozen=True, slots=True)
class ShardName:
    """What a shard's name says; `dataset` is "" in the tokens layout, `index` is None where there is no number."""

    split: Split
    index: int | None
    dataset: str = ""


def check_name(value: str, *, what: str) -> str:
    """Return `value` if it can be one component of a path on every system, else raise UsageError.

    Refused: nothing, a leading ".", a trailing "." or space, path separators, control characters, `: * ? " < > |` and
    bytes that are not UTF-8. `what` is the option that the value came from.
    """
    bad = _NOT_IN_A_NAME.search(value)
    if not value:
        problem = "is empty"
    elif bad:
        problem = f"holds {bad.group()!r}"
    elif value.startswith("."):
        problem = "begins with '.'"
    elif value.endswith((".", " ")):
        problem = f"ends with {value[-1]!r}"
    else:
        return value
    raise UsageError(f"{what} {value!r} {problem}; it becomes part of a path, so use letters, digits, '-', '_' and '.'")


def data_set_directory(root: Path, layout: Layout, *, tokenizer_id: str, dataset: str) -> Path:
    """The directory of the shards below `root`: three levels down in the tokens layout, `root` itself in the others."""
    check_name(dataset, what="--dataset")
    if layout != "tokens":
        return root
    return root / "tokens" / check_name(tokenizer_id, what="--tokenizer-id") / dataset


def shard_name(layout: Layout, dataset: str, split: Split, index: int) -> str:
    """The file name of a shard. Raises UsageError when the number needs more digits than the layout has."""
    digits = _DIGITS[layout]
    if not 0 <= index < 10**digits:
        what = f"shard number {index} does not fit the {digits} digits of a name"
        raise UsageError(what, advice=("raise --shard-tokens",))
    if layout == "tokens":
        return f"{split}-{index:05d}.bin"
    return f"{record_prefix(layout, dataset)}_{split}_{index:06d}.bin"


def plain_shard_name(dataset: str, split: Split) -> str:
    """The file name in the llmc layout where a split is one file, without a number."""
    return f"{dataset}_{split}.bin"


def record_prefix(layout: Layout, dataset: str) -> str:
    """What stands before `_BUILD.json`, `_CORPUS.json` and `_JOURNAL`: several data sets may share a folder."""
    return {"tokens": "", "llmc": dataset, "golf": GOLF_NAME}[layout]


def parse_shard_name(name: str) -> ShardName | None:
    """The inverse of `shard_name`, for every layout; None for a file that no layout would name so."""
    if found := _TOKENS_NAME.fullmatch(name):
        return ShardName(_split(found), int(found["index"]))
    if found := _PREFIXED_NAME.fullmatch(name):
        return ShardName(_split(found), int(found["index"]) if found["index"] else None, found["dataset"])
    return None


def _split(found: re.Match[str]) -> Split:
    return "train" if found["split"] == "train" else "val"
