"""Examples and files that the evaluation tests share."""

from __future__ import annotations

from typing import TYPE_CHECKING

from tokenriver.evals.examples import Completion, EvalExample
from tokenriver.evals.write import write_eval_file

if TYPE_CHECKING:
    from pathlib import Path


def examples(n: int, *, n_completions: int = 4, lengths: bool = True) -> list[EvalExample]:
    """Example k begins with the id k + 1, and its completions have 1 to 4 ids of their own."""
    return [
        EvalExample(
            [k + 1, *range(7, 7 + k % 5)],
            [
                Completion(
                    [100 + 10 * c + j for j in range(1 + (k + c) % 4)],
                    n_bytes=3 + (5 * k + c) % 7 if lengths else -1,
                    n_chars=2 + (3 * k + c) % 5 if lengths else -1,
                )
                for c in range(n_completions)
            ],
            (k * 3) % n_completions,
        )
        for k in range(n)
    ]


def eval_file(path: Path, n: int, *, version: int = 2) -> Path:
    """A file of `examples(n)`."""
    write_eval_file(path, examples(n), version=version)
    return path
