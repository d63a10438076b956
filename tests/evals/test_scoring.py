"""Scores against an independent computation, ties, NaN, and that they add up."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np
import pytest
import torch
from eval_cases import eval_file, examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenriver import EvalLoader, Scores, score
from tokenriver.errors import UsageError
from tokenriver.evals.scoring import METRICS

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.evals.loader import EvalBatch


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eval_file(tmp_path_factory.mktemp("scores") / "x.bin", 11)


def by_hand(losses: np.ndarray, batch: EvalBatch) -> dict[str, int]:
    """The definitions, one loop after the other."""
    correct = dict.fromkeys(METRICS, 0)
    for i, k in enumerate(batch.examples.tolist()):
        example = examples(11)[k]
        best: dict[str, tuple[float, int]] = {}
        for c, completion in enumerate(example.completions):
            row = int(batch.first_row[i]) + c
            begin = len(example.context) - 1
            total = sum(float(x) for x in losses[row, begin : begin + len(completion.ids)])
            means = (total, total / len(completion.ids), total / completion.n_chars, total / completion.n_bytes)
            for name, mean in zip(METRICS, means, strict=True):
                if name not in best or mean < best[name][0]:
                    best[name] = (mean, c)
        for name in METRICS:
            correct[name] += best[name][1] == example.label
    return correct


@settings(max_examples=40)
@given(seed=st.integers(0, 10_000), batch_size=st.sampled_from([4, 11, 64]))
def test_scores_equal_an_independent_computation(path: Path, seed: int, batch_size: int) -> None:
    rng = np.random.default_rng(seed)
    for batch in EvalLoader(path, batch_size, 12):
        losses = rng.integers(0, 6, batch.mask.shape).astype(np.float64)
        losses[~batch.mask] = np.nan
        found = score(losses, batch)
        assert dict(found.correct) == by_hand(losses, batch)
        assert score(torch.from_numpy(losses).float().reshape(-1), batch) == found


def test_ties_go_to_the_lower_index(path: Path) -> None:
    (batch,) = EvalLoader(path, 44, 12)
    found = score(np.zeros(batch.mask.shape), batch)
    n_first = sum(e.label == 0 for e in examples(11))
    assert found.correct == tuple((name, n_first) for name in METRICS)


def test_a_nan_is_an_error_that_names_example_and_completion(path: Path) -> None:
    batch = list(EvalLoader(path, 8, 12))[2]
    losses = np.zeros(batch.mask.shape)
    losses[5, np.flatnonzero(batch.mask[5])[0]] = np.nan
    with pytest.raises(UsageError, match=r"example 5, completion 1: a loss is not a number"):
        score(losses, batch)
    with pytest.raises(UsageError, match=r"losses of shape \(3,\)"):
        score([1.0, 2.0, 3.0], batch)


def test_an_infinite_loss_only_loses(path: Path) -> None:
    (batch,) = EvalLoader(path, 44, 12)
    losses = np.zeros(batch.mask.shape)
    losses[0] = np.inf
    assert score(losses, batch).n_examples == 11


def test_scores_of_batches_and_ranks_add_up(path: Path) -> None:
    rng = np.random.default_rng(1)
    whole_batch = next(iter(EvalLoader(path, 44, 12)))
    losses = rng.random(whole_batch.mask.shape)
    whole = score(losses, whole_batch)
    parts = []
    for rank in range(4):
        for batch in EvalLoader(path, 8, 12, rank, 4):
            rows = [4 * k + c for k in batch.examples.tolist() for c in range(4)]
            mine = np.zeros(batch.mask.shape)
            mine[: len(rows)] = losses[rows]
            parts.append(score(mine, batch))
    assert sum(parts) == whole
    assert Scores.from_counts(sum(part.counts() for part in parts)) == whole
    assert sum(parts, Scores()) == whole


def test_standard_error_and_table() -> None:
    scores = Scores(5, (("acc", 2), ("acc_norm_tokens", 5)))
    assert scores["acc"] == 0.4
    outcomes = np.array([1, 1, 0, 0, 0])
    assert scores.stderr("acc") == pytest.approx(outcomes.std(ddof=1) / math.sqrt(5))
    assert scores.stderr("acc_norm_tokens") == 0
    assert scores.table().splitlines() == [
        "5 examples",
        "acc              0.4000 ± 0.2449",
        "acc_norm_tokens  1.0000 ± 0.0000",
    ]
    assert scores.to_dict()["acc_stderr"] == pytest.approx(0.2449, abs=1e-4)
    assert Scores.from_counts(scores.counts()) == scores
    assert scores.counts().tolist() == [5, 2, 5, -1, -1]
    with pytest.raises(KeyError):
        _ = scores["acc_norm_chars"]


def test_without_examples_there_is_no_value() -> None:
    assert math.isnan(Scores()["acc"])
    assert math.isnan(Scores(1, (("acc", 1),)).stderr("acc"))
    assert Scores(1, (("acc", 1),)).to_dict() == {"n_examples": 1, "acc": 1.0, "acc_stderr": None}
