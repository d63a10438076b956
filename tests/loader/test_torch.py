"""PyTorch's DataLoader, torchdata's StatefulDataLoader, tensors on a device, and two real processes with gloo."""

from __future__ import annotations

import builtins
import hashlib
import importlib
import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from packing_cases import write_documents
from torch.utils.data import DataLoader

from tokenriver import MissingDependencyError, Mixture, ResumeError, TrainLoader, UsageError
from tokenriver.loader import packed
from tokenriver.loader.order import ORDERS
from tokenriver.torch import TrainDataset, to_device

DataSet = Callable[..., Path]

pytestmark = pytest.mark.filterwarnings(
    "ignore:This process .* is multi-threaded:DeprecationWarning",
    "ignore:This DataLoader will create:UserWarning",
    "ignore:'set_vital' is deprecated:UserWarning",  # torchdata 0.11 calls it
)


def digests(batches: Iterable[Any]) -> list[str]:
    return [hashlib.sha256(x.numpy().tobytes() + y.numpy().tobytes()).hexdigest() for x, y in batches]


def options(**changes: Any) -> dict[str, Any]:
    return {"batch_size": 2, "seq_len": 8, "seed": 4} | changes


def reference(root: Path, n: int, **changes: Any) -> list[str]:
    loader = TrainLoader(root, dtype="int64", **options(**changes))
    return [hashlib.sha256(b.inputs.tobytes() + b.targets.tobytes()).hexdigest() for b in islice(loader, n)]


@pytest.mark.parametrize("workers", [0, 1, 3, 4])
def test_any_number_of_workers_gives_the_same_batches(data_set: DataSet, workers: int) -> None:
    root = data_set([700, 200])
    expected = reference(root, 120, rank=1, world_size=2)
    dataset = TrainDataset(root, **options(rank=1, world_size=2))
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    assert digests(islice(loader, 120)) == expected
    dataset.load_state_dict(dataset.state_after(50))
    assert digests(islice(loader, 70)) == expected[50:]


@pytest.mark.parametrize("workers", [0, 4])
def test_a_pass_is_an_epoch_on_request_and_set_epoch_chooses_which(data_set: DataSet, workers: int) -> None:
    root = data_set([700])
    dataset = TrainDataset(root, epochs=1, **options())
    loader = DataLoader(dataset, batch_size=None, num_workers=workers)
    steps = dataset.loader.steps_per_epoch
    whole = reference(root, 3 * steps)
    for epoch in (0, 1, 2):
        dataset.set_epoch(epoch)
        assert digests(loader) == whole[epoch * steps : (epoch + 1) * steps]
    assert digests(loader) == whole[2 * steps :]
    dataset.load_state_dict(dataset.state_after(steps))
    assert dataset.loader.epoch == 3


@pytest.mark.parametrize("workers", [0, 1, 4])
def test_a_stateful_data_loader_saves_and_restores_anywhere(data_set: DataSet, workers: int) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    root = data_set([700])
    expected = reference(root, 86)
    steps = 43

    def fresh() -> Any:
        return stateful(TrainDataset(root, epochs=2, **options()), batch_size=None, num_workers=workers)

    got: list[str] = []
    state = None
    for run in (3, 0, 5, 1, 34, 10):  # 43 batches are an epoch: one stop is exactly at its end
        loader = fresh()
        if state is not None:
            loader.load_state_dict(state)
        batches = iter(loader)
        got += digests(islice(batches, run))
        state = loader.state_dict()
    assert len(got) == steps + 10
    assert got == expected[: len(got)]
    loader = fresh()
    loader.load_state_dict(state)
    assert digests(loader) == expected[len(got) :]


@pytest.mark.parametrize(("workers", "persistent"), [(0, False), (2, False), (2, True)])
def test_after_a_pass_that_had_ended_when_it_was_saved_the_next_is_the_one_that_set_epoch_says(
    data_set: DataSet, workers: int, persistent: bool
) -> None:
    stateful = pytest.importorskip("torchdata.stateful_dataloader").StatefulDataLoader
    root, steps = data_set([700]), 43
    whole = reference(root, 3 * steps)

    def fresh() -> Any:
        dataset = TrainDataset(root, epochs=1, **options())
        return stateful(dataset, batch_size=None, num_workers=workers, persistent_workers=persistent)

    loader = fresh()
    for epoch in (0, 1):
        loader.dataset.set_epoch(epoch)
        assert digests(loader) == whole[epoch * steps : (epoch + 1) * steps]
    resumed = fresh()
    resumed.load_state_dict(loader.state_dict())
    resumed.dataset.set_epoch(2)
    assert digests(resumed) == whole[2 * steps :]
    again = fresh()
    again.load_state_dict(loader.state_dict())
    assert len(digests(again)) == steps  # none was said: from the start of the data set


def test_the_data_set_takes_a_loader_s_state_and_refuses_what_is_none(data_set: DataSet) -> None:
    root = data_set([700])
    plain = TrainLoader(root, **options())
    list(islice(plain, 20))
    dataset = TrainDataset(root, **options())
    dataset.load_state_dict(plain.state_dict())
    assert digests(islice(iter(dataset), 5)) == reference(root, 25)[20:]
    with pytest.raises(ResumeError, match="taken is -1"):
        dataset.load_state_dict(dataset.state_dict() | {"taken": -1})
    with pytest.raises(ResumeError, match="seed was 4"):
        TrainDataset(root, **options(seed=5)).load_state_dict(dataset.state_dict())


def test_the_data_set_s_numbers_are_checked_and_numpy_s_are_taken(data_set: DataSet) -> None:
    root = data_set([700])
    for wrong in (1.5, "1", True, -1):
        with pytest.raises(UsageError, match="epochs is"):
            TrainDataset(root, epochs=wrong, **options())
    dataset = TrainDataset(root, epochs=np.int64(1), **options())
    for name, call in (("epoch", dataset.set_epoch), ("batches", dataset.state_after)):
        for wrong in (1.5, "1", True, -1):
            with pytest.raises(UsageError, match=f"{name} is"):
                call(wrong)  # type: ignore[operator]
    dataset.set_epoch(np.int64(2))  # type: ignore[arg-type]
    states = [dataset.state_dict(), dataset.state_after(np.int64(3))]  # type: ignore[arg-type]
    assert json.loads(json.dumps(states)) == states
    dataset.load_state_dict({**dataset.state_dict(), "taken": np.int64(3)})
    assert digests(dataset) == reference(root, 3 * 43)[2 * 43 + 3 :]
    with pytest.raises(ResumeError, match="is a dict, not NoneType"):
        dataset.load_state_dict(None)  # type: ignore[arg-type]


def test_a_mixture_has_no_epochs_for_a_data_set_either(data_set: DataSet) -> None:
    mixture = Mixture({"a": (data_set([700]), 1)}, max_epochs=1)
    with pytest.raises(UsageError, match="a mixture has no epochs"):
        TrainDataset(mixture, epochs=1, **options())
    dataset = TrainDataset(mixture, **options())
    with pytest.raises(UsageError, match="a mixture has no epochs"):
        dataset.set_epoch(1)
    dataset.set_epoch(0)
    assert len(list(dataset)) == 43
    assert dataset.state_after(43)["step"] == 43
    first = digests(islice(dataset, 1))
    dataset.load_state_dict(dataset.state_after(20))
    other = TrainDataset(Mixture({"a": (data_set([700]), 1)}), **options())
    other.load_state_dict(dataset.state_dict()["start"], allow_change="mixture")
    assert digests(islice(other, 1)) != first
    other.set_epoch(0)
    assert digests(islice(other, 1)) == first


def test_set_epoch_reaches_workers_that_persist_and_what_does_not_is_an_error(data_set: DataSet) -> None:
    root = data_set([700])
    dataset = TrainDataset(root, epochs=1, **options())
    words = {"batch_size": None, "num_workers": 1, "persistent_workers": True, "multiprocessing_context": "fork"}
    loader = DataLoader(dataset, **words)  # type: ignore[arg-type]
    whole = reference(root, 4 * 43)
    for epoch in (0, 3, 3, 1):
        dataset.set_epoch(epoch)
        assert digests(loader) == whole[epoch * 43 : (epoch + 1) * 43]
    assert digests(loader) == whole[43 : 2 * 43]
    dataset.load_state_dict(dataset.state_after(5))
    with pytest.raises(UsageError, match="does not reach workers that persist"):
        next(iter(loader))
    assert digests(DataLoader(dataset, **words)) == whole[43 + 5 : 2 * 43]  # type: ignore[arg-type]


def test_a_pass_over_many_packed_epochs_plans_each_of_them_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, _ = write_documents(tmp_path, [9] * 6)
    planned: list[int] = []

    def counted(plan: Callable[..., Any]) -> Callable[..., Any]:
        return lambda *lengths, **words: planned.append(0) or plan(*lengths, **words)

    for name in ("best_fit_rows", "count_best_fit_rows"):
        monkeypatch.setattr(packed, name, counted(getattr(packed, name)))
    dataset = TrainDataset(paths, epochs=50, separator=0, packing="best-fit", **options())
    assert len(list(dataset)) == 50 * -(-6 // 2)
    assert len(planned) < 2 * 50 + 10


def test_padded_rows_are_ignored_targets(data_set: DataSet) -> None:
    dataset = TrainDataset(data_set([8 * 3 + 1]), epochs=1, drop_last=False, **options())
    (_, _), (_, targets) = list(dataset)
    assert (targets == -100).sum() == 8
    assert (targets >= 0).sum() == 8


@pytest.mark.parametrize("order", ORDERS)
@pytest.mark.parametrize("dtype", [torch.int32, torch.int64])
def test_to_device_gives_the_loader_s_batches_and_moves_its_position(
    data_set: DataSet, order: str, dtype: torch.dtype
) -> None:
    root = data_set([65_000, 700], variants=["uint16", "uint32"])
    plain = TrainLoader(root, order=order, epochs=1, drop_last=False, **options(batch_size=32))
    loader = TrainLoader(root, order=order, epochs=1, drop_last=False, **options(batch_size=32))
    for k, (ours, theirs) in enumerate(zip(to_device(loader, "cpu", dtype=dtype), plain, strict=True)):
        assert ours.inputs.dtype == ours.targets.dtype == dtype
        assert ours.inputs.is_contiguous()
        assert np.array_equal(ours.inputs.numpy(), theirs.inputs)
        assert np.array_equal(ours.targets.numpy(), theirs.targets)
        assert (ours.mask is None) == (theirs.mask is None)
        if k == 3:
            assert loader.state_dict()["step"] == 4
    assert loader.state_dict() == plain.state_dict()


def test_to_device_takes_a_loader_and_nothing_else(data_set: DataSet) -> None:
    for other in (TrainDataset(data_set([700]), **options()), None):
        with pytest.raises(UsageError, match=f"to_device takes a TrainLoader, not a {type(other).__name__}"):
            to_device(other, "cpu")  # type: ignore[arg-type]


def test_ids_widen_without_a_sign() -> None:
    from tokenriver.loader.torch import widen

    narrow = torch.from_numpy(np.array([0, 1, 32767, 32768, 65535], np.uint16).view(np.int16))
    wide = torch.from_numpy(np.array([0, 70_000, 2**31 - 1], np.uint32).view(np.int32))
    for dtype in (torch.int32, torch.int64):
        assert widen(narrow, dtype).tolist() == [0, 1, 32767, 32768, 65535]
        assert widen(wide, dtype).tolist() == [0, 70_000, 2**31 - 1]


def test_missing_torch_names_the_extra(monkeypatch: pytest.MonkeyPatch) -> None:
    real = builtins.__import__

    def without_torch(name: str, *arguments: Any, **more: Any) -> Any:
        if name == "torch" or name.startswith("torch."):
            raise ImportError("no torch")
        return real(name, *arguments, **more)

    monkeypatch.setattr(builtins, "__import__", without_torch)
    saved = {name: sys.modules.pop(name) for name in ("tokenriver.loader.torch", "tokenriver.torch")}
    try:
        with pytest.raises(MissingDependencyError, match=r"pip install 'tokenriver\[torch\]'"):
            importlib.import_module("tokenriver.torch")
    finally:
        sys.modules.update(saved)


def test_loading_imports_numpy_and_the_standard_library_alone(data_set: DataSet) -> None:
    root = data_set([500])
    code = f"""
import sys
from tokenriver import TrainLoader
next(iter(TrainLoader({str(root)!r}, batch_size=2, seq_len=8)))
heavy = {{"torch", "pyarrow", "tokenizers", "gigatoken", "msgspec", "typer", "huggingface_hub", "fsspec"}}
print(sorted(heavy & set(sys.modules)))
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, env=environment())
    assert done.stdout == "[]\n"


def environment(**more: str) -> dict[str, str]:
    return os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)} | more


GLOO = """
import os
import sys
import torch
import torch.distributed as dist
from tokenriver import TrainLoader
from tokenriver.torch import to_device

child = os.fork()
os.environ["RANK"] = "1" if child else "0"
dist.init_process_group("gloo", init_method="env://")
loader = TrainLoader(sys.argv[1], batch_size=2, seq_len=8, seed=4)
assert (loader.rank, loader.world_size) == (dist.get_rank(), 2)
batches = to_device(loader, "cpu")
for step in range(12):
    batch = next(batches)
    parts = [torch.empty_like(batch.inputs) for _ in range(2)]
    dist.all_gather(parts, batch.inputs)
    if dist.get_rank() == 0:
        print(torch.cat(parts)[:, 0].tolist(), flush=True)
state = [loader.state_dict()]
dist.broadcast_object_list(state, src=0)
assert state[0] == loader.state_dict()
dist.destroy_process_group()
if child:
    sys.exit(os.waitpid(child, 0)[1])
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="importing torch takes seconds: two ranks by fork")
def test_two_processes_with_gloo_share_the_global_batches_of_one(data_set: DataSet) -> None:
    root = data_set([700])
    with socket_on_loopback() as port:
        pass
    done = subprocess.run(
        [sys.executable, "-c", GLOO, str(root)],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        env=environment(WORLD_SIZE="2", MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), OMP_NUM_THREADS="1"),
    )
    assert done.returncode == 0, done.stderr
    alone = TrainLoader(root, batch_size=4, seq_len=8, seed=4)
    assert done.stdout.splitlines() == [str(batch.inputs[:, 0].tolist()) for batch in islice(alone, 12)]


class socket_on_loopback:  # noqa: N801 (used like a function)
    """A port that is free now."""

    def __enter__(self) -> int:
        import socket

        self._socket = socket.socket()
        self._socket.bind(("127.0.0.1", 0))
        return int(self._socket.getsockname()[1])

    def __exit__(self, *_: object) -> None:
        self._socket.close()
