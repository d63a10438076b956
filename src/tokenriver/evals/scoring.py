"""Multiple-choice scores from losses: acc and three kinds of acc_norm, each under its own name, that add up.

A completion's loss is the sum of the losses of its scored ids. `acc` takes the completion with the lowest sum;
`acc_norm_tokens` the lowest sum a scored id (llm.c's acc_norm), `acc_norm_chars` a character of the answer's text
(the harness' acc_norm), `acc_norm_bytes` a UTF-8 byte of it. Ties go to the lower index.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from tokenriver.evals.loader import EvalBatch

__all__ = ["METRICS", "Scores", "completion_losses", "score", "score_completions"]

METRICS = ("acc", "acc_norm_tokens", "acc_norm_chars", "acc_norm_bytes")
"""Scores by name, in the order in which they are shown."""


@dataclass(frozen=True, slots=True)
class Scores:
    """Numbers of examples that are right: add those of batches and of ranks with + or sum().

    `correct` has an entry a metric; acc_norm by characters and by bytes are missing where the file does not hold the
    lengths and no tokenizer was given. A metric's value is `scores["acc"]`, its standard error `scores.stderr("acc")`.
    """

    n_examples: int = 0
    correct: tuple[tuple[str, int], ...] = tuple((name, 0) for name in METRICS)

    def __add__(self, other: object) -> Scores:
        if other == 0:
            return self
        if not isinstance(other, Scores):
            return NotImplemented
        if not self.n_examples or not other.n_examples:
            return self if self.n_examples else other
        mine, theirs = dict(self.correct), dict(other.correct)
        both = tuple((name, mine[name] + theirs[name]) for name in METRICS if name in mine and name in theirs)
        return Scores(self.n_examples + other.n_examples, both)

    __radd__ = __add__

    def __getitem__(self, name: str) -> float:
        """Share of the examples that are right, NaN when there are none; KeyError for a metric that is missing."""
        return dict(self.correct)[name] / self.n_examples if self.n_examples else math.nan

    def stderr(self, name: str) -> float:
        """Standard error of the mean, √(p(1 − p) / (n − 1)), as the harness gives it; NaN below two examples."""
        p = self[name]
        return math.sqrt(p * (1 - p) / (self.n_examples - 1)) if self.n_examples > 1 else math.nan

    def counts(self) -> NDArray[np.int64]:
        """[n_examples, then one a metric (−1 where missing)], int64 [5]: gather these over ranks, see `from_counts`."""
        correct = dict(self.correct)
        return np.array([self.n_examples, *(correct.get(name, -1) for name in METRICS)], np.int64)

    @classmethod
    def from_counts(cls, counts: ArrayLike) -> Scores:
        """The scores of an array that `counts` gave."""
        n, *correct = np.asarray(counts, np.int64).tolist()
        return cls(n, tuple((name, c) for name, c in zip(METRICS, correct, strict=True) if c >= 0))

    def table(self) -> str:
        """A line a metric: name, value, ± standard error."""
        lines = [f"{self.n_examples:,} examples"]
        lines += [f"{name:<16} {self[name]:.4f} ± {self.stderr(name):.4f}" for name, _ in self.correct]
        return "\n".join(lines)

    def to_dict(self) -> dict[str, Any]:
        """Plain numbers for JSON: n_examples, and value and standard error (None where not defined) a metric."""
        values: dict[str, Any] = {"n_examples": self.n_examples}
        for name, _ in self.correct:
            values[name] = _or_none(self[name])
            values[name + "_stderr"] = _or_none(self.stderr(name))
        return values


def _or_none(value: float) -> float | None:
    return None if math.isnan(value) else value


def score(losses: Any, batch: EvalBatch) -> Scores:
    """Scores of a batch from the loss (nats) at each of its places.

    `losses`: NumPy or torch (any device), of the shape of `batch.targets` or flat; only places in the mask are used.
    UsageError for another size, or for a NaN in the mask, naming the example.
    """
    if hasattr(losses, "detach"):
        losses = losses.detach().cpu().double().numpy()
    given = np.asarray(losses, np.float64)
    if given.size != batch.mask.size:
        raise UsageError(f"losses of shape {given.shape}; expected one a place: {batch.mask.shape}")
    return score_completions(completion_losses(given.reshape(-1)[batch.mask.reshape(-1)], batch), batch)


def completion_losses(masked: NDArray[np.float64], batch: EvalBatch) -> NDArray[np.float64]:
    """Sum of the losses of each completion, float64 [n completions], from those at the mask's places in order."""
    rows = np.repeat(np.arange(len(batch.n_scored)), batch.n_scored)
    wrong = np.isnan(masked)
    if wrong.any():
        row = int(rows[int(np.argmax(wrong))])
        example = int(np.searchsorted(batch.first_row, row, side="right")) - 1
        raise UsageError(
            f"example {int(batch.examples[example])}, completion {row - int(batch.first_row[example])}: "
            "a loss is not a number (NaN); the model's output is broken, so there is no score"
        )
    return np.bincount(rows, masked, len(batch.n_scored)).astype(np.float64)


def score_completions(sums: NDArray[np.float64], batch: EvalBatch) -> Scores:
    """Scores from the summed loss of each completion."""
    divisors = {"acc": np.ones(len(sums)), "acc_norm_tokens": batch.n_scored}
    if batch.has_lengths:
        divisors |= {"acc_norm_chars": batch.n_chars, "acc_norm_bytes": batch.n_bytes}
    correct = []
    for name, divisor in divisors.items():
        # An answer without characters cannot win by them: anything divided by nothing is infinite.
        means = np.where(divisor > 0, sums / np.maximum(divisor, 1), np.inf)
        chosen = _argmin_of_runs(means, batch.first_row)
        correct.append((name, int(np.count_nonzero(chosen == batch.labels))))
    return Scores(len(batch.labels), tuple(correct))


def _argmin_of_runs(values: NDArray[np.float64], first: NDArray[np.int64]) -> NDArray[np.int64]:
    """Position, within its run, of the first lowest value of each run."""
    if len(first) < 2:
        return np.zeros(0, np.int64)
    lowest = np.minimum.reduceat(values, first[:-1])
    counts = np.diff(first)
    position = np.arange(len(values)) - np.repeat(first[:-1], counts)
    is_lowest = values == np.repeat(lowest, counts)
    return np.minimum.reduceat(np.where(is_lowest, position, len(values)), first[:-1])
