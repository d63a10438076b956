"""Sources that one model could not read, or that hold what was not meant, and states that no loader saved."""

from __future__ import annotations

from decimal import Decimal
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tokenriver import FormatError, Mixture, ResumeError, TrainLoader, UsageError, golf, llmc, write_shard
from tokenriver.loader.source import resolve
from tokenriver.shards.index import index_shard

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

OPTIONS: dict[str, Any] = {"batch_size": 2, "seq_len": 8}


def test_shards_of_two_vocabularies_are_refused_where_no_manifest_lists_them(tmp_path: Path) -> None:
    paths = [tmp_path / "a.bin", tmp_path / "b.bin", tmp_path / "c.bin"]
    for path, size in zip(paths, (256, 0, 50_257), strict=True):
        write_shard(path, np.arange(100, dtype=np.uint16), vocab_size=size)
    for source in (paths, str(tmp_path / "*.bin"), [f"file://{path}" for path in paths]):
        with pytest.raises(UsageError, match=r"a\.bin has a vocabulary of 256 ids, .*c\.bin one of 50,257"):
            resolve(source, split="train")
    assert resolve(paths[:2], split="train").n_tokens == 200


def test_a_list_of_both_splits_is_refused_as_a_pattern_is(data_set: Callable[..., Path]) -> None:
    root = data_set([100])
    write_shard(root / "val-00000.bin", np.arange(50, dtype=np.uint16))
    with pytest.raises(UsageError, match="the list holds train and val shards"):
        resolve([root / "train-00000.bin", root / "val-00000.bin"], split="train")


def test_a_pattern_means_the_shards_and_not_their_indexes(tmp_path: Path) -> None:
    shard = tmp_path / "train-00000.bin"
    write_shard(shard, np.arange(100, dtype=np.uint16))
    index_shard(shard, separator_id=0)
    assert [s.path.name for s in resolve(str(tmp_path / "train*"), split="train").shards] == ["train-00000.bin"]


def test_data_sets_in_a_list_and_a_corpus_are_called_what_they_are(
    data_set: Callable[..., Path], tmp_path: Path
) -> None:
    root = data_set([100])
    with pytest.raises(UsageError, match=r"a directory, but a list is of shards; .*Mixture"):
        resolve([root, root / "train-00000.bin"], split="train")
    corpus = tmp_path / "corpus"
    corpus.mkdir()
    listed = '[{"name": "corpus-00000.jsonl.zst", "n_docs": 1, "n_bytes": 3, "sha256": "00"}]'
    (corpus / "_MANIFEST.json").write_text(f'{{"name": "c", "version": "v1", "files": {listed}}}')
    with pytest.raises(FormatError, match=r"lists documents \(a corpus\), not token shards"):
        resolve(corpus, split="train")


def test_a_text_in_a_shard_s_place_is_called_a_text(tmp_path: Path) -> None:
    (tmp_path / "docs.jsonl").write_text('\ufeff{"text": "a river, река"}\n' * 80, encoding="utf-8")
    with pytest.raises(FormatError, match=r"docs\.jsonl: text, not ids: it begins with '\{\"text"):
        resolve(tmp_path / "docs.jsonl", split="train")


def test_a_refused_state_says_which_changes_to_allow_and_a_step_beyond_the_epoch_is_none(
    data_set: Callable[..., Path],
) -> None:
    loader = TrainLoader(data_set([200]), **OPTIONS, seed=1)
    list(islice(loader, 2))
    state = loader.state_dict()
    other = TrainLoader(data_set([210]), **OPTIONS, order="sequential", seed=1)
    with pytest.raises(ResumeError, match=r'allow_change=\["fingerprint", "order"\]'):
        other.load_state_dict(state)
    with pytest.raises(ResumeError, match="step is -1, expected a whole number of 0 or more"):
        loader.load_state_dict({**state, "step": -1})
    steps = loader.steps_per_epoch
    with pytest.raises(ResumeError, match=f"step is {steps + 1}, but epoch 0 has {steps}"):
        loader.load_state_dict({**state, "step": steps + 1})
    loader.load_state_dict({**state, "step": steps})
    assert (loader.epoch, loader.step) == (1, 0)


def test_a_mixture_s_faults_name_its_file_and_a_name_is_a_text(tmp_path: Path) -> None:
    (tmp_path / "mix.toml").write_text('[sources.a]\npath = "a"\nweight = "much"\n')
    with pytest.raises(UsageError, match=r"mix\.toml: the weight of a is 'much'"):
        Mixture(tmp_path / "mix.toml")
    for name in (1, ""):
        with pytest.raises(UsageError, match="a source's name is a text"):
            Mixture({name: ("a", 1)})  # type: ignore[dict-item]


def test_epochs_of_the_flat_stream_are_not_counted_one_by_one(data_set: Callable[..., Path]) -> None:
    mixture = Mixture({"a": (data_set([20]), 1)})
    loader = TrainLoader(mixture, **OPTIONS)
    with pytest.raises(UsageError, match=r"a step of .* rows .* is more than the 4,194,304"):
        TrainLoader(mixture, batch_size=10**21, seq_len=8)
    rows = loader.mixture_rows.rows_of(0, 0)
    assert loader.mixture_rows.epoch_of(0, rows * 10**15 + 1) == (10**15, 1)
    batch = loader.batch_at(10**12)
    assert np.array_equal(batch.targets, batch.inputs + 1)


def test_ranks_of_the_environment_that_cannot_be_are_named_as_such(
    data_set: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = data_set([100])
    monkeypatch.setenv("RANK", "1")
    monkeypatch.delenv("WORLD_SIZE", raising=False)
    with pytest.raises(UsageError, match=r"world size of 1, not 1 \(RANK in the environment\); torchrun sets RANK and"):
        TrainLoader(root, **OPTIONS)
    monkeypatch.setenv("WORLD_SIZE", "two")
    with pytest.raises(UsageError, match=r"not 'two' \(WORLD_SIZE in the environment\)"):
        TrainLoader(root, **OPTIONS)
    assert TrainLoader(root, **OPTIONS, rank=0, world_size=1).world_size == 1
    monkeypatch.setenv("WORLD_SIZE", "9" * 5000)
    with pytest.raises(UsageError, match=r"not '9{40}' \(WORLD_SIZE in the environment\)"):
        TrainLoader(root, **OPTIONS)


@pytest.mark.parametrize("name", ["rank", "world_size"])
def test_what_is_no_number_is_no_rank_either(data_set: Callable[..., Path], name: str) -> None:
    root, least = data_set([100]), int(name == "world_size")
    for wrong in (True, 1.0, 10**50, 10**5000, np.bool_(True), b"0", Decimal(1)):
        with pytest.raises(UsageError, match=f"{name} (is a whole number, not|has at most 40 digits)"):
            TrainLoader(root, **OPTIONS, **{name: wrong})
    for wrong in (least - 1, -1, "", "one", str(least - 1)):
        with pytest.raises(UsageError, match=f"{name} is an integer of {least} or more, not {wrong!r}"):
            TrainLoader(root, **OPTIONS, **{name: wrong})
    for good in (least, np.int64(least), str(least)):  # the environment's are texts
        assert getattr(TrainLoader(root, **OPTIONS, **{name: good}), name) == least


@pytest.mark.parametrize("name", ["drop_last", "verify"])
def test_a_flag_is_true_or_false(data_set: Callable[..., Path], name: str) -> None:
    root = data_set([100])
    for wrong in ("no", 0, 1, None):
        with pytest.raises(UsageError, match=f"{name} is True or False, not {wrong!r}"):
            TrainLoader(root, **OPTIONS, **{name: wrong})
    assert TrainLoader(root, **OPTIONS, **{name: np.bool_(True)}).n_tokens == 100
    loader = TrainLoader(root, **OPTIONS)
    with pytest.raises(UsageError, match="verify is True or False, not 'no'"):
        loader.load_state_dict(loader.state_dict(), verify="no")  # type: ignore[arg-type]


def test_processes_that_do_not_know_their_rank_do_not_all_read_the_rows_of_rank_0(
    data_set: Callable[..., Path], monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    root = data_set([100])
    monkeypatch.delenv("RANK", raising=False)
    monkeypatch.setenv("WORLD_SIZE", "4")
    with pytest.raises(UsageError, match=r"world_size is 4 \(WORLD_SIZE in the environment\), but which rank"):
        TrainLoader(root, **OPTIONS)
    assert TrainLoader(root, **OPTIONS, world_size=2).rank == 0
    assert "world_size is 2, and no rank was given: this loader reads the rows of rank 0" in caplog.text
    assert TrainLoader(root, **OPTIONS, rank=3).rank == 3
    assert TrainLoader(root, **OPTIONS, world_size=1).rank == 0
    monkeypatch.setenv("RANK", "1")
    assert TrainLoader(root, **OPTIONS, world_size=2).rank == 1


def test_a_shard_that_is_listed_twice_is_refused_however_it_is_written(
    data_set: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = data_set([100, 100])
    monkeypatch.chdir(root)
    for twice in ("./train-00000.bin", str(root / "train-00000.bin"), f"../{root.name}/train-00000.bin"):
        with pytest.raises(UsageError, match=r"train-00000\.bin is listed twice"):
            resolve(["train-00000.bin", "train-00001.bin", twice], split="train")
    with pytest.raises(UsageError, match=r"memory://x/train-00000\.bin is listed twice"):
        resolve(["memory://x/train-00000.bin"] * 2, split="train")


def test_train_shards_are_not_taken_for_val(data_set: Callable[..., Path]) -> None:
    root = data_set([100], val=[60])
    train, val = root / "train-00000.bin", root / "val-00000.bin"
    for source in (train, [train], f"{root}/train-*.bin", f"file://{train}", [f"file://{train}"]):
        with pytest.raises(UsageError, match="train shards by their names, but split='val' is asked for"):
            resolve(source, split="val")
    assert [resolve(val, split=split).n_tokens for split in ("train", "val")] == [60, 60]


def test_lists_of_patterns_and_sets_of_shards_are_refused(data_set: Callable[..., Path]) -> None:
    root = data_set([100])
    with pytest.raises(UsageError, match=r"train-\*\.bin: no such shard; a list is of shards, a pattern stands alone"):
        resolve([str(root / "train-*.bin")], split="train")
    with pytest.raises(UsageError, match=r"train-00007\.bin: no such shard$"):
        resolve([root / "train-00007.bin"], split="train")
    with pytest.raises(UsageError, match="a set of shards has no order"):
        resolve({str(root / "train-00000.bin")}, split="train")  # type: ignore[arg-type]


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_process_may_move_to_another_directory_after_it_opened_a_relative_path(
    data_set: Callable[..., Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    root = data_set([100])
    monkeypatch.chdir(root.parent)
    options: dict[str, Any] = {**OPTIONS, "prefetch": prefetch, "order": "sequential"}
    loaders = [
        TrainLoader(source, **options) for source in (root.name, f"{root.name}/*.bin", [f"{root.name}/train-00000.bin"])
    ]
    opened = llmc.DataLoader(f"{root.name}/*.bin", 2, 8), golf.TokenStream(f"{root.name}/*.bin", device=None)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert [next(iter(loader)).inputs[1, 0] for loader in loaders] == [8, 8, 8]
    assert opened[0].next_batch()[0][1, 0] == 8
    assert opened[1].take(3).tolist() == [0, 1, 2]
