"""An id that is not below the vocabulary of the shards' headers is an error that names it, not what a model meets."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tokenriver import FormatError, TrainLoader, write_shard

if TYPE_CHECKING:
    from pathlib import Path

MODES: list[dict[str, Any]] = [
    {"order": "sequential"},
    {"order": "shuffled"},
    {"order": "shuffled", "prefetch": 0},
    {"order": "block-shuffled"},
    {"order": "sequential", "packing": "bos-aligned", "separator": 0},
    {"order": "shuffled", "packing": "best-fit", "separator": 0},
]


def write(root: Path, variant: Any, vocab_size: int, wrong: dict[int, int]) -> None:
    """Two shards of 2,000 ids below 900, documents of 50; `wrong` are other ids of the second."""
    root.mkdir(exist_ok=True)
    for k in range(2):
        ids = np.arange(2000) % 899 + 1
        ids[::50] = 0
        for place, value in wrong.items() if k else ():
            ids[place] = value
        path = root / f"x_train_{k:06d}.bin"
        write_shard(path, ids, variant=variant)
        with path.open("r+b") as file:  # the writer would refuse them
            file.seek(12)
            file.write(np.array([vocab_size], "<i4").tobytes())


@pytest.mark.parametrize("variant", ["uint16", "uint32"])
@pytest.mark.parametrize("mode", MODES, ids=lambda mode: "-".join(map(str, mode.values())))
def test_an_id_outside_the_vocabulary_names_shard_and_token(tmp_path: Path, mode: dict[str, Any], variant: str) -> None:
    options: dict[str, Any] = {"batch_size": 4, "seq_len": 32, "epochs": 1, "drop_last": False, **mode}
    write(tmp_path, variant, 900, {})
    whole = [batch.inputs.tolist() for batch in TrainLoader(tmp_path, **options)]
    assert np.max(whole) <= 899
    write(tmp_path, variant, 900, {1210: 900})
    with pytest.raises(
        FormatError, match=r"x_train_000001\.bin: id 900 at token 1,210 is not below .* of 900; .*verify"
    ):
        list(TrainLoader(tmp_path, **options))
    for vocab_size in (0, 901):  # unknown, or large enough
        write(tmp_path, variant, vocab_size, {1210: 900})
        assert len(list(TrainLoader(tmp_path, **options))) == len(whole)


def test_tensors_too(tmp_path: Path) -> None:
    pytest.importorskip("torch")
    from tokenriver.torch import TrainDataset, to_device

    write(tmp_path, "uint16", 900, {1234: 65_535})
    with pytest.raises(FormatError, match="id 65,535 at token 1,234"):
        list(to_device(TrainLoader(tmp_path, batch_size=4, seq_len=32, epochs=1), "cpu"))
    with pytest.raises(FormatError, match="id 65,535 at token 1,234"):
        list(TrainDataset(tmp_path, batch_size=4, seq_len=32, epochs=1))
