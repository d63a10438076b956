"""Write evaluation files, version 1 byte for byte as llm.c does, or version 2; every limit is a clear error."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.errors import FormatError, UsageError
from tokenriver.evals.examples import UNKNOWN_LENGTH, EvalExample
from tokenriver.evals.file import MAGIC
from tokenriver.evals.parse import DELIMITER, HEADER_BYTES, N_COMPLETIONS_V1
from tokenriver.files import atomic_write
from tokenriver.storage.paths import to_path

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from numpy.typing import NDArray

__all__ = ["choose_version", "render_eval_file", "write_eval_file"]

_LIMIT = 1 << 16
"""Version 1 counts examples, and bytes of an example, in 16 bits."""


def choose_version(examples: Sequence[EvalExample], *, vocab_size: int) -> int:
    """1 where llm.c's file can hold examples with ids below `vocab_size`, else 2."""
    fits = len(examples) < _LIMIT and vocab_size <= DELIMITER[1]
    return 1 if fits and all(_fits_v1(example) for example in examples) else 2


def _fits_v1(example: EvalExample) -> bool:
    completions = example.completions
    words = 6 + len(example.context) + sum(1 + len(c.ids) for c in completions)
    return len(completions) == N_COMPLETIONS_V1 and not any(c.n_unscored for c in completions) and 2 * words < _LIMIT


def render_eval_file(
    examples: Sequence[EvalExample], *, version: int, vocab_size: int = 0, allow_empty: bool = False
) -> bytes:
    """The bytes of a file. FormatError, naming the example, for what the version cannot hold.

    A context or completion without ids is refused, because nothing can be scored there; llm.c's writer stores it
    (and its reader stops at it): `allow_empty` does the same. `vocab_size` is recorded in version 2 alone.
    """
    if version not in (1, 2):
        raise UsageError(f"evaluation file version {version} is unknown; expected 1 or 2")
    if not allow_empty:
        for k, example in enumerate(examples):
            _require_scored(k, example)
    return _render_v1(examples) if version == 1 else _render_v2(examples, vocab_size)


def write_eval_file(
    path: str | os.PathLike[str],
    examples: Sequence[EvalExample],
    *,
    version: int,
    vocab_size: int = 0,
    allow_empty: bool = False,
) -> None:
    """Write `render_eval_file` whole or not at all."""
    rendered = render_eval_file(examples, version=version, vocab_size=vocab_size, allow_empty=allow_empty)
    with atomic_write(to_path(path)) as file:
        file.write(rendered)


def _require_scored(k: int, example: EvalExample) -> None:
    for c, completion in enumerate(example.completions):
        if len(completion.ids) <= completion.n_unscored:
            raise FormatError(f"example {k}: completion {c} has no id to score")
        if not len(example.context) and not completion.n_unscored:
            raise FormatError(f"example {k}: its context is empty, so nothing predicts the first id of a completion")


def _require_label(k: int, example: EvalExample) -> None:
    if not 0 <= example.label < len(example.completions):
        raise FormatError(f"example {k}: label {example.label} is not below its {len(example.completions)} completions")


def _listed(ids: Sequence[int] | NDArray[Any]) -> list[int]:
    # Python integers join ten times faster than the array's own numbers.
    return ids.tolist() if isinstance(ids, np.ndarray) else list(ids)


def _render_v1(examples: Sequence[EvalExample]) -> bytes:
    if len(examples) >= _LIMIT:
        raise FormatError(f"{len(examples):,} examples; version 1 holds at most {_LIMIT - 1:,}: write version 2")
    parts = []
    longest = 0
    for k, example in enumerate(examples):
        n = len(example.completions)
        if n != N_COMPLETIONS_V1:
            raise FormatError(f"example {k}: {n} completions; version 1 holds {N_COMPLETIONS_V1}: write version 2")
        _require_label(k, example)
        if any(completion.n_unscored for completion in example.completions):
            raise FormatError(f"example {k}: a completion with ids that are not scored: write version 2")
        words = [DELIMITER[1], 0, k, example.label, n, len(example.context), *_listed(example.context)]
        for completion in example.completions:
            words += [len(completion.ids), *_listed(completion.ids)]
        words[1] = 2 * len(words)
        if words[1] >= _LIMIT:
            raise FormatError(f"example {k}: {words[1]:,} bytes; version 1 holds at most {_LIMIT - 1:,} an example")
        row = np.array(words, np.int64)
        if int(row[1:].max()) >= DELIMITER[1] or int(row.min()) < 0:
            raise FormatError(
                f"example {k}: id {int(row[1:].max())}; version 1 holds ids below {DELIMITER[1]:,}: write version 2"
            )
        longest = max(longest, words[1])
        parts.append(row.astype("<u2").tobytes())
    header = np.zeros(HEADER_BYTES // 4, "<i4")
    header[:4] = [MAGIC, 1, len(examples), longest]
    return header.tobytes() + b"".join(parts)


def _render_v2(examples: Sequence[EvalExample], vocab_size: int) -> bytes:
    parts = []
    starts = np.zeros(len(examples) + 1, "<u8")
    longest = most = 0
    for k, example in enumerate(examples):
        n = len(example.completions)
        if n < 2:
            raise FormatError(f"example {k}: {n} completions; at least 2 are needed")
        _require_label(k, example)
        words = [DELIMITER[2], k, example.label, n, len(example.context)]
        for completion in example.completions:
            lengths = (completion.n_bytes, completion.n_chars)
            words += [len(completion.ids), completion.n_unscored]
            words += [DELIMITER[2] if length == UNKNOWN_LENGTH else length for length in lengths]
            longest = max(longest, len(example.context) + len(completion.ids))
        words += _listed(example.context)
        for completion in example.completions:
            words += _listed(completion.ids)
        row = np.array(words, np.int64)
        ids = row[5 + 4 * n :]
        if len(ids) and not 0 <= int(ids.min()) <= int(ids.max()) < (vocab_size or DELIMITER[2]):
            wrong = int(ids.max() if ids.min() >= 0 else ids.min())
            raise FormatError(f"example {k}: id {wrong} is not in [0, {vocab_size or DELIMITER[2]:,})")
        most = max(most, n)
        starts[k + 1] = starts[k] + len(words)
        parts.append(row.astype("<u4").tobytes())
    header = np.zeros(HEADER_BYTES // 4, "<i4")
    header[:2] = [MAGIC, 2]
    header[2:6].view("<u8")[:] = [len(examples), int(starts[-1])]
    header[6:9] = [longest, most, vocab_size]
    return header.tobytes() + starts.tobytes() + b"".join(parts)
