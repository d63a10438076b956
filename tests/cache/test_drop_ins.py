"""The loaders with others' names, torch's data set, and the command line, over an object store."""

from __future__ import annotations

from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from positions import write_data_set

from tokenriver import TrainLoader, golf, llmc

if TYPE_CHECKING:
    from pathlib import Path

    from s3_server import Bucket


@pytest.fixture
def sets(tmp_path: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> tuple[str, str]:
    """The same shards on disk and in the store."""
    monkeypatch.setenv("TOKENRIVER_CACHE_DIR", str(tmp_path / "cache"))
    local = write_data_set(tmp_path / "data", [900, 700, 1100])
    return str(local), s3.put_folder(local, "data")


@pytest.mark.parametrize(("shuffle", "limit"), [(False, "0"), (True, "1GB")])
def test_llmc_loader(sets: tuple[str, str], shuffle: bool, limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENRIVER_CACHE_LIMIT", limit)
    here, there = (llmc.DataLoader(f"{folder}/train-*.bin", 2, 32, 1, 2, shuffle) for folder in sets)
    for _ in range(2 * 20):
        assert all(np.array_equal(a, b) for a, b in zip(here.next_batch(), there.next_batch(), strict=True))
    assert here.state_dict() == there.state_dict()


@pytest.mark.parametrize("limit", ["1GB", "0"])
def test_golf_functions(sets: tuple[str, str], limit: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENRIVER_CACHE_LIMIT", limit)
    ours = [golf.load_data_shard(f"{folder}/train-00001.bin", device=None) for folder in sets]  # type: ignore[arg-type]
    assert np.array_equal(*ours)
    assert np.array_equal(*(golf.load_validation_tokens(f"{folder}/train-*.bin", 64, device=None) for folder in sets))
    here, there = (golf.DistributedTokenLoader(f"{folder}/train-*.bin", 1, 2, None) for folder in sets)
    for _ in range(20):
        pairs = zip(here.next_batch(512, 64, 1), there.next_batch(512, 64, 1), strict=True)
        assert all(np.array_equal(a, b) for a, b in pairs)


@pytest.mark.parametrize(("order", "workers"), [("sequential", 0), ("shuffled", 2)])
def test_torch_data_set(sets: tuple[str, str], order: Any, workers: int) -> None:
    torch = pytest.importorskip("torch")
    from tokenriver.torch import TrainDataset

    options: dict[str, Any] = {"batch_size": 8, "seq_len": 32, "order": order}
    data = TrainDataset(sets[1], epochs=1, **options)
    expected = list(TrainLoader(sets[0], epochs=1, **options))
    found = list(torch.utils.data.DataLoader(data, batch_size=None, num_workers=workers))
    assert len(found) == len(expected)
    for (inputs, targets), batch in zip(found, expected, strict=True):
        assert np.array_equal(inputs.numpy(), batch.inputs)
        assert np.array_equal(targets.numpy(), batch.targets)


def test_batches_on_a_device(sets: tuple[str, str]) -> None:
    pytest.importorskip("torch")
    from tokenriver.torch import to_device

    here, there = (TrainLoader(folder, batch_size=4, seq_len=32, epochs=1) for folder in sets)
    for batch, tensors in zip(here, to_device(there, "cpu"), strict=True):
        assert np.array_equal(batch.inputs, tensors.inputs.numpy())
        assert np.array_equal(batch.targets, tensors.targets.numpy())
    assert len(list(islice(here, 1))) == 0
