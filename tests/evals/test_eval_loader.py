"""The evaluation loader: every example once over the ranks, all ranks alike, the mask where the scored ids are."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest
from eval_cases import eval_file, examples

from tokenriver import EvalLoader, load_tokenizer
from tokenriver.errors import FormatError, UsageError
from tokenriver.evals.examples import Completion, EvalExample
from tokenriver.evals.loader import examples_of_rank, packs
from tokenriver.evals.write import write_eval_file
from tokenriver.llmc import EvalLoader as LlmcEvalLoader

if TYPE_CHECKING:
    from pathlib import Path


def test_a_row_is_context_and_completion_and_the_mask_is_where_its_ids_are_predicted(tmp_path: Path) -> None:
    one = EvalExample([10, 11, 12], [Completion([20, 21]), Completion([30], 0)], 1)
    write_eval_file(tmp_path / "x.bin", [one], version=2)
    (batch,) = EvalLoader(tmp_path / "x.bin", 3, 6)
    assert batch.inputs.tolist() == [[10, 11, 12, 20, 21, 0], [10, 11, 12, 30, 0, 0], [0] * 6]
    # The ids at 3 and 4 are scored, so their targets stand at 2 and 3.
    assert np.argwhere(batch.mask).tolist() == [[0, 2], [0, 3], [1, 2]]
    assert batch.targets[batch.mask].tolist() == [20, 21, 30]
    assert int(batch.targets.sum()) == 71
    assert (batch.labels.tolist(), batch.first_row.tolist(), batch.n_scored.tolist()) == ([1], [0, 2], [2, 1])


def test_ids_before_the_scored_ones_are_read_but_not_scored(tmp_path: Path) -> None:
    one = EvalExample([10], [Completion([20, 21, 22], 2), Completion([30, 31], 1)], 0)
    write_eval_file(tmp_path / "x.bin", [one], version=2)
    (batch,) = EvalLoader(tmp_path / "x.bin", 2, 5)
    assert batch.inputs.tolist() == [[10, 20, 21, 22, 0], [10, 30, 31, 0, 0]]
    assert np.argwhere(batch.mask).tolist() == [[0, 2], [1, 1]]
    (packed,) = EvalLoader(tmp_path / "x.bin", 1, 8, packed=True)
    assert packed.inputs.tolist() == [10, 20, 21, 10, 30, 0, 0, 0]
    assert np.flatnonzero(packed.mask).tolist() == [2, 4]
    assert packed.targets[packed.mask].tolist() == [22, 31]
    assert packed.cu_seqlens is not None
    assert packed.cu_seqlens.tolist() == [0, 3, 5, 8]


@pytest.mark.parametrize(("n", "world_size", "batch_size"), [(10_042, 200, 32), (13, 8, 4), (5, 9, 12), (29, 3, 20)])
@pytest.mark.parametrize("packed", [False, True])
def test_every_example_is_served_once_and_all_ranks_have_as_many_batches(
    tmp_path: Path, n: int, world_size: int, batch_size: int, packed: bool
) -> None:
    from tokenriver import open_eval_file

    file = open_eval_file(eval_file(tmp_path / "x.bin", n))
    seen: list[int] = []
    lengths = set()
    ranks = range(world_size) if n < 100 else (0, 1, 100, 195, 196, 197, 199)
    for rank in ranks:
        loader = EvalLoader(file, batch_size, 64, rank, world_size, packed=packed)
        served = [k for batch in loader for k in batch.examples.tolist()]
        start, stop = examples_of_rank(n, rank, world_size)
        assert served == list(range(start, stop))
        assert loader.n_examples == stop - start
        lengths.add(len(loader))
        seen += served
    assert len(lengths) == 1
    bounds = [examples_of_rank(n, rank, world_size) for rank in range(world_size)]
    assert [k for a, b in bounds for k in range(a, b)] == list(range(n))
    if n < 100:
        assert seen == list(range(n))


def test_a_loader_serves_the_same_again(tmp_path: Path) -> None:
    loader = EvalLoader(eval_file(tmp_path / "x.bin", 7), 8, 16, 1, 2)
    first, second = ([batch.inputs.tolist() for batch in loader] for _ in range(2))
    assert first == second
    assert len(first) == len(loader) == 2


def test_a_row_that_is_too_long_is_named_on_every_rank_or_skipped_and_counted(tmp_path: Path) -> None:
    long = EvalExample([1] * 9, [Completion([2])] * 4, 0)
    write_eval_file(tmp_path / "x.bin", [*examples(3), long, *examples(4)], version=2)
    for rank in range(2):
        with pytest.raises(UsageError, match=r"example 3: its longest row has 10 ids, more than .* of 9 \(1 such"):
            EvalLoader(tmp_path / "x.bin", 4, 9, rank, 2)
    loaders = [EvalLoader(tmp_path / "x.bin", 4, 9, rank, 2, too_long="skip") for rank in range(2)]
    assert [loader.n_skipped for loader in loaders] == [1, 1]
    assert [k for loader in loaders for b in loader for k in b.examples.tolist()] == [0, 1, 2, 4, 5, 6, 7]
    assert len(list(EvalLoader(tmp_path / "x.bin", 4, 10))) == 8


def test_batches_hold_whole_examples_of_any_number_of_completions(tmp_path: Path) -> None:
    mixed = [examples(6, n_completions=n)[i] for i, n in enumerate((2, 5, 3, 2, 5, 4))]
    write_eval_file(tmp_path / "x.bin", mixed, version=2)
    batches = list(EvalLoader(tmp_path / "x.bin", 11, 16))
    assert [batch.first_row.tolist() for batch in batches] == [[0, 2, 7], [0, 3, 5], [0, 5, 9]]
    for batch in batches:
        for i, k in enumerate(batch.examples.tolist()):
            for row, completion in zip(range(*batch.first_row[i : i + 2]), mixed[k].completions, strict=True):
                assert batch.targets[row][batch.mask[row]].tolist() == list(completion.ids)
                assert (batch.n_bytes[row], batch.n_chars[row]) == (completion.n_bytes, completion.n_chars)


def test_packs_take_whole_examples_first_come_first_served() -> None:
    assert packs(np.array([3, 3, 5, 8, 1]), 8) == [(0, 2), (2, 3), (3, 4), (4, 5)]
    assert packs(np.array([], np.int64), 8) == []


def test_lengths_of_version_1_come_from_the_tokenizer(tmp_path: Path) -> None:
    tokenizer = load_tokenizer("byte")
    texts = [" é", "a", " naïve", "  x"]
    completions = [Completion(tokenizer.encode(text)) for text in texts]
    write_eval_file(tmp_path / "x.bin", [EvalExample([1], completions, 0)], version=1)
    (plain,) = EvalLoader(tmp_path / "x.bin", 4, 16)
    assert not plain.has_lengths
    (batch,) = EvalLoader(tmp_path / "x.bin", 4, 16, tokenizer=tokenizer)
    assert batch.n_bytes.tolist() == [2, 1, 6, 2]
    assert batch.n_chars.tolist() == [1, 1, 5, 2]
    write_eval_file(tmp_path / "y.bin", [EvalExample([1], [Completion([300])] * 4, 0)], version=1)
    with pytest.raises(UsageError, match="id 300 is outside byte's 256 ids"):
        EvalLoader(tmp_path / "y.bin", 4, 16, tokenizer=tokenizer)


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((4, 16, 2, 2), "rank 2 of 2"),
        ((0, 16), "give at least 1"),
        ((3, 16), "below the 4 completions"),
        ((4, 16, 0, 0), "rank 0 of 0"),
    ],
)
def test_arguments_that_cannot_work_are_refused(tmp_path: Path, arguments: tuple[int, ...], words: str) -> None:
    path = eval_file(tmp_path / "x.bin", 3)
    with pytest.raises(UsageError, match=words):
        EvalLoader(path, *arguments)
    with pytest.raises(UsageError, match="too_long is 'x'"):
        EvalLoader(path, 4, 16, too_long="x")  # type: ignore[arg-type]


def test_llmc_s_loader_is_for_version_1_and_refuses_nan(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match=r"version 2; llm\.c reads version 1"):
        LlmcEvalLoader(eval_file(tmp_path / "x.bin", 3), 4, 16)
    loader = LlmcEvalLoader(eval_file(tmp_path / "y.bin", 3, version=1), 4, 16)
    loader.next_batch()
    losses = np.zeros((4, 16), np.float32)
    losses[2, np.flatnonzero(loader.mask[2])[0]] = np.nan
    with pytest.raises(UsageError, match="loss in row 2 is not a number"):
        loader.stat_losses(losses)
    losses[:] = np.nan
    losses[loader.mask != 0] = 1
    assert loader.stat_losses(losses) == int(loader.label[0] == 0)
    with pytest.raises(UsageError, match="3 losses"):
        loader.stat_losses([1, 2, 3])
    loader.next_batch()
    loader.next_batch()
    loader.next_batch()
    assert (int(loader.mask.sum()), loader.stat_losses(losses)) == (0, 0)
