"""Batches on CUDA, through pinned buffers: on a GPU where there is one, and always on a stand-in for its streams.

The stand-in runs the same code on the CPU. It cannot be late, as a GPU can, but it notices a buffer that is filled
again before the event of its copy was waited for.
"""

from __future__ import annotations

from contextlib import nullcontext
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from packing_cases import write_documents

from tokenriver import TrainLoader
from tokenriver.loader.order import ORDERS

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

torch = pytest.importorskip("torch")

LENGTHS = [3, 50, 1, 20, 4, 2, 2, 33, 8, 9, 16, 17, 1, 1, 5] * 20


class StandIn:
    """What tokenriver.loader.torch asks of torch.cuda, on the CPU: copies are made at once, and counted."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.copies = self.waits = 0
        empty, to, source = torch.empty, torch.Tensor.to, None

        def counted_to(tensor: Any, *arguments: Any, **words: Any) -> Any:
            nonlocal source
            if not words.get("non_blocking"):
                return to(tensor, *arguments, **words)
            self.copies += 1
            source = tensor
            return tensor.clone()

        stand_in = self

        class Event:
            def record(self, _stream: object) -> None:
                self.source, self.content = source, source.clone()

            def synchronize(self) -> None:
                stand_in.waits += 1
                assert torch.equal(self.source, self.content), "filled again before its copy was done"

        class Stream:
            def wait_stream(self, _other: object) -> None:
                pass

        monkeypatch.setattr(torch, "empty", lambda *a, pin_memory, **k: empty(*a, **k))  # noqa: ARG005
        monkeypatch.setattr(torch.Tensor, "to", counted_to)
        monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
        monkeypatch.setattr(torch.cuda, "Event", Event)
        monkeypatch.setattr(torch.cuda, "Stream", lambda *_: Stream())
        monkeypatch.setattr(torch.cuda, "current_stream", lambda *_: Stream())
        monkeypatch.setattr(torch.cuda, "stream", lambda _: nullcontext())


@pytest.fixture(params=["stand-in", *(["cuda"] if torch.cuda.is_available() else [])])
def staged(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Iterator[Any]]:
    """The batches of a loader as tensors, through pinned buffers."""
    from tokenriver.loader.torch import _Staged, to_device

    if request.param == "cuda":
        return lambda loader, dtype=torch.int64: to_device(loader, "cuda", dtype=dtype)
    StandIn(monkeypatch)
    return lambda loader, dtype=torch.int64: _Staged(loader, torch.device("cpu"), dtype)


def assert_same(ours: Any, plain: Any) -> None:
    for name in ("inputs", "targets", "mask", "cu_seqlens", "position_ids"):
        own, expected = getattr(ours, name), getattr(plain, name)
        assert (own is None) == (expected is None)
        if own is not None:
            assert np.array_equal(own.cpu().numpy(), expected)
    assert (ours.epoch, ours.step) == (plain.epoch, plain.step)


PACKINGS = [
    *({"order": order} for order in ORDERS),
    {"cu_seqlens": True},
    {"cu_seqlens": 40, "order": "sequential"},
    {"packing": "bos-aligned"},
    {"packing": "bos-aligned", "max_doc_len": 7, "order": "sequential"},
    {"packing": "best-fit"},
]


@pytest.mark.parametrize("words", PACKINGS, ids=str)
@pytest.mark.parametrize("prefetch", [0, 2])
def test_batches_through_pinned_buffers_are_the_loader_s(
    tmp_path: Path, staged: Callable[..., Iterator[Any]], words: dict[str, Any], prefetch: int
) -> None:
    paths, _ = write_documents(tmp_path, LENGTHS, shards=3)
    words = {"batch_size": 4, "seq_len": 16, "separator": 0, "epochs": 2, "drop_last": False, **words}
    plain, loader = TrainLoader(paths, **words), TrainLoader(paths, prefetch=prefetch, **words)
    n = 0
    for ours, expected in zip(staged(loader), plain, strict=True):
        assert_same(ours, expected)
        assert loader.state_dict() == plain.state_dict()
        n += 1
    assert n > 30


@pytest.mark.parametrize("variant", ["uint16", "uint32"])
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_large_ids_keep_their_value_and_held_batches_their_content(
    data_set: Callable[..., Path], staged: Callable[..., Iterator[Any]], variant: str, dtype: Any
) -> None:
    root = data_set([65_000], variants=[variant])
    words = {"batch_size": 8, "seq_len": 16}
    plain = TrainLoader(root, **words)
    batches = list(islice(staged(TrainLoader(root, **words), dtype), 100))
    for ours, expected in zip(batches, plain, strict=False):
        assert ours.inputs.dtype == ours.targets.dtype == dtype
        assert_same(ours, expected)
    assert max(int(batch.inputs.max()) for batch in batches) > 1 << 15


def test_an_iteration_goes_on_from_a_loaded_state(
    data_set: Callable[..., Path], staged: Callable[..., Iterator[Any]]
) -> None:
    root = data_set([9000])
    plain, loader = (TrainLoader(root, batch_size=8, seq_len=16) for _ in range(2))
    expected = list(islice(plain, 30))
    batches = staged(loader)
    state = None
    for step in range(20):
        assert_same(next(batches), expected[step])
        state = loader.state_dict() if step == 9 else state
    loader.load_state_dict(state)
    for step in range(10, 30):
        assert_same(next(batches), expected[step])


def test_each_batch_is_one_copy_and_a_buffer_is_filled_again_after_it(
    data_set: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    from tokenriver.loader.torch import _Staged

    stand_in = StandIn(monkeypatch)
    loader = TrainLoader(data_set([9000]), batch_size=8, seq_len=16, prefetch=2)
    batches = _Staged(loader, torch.device("cpu"), torch.int64)
    assert len(list(islice(batches, 50))) == stand_in.copies == 50
    assert stand_in.waits == 49


@pytest.mark.skipif(not torch.cuda.is_available(), reason="no GPU")
def test_the_ids_travel_narrow_in_one_copy_each(data_set: Callable[..., Path]) -> None:
    from tokenriver.torch import to_device

    batches = to_device(TrainLoader(data_set([65_000]), batch_size=8, seq_len=128), "cuda")
    next(batches)
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profile:
        for _ in range(20):
            next(batches)
        torch.cuda.synchronize()
    copies = [event for event in profile.events() if "Memcpy HtoD" in event.name]
    assert len(copies) == 20
    assert all("Pinned" in event.name for event in copies)
