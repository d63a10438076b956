"""The records of an evaluation file as arrays of places, many examples at once, with every check on them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tokenriver.batches import offsets_of
from tokenriver.errors import FormatError
from tokenriver.evals.examples import UNKNOWN_LENGTH, Places

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tokenriver.evals.file import EvalFile

__all__ = ["DELIMITER", "HEADER_BYTES", "N_COMPLETIONS_V1", "flat_runs", "parse_v1", "parse_v2"]

HEADER_BYTES = 1024
DELIMITER = {1: 0xFFFF, 2: 0xFFFFFFFF}
"""First word of every example, by version; no id is as large."""
N_COMPLETIONS_V1 = 4

_HEAD_WORDS = {1: 6, 2: 5}
"""Words before the context. Version 1: delimiter, bytes, index, label, completions, context length. Version 2:
delimiter, index, label, completions, context length."""


def flat_runs(starts: NDArray[np.int64], lengths: NDArray[np.int64]) -> NDArray[np.int64]:
    """Positions of many runs one after the other: starts [5, 0], lengths [2, 1] → [5, 6, 0]."""
    ends = np.cumsum(lengths)
    return np.arange(int(ends[-1]) if len(ends) else 0) + np.repeat(starts - ends + lengths, lengths)


def _first_where(wrong: NDArray[np.bool_]) -> int | None:
    return int(np.argmax(wrong)) if wrong.any() else None


def _word(file: EvalFile, positions: NDArray[np.int64]) -> NDArray[np.int64]:
    """Words at places that may lie beyond the end (they are clipped; the caller checks the ends afterwards)."""
    return file.words[np.minimum(positions, len(file.words) - 1)].astype(np.int64)


def _check_heads(
    file: EvalFile,
    first: int,
    starts: NDArray[np.int64],
    ends: NDArray[np.int64],
    fields: dict[str, NDArray[np.int64]],
) -> None:
    """What both versions ask of an example's first words."""
    numbers = np.arange(first, first + len(starts))
    room = ends - starts
    checks: tuple[tuple[NDArray[np.bool_], Callable[[int], str]], ...] = (
        (room < _HEAD_WORDS[file.version], lambda i: f"only {int(room[i])} words long"),
        (
            fields["delimiter"] != DELIMITER[file.version],
            lambda i: f"begins with {fields['delimiter'][i]}, not with the delimiter {DELIMITER[file.version]}",
        ),
        (fields["index"] != numbers, lambda i: f"says it is example {fields['index'][i]}"),
        (fields["completions"] < 2, lambda i: f"has {fields['completions'][i]} completions; at least 2 are needed"),
        (
            fields["label"] >= fields["completions"],
            lambda i: f"label {fields['label'][i]} is not below its {fields['completions'][i]} completions",
        ),
    )
    for wrong, words in checks:
        at = _first_where(wrong)
        if at is not None:
            raise file.fail(first + at, words(at))


def parse_v1(file: EvalFile, first: int, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Places:
    n = len(starts)
    names = ("delimiter", "bytes", "index", "label", "completions", "context")
    fields = {name: _word(file, starts + i) for i, name in enumerate(names)} if n else {}
    if n:
        _check_heads(file, first, starts, ends, fields)
        at = _first_where(fields["bytes"] != 2 * (ends - starts))
        if at is not None:
            raise file.fail(first + at, f"says {fields['bytes'][at]} bytes, has {2 * int(ends[at] - starts[at])}")
        at = _first_where(fields["completions"] != N_COMPLETIONS_V1)
        if at is not None:
            raise file.fail(first + at, f"{fields['completions'][at]} completions; version 1 has {N_COMPLETIONS_V1}")
    empty = np.zeros(0, np.int64)
    context_start = starts + _HEAD_WORDS[1]
    context_len = fields.get("context", empty)
    start = np.zeros((n, N_COMPLETIONS_V1), np.int64)
    length = np.zeros((n, N_COMPLETIONS_V1), np.int64)
    position = context_start + context_len
    for c in range(N_COMPLETIONS_V1 if n else 0):
        _require_room(file, first, position + 1, ends)
        start[:, c] = position + 1
        length[:, c] = _word(file, position)
        position = start[:, c] + length[:, c]
    _require_end(file, first, position, ends)
    unknown = np.full(n * N_COMPLETIONS_V1, UNKNOWN_LENGTH, np.int64)
    places = Places(
        first,
        fields.get("label", empty),
        context_start,
        context_len,
        np.arange(n + 1, dtype=np.int64) * N_COMPLETIONS_V1,
        start.reshape(-1),
        length.reshape(-1),
        np.zeros(n * N_COMPLETIONS_V1, np.int64),
        unknown,
        unknown,
    )
    _require_scored(file, places)
    return places


def parse_v2(file: EvalFile, first: int, starts: NDArray[np.int64], ends: NDArray[np.int64]) -> Places:
    n = len(starts)
    wrong = _first_where((starts > ends) | (ends > len(file.words)))
    if wrong is not None:
        raise FormatError(f"{file.path}: the index goes back or past the end at example {first + wrong}")
    _require_room(file, first, starts + _HEAD_WORDS[2], ends)
    names = ("delimiter", "index", "label", "completions", "context")
    fields = {name: _word(file, starts + i) if n else np.zeros(0, np.int64) for i, name in enumerate(names)}
    if n:
        _check_heads(file, first, starts, ends, fields)
    counts = fields["completions"]
    table = starts + _HEAD_WORDS[2]
    _require_room(file, first, table + 4 * counts, ends)
    at = _first_where(counts > file.max_completions)
    if at is not None:
        raise file.fail(first + at, f"{counts[at]} completions; the header says at most {file.max_completions}")
    first_row = offsets_of(counts)
    row = flat_runs(table, 4 * counts)
    columns = file.words[row].astype(np.int64).reshape(-1, 4)
    columns[:, 2:][columns[:, 2:] == DELIMITER[2]] = UNKNOWN_LENGTH
    length = columns[:, 0]
    context_start = table + 4 * counts
    before = np.cumsum(length) - length
    start = before + np.repeat(context_start + fields["context"] - before[first_row[:-1]], counts) if n else before
    sums = np.add.reduceat(length, first_row[:-1]) if n else before
    _require_end(file, first, context_start + fields["context"] + sums, ends)
    places = Places(
        first,
        fields["label"],
        context_start,
        fields["context"],
        first_row,
        start,
        length,
        columns[:, 1],
        columns[:, 2],
        columns[:, 3],
    )
    _require_scored(file, places)
    return places


def _require_room(file: EvalFile, first: int, position: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
    at = _first_where(position > ends)
    if at is not None:
        raise file.fail(first + at, "its parts run past its end")


def _require_end(file: EvalFile, first: int, position: NDArray[np.int64], ends: NDArray[np.int64]) -> None:
    at = _first_where(position != ends)
    if at is not None:
        missing = int(ends[at] - position[at])
        words = f"{missing} words after its last completion" if missing > 0 else "its parts run past its end"
        raise file.fail(first + at, words)


def _require_scored(file: EvalFile, places: Places) -> None:
    """Every completion has an id that is scored, and something stands before it to predict it from."""
    example = places.example_of_row
    at = _first_where(places.length <= places.n_unscored)
    if at is not None:
        raise file.fail(places.first + int(example[at]), "has a completion without an id to score")
    at = _first_where(places.context_len[example] + places.n_unscored == 0)
    if at is not None:
        raise file.fail(places.first + int(example[at]), "has an empty context: nothing predicts the first id")
