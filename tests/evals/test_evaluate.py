"""A model over a file: NumPy and torch, rows and packed, give the scores of losses computed by hand."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import torch
from eval_cases import eval_file, examples

from tokenriver import EvalLoader, Scores, evaluate, score
from tokenriver.errors import UsageError

if TYPE_CHECKING:
    from pathlib import Path

VOCAB = 150
TABLE = np.random.default_rng(3).normal(size=(VOCAB, VOCAB))


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return eval_file(tmp_path_factory.mktemp("evaluate") / "x.bin", 23)


def running(inputs: np.ndarray, starts: np.ndarray) -> np.ndarray:
    """Logits that depend on all ids of the document so far: the sum of a table's rows since its start."""
    sums = np.cumsum(TABLE[inputs], axis=0)
    before = np.where((starts > 0)[:, None], sums[np.maximum(starts - 1, 0)], 0)
    return sums - before


def model(inputs: np.ndarray) -> np.ndarray:
    return np.stack([running(row, np.zeros(len(row), np.int64)) for row in inputs])


def packed_model(inputs: np.ndarray, cu_seqlens: np.ndarray) -> np.ndarray:
    starts = np.repeat(cu_seqlens[:-1], np.diff(cu_seqlens))
    return running(inputs, starts)[None]


def expected(path: Path) -> Scores:
    (batch,) = EvalLoader(path, 4 * 23, 12)
    logits = model(batch.inputs)
    losses = np.log(np.exp(logits).sum(-1)) - np.take_along_axis(logits, batch.targets[..., None], -1)[..., 0]
    return score(losses, batch)


class Module(torch.nn.Module):
    """The same model in torch; it also checks that no gradients are wanted."""

    def __init__(self) -> None:
        super().__init__()
        self.table = torch.nn.Parameter(torch.from_numpy(TABLE))

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        assert torch.is_inference_mode_enabled()
        assert inputs.dtype == torch.int64
        return self.table[inputs].cumsum(1)


@pytest.mark.parametrize("batch_size", [4, 9, 92])
def test_numpy_and_torch_give_the_scores_of_the_definition(path: Path, batch_size: int) -> None:
    wanted = expected(path)
    options: dict[str, Any] = {"batch_size": batch_size, "seq_len": 12, "show": False}
    assert evaluate(model, path, **options) == wanted
    assert evaluate(Module(), path, **options) == wanted
    assert evaluate(Module().forward, path, device="cpu", **options) == wanted


@pytest.mark.parametrize("seq_len", [40, 64, 500])
def test_packed_rows_with_document_borders_give_the_same_scores(path: Path, seq_len: int) -> None:
    assert evaluate(packed_model, path, seq_len=seq_len, packed=True, show=False) == expected(path)


def test_scores_of_ranks_add_up_and_every_rank_runs_as_many_batches(path: Path) -> None:
    for packed in (False, True):
        calls: list[int] = []

        def counting(inputs: np.ndarray, cu_seqlens: np.ndarray | None = None, calls: list[int] = calls) -> np.ndarray:
            calls[-1] += 1
            return model(inputs) if cu_seqlens is None else packed_model(inputs, cu_seqlens)

        scores = Scores()
        for rank in range(5):
            calls.append(0)
            scores += evaluate(
                counting, path, batch_size=8, seq_len=40, rank=rank, world_size=5, packed=packed, show=False
            )
        assert scores == expected(path)
        assert len(set(calls)) == 1


def test_the_table_is_printed_with_what_was_left_out(path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    seen: list[tuple[int, int]] = []
    evaluate(model, path, batch_size=40, seq_len=8, too_long="skip", progress=lambda *done: seen.append(done))
    n_long = sum(len(e.context) + max(len(c.ids) for c in e.completions) > 8 for e in examples(23))
    out = capsys.readouterr().out
    assert out.startswith(f"{23 - n_long} examples\nacc ")
    assert out.endswith(f"{n_long:,} examples left out: longer than 8 ids\n")
    assert seen[-1] == (23 - n_long, 23 - n_long)


def test_autocast_reaches_the_model(path: Path) -> None:
    seen = []

    class Linear(torch.nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.inner = torch.nn.Linear(1, VOCAB)

        def forward(self, inputs: torch.Tensor) -> torch.Tensor:
            logits = self.inner(inputs[..., None].float())
            seen.append(logits.dtype)
            return logits

    evaluate(Linear(), path, seq_len=12, autocast="bfloat16", show=False)
    assert set(seen) == {torch.bfloat16}


def test_models_of_another_shape_are_refused(path: Path) -> None:
    def run(broken: Any, **options: Any) -> None:
        evaluate(broken, path, batch_size=4, seq_len=12, show=False, **options)

    with pytest.raises(UsageError, match=r"the model gave shape \(4, 12\); expected logits of shape \(4, 12, 'voc"):
        run(lambda inputs: inputs)
    with pytest.raises(UsageError, match="the model gave tuple"):
        run(lambda inputs: (inputs, 1))
    with pytest.raises(UsageError, match="the model has 5 logits a place; the file has the id"):
        run(lambda inputs: np.zeros((*inputs.shape, 5)))
    with pytest.raises(UsageError, match="example 0, completion 0: a loss is not a number"):
        run(lambda inputs: np.full((*inputs.shape, VOCAB), np.nan))
    with pytest.raises(UsageError, match="does not take cu_seqlens"):
        evaluate(model, path, seq_len=64, packed=True, show=False)
    with pytest.raises(UsageError, match="autocast is for torch"):
        run(model, autocast="bfloat16")
    with pytest.raises(UsageError, match="autocast 'int8' is unknown"):
        run(Module(), autocast="int8")
