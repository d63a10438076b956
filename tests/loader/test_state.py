"""Resuming: anywhere, twice in a row, on another world size, in constant time; and the refusal of what does not fit."""

from __future__ import annotations

import json
from collections.abc import Callable
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from positions import write_data_set

from tokenriver import Batch, IntegrityError, Mixture, ResumeError, TrainLoader, UsageError, write_shard
from tokenriver.loader.fingerprint import Fingerprint
from tokenriver.loader.order import ORDERS
from tokenriver.loader.state import STATE_KEYS

DataSet = Callable[..., Path]


def names(batches: list[Batch]) -> list[tuple[int, int, list[int]]]:
    return [(batch.epoch, batch.step, batch.inputs[:, 0].tolist()) for batch in batches]


def through_json(state: dict[str, Any]) -> dict[str, Any]:
    return json.loads(json.dumps(state))


def test_the_state_is_nine_values_without_rank_and_a_new_dict_each_time(data_set: DataSet) -> None:
    root = data_set([2000])
    states = []
    for rank in range(4):
        loader = TrainLoader(root, batch_size=2, seq_len=8, rank=rank, world_size=4)
        list(islice(loader, 3))
        states.append(loader.state_dict())
        assert loader.state_dict() is not loader.state_dict()
    assert tuple(states[0]) == STATE_KEYS
    assert states[0]["global_batch_size"] == 8
    assert (states[0]["epoch"], states[0]["step"]) == (0, 3)
    assert all(state == states[0] for state in states)
    assert len(json.dumps(states[0])) < 1024


@settings(max_examples=40)
@given(
    runs=st.lists(st.integers(0, 25), min_size=1, max_size=6),
    order=st.sampled_from(ORDERS),
    prefetch=st.integers(0, 4),
    drop_last=st.booleans(),
    worlds=st.lists(st.sampled_from([1, 2, 4]), min_size=6, max_size=6),
)
def test_stopping_anywhere_any_number_of_times_on_any_world_size_changes_nothing(
    tmp_path_factory: pytest.TempPathFactory,
    runs: list[int],
    order: str,
    prefetch: int,
    drop_last: bool,
    worlds: list[int],
) -> None:
    root = write_data_set(tmp_path_factory.mktemp("resume"), [90, 31])

    def loader(world: int, rank: int) -> TrainLoader:
        return TrainLoader(
            root,
            batch_size=4 // world,
            seq_len=5,
            order=order,
            seed=9,
            rank=rank,
            world_size=world,
            prefetch=prefetch,
            drop_last=drop_last,
        )

    reference = names(list(islice(loader(1, 0), sum(runs))))
    state = loader(1, 0).state_dict()
    got: list[tuple[int, int, list[int]]] = []
    for run, world in zip(runs, worlds, strict=False):
        parts = []
        for rank in range(world):
            one = loader(world, rank)
            one.load_state_dict(state)
            assert one.state_dict() == state
            parts.append(names(list(islice(one, run))))
            last = through_json(one.state_dict())
        state = last
        got += [
            (step[0][0], step[0][1], [row for part in step for row in part[2]]) for step in zip(*parts, strict=True)
        ]
    assert got == reference


def test_a_state_loads_before_and_during_iteration(data_set: DataSet) -> None:
    root = data_set([700])
    whole = names(list(islice(TrainLoader(root, batch_size=2, seq_len=6), 100)))
    saved = TrainLoader(root, batch_size=2, seq_len=6)
    list(islice(saved, 60))
    state = through_json(saved.state_dict())
    for advance in (0, 1, 7):
        loader = TrainLoader(root, batch_size=2, seq_len=6, prefetch=4)
        batches = iter(loader)
        list(islice(batches, advance))
        loader.load_state_dict(state)
        assert names(list(islice(batches, 40))) == whole[60:]


def test_at_the_end_of_an_epoch_the_next_batch_is_the_next_epoch_s_first(data_set: DataSet) -> None:
    loader = TrainLoader(data_set([601]), batch_size=2, seq_len=6, epochs=3)
    list(islice(loader, 50))
    state = loader.state_dict()
    assert (state["epoch"], state["step"]) == (1, 0)
    for same in (state, state | {"epoch": 0, "step": 50}):
        loader.load_state_dict(same)
        batch = next(iter(loader))
        assert (batch.epoch, batch.step) == (1, 0)


def test_the_first_batch_after_a_resume_is_new_within_the_epoch(data_set: DataSet) -> None:
    root = data_set([2001])
    loader = TrainLoader(root, batch_size=2, seq_len=10)
    before = {row for _, _, rows in names(list(islice(loader, 40))) for row in rows}
    again = TrainLoader(root, batch_size=2, seq_len=10)
    again.load_state_dict(loader.state_dict())
    after = {row for _, _, rows in names(list(islice(again, 60))) for row in rows}
    assert not before & after
    assert len(before | after) == 200


def test_a_millionth_step_is_reached_in_constant_time_and_without_reading_forward(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_shard(tmp_path / "a.bin", np.zeros(4_000_001, np.uint16))
    loader = TrainLoader(tmp_path / "a.bin", batch_size=1, seq_len=2, prefetch=0)
    reads = []
    fill = loader.fill
    monkeypatch.setattr(loader, "fill", lambda *arguments: reads.append(arguments) or fill(*arguments))
    for _ in range(5):
        loader.load_state_dict(loader.state_dict() | {"epoch": 3, "step": 1_000_000})
        batch = next(iter(loader))
        assert (batch.epoch, batch.step) == (3, 1_000_000)
    assert len(reads) == 5


def test_w8_resumes_as_1_2_4_and_16_and_3_is_refused(data_set: DataSet) -> None:
    root = data_set([3000])

    def run(world: int, state: dict[str, Any] | None) -> tuple[list[list[int]], dict[str, Any]]:
        loaders = [TrainLoader(root, batch_size=16 // world, seq_len=8, rank=r, world_size=world) for r in range(world)]
        for loader in loaders:
            if state:
                loader.load_state_dict(state)
        parts = [names(list(islice(loader, 5))) for loader in loaders]
        return [[row for part in step for row in part[2]] for step in zip(*parts, strict=True)], loaders[0].state_dict()

    _, state = run(8, None)
    reference, _ = run(8, state)
    for world in (1, 2, 4, 16):
        assert run(world, state)[0] == reference
    with pytest.raises(ResumeError, match=r"16 rows, which 3 ranks cannot share evenly \(16 % 3 = 1\)"):
        TrainLoader(root, batch_size=5, seq_len=8, rank=0, world_size=3).load_state_dict(state)
    with pytest.raises(ResumeError, match=r"was 16 rows, here it is 8; with 2 ranks, batch_size=8 gives the same"):
        TrainLoader(root, batch_size=4, seq_len=8, rank=0, world_size=2).load_state_dict(state)


@pytest.mark.parametrize(
    ("field", "options"),
    [
        ("seq_len was 8, here it is 4", {"seq_len": 4}),
        ("seed was 0, here it is 1", {"seed": 1}),
        ("order was 'shuffled', here it is 'sequential'", {"order": "sequential"}),
        ("split was 'train', here it is 'val'", {"split": "val"}),
        ("global_batch_size was 2 rows, here it is 4", {"batch_size": 4}),
    ],
)
def test_another_setting_is_refused_by_name_unless_allowed(
    data_set: DataSet, field: str, options: dict[str, Any]
) -> None:
    root = data_set([500], val=[500])
    state = TrainLoader(root, batch_size=2, seq_len=8).state_dict() | {"step": 6}
    other = TrainLoader(root, **({"batch_size": 2, "seq_len": 8} | options))
    with pytest.raises(ResumeError, match=field):
        other.load_state_dict(state)
    assert other.step == 0
    allowed = ["split", "fingerprint"] if "split" in options else [next(iter(options))]
    allowed = ["global_batch_size" if name == "batch_size" else name for name in allowed]
    other.load_state_dict(state, allow_change=allowed)
    assert other.step == (3 if "batch_size" in options else 6)
    other.load_state_dict(state, allow_change=True)
    for unknown in ("rank", ["seed", 1], b"seed", 1, None):
        with pytest.raises(UsageError, match="allow_change knows"):
            other.load_state_dict(state, allow_change=unknown)  # type: ignore[arg-type]


def edit_manifest(root: Path, change: Callable[[dict[str, Any]], None]) -> None:
    path = root / "_MANIFEST.json"
    manifest = json.loads(path.read_text())
    change(manifest)
    path.write_text(json.dumps(manifest))


def test_changed_data_is_refused_by_what_changed(tmp_path: Path) -> None:
    def saved_and_changed(change: Callable[[Path], None]) -> tuple[dict[str, Any], TrainLoader]:
        root = write_data_set(tmp_path / change.__name__, [200, 200, 100])
        state = TrainLoader(root, batch_size=2, seq_len=8).state_dict()
        change(root)
        return state, TrainLoader(root, batch_size=2, seq_len=8)

    def shard_added(root: Path) -> None:
        write_data_set(root, [200, 200, 100, 40])

    def shard_removed(root: Path) -> None:
        edit_manifest(root, lambda manifest: manifest["files"].pop())

    def order_changed(root: Path) -> None:
        edit_manifest(root, lambda manifest: manifest["files"].reverse())

    def tokenizer_changed(root: Path) -> None:
        edit_manifest(root, lambda manifest: manifest.update(tokenizer_sha256="1" * 64))

    def version_changed(root: Path) -> None:
        edit_manifest(root, lambda manifest: manifest.update(version="v2"))

    def size_changed(root: Path) -> None:
        write_data_set(root, [200, 150, 150])

    expected: list[tuple[Callable[[Path], None], str]] = [
        (shard_added, r"the number of shards \(3 → 4\), the number of tokens \(500 → 540\)"),
        (shard_removed, r"the number of shards \(3 → 2\)"),
        (order_changed, "the shards' names or their order"),
        (tokenizer_changed, r"the tokenizer \(positions@0000000000000000 → positions@1111111111111111\)"),
        (version_changed, r"the data changed: the manifest \("),
        (size_changed, "the shards' sizes"),
    ]
    for change, message in expected:
        state, loader = saved_and_changed(change)
        with pytest.raises(ResumeError, match=message):
            loader.load_state_dict(state)
        loader.load_state_dict(state, allow_change="fingerprint")


def test_without_a_manifest_names_sizes_headers_and_samples_identify_the_data(tmp_path: Path) -> None:
    paths = [tmp_path / f"x_{i}.bin" for i in range(3)]
    for i, path in enumerate(paths):
        write_shard(path, np.arange(1000) + i)

    def loader(*which: int) -> TrainLoader:
        return TrainLoader([paths[i] for i in which], batch_size=2, seq_len=8)

    state = loader(0, 1).state_dict()
    loader(0, 1).load_state_dict(state)
    for which, message in (((0, 1, 2), "number of shards"), ((1, 0), "names or their order"), ((0, 2), "names")):
        with pytest.raises(ResumeError, match=message):
            loader(*which).load_state_dict(state)
    write_shard(paths[1], np.arange(1000) + 5)
    with pytest.raises(ResumeError, match="the shards' content"):
        loader(0, 1).load_state_dict(state)
    write_shard(paths[1], np.arange(1000) + 1, vocab_size=5000)
    with pytest.raises(ResumeError, match="widths or vocabulary"):
        loader(0, 1).load_state_dict(state)


def flip(path: Path, offset: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[offset] ^= 1
    path.write_bytes(raw)


def test_one_changed_byte_is_found_by_verify(tmp_path: Path) -> None:
    root = write_data_set(tmp_path / "data", [5000, 5000])
    state = TrainLoader(root, batch_size=2, seq_len=8).state_dict()
    TrainLoader(root, batch_size=2, seq_len=8, verify=True).load_state_dict(state, verify=True)
    flip(root / "train-00001.bin", 4321)
    loader = TrainLoader(root, batch_size=2, seq_len=8)
    loader.load_state_dict(state)
    with pytest.raises(IntegrityError, match=r"train-00001\.bin: SHA-256"):
        loader.load_state_dict(state, verify=True)
    with pytest.raises(IntegrityError, match=r"train-00001\.bin: SHA-256"):
        TrainLoader(root, batch_size=2, seq_len=8, verify=True)


def test_verify_without_a_manifest_compares_with_a_verified_state(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.bin", np.arange(5000))
    sampled = TrainLoader(tmp_path / "a.bin", batch_size=2, seq_len=8)
    verified = TrainLoader(tmp_path / "a.bin", batch_size=2, seq_len=8, verify=True)
    sampled.load_state_dict(verified.state_dict(), verify=True)
    with pytest.raises(UsageError, match="nothing to compare with"):
        sampled.load_state_dict(sampled.state_dict(), verify=True)
    flip(tmp_path / "a.bin", 3000)
    with pytest.raises(ResumeError, match=r"content \(SHA-256\)"):
        TrainLoader(tmp_path / "a.bin", batch_size=2, seq_len=8).load_state_dict(verified.state_dict(), verify=True)


def test_a_verified_state_still_refuses_another_file_where_nothing_is_verified(tmp_path: Path) -> None:
    write_shard(tmp_path / "a.bin", np.arange(5000))
    state = TrainLoader(tmp_path / "a.bin", batch_size=2, seq_len=8, verify=True).state_dict()
    assert len(json.dumps(state)) < 1024
    TrainLoader(tmp_path / "a.bin", batch_size=2, seq_len=8).load_state_dict(state)
    write_shard(tmp_path / "a.bin", np.arange(5000)[::-1].copy())
    with pytest.raises(ResumeError, match=r"the shards' content \(sample:"):
        TrainLoader(tmp_path / "a.bin", batch_size=2, seq_len=8).load_state_dict(state)
    alone = Fingerprint("a=b@0", 3, 10, "n", "h", "sha256:c", "-")
    assert alone.differences(Fingerprint("a=b@0", 3, 10, "n", "h", "sample:c", "-")) == []


@pytest.mark.parametrize("manifest", [True, False])
def test_verify_hashes_the_shards_of_every_source_of_a_mixture(tmp_path: Path, manifest: bool) -> None:
    roots = {name: write_data_set(tmp_path / name, [400, 300]) for name in ("a", "b")}
    sources = {name: (root if manifest else f"{root}/*.bin", 0.5) for name, root in roots.items()}
    options: dict[str, Any] = {"batch_size": 2, "seq_len": 8}
    state = TrainLoader(Mixture(sources), verify=True, **options).state_dict()
    loader = TrainLoader(Mixture(sources), **options)
    loader.load_state_dict(state, verify=True)
    flip(roots["b"] / "train-00001.bin", 1500)
    error: type[Exception] = IntegrityError
    message = r"b/train-00001\.bin: SHA-256 is not the one in .*b/_MANIFEST\.json"
    if not manifest:
        error, message = ResumeError, r"content \(SHA-256\) is not what it was"
    with pytest.raises(error, match=message):
        loader.load_state_dict(state, verify=True)
    alone = TrainLoader(roots["a"], **options).state_dict()
    if manifest:
        with pytest.raises(error, match=message):
            loader.load_state_dict(alone, verify=True, allow_change="mixture")
    else:
        loader.load_state_dict(alone, verify=True, allow_change="mixture")  # nothing is recorded of any source


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"version": 2}, "version 2; this tokenriver reads version 1"),
        ({"step": -1}, "step is -1"),
        ({"epoch": 1.0}, "epoch is 1.0"),
        ({"seed": True}, "seed is True"),
        ({"rank": 0}, "it has rank"),
        ({"step": None}, "step is None"),
        ({"fingerprint": "what"}, "fingerprint is not one"),
        ({"version": 10**5000}, "version a number of thousands of digits; this tokenriver reads"),
        ({"version": np.array([1, 2])}, r"version array\(\[1, 2\]\); this tokenriver reads"),
        ({"version": "1" * 1000}, r"version '1{199}…; this tokenriver reads"),
        ({"step": 10**5000}, "step is a number of thousands of digits"),
        ({"order": "s" * 1000}, "order was 's{199}…, here it is 'shuffled'"),
        ({"split": "train\n"}, r"split was 'train\\n', here it is 'train'"),
        ({"seed": np.arange(2000).reshape(2, 1000)}, r"seed is array\(\[\[ 0, 1, 2, "),
        ({"seq_len": 0}, "seq_len is 0, expected a whole number of 1 or more"),
        ({"global_batch_size": 0}, "global_batch_size is 0, expected a whole number of 1 or more"),
        ({"packing": {"mode": "best-fit", "window": 10**5000}}, "packing was concat, here|packing was best-fit, here"),
    ],
)
def test_a_malformed_state_is_refused(data_set: DataSet, change: dict[str, Any], message: str) -> None:
    loader = TrainLoader(data_set([500]), batch_size=2, seq_len=8)
    with pytest.raises(ResumeError, match=message) as found:
        loader.load_state_dict(loader.state_dict() | change)
    assert "\n" not in str(found.value)
    assert len(str(found.value)) < 1000
    incomplete = loader.state_dict()
    del incomplete["order"]
    with pytest.raises(ResumeError, match="lacks order"):
        loader.load_state_dict(incomplete)
    with pytest.raises(ResumeError, match="a dict, not list"):
        loader.load_state_dict([])


def test_a_fingerprint_reads_what_it_wrote() -> None:
    fingerprint = Fingerprint("a=b@0", 3, 10, "n", "h", "sample:c", "-")
    assert Fingerprint.parse(str(fingerprint)) == fingerprint


def test_a_state_that_comes_back_with_numpy_s_integers_is_the_same(data_set: DataSet) -> None:
    root = data_set([2000])
    loader = TrainLoader(root, batch_size=2, seq_len=8)
    list(islice(loader, 3))
    saved = {k: np.int64(v) if isinstance(v, int) else v for k, v in loader.state_dict().items()}
    other = TrainLoader(root, batch_size=2, seq_len=8)
    other.load_state_dict(saved)
    assert through_json(other.state_dict()) == loader.state_dict()
    for bad in (np.float64(3), np.bool_(True), np.array([3])):
        with pytest.raises(ResumeError, match="not the state of a loader: step is"):
            other.load_state_dict(saved | {"step": bad})
