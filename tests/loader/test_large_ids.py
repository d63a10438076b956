"""Ids of 2^31 and more: whole as int64, and an error, never a negative id, as int32."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tokenriver import TrainLoader, write_shard
from tokenriver.errors import IntegrityError
from tokenriver.llmc import DataLoader

if TYPE_CHECKING:
    from pathlib import Path

N = 5000
LARGE = (1 << 32) - 2


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    ids = np.arange(N, dtype=np.uint32) % 900
    ids[::50] = 0  # begins documents
    ids[3003] = LARGE
    path = tmp_path / "x_train_000000.bin"
    write_shard(path, ids, variant="uint32")
    return path


MODES: list[dict[str, Any]] = [
    {"order": "sequential"},
    {"order": "shuffled"},
    {"order": "sequential", "prefetch": 0},
    {"order": "block-shuffled"},
    {"packing": "bos-aligned", "separator": 0},
    {"packing": "best-fit", "separator": 0},
]


@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
def test_a_large_id_is_an_error_as_int32_and_whole_as_int64(shard: Path, mode: dict[str, Any]) -> None:
    loader = TrainLoader(shard, batch_size=4, seq_len=32, epochs=1, **mode)
    with pytest.raises(IntegrityError, match=r"epoch 0, step \d+: the id 4,294,967,294 does not fit into int32"):
        list(loader)
    wide = list(TrainLoader(shard, batch_size=4, seq_len=32, epochs=1, dtype="int64", **mode))
    assert max(int(max(batch.inputs.max(), batch.targets.max())) for batch in wide) == LARGE
    assert min(int(min(batch.inputs.min(), batch.targets.min())) for batch in wide) == 0


def test_batches_without_it_are_as_ever(shard: Path) -> None:
    loader = TrainLoader(shard, batch_size=4, seq_len=32, order="sequential")
    assert loader.batch_at(0).inputs.dtype == np.int32
    with pytest.raises(IntegrityError, match="epoch 0, step 23"):
        loader.batch_at(3003 // 128)


def test_the_drop_in_for_llm_c_names_the_shard(shard: Path) -> None:
    loader = DataLoader(str(shard), 4, 32, 0, 1, False)
    for _ in range(3003 // 128):
        loader.next_batch()
    with pytest.raises(IntegrityError, match=r"x_train_000000\.bin: the id 4,294,967,294 does not fit"):
        loader.next_batch()


@pytest.mark.parametrize("wide", [False, True])
def test_tensors_too(shard: Path, *, wide: bool) -> None:
    torch = pytest.importorskip("torch")
    from tokenriver.torch import to_device

    loader = TrainLoader(shard, batch_size=4, seq_len=32, epochs=1, order="sequential")
    batches = to_device(loader, "cpu", dtype=torch.int64 if wide else torch.int32)
    if wide:
        assert max(int(batch.inputs.max()) for batch in batches) == LARGE
    else:
        with pytest.raises(IntegrityError, match="does not fit into int32"):
            list(batches)
