"""What the drop-in loaders refuse: edited states, which must not change anything, and numbers that are none."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tokenriver import ResumeError, UsageError, golf, llmc, write_shard

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def pattern(tmp_path: Path) -> str:
    for k in range(3):
        write_shard(tmp_path / f"x_train_{k:06d}.bin", np.arange(100 + 40 * k))
    return str(tmp_path / "x_train_*.bin")


def open_llmc(pattern: str, *, shuffle: bool = True, steps: int = 15) -> llmc.DataLoader:
    loader = llmc.DataLoader(pattern, 2, 5, should_shuffle=shuffle)
    for _ in range(steps):
        loader.next_batch()
    return loader


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"current_shard_idx": None}, "current_shard_idx"),
        ({"current_shard_idx": True}, "current_shard_idx"),
        ({"current_sample_idx": 1.5}, "current_sample_idx"),
        ({"current_sample_idx": 99}, "there is no 99"),
        ({"should_shuffle": False}, "another should_shuffle"),
        ({"shard_indices": [0, 0, 1]}, "shard_indices is no permutation of 3"),
        ({"shard_indices": [0, 1]}, "of 2 shards, here there are 3"),
        ({"intra_shard_indices": [0] * 17}, "intra_shard_indices is no permutation"),
        ({"intra_shard_indices": None}, "intra_shard_indices"),
        ({"generator": None}, "Mersenne Twister"),
        ({"generator": {"words": [-1] * 624, "left": 1, "next": 0}}, "624 words of 32 bits"),
        ({"generator": {"words": [1] * 624, "left": -5, "next": 7}}, "make 625 together"),
    ],
)
def test_an_edited_state_of_llm_c_s_loader_is_refused_and_changes_nothing(
    pattern: str, change: dict[str, Any], message: str
) -> None:
    state = open_llmc(pattern).state_dict()
    loader, same = open_llmc(pattern, steps=3), open_llmc(pattern, steps=3)
    with pytest.raises(ResumeError, match=message):
        loader.load_state_dict({**state, **change})
    assert loader.state_dict() == same.state_dict()
    for _ in range(40):
        assert np.array_equal(loader.next_batch()[0], same.next_batch()[0])
    with pytest.raises(ResumeError, match="it is a NoneType"):
        loader.load_state_dict(None)  # type: ignore[arg-type]


def test_a_loop_that_moves_llm_c_s_batches_to_a_device_goes_on_as_it_is(pattern: str) -> None:
    torch = pytest.importorskip("torch")
    x, y = open_llmc(pattern, shuffle=False, steps=1).next_batch()
    moved, narrow = x.to("cpu"), y.to(device="cpu", dtype=torch.int32)
    assert (moved.dtype, narrow.dtype) == (torch.int64, torch.int32)
    assert moved.tolist() == x.tolist() == np.arange(10, 20).reshape(2, 5).tolist()
    assert narrow.tolist() == y.tolist() == (x + 1).tolist()
    moved[:] = 0
    assert isinstance(x, np.ndarray)
    assert x.any()


@pytest.mark.parametrize("shuffle", [True, False])
def test_a_state_of_batches_of_another_shape_is_refused(pattern: str, shuffle: bool) -> None:
    state = open_llmc(pattern, shuffle=shuffle, steps=3).state_dict()
    for other in (
        llmc.DataLoader(pattern, 2, 10, should_shuffle=shuffle),
        llmc.DataLoader(pattern, 2, 5, 1, 2, should_shuffle=shuffle),
    ):
        before = other.state_dict()
        with pytest.raises(ResumeError, match=r"shard 0 had \d+ batches when the state was saved, here it has"):
            other.load_state_dict(state)
        assert other.state_dict() == before


@pytest.mark.parametrize("shuffle", [True, False])
def test_numpy_s_integers_in_a_state_of_llm_c_s_loader_become_python_s(pattern: str, shuffle: bool) -> None:
    loader = open_llmc(pattern, shuffle=shuffle)
    state = loader.state_dict()
    whole = {k: [np.int64(n) for n in v] if isinstance(v, list) else v for k, v in state.items()}
    whole |= {k: np.int64(state[k]) for k in ("current_shard_idx", "current_sample_idx")}
    again = llmc.DataLoader(pattern, np.int64(2), np.int64(5), should_shuffle=shuffle)  # type: ignore[arg-type]
    again.load_state_dict(whole)
    assert json.loads(json.dumps(again.state_dict())) == state
    assert np.array_equal(again.next_batch()[0], loader.next_batch()[0])


@pytest.mark.parametrize("wrong", [1.5, "3", None, True])
def test_numbers_of_the_drop_in_loaders_are_whole(pattern: str, wrong: Any) -> None:
    stream, loader = golf.TokenStream(pattern), golf.DistributedTokenLoader(pattern, 0, 1, None)
    for call in (
        lambda: llmc.DataLoader(pattern, wrong, 5),
        lambda: open_llmc(pattern, shuffle=False).resume(wrong, 0),
        lambda: stream.take(wrong),
        lambda: loader.next_batch(wrong, 8, 1),
        lambda: loader.next_batch(80, 8, wrong),
        lambda: golf.DistributedTokenLoader(pattern, wrong, 1, None),
        lambda: golf.load_validation_tokens(pattern, wrong),
    ):
        with pytest.raises(UsageError, match="is a whole number, not"):
            call()
    for call in (lambda: loader.next_batch(80, 0, 1), lambda: golf.load_validation_tokens(pattern, 0)):
        with pytest.raises(UsageError, match="seq_len is at least 1, not 0"):
            call()
    with pytest.raises(UsageError, match="grad_accum_steps is at least 1, not 0"):
        loader.next_batch(80, 8, 0)
    for ranks in (0, -1):
        with pytest.raises(UsageError, match=f"world_size is at least 1, not {ranks}"):
            golf.DistributedTokenLoader(pattern, 0, ranks, None)
    for many in (-1, 10**30):
        with pytest.raises(UsageError, match=f"{many:,} ids cannot be taken at once"):
            stream.take(many)
    assert stream.take(3).tolist() == [0, 1, 2]
