"""Scores of a model over an export: alone and over the ranks of torch.distributed the same."""

from __future__ import annotations

import json
import math
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import golf_roots
import numpy as np
import pytest
import torch
from upath import UPath

import tokenriver
from tokenriver.bpb.golf import bpb_of, eval_bpb
from tokenriver.cli import main
from tokenriver.errors import UsageError
from tokenriver.golf import load_validation_tokens
from tokenriver.golfing.score import score_golf

MODEL = '''
import numpy as np
def loss(x, y):
    """1.5 to 2.5 nats by the ids, for NumPy and torch alike."""
    return 1.5 + ((31 * int(x.sum()) + int(y.sum())) % 1000) / 1000
'''


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("score")
    golf_roots.make_root(folder, num_val_docs=60)
    (folder / "golf_model.py").write_text(MODEL)
    return folder / "export"


def words(root: Path) -> dict[str, Any]:
    return {
        "val": root / "datasets/fineweb10B_sp300",
        "tokenizer": root / "tokenizers/fineweb_300_bpe.model",
        "seq_len": 32,
        "val_batch_size": 512,
        "grad_accum_steps": 2,
    }


def hash_loss(x: Any, y: Any) -> float:
    return 1.5 + ((31 * int(x.sum()) + int(y.sum())) % 1000) / 1000


@pytest.mark.parametrize("name", ["set [1]", "s*t", "w?"])
def test_a_folder_s_name_is_no_pattern(root: Path, tmp_path: Path, name: str) -> None:
    shards = sorted((root / "datasets/fineweb10B_sp300").glob("fineweb_val_*.bin"))
    for folder in (tmp_path / name, UPath(f"memory://score/{name}")):
        folder.mkdir(parents=True)
        for shard in shards:
            (folder / shard.name).write_bytes(shard.read_bytes())
        there = {**words(root), "val": str(folder)}
        assert score_golf(hash_loss, **there) == score_golf(hash_loss, **words(root))
        one = str(folder / shards[0].name)
        assert load_validation_tokens(one, 32).tolist() == load_validation_tokens(str(shards[0]), 32).tolist()
    UPath("memory://score").rmdir(recursive=True)


def test_a_constant_loss_gives_bits_by_hand(root: Path) -> None:
    score = score_golf(lambda _x, _y: 2.0, **words(root))
    assert score.val_loss == 2.0
    assert score.val_bpb == pytest.approx(2.0 / math.log(2) * score.targets / score.n_bytes, rel=1e-15)
    files = sorted((root / "datasets/fineweb10B_sp300").glob("fineweb_val_*.bin"))
    n = sum(tokenriver.open_shard(f).n_tokens for f in files)
    assert score.targets == (n - 1) // 32 * 32


def test_tensors_and_arrays_give_the_same(root: Path) -> None:
    by_array = score_golf(hash_loss, **words(root))
    by_tensor = score_golf(lambda x, y: torch.tensor(hash_loss(x, y), dtype=torch.float64), device="cpu", **words(root))
    assert by_array == by_tensor
    pattern = {**words(root), "val": str(root / "datasets/fineweb10B_sp300/fineweb_val_*.bin")}
    assert score_golf(hash_loss, **pattern) == by_array
    byte = {**words(root), "val": root / "datasets/fineweb10B_byte260", "tokenizer": "byte260"}
    counted = score_golf(lambda _x, _y: np.float64(1.0), **byte)
    assert counted.n_bytes < counted.targets, "the begin ids have no bytes"


def test_what_is_no_loss_and_what_has_no_bytes_is_refused(root: Path) -> None:
    for wrong, words_ in ((np.zeros((2, 3)), r"shape \(2, 3\)"), (None, "NoneType"), (torch.zeros(2), r"shape \(2,\)")):
        with pytest.raises(UsageError, match=f"the model gave {words_}; expected one number"):
            score_golf(lambda _x, _y, wrong=wrong: wrong, **words(root))
    with pytest.raises(UsageError, match="stand for no bytes of text"):
        bpb_of(20.0, 10, 0)


def test_a_loss_that_is_no_number_is_no_score(root: Path) -> None:
    losses = iter([2.0, math.nan, *[2.0] * 1000])
    with pytest.raises(UsageError, match=r"loss over the [\d,]+ targets is not a number"):
        score_golf(lambda _x, _y: next(losses), **words(root))


def test_a_batch_without_a_sequence_is_refused(root: Path) -> None:
    with pytest.raises(UsageError, match="at least one sequence per rank"):
        score_golf(hash_loss, **{**words(root), "val_batch_size": 63})


RANKS = """
import os, sys, torch.distributed
from tokenriver.bpb.golf import eval_bpb
from tokenriver.cli import main
children = []
for rank in range(2):
    child = os.fork()
    if not child:
        os.environ |= {"RANK": str(rank), "WORLD_SIZE": "2", "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": sys.argv[1]}
        code = main(["golf", "score", *sys.argv[2:], "--device", "cpu", "--grad-accum-steps", "1", "--json"])
        torch.distributed.destroy_process_group()
        os._exit(code)
    children.append(child)
sys.exit(max(os.waitpid(child, 0)[1] for child in children))
"""


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@pytest.mark.skipif(not hasattr(os, "fork"), reason="starts two ranks by fork")
def test_two_ranks_of_torch_distributed_add_up(root: Path) -> None:
    val, model = str(root / "datasets/fineweb10B_sp300"), str(root / "tokenizers/fineweb_300_bpe.model")
    arguments = ["--model", "golf_model:loss", "--seq-len", "32", "--val-batch-size", "512", "--val", val]
    result = subprocess.run(
        [sys.executable, "-c", RANKS, str(free_port()), *arguments, "--tokenizer", model],
        cwd=root.parent,
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
        env={**os.environ, "PYTHONPATH": str(Path(tokenriver.__file__).parents[1]), "OMP_NUM_THREADS": "1"},
    )
    assert result.returncode == 0, result.stderr
    got = json.loads(result.stdout)  # one rank speaks
    ids = load_validation_tokens(f"{val}/fineweb_val_*.bin", 32, device=None)
    tokenizer = tokenriver.load_tokenizer(model)
    ranks = [
        eval_bpb(hash_loss, ids, tokenizer, seq_len=32, batch_tokens=512, rank=rank, world_size=2) for rank in range(2)
    ]
    nats, targets, n_bytes = np.sum(ranks, axis=0)
    assert (got["targets"], got["n_bytes"], got["world_size"]) == (targets, n_bytes, 2)
    assert got["val_loss"] == nats / targets
    assert got["val_bpb"] == pytest.approx(nats / targets / math.log(2) * (targets / n_bytes), rel=1e-15)


def test_the_command_prints_what_the_function_gives(
    root: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(root.parent)
    monkeypatch.setattr(sys, "path", list(sys.path))
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    command = ["golf", "score", "--model", "golf_model:loss", "--val", "export/datasets/fineweb10B_sp300"]
    command += ["--tokenizer", "export/tokenizers/fineweb_300_bpe.model", "--seq-len", "32", "--val-batch-size", "512"]
    assert main([*command, "--grad-accum-steps", "2"]) == 0
    seen: list[tuple[int, int]] = []
    expected = score_golf(hash_loss, **words(root), progress=lambda done, of: seen.append((done, of)))
    assert len(seen) > 1
    assert sorted(set(seen)) == seen
    assert seen[-1] == (expected.targets, expected.targets)
    printed, told = capsys.readouterr()
    assert told.startswith("scoring: 100 % · ")
    assert f" · {expected.targets:,} tokens · " in told
    assert main([*command, "--quiet"]) == 0
    assert capsys.readouterr().err == ""
    assert f"val_loss {expected.val_loss:.8f}" in printed
    assert f"val_bpb {expected.val_bpb:.8f}" in printed
