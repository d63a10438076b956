"""The block-shuffled order: a permutation pinned by digests, whose ranks have blocks of their own, read once each."""

from __future__ import annotations

import gc
import hashlib
import math
import pickle
import re
import threading
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from evenness import chi_square_excess
from hypothesis import given, settings
from hypothesis import strategies as st
from positions import write_data_set

from tokenriver import IntegrityError, Mixture, ResumeError, TrainLoader, UsageError
from tokenriver.loader import block_rows
from tokenriver.loader.block_order import BlockOrder
from tokenriver.loader.order import permute
from tokenriver.loader.plan import Plan
from tokenriver.loader.stream import TokenReader

if TYPE_CHECKING:
    from collections.abc import Callable

GOLDEN = {
    # (rows, seq_len, global batch, seed, epoch): SHA-256 of the order as little-endian int64 (docs/loader.md)
    (1, 4, 1, 0, 0): "af5570f5a1810b7af78caf4bc70a660f0df51e42baf91d4de5b2328de0e83dfc",
    (1000, 1024, 8, 0, 0): "9e96eed0441c39575e4804ffcf1d81b0edceeb08682925a67047a45625df13b5",
    (5003, 2, 8, 1, 2): "692435502c9b4ac60040287ce4a41e09ed258aa8c353f194c5c32924c3493cb5",
    (100003, 64, 96, 1337, 3): "a940e83e898b0cf79f86cad3125eb597cdcf54fc9807395913960739e957e4e2",
    (300000, 2048, 512, 0, 1): "e5cd3509c817aa22072be89ba64e464ef148b0c09c41ecd6e477925a9ff771e8",
    (70000, 1048576, 7, 42, 7): "80f8cc4cbf02d8439db1cbf79c9ea4161faf7e571124629825ff954db72c8264",
}


def whole(n: int, seq_len: int, rows: int, *, seed: int = 0, epoch: int = 0) -> np.ndarray:
    return BlockOrder(n, seq_len, rows, seed).rows(np.arange(n), epoch)


@pytest.mark.parametrize(("key", "digest"), GOLDEN.items(), ids=str)
def test_the_order_never_changes(key: tuple[int, int, int, int, int], digest: str) -> None:
    n, seq_len, rows, seed, epoch = key
    order = whole(n, seq_len, rows, seed=seed, epoch=epoch)
    assert hashlib.sha256(order.astype("<i8").tobytes()).hexdigest() == digest


def test_the_page_lists_the_golden_digests() -> None:
    page = (Path(__file__).parents[2] / "docs" / "loader.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| (\d+) \| (\d+) \| (\d+) \| (\d+) \| (\d+) \| `([0-9a-f]{64})` \|$", page, re.MULTILINE)
    assert {tuple(map(int, key)): digest for *key, digest in listed} == GOLDEN


def specified(p: int, *, s: int, t: int, g: int, seed: int, epoch: int) -> int:
    """The rule of docs/loader.md, one position at a time."""

    def permuted(v: int, n: int, key: bytes) -> int:
        return int(permute(np.array([v]), n=n, seed=seed, epoch=epoch, key=key)[0])

    r = max(1, min(1024, 2**18 // t, s // 1024))
    n, rest = divmod(s, r)
    lanes = max(d for d in range(1, 65) if g % d == 0)
    width, per_lane = g // lanes, s // g * (g // lanes)

    def row_at(place: int) -> int:
        begin = permuted(0, n + 1, b"tokenriver blocks 1") * r
        if begin <= place < begin + rest:
            return n * r + place - begin
        place -= rest if place >= begin + rest else 0
        return permuted(place // r, n, b"tokenriver blocks 1") * r + place % r

    if p >= per_lane * lanes:
        return row_at(p)
    k, slot = divmod(p, g)
    lane, j = divmod(slot, width)
    window = max(1, 256 * r // lanes)
    shift = lane * window // lanes
    number, within = divmod(k * width + j + shift, window)
    first, stop = max(0, number * window - shift), min((number + 1) * window - shift, per_lane)
    rows = [row_at(lane * per_lane + q) for q in range(first, stop)]
    rows.sort(key=lambda row: permuted(row, s, b"tokenriver rows 1"))
    return rows[within - (shift if number == 0 else 0)]


@pytest.mark.parametrize(("s", "t", "g"), [(1, 5, 1), (700, 8, 3), (5003, 2, 8), (9000, 1 << 16, 96), (4100, 7, 130)])
def test_the_page_s_rule_gives_the_same_order(s: int, t: int, g: int) -> None:
    positions = np.unique(np.linspace(0, s - 1, 12).astype(np.int64))
    expected = [specified(int(p), s=s, t=t, g=g, seed=3, epoch=8) for p in positions]
    assert BlockOrder(s, t, g, 3).rows(positions, 8).tolist() == expected


@settings(max_examples=60)
@given(
    n=st.integers(1, 20_000), seq_len=st.integers(1, 2**20), rows=st.integers(1, 300), seed=st.integers(0, 2**64 - 1)
)
def test_every_epoch_is_a_permutation_of_which_any_part_can_be_had(n: int, seq_len: int, rows: int, seed: int) -> None:
    order = BlockOrder(n, seq_len, rows, seed)
    found = order.rows(np.arange(n), 1)
    assert np.array_equal(np.sort(found), np.arange(n))
    some = np.arange(n // 3, n, 7)
    assert np.array_equal(pickle.loads(pickle.dumps(order)).rows(some, 1), found[some])
    assert found.tobytes() != order.rows(np.arange(n), 2).tobytes() or n < 8


def test_every_row_is_equally_likely_at_every_position_of_small_data() -> None:
    for n, rows in ((48, 4), (101, 6)):
        counts = np.zeros((n, n))
        for k in range(600):
            counts[np.arange(n), whole(n, 16, rows, seed=k // 3, epoch=k % 3)] += 1
        assert chi_square_excess(counts, (n - 1) ** 2) < 5


def test_neighbours_in_a_batch_and_epochs_are_uncorrelated() -> None:
    n, rows = 2**17, 64
    first, second = (whole(n, 1024, rows, seed=11, epoch=epoch).astype(float) for epoch in (0, 1))
    limit = 5 / math.sqrt(n)
    for lag in (1, 2, 63):  # rows of one batch, which come from other lanes
        assert abs(np.corrcoef(first[:-lag], first[lag:])[0, 1]) < limit
    # Whole blocks are where they are by chance: 1,024 of them, and not 131,072 rows, are independent.
    assert abs(np.corrcoef(first, np.arange(n))[0, 1]) < 5 / math.sqrt(1024)
    assert abs(np.corrcoef(first, second)[0, 1]) < 5 / math.sqrt(1024)


def test_a_global_batch_is_drawn_from_all_over_the_data() -> None:
    order = BlockOrder(2**20, 1024, 512, 5)
    assert order.block_rows == 256
    for step, least in ((0, 120), (100, 200), (2000, 200)):
        rows = order.rows(np.arange(step * 512, (step + 1) * 512), 0)
        blocks = np.unique(rows // 256)
        assert len(blocks) > least  # of 256 in the windows, the first of which are shorter
        assert chi_square_excess(np.histogram(blocks, 16, (0, 4096))[0], 15) < 5


def test_ranks_share_no_block_and_hold_few_at_a_time() -> None:
    plan = Plan(
        n_tokens=2**24 + 1,
        seq_len=64,
        batch_size=8,
        world_size=8,
        rank=0,
        order="block-shuffled",
        seed=2,
        drop_last=True,
    )
    assert plan.blocks is not None
    size = plan.blocks.block_rows
    seen: list[set[int]] = []
    for rank in range(8):
        steps = [starts // 64 // size for starts in plan.for_rank(rank).starts(0, 0, plan.steps_per_epoch)]
        uses = np.bincount(np.concatenate(steps))
        blocks = set(np.flatnonzero(uses).tolist())
        seen.append(blocks)
        begun: dict[int, int] = {}
        most = 0
        for blocks_of_step in steps:
            for block in blocks_of_step.tolist():
                begun[block] = begun.get(block, 0) + 1
            most = max(most, sum(n < size for n in begun.values()))
            begun = {b: n for b, n in begun.items() if n < size}
        # A lane begins and ends inside a block.
        assert most <= plan.blocks.blocks_held(8) + 2 * 8
    assert sum(map(len, seen)) <= len(set().union(*seen)) + 64


class CountingReader(TokenReader):
    """Counts what is read from the shards."""

    read_tokens = 0

    def read(self, start: int, out: np.ndarray) -> None:
        self.read_tokens += len(out)
        super().read(start, out)


@pytest.mark.parametrize(("rows", "world"), [(8, 1), (8, 4), (6, 3)])
def test_every_block_is_read_about_once_an_epoch_whatever_the_number_of_ranks(
    data_set: Callable[..., Path], rows: int, world: int
) -> None:
    root, total = data_set([9000, 30_000, 0, 5000], variants=["uint16"] * 4), 0
    for rank in range(world):
        loader = TrainLoader(
            root, batch_size=rows // world, seq_len=4, order="block-shuffled", rank=rank, world_size=world, epochs=1
        )
        loader.reader = CountingReader(loader.data.shards)
        loader.assembly.reader = loader.reader
        assert len(list(loader)) == 10_999 // rows
        total += loader.reader.read_tokens
    assert 0.99 < total / (10_999 * 4) < 1.06


@settings(max_examples=8)
@given(
    cuts=st.lists(st.integers(1, 20_000), min_size=1, max_size=4),
    seq_len=st.integers(1, 5),
    rows=st.sampled_from([1, 4, 12]),
    skipped=st.integers(0, 2000),
    wide=st.booleans(),
)
def test_batches_from_blocks_are_those_read_row_by_row(
    tmp_path_factory: pytest.TempPathFactory, cuts: list[int], seq_len: int, rows: int, skipped: int, wide: bool
) -> None:
    sizes = [12_000, *cuts]
    variants = ["uint16"] * (len(sizes) - 1) + ["uint32" if wide else "uint16"]
    root = write_data_set(tmp_path_factory.mktemp("blocks"), sizes, variants=variants)
    options: dict[str, Any] = {"batch_size": rows, "seq_len": seq_len, "order": "block-shuffled"}
    loader = TrainLoader(root, drop_last=False, epochs=2, **options)
    loader.load_state_dict({**loader.state_dict(), "step": min(skipped, loader.steps_per_epoch - 1)})
    other = TrainLoader(root, drop_last=False, **options)
    for k, batch in enumerate(islice(loader, 4000)):
        if k % 97 == 0 or batch.mask is not None:
            single = other.batch_at(batch.step, epoch=batch.epoch)
            assert np.array_equal(batch.inputs, single.inputs)
            assert np.array_equal(batch.targets, single.targets)


def test_with_room_for_few_blocks_batches_stay_the_same(
    data_set: Callable[..., Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    root = data_set([40_000])
    options: dict[str, Any] = {"batch_size": 6, "seq_len": 4, "order": "block-shuffled", "epochs": 1}
    expected = [batch.inputs.copy() for batch in islice(TrainLoader(root, **options), 300)]
    monkeypatch.setattr(BlockOrder, "blocks_held", lambda *_: 1)
    assert all(np.array_equal(a, b.inputs) for a, b in zip(expected, TrainLoader(root, **options), strict=False))


def test_memory_is_that_of_the_windows_at_hand(data_set: Callable[..., Path]) -> None:
    loader = TrainLoader(data_set([60_000] * 3), batch_size=16, seq_len=4, order="block-shuffled", epochs=1)
    blocks = loader.plan.blocks
    held = block_rows.BlockRows(blocks, loader.reader, batch_size=16, threaded=True)
    for _ in islice(held.ahead(iter(loader.assembly.items(0, 0, 1))), 10):
        pass
    assert held.n_bytes == (blocks.blocks_held(16) + 8 + 8 + 16) * blocks.block_rows * 5 * 4
    assert blocks.blocks_held(16) == 16 * 17


def test_a_shard_that_is_cut_short_meanwhile_is_named(data_set: Callable[..., Path]) -> None:
    root = data_set([40_000])
    loader = TrainLoader(root, batch_size=4, seq_len=4, order="block-shuffled", prefetch=0)
    batches = iter(loader)
    next(batches)
    shard = next(root.glob("train-*.bin"))
    with open(shard, "r+b") as file:
        file.truncate(5000)
    with pytest.raises(IntegrityError, match=f"{shard.name}: cut short from 81,024 to 5,000 bytes"):
        list(islice(batches, 5000))


def test_after_an_error_no_thread_and_no_block_is_held(data_set: Callable[..., Path]) -> None:
    root = data_set([40_000])
    loader = TrainLoader(root, batch_size=4, seq_len=4, order="block-shuffled")
    (shard,) = root.glob("train-*.bin")
    shard.unlink()
    before = set(threading.enumerate())
    batches = iter(loader)
    for _ in range(3):
        with pytest.raises(IntegrityError, match=f"{shard.name}: gone"):
            list(islice(batches, 5000))
    del batches
    gc.collect()
    names = ("tokenriver-blocks", "tokenriver-prefetch")
    threads = [t for t in threading.enumerate() if t not in before and t.name in names]
    for thread in threads:
        thread.join(300)
    assert not any(thread.is_alive() for thread in threads)
    gc.collect()  # what a thread's last frame held may be garbage only now
    # By type(): isinstance asks objects of other libraries too, some of which then warn.
    held = [one for one in gc.get_objects() if type(one) is block_rows.BlockRows]
    assert not [one for one in held if one._reader is loader.reader]


def test_another_global_batch_is_another_order_and_refused(data_set: Callable[..., Path]) -> None:
    root = data_set([40_000])
    state = TrainLoader(root, batch_size=4, seq_len=4, order="block-shuffled").state_dict()
    assert state["order"] == "block-shuffled"
    with pytest.raises(ResumeError, match="global_batch_size was 4 rows, here it is 8"):
        TrainLoader(root, batch_size=8, seq_len=4, order="block-shuffled").load_state_dict(state)
    with pytest.raises(ResumeError, match="order was 'block-shuffled', here it is 'shuffled'"):
        TrainLoader(root, batch_size=4, seq_len=4).load_state_dict(state)


def test_packed_documents_and_mixtures_are_refused(data_set: Callable[..., Path]) -> None:
    root = data_set([400])
    with pytest.raises(UsageError, match="packing='best-fit' takes 'shuffled'"):
        TrainLoader(root, batch_size=4, seq_len=4, order="block-shuffled", packing="best-fit", separator=0)
    with pytest.raises(UsageError, match="a mixture takes 'shuffled'"):
        TrainLoader(Mixture({"a": (root, 1)}), batch_size=4, seq_len=4, order="block-shuffled")
