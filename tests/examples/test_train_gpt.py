"""The examples run; training that was stopped twice has the losses of training that was not."""

from __future__ import annotations

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import pytest
from positions import write_data_set

from tokenriver import write_shard
from tokenriver.shards.index import index_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"


def run(*words: str, cwd: Path) -> str:
    environment = os.environ | {"PYTHONPATH": os.pathsep.join(sys.path), "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, *words], capture_output=True, text=True, cwd=cwd, env=environment)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def text_set(tmp_path: Path) -> Path:
    """Byte tokens of this repository's own prose, in the tokens layout."""
    root = write_data_set(tmp_path / "data", [6000, 3000], val=[1500])
    text = np.frombuffer((EXAMPLES / "train_gpt.py").read_bytes() * 2, np.uint8)
    manifest = json.loads((root / "_MANIFEST.json").read_text())
    at = 0
    for file in manifest["files"]:
        facts = write_shard(root / file["name"], text[at : at + file["n_tokens"]], vocab_size=256)
        file["sha256"], at = facts.sha256, at + file["n_tokens"]
        ends = np.append(np.cumsum(np.arange(5, 45)), file["n_tokens"])
        ends.astype("<u8").tofile(index_path(root / file["name"]))
    (root / "_MANIFEST.json").write_text(json.dumps(manifest | {"vocab_size": 256}))
    return root


@pytest.fixture
def train_gpt(monkeypatch: pytest.MonkeyPatch) -> Iterator[ModuleType]:
    """The example as a module: as a process it would spend its time importing torch, four times over.

    On one thread: those of a busy machine wait for each other in loops.
    """
    import torch

    spec = importlib.util.spec_from_file_location("train_gpt", EXAMPLES / "train_gpt.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "train_gpt", module)
    spec.loader.exec_module(module)
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield module
    torch.set_num_threads(threads)


def test_the_training_example_is_short() -> None:
    assert len((EXAMPLES / "train_gpt.py").read_text().splitlines()) < 200


@pytest.mark.parametrize("packing", ["concat", "best-fit"])
def test_training_stopped_twice_has_the_same_losses(
    train_gpt: ModuleType, text_set: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], packing: str
) -> None:
    words = ["--data", str(text_set), "--tokenizer", "byte", "--device", "cpu", "--eval-every", "1000"]
    words += [
        "--packing",
        packing,
        "--batch-size",
        "4",
        "--seq-len",
        "32",
        "--n-layer",
        "1",
        "--n-head",
        "2",
        "--n-embd",
        "16",
    ]

    def train(steps: int, checkpoint: str, *more: str) -> str:
        train_gpt.main([*words, "--steps", str(steps), "--checkpoint", str(tmp_path / checkpoint), *more])
        return capsys.readouterr().out

    def losses(out: str, kind: str) -> list[str]:
        return re.findall(rf"^(step \d+: {kind} .*)$", out, re.MULTILINE)

    whole = train(30, "whole.pt")
    pieces = train(11, "piece.pt") + train(23, "piece.pt", "--resume") + train(30, "piece.pt", "--resume")
    assert len(losses(whole, "train")) == 30
    assert losses(pieces, "train") == losses(whole, "train")
    assert losses(pieces, "val")[-1] == losses(whole, "val")[-1]
    found = [re.search(r"train ([\d.]+) nats per token, ([\d.]+) bits", line) for line in losses(whole, "train")]
    nats, bits = ([float(match[k]) for match in found if match] for k in (1, 2))
    assert nats[-1] < nats[0] < 6
    assert bits == pytest.approx([n / np.log(2) for n in nats], abs=1e-3)


def test_the_drop_in_loaders_run_from_one_pattern(text_set: Path, tmp_path: Path) -> None:
    out = run(str(EXAMPLES / "drop_in.py"), str(text_set / "train-*.bin"), cwd=tmp_path)
    assert [line.split(":")[0] for line in out.splitlines()] == ["llm.c", "llm.c", "golf", "golf"]
