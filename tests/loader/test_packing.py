"""Packed batches: every token accounted for, documents never mixed unmarked, the loader's guarantees in every mode."""

from __future__ import annotations

import hashlib
import json
import os
import tracemalloc
from collections import deque
from dataclasses import replace
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st
from packing_cases import SEPARATOR, joined, record_separator, write_documents

from tokenriver import IntegrityError, ResumeError, TrainLoader, UsageError, write_shard
from tokenriver.loader import packed, range_reader
from tokenriver.loader.aligned import bos_aligned_rows
from tokenriver.loader.documents import DocumentFinder
from tokenriver.loader.packing import best_fit_rows, count_best_fit_rows
from tokenriver.loader.source import resolve
from tokenriver.loader.trace import trace_step
from tokenriver.shards.index import index_path

if TYPE_CHECKING:
    from pathlib import Path

T = 7
LENGTHS = st.lists(st.one_of(st.integers(1, 5), st.sampled_from([1, T, T + 1, T + 2, 2 * T + 1, 60])), min_size=1)
MODES = [("best-fit", None), ("bos-aligned", None), ("bos-aligned", 3), ("bos-aligned", 20)]


def open_loader(paths: list[Path], position: str | None, **words: Any) -> TrainLoader:
    known = {"separator": SEPARATOR} if position == "before" else {}
    return TrainLoader(paths, **{"batch_size": 1, "seq_len": T, "epochs": 1, "drop_last": False, **known, **words})


@settings(max_examples=150)
@given(lengths=LENGTHS, seq_len=st.integers(1, 12))
@example(lengths=[8], seq_len=7)
@example(lengths=[9], seq_len=7)
@example(lengths=[1000], seq_len=3)
def test_best_fit_places_every_token_once_and_cuts_only_long_documents(lengths: list[int], seq_len: int) -> None:
    rows = best_fit_rows(np.array(lengths), seq_len=seq_len)
    assert rows.n_rows == count_best_fit_rows(np.array(lengths), seq_len=seq_len)
    row = np.repeat(np.arange(rows.n_rows), np.diff(rows.bounds))
    filled = np.bincount(row, weights=rows.size, minlength=rows.n_rows)
    assert filled.min() > 0
    assert filled.max() <= seq_len + 1
    seen = [np.zeros(n, int) for n in lengths]
    for document, offset, size, slot in zip(rows.document, rows.offset, rows.size, rows.slot, strict=True):
        assert not offset or slot == 0
        seen[document][offset + (offset > 0) : offset + size] += 1
    assert all((one == 1).all() for one in seen)
    for document, n in enumerate(lengths):
        its = np.sort(row[rows.document == document])
        assert len(its) == (1 if n <= seq_len + 1 else -(-(n - 1) // seq_len))
        assert (np.diff(its) == 1).all()


@settings(max_examples=100)
@given(lengths=LENGTHS, max_doc_len=st.none() | st.integers(1, 12))
def test_bos_aligned_rows_follow_the_documents_one_by_one(lengths: list[int], max_doc_len: int | None) -> None:
    rows = bos_aligned_rows(np.array(lengths), seq_len=T, max_doc_len=max_doc_len)
    expected: list[list[tuple[int, int, int]]] = []
    room = 0
    for document, n in enumerate(lengths):
        if room == 0:
            expected.append([])
            room = T
        size = min(n, max_doc_len or n, room)
        expected[-1].append((document, size, T - room))
        room -= size
    found = list(zip(rows.document.tolist(), rows.size.tolist(), rows.slot.tolist(), strict=True))
    assert [found[a:b] for a, b in zip(rows.bounds[:-1], rows.bounds[1:], strict=True)] == expected


@given(lengths=st.lists(st.integers(1, T + 1), min_size=1, max_size=60))
@settings(max_examples=200)
def test_whole_documents_go_to_the_least_room_that_is_enough_and_there_to_the_row_that_waited_longest(
    lengths: list[int],
) -> None:
    """Document by document, as the rule is written; which documents share a row is compared, not the rows' order."""
    rows: list[list[int]] = []
    waiting: dict[int, deque[int]] = {room: deque() for room in range(T + 2)}
    for document in sorted(range(len(lengths)), key=lambda k: (-lengths[k], k)):
        row = next((waiting[room].popleft() for room in range(lengths[document], T + 1) if waiting[room]), len(rows))
        if row == len(rows):
            rows.append([])
        rows[row].append(document)
        waiting[T + 1 - sum(lengths[k] for k in rows[row])].append(row)
    found = best_fit_rows(np.array(lengths), seq_len=T)
    parts = [found.document[a:b].tolist() for a, b in zip(found.bounds[:-1], found.bounds[1:], strict=True)]
    assert sorted(parts) == sorted(sorted(row) for row in rows)


def test_the_rows_of_given_documents_never_change() -> None:
    """A saved state names packed rows by their number, so the same lengths give the same rows in every version."""
    state = np.arange(1, 20_001, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    longer = (state >> np.uint64(20)) % np.uint64(7) == 0
    lengths = 1 + (state >> np.uint64(52)) + longer * ((state >> np.uint64(30)) % np.uint64(3000))
    lengths = lengths.astype(np.int64)
    assert (lengths.max(), lengths.sum()) == (6945, 45_259_274)
    for rows, expected in (
        (best_fit_rows(lengths, seq_len=1024), "73c1789279a2e4118cd437edcff434a838e8e8a3d58f4261bf5a293facc714cf"),
        (
            bos_aligned_rows(lengths, seq_len=1024, max_doc_len=2000),
            "e53a82e5c98d6baacffa60483615e8b0cf3b9084ba4e2d4096737a823817c6a5",
        ),
    ):
        digest = hashlib.sha256()
        for column in (rows.bounds, rows.document, rows.offset, rows.size, rows.slot):
            digest.update(column.astype("<i8").tobytes())
        assert digest.hexdigest() == expected


@settings(max_examples=60)
@given(
    lengths=LENGTHS,
    mode=st.sampled_from(MODES),
    position=st.sampled_from(["before", "after", None]),
    order=st.sampled_from(["shuffled", "sequential"]),
    rows=st.integers(1, 3),
    window=st.sampled_from([None, 1, 3]),
    drop_last=st.booleans(),
)
def test_the_ledger_accounts_for_every_token_and_targets_are_the_documents_own(
    tmp_path_factory: pytest.TempPathFactory,
    lengths: list[int],
    mode: tuple[str, int | None],
    position: str | None,
    order: str,
    rows: int,
    window: int | None,
    drop_last: bool,
) -> None:
    paths, _ = write_documents(tmp_path_factory.mktemp("ledger"), lengths, position=position, shards=2)
    words = {"packing": mode[0], "max_doc_len": mode[1], "order": order, "window": window, "batch_size": rows}
    try:
        loader = open_loader(paths, position, drop_last=drop_last, **words)
    except UsageError:
        assert drop_last
        return
    ledger = loader.ledger()
    trained = 0
    starts = np.cumsum(lengths) - lengths
    for batch in loader:
        mask = np.ones(batch.inputs.shape, bool) if batch.mask is None else batch.mask
        trained += int(mask.sum())
        assert batch.cu_seqlens is not None
        assert batch.position_ids is not None
        assert batch.cu_seqlens[0] == 0
        assert batch.cu_seqlens[-1] == batch.inputs.size
        assert (np.diff(batch.cu_seqlens) > 0).all()
        flat_in, flat_out, flat_mask = batch.inputs.ravel(), batch.targets.ravel(), mask.ravel()
        for a, b in zip(batch.cu_seqlens[:-1], batch.cu_seqlens[1:], strict=True):
            assert batch.position_ids.ravel()[a:b].tolist() == list(range(b - a))
            assert a // T == (b - 1) // T
            if position != "before":
                if position is None:
                    inside = np.searchsorted(starts, flat_in[a:b] - 1, "right")
                    assert len(set(inside[flat_in[a:b] > 0].tolist())) <= 1
                continue
            # One document: at most its separator first, then ids that count up by one.
            assert not (flat_in[a + 1 : b] == SEPARATOR).any() or not flat_mask[a:b].any()
        # A target that counts is the next token of the stream, or the separator that follows the document.
        known = flat_mask & (flat_in > 0) & (flat_out > 0)
        assert (flat_out[known] == flat_in[known] + 1).all()
        if position is None:
            counted = flat_mask
            assert not np.isin(flat_out[counted] - 1, starts).any()
    assert trained == ledger["trained"]
    assert ledger["tokens"] == sum(lengths)
    assert ledger["tokens"] == ledger["trained"] + ledger["padded"] + ledger["cropped"] + ledger["dropped"]
    if not drop_last:
        assert ledger["dropped"] == 0
    if mode[0] == "best-fit":
        assert ledger["cropped"] == 0


@pytest.mark.parametrize("mode", MODES)
def test_nothing_but_the_first_tokens_of_rows_goes_untrained_with_separators_before(
    tmp_path: Path, mode: tuple[str, int | None]
) -> None:
    rng = np.random.default_rng(3)
    lengths = rng.integers(1, 20, 200).tolist()
    paths, _ = write_documents(tmp_path, lengths)
    loader = open_loader(paths, "before", packing=mode[0], max_doc_len=mode[1])
    seen: list[int] = []
    for batch in loader:
        assert mode[0] != "bos-aligned" or batch.inputs[0, 0] == SEPARATOR
        kept = batch.targets if batch.mask is None else batch.targets[batch.mask]
        seen += kept[kept != SEPARATOR].tolist()
    assert len(seen) == len(set(seen))
    if mode[0] == "best-fit":
        assert len(seen) == sum(lengths) - len(lengths)


@pytest.mark.parametrize(("packing", "max_doc_len"), [*MODES, ("concat", None)])
def test_the_same_global_batches_for_every_world_size_and_any_resume(
    tmp_path: Path, packing: str, max_doc_len: int | None
) -> None:
    rng = np.random.default_rng(5)
    paths, _ = write_documents(tmp_path, rng.integers(1, 30, 300).tolist(), shards=3)
    words = {"packing": packing, "max_doc_len": max_doc_len, "epochs": None, "drop_last": True, "cu_seqlens": True}
    if packing != "concat":
        words["window"] = 64
    whole = open_loader(paths, "before", batch_size=12, prefetch=0, **words)
    steps = whole.steps_per_epoch * 2 + 5
    expected = [(b.epoch, b.step, b.inputs.tolist(), b.targets.tolist()) for b in islice(whole, steps)]
    assert len({epoch for epoch, *_ in expected}) == 3
    for world in (2, 4):
        ranks = [
            open_loader(paths, "before", batch_size=12 // world, rank=r, world_size=world, **words)
            for r in range(world)
        ]
        for k, parts in enumerate(islice(zip(*ranks, strict=True), 10)):
            assert joined(p.inputs.tolist() for p in parts) == expected[k][2]
    state = open_loader(paths, "before", batch_size=12, **words).state_dict()
    got: list[Any] = []
    for run, world in [(3, 1), (0, 2), (9, 4), (steps - 14, 3), (2, 1)]:
        parts, last = [], state
        for rank in range(world):
            one = open_loader(paths, "before", batch_size=12 // world, rank=rank, world_size=world, **words)
            one.load_state_dict(json.loads(json.dumps(state)))
            assert one.state_dict() == state
            parts.append([(b.epoch, b.step, b.inputs.tolist(), b.targets.tolist()) for b in islice(one, run)])
            last = one.state_dict()
        state = last
        got += [(p[0][0], p[0][1], joined(q[2] for q in p), joined(q[3] for q in p)) for p in zip(*parts, strict=True)]
    assert got == expected
    at = open_loader(paths, "before", batch_size=12, **words)
    for k in (0, 7, steps - 1):
        batch = at.batch_at(k)
        assert (batch.epoch, batch.step, batch.inputs.tolist(), batch.targets.tolist()) == expected[k]
    assert len(json.dumps(state)) < 1024


@pytest.mark.parametrize("packing", ["best-fit", "bos-aligned"])
def test_epochs_shuffle_the_documents_anew_and_sequential_ones_do_not(tmp_path: Path, packing: str) -> None:
    paths, _ = write_documents(tmp_path, [5] * 100)
    shuffled = open_loader(paths, "before", packing=packing)
    sequential = open_loader(paths, "before", packing=packing, order="sequential")
    first, second = (shuffled.batch_at(0, epoch=e).inputs.tolist() for e in (0, 1))
    assert first != second
    assert sequential.batch_at(0, epoch=0).inputs.tolist() == sequential.batch_at(0, epoch=1).inputs.tolist()
    assert sequential.batch_at(0).inputs[0, :5].tolist() == [0, 2, 3, 4, 5]


@settings(max_examples=40)
@given(lengths=LENGTHS, position=st.sampled_from(["before", "after", None]), rows=st.integers(1, 3))
def test_concat_marks_the_borders_of_the_flat_stream(
    tmp_path_factory: pytest.TempPathFactory, lengths: list[int], position: str | None, rows: int
) -> None:
    if sum(lengths) < T + 1:
        lengths = [*lengths, T + 1]
    paths, _ = write_documents(tmp_path_factory.mktemp("concat"), lengths, position=position)
    loader = open_loader(paths, position, cu_seqlens=True, batch_size=rows)
    plain = open_loader(paths, position, batch_size=rows)
    starts = set((np.cumsum(lengths) - lengths).tolist())
    trained = 0
    for step, (batch, same) in enumerate(zip(loader, plain, strict=True)):
        assert batch.inputs.tolist() == same.inputs.tolist()
        assert batch.targets.tolist() == same.targets.tolist()
        assert batch.cu_seqlens is not None
        mask = np.ones(batch.inputs.shape, bool) if batch.mask is None else batch.mask
        trained += int(mask.sum())
        borders = []
        taken = plain.plan.take(0, step)
        for r in range(rows):
            for j in range(T):
                token = int(taken[r]) + j if r < len(taken) else None
                if j == 0 or token in starts:
                    borders.append(r * T + j)
                expected = token is not None and (position == "before" or token + 1 not in starts)
                assert bool(mask[r, j]) == expected
        assert batch.cu_seqlens.tolist() == [*borders, rows * T]
    ledger = loader.ledger()
    assert ledger["trained"] == trained
    assert ledger["tokens"] == sum(ledger[k] for k in ("trained", "padded", "cropped", "dropped"))


def test_cu_seqlens_have_a_fixed_length_on_request(tmp_path: Path) -> None:
    paths, _ = write_documents(tmp_path, [3] * 40)
    batch = next(iter(open_loader(paths, "before", packing="best-fit", cu_seqlens=20, batch_size=2)))
    assert batch.cu_seqlens is not None
    assert batch.cu_seqlens.shape == (20,)
    assert batch.cu_seqlens.dtype == np.int32
    assert batch.cu_seqlens.max() == 2 * T
    with pytest.raises(UsageError, match="cu_seqlens=3 holds 2"):
        next(iter(open_loader(paths, "before", packing="best-fit", cu_seqlens=3, batch_size=2, prefetch=0)))
    assert next(iter(open_loader(paths, "before", packing="best-fit", cu_seqlens=False))).cu_seqlens is None


def test_without_an_index_the_separators_are_found_and_a_document_goes_on_over_shards(tmp_path: Path) -> None:
    lengths = [5, 9, 3, 30, 2]
    paths, ids = write_documents(tmp_path / "a", lengths)
    reference = open_loader(paths, "before", packing="best-fit", order="sequential")
    expected = [b.inputs.tolist() for b in reference]
    for position in ("before", "after"):
        parts = []
        for k, part in enumerate(np.array_split(ids, 4)):
            parts.append(tmp_path / f"{position}_train_{k:06d}.bin")
            write_shard(parts[-1], part, variant="uint32")
    loader = open_loader(parts, "before", packing="best-fit", order="sequential")
    assert [b.inputs.tolist() for b in loader] == expected
    assert loader.ledger()["documents"] == 5
    with pytest.raises(UsageError, match="no document index"):
        TrainLoader(parts, batch_size=1, seq_len=T, packing="best-fit")


def test_a_split_that_begins_inside_a_document_has_a_first_one_without_separator(tmp_path: Path) -> None:
    ids = np.array([50, 51, 0, 52, 53, 0, 54, 0], np.uint16)
    write_shard(tmp_path / "x_train_000000.bin", ids)
    for order in ("sequential", "shuffled"):
        loader = open_loader([tmp_path / "x_train_000000.bin"], "before", packing="best-fit", order=order)
        ledger = loader.ledger()
        masks = [np.ones((1, T), bool) if b.mask is None else b.mask for b in loader]
        assert sum(int(m.sum()) for m in masks) == ledger["trained"]
        assert ledger["tokens"] == sum(ledger[k] for k in ("trained", "padded", "cropped", "dropped"))


def test_an_index_that_does_not_fit_the_ids_is_an_error_that_names_the_place(tmp_path: Path) -> None:
    paths, _ = write_documents(tmp_path, [5, 5, 5, 5])
    np.array([5, 11, 15, 20], "<u8").tofile(index_path(paths[0]))
    loader = open_loader(paths, "before", packing="best-fit")
    with pytest.raises(IntegrityError, match=r"token 11 begins a document.*tokenriver index"):
        list(loader)


def test_pieces_of_many_shards_are_read_through_few_descriptors_and_again_where_a_read_comes_back_short(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, _ = write_documents(tmp_path, [5, 3, 9, 30] * 15, shards=12)
    for packing in ("best-fit", "bos-aligned"):
        words: dict[str, Any] = {"packing": packing, "batch_size": 4}
        expected = [(b.inputs.tolist(), b.targets.tolist()) for b in open_loader(paths, "before", **words)]
        loader = open_loader(paths, "before", **words)
        loader.reader._max_open = 3
        assert [(b.inputs.tolist(), b.targets.tolist()) for b in loader] == expected
        assert len(loader.reader._open) <= 3
        with monkeypatch.context() as patched:
            patched.setattr(range_reader, "many_reads", lambda: None)
            patched.setattr(range_reader, "_pread", lambda file, size, at: os.pread(file, max(1, size // 2), at))
            again = [(b.inputs.tolist(), b.targets.tolist()) for b in open_loader(paths, "before", **words)]
        assert again == expected


def test_rows_of_several_windows_are_those_of_each_window(tmp_path: Path) -> None:
    """Many rows at a time are the rows that are asked for one by one."""
    rng = np.random.default_rng(11)
    paths, _ = write_documents(tmp_path, rng.integers(1, 40, 90).tolist())
    for packing, max_doc_len in MODES:
        loader = open_loader(paths, "before", packing=packing, max_doc_len=max_doc_len, window=13)
        (packed,) = loader._setup.packed
        n = packed.n_rows(0)
        for wanted in (np.arange(n), np.array([0, 1, 2, 3, 9, 10, n - 2, n - 1]), np.arange(2, 2), np.arange(0, n, 3)):
            many = packed.picked(0, wanted)
            assert many.n_rows == len(wanted)
            for at, row in enumerate(wanted):
                one = packed.picked(0, np.array([row]))
                for name in ("slot", "start", "size", "inputs", "begins", "border"):
                    assert getattr(many, name)[many.row == at].tolist() == getattr(one, name).tolist()
                assert many.patches[many.patches[:, 0] == at, 1:].tolist() == one.patches[:, 1:].tolist()


def test_another_packing_is_refused_by_name(tmp_path: Path) -> None:
    paths, _ = write_documents(tmp_path, [5] * 50)
    plain = open_loader(paths, "before")
    packed = open_loader(paths, "before", packing="best-fit")
    with pytest.raises(ResumeError, match="packing was concat, here it is best-fit"):
        packed.load_state_dict(plain.state_dict())
    with pytest.raises(ResumeError, match="packing was best-fit, here it is concat"):
        plain.load_state_dict(packed.state_dict())
    with pytest.raises(ResumeError, match=r"packing\.window was 131072, here it is 9"):
        open_loader(paths, "before", packing="best-fit", window=9).load_state_dict(packed.state_dict())
    old = packed.state_dict()
    del old["packing"]["rule"]  # as saved under the first rule
    with pytest.raises(ResumeError, match=r"packing\.rule was None, here it is 2"):
        packed.load_state_dict(old)
    with pytest.raises(ResumeError, match=r"packing\.max_doc_len was None, here it is 3"):
        open_loader(paths, "before", packing="bos-aligned", max_doc_len=3).load_state_dict(
            open_loader(paths, "before", packing="bos-aligned").state_dict()
        )
    np.array([10, *range(15, 251, 5)], "<u8").tofile(index_path(paths[0]))
    with pytest.raises(ResumeError, match=r"packing\.documents"):
        open_loader(paths, "before", packing="best-fit").load_state_dict(packed.state_dict())
    plain.load_state_dict(packed.state_dict(), allow_change="packing")


def test_words_that_contradict_are_refused(tmp_path: Path) -> None:
    paths, _ = write_documents(tmp_path, [5] * 50)
    for words in (
        {"packing": "worst-fit"},
        {"packing": "best-fit", "max_doc_len": 5},
        {"max_doc_len": 5},
        {"window": 5},
        {"packing": "best-fit", "window": 0},
        {"cu_seqlens": 1},
        {"packing": "best-fit", "batch_size": 0},
        {"packing": "best-fit", "order": "random"},
    ):
        with pytest.raises(UsageError):
            open_loader(paths, "before", **words)
    for words in ({"packing": "best-fit"}, {"packing": "bos-aligned", "cu_seqlens": False}, {"cu_seqlens": True}):
        with pytest.raises(UsageError, match="more than the 2,147,483,647 inputs in which documents can be marked"):
            open_loader(paths, "before", batch_size=2, seq_len=2**30, **words)
    with pytest.raises(UsageError, match="a length of 2 to 2,147,483,647, not 2147483648"):
        open_loader(paths, "before", cu_seqlens=2**31)
    with pytest.raises(UsageError, match=r"too little data: a batch needs 500 rows .* gives 50"):
        open_loader(paths, "before", packing="best-fit", batch_size=500, drop_last=True)


@pytest.mark.parametrize("seq_len", [249, 250, 10**9])
def test_a_row_longer_than_all_documents_takes_them_all_and_plans_no_slot_beyond_them(
    tmp_path: Path, seq_len: int
) -> None:
    paths, ids = write_documents(tmp_path, [5] * 50)
    tracemalloc.start()
    loader = open_loader(paths, "before", packing="best-fit", order="sequential", batch_size=1, seq_len=seq_len)
    assert loader.steps_per_epoch == 1
    (row,) = trace_step(loader, 0)
    _, most = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert most < 20 << 20
    assert np.concatenate([part.ids for part in row.parts]).tolist() == ids.tolist()


def test_the_trace_names_every_piece_of_a_packed_row(tmp_path: Path) -> None:
    paths, _ = write_documents(tmp_path, [3, 5, 20, 4], shards=2)
    loader = open_loader(paths, "before", packing="best-fit", order="sequential", batch_size=1)
    for step in range(loader.steps_per_epoch):
        (row,) = trace_step(loader, step)
        batch = loader.batch_at(step)
        ids = np.concatenate([part.ids for part in row.parts])
        full = np.append(batch.inputs[0], batch.targets[0, -1])
        assert ids.tolist() == full[: len(ids)].tolist()


@pytest.mark.parametrize("position", ["before", "after"])
def test_a_document_goes_on_behind_empty_shards(tmp_path: Path, position: str) -> None:
    (whole,), ids = write_documents(tmp_path / "whole", [30, 40, 50], position=position, index=False)
    paths = [tmp_path / f"cut_train_{k:06d}.bin" for k in range(7)]
    for path, part in zip(paths, np.split(ids, [0, 10, 10, 10, 80, 80]), strict=True):
        write_shard(path, part, variant="uint32")
    for path in (whole, paths):
        source = replace(resolve(path, split="train"), separator_id=SEPARATOR, separator_position=position)
        found = DocumentFinder(source).get()
        assert found.starts.tolist() == [0, 30, 70, 120]
        assert not found.fragment


def test_rows_of_an_epoch_are_counted_though_other_threads_count_those_of_many_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    paths, _ = write_documents(tmp_path, [30] * 100)
    words: dict[str, Any] = {"batch_size": 2, "seq_len": 29, "separator": SEPARATOR, "packing": "best-fit"}
    expected = TrainLoader(paths, **words).batch_at(3, epoch=5)
    monkeypatch.setattr(packed, "_KEPT_EPOCHS", 0)  # as if others had come in between
    assert np.array_equal(TrainLoader(paths, **words).batch_at(3, epoch=5).inputs, expected.inputs)


@pytest.mark.parametrize(
    ("mode", "position", "lengths", "expected"),
    [
        ("best-fit", "before", [8, 8, 3, 3], (14, 2, 0, 6)),
        ("bos-aligned", "before", [5, 5, 10, 7], (14, 2, 4, 7)),  # 5 + 2 of 5, 7 of 10, and 7 that are not served
        ("bos-aligned", None, [5, 5, 10, 7], (13, 3, 4, 7)),
    ],
)
def test_first_tokens_of_rows_that_are_not_served_are_dropped_not_padded(
    tmp_path: Path, mode: str, position: str | None, lengths: list[int], expected: tuple[int, ...]
) -> None:
    paths, _ = write_documents(tmp_path, lengths, position=position)
    loader = open_loader(paths, position, packing=mode, order="sequential", batch_size=2, drop_last=True)
    assert tuple(loader.ledger()[k] for k in ("trained", "padded", "cropped", "dropped")) == expected


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize("order", ["sequential", "shuffled"])
@pytest.mark.parametrize("drop_last", [True, False])
def test_the_flat_stream_s_ledger_leaves_out_what_follows_separators_behind_documents(
    tmp_path: Path, index: bool, order: str, drop_last: bool
) -> None:
    paths, _ = write_documents(tmp_path, [3, 1, 9, T, 1, 1, 20, 30], position="after", index=index)
    record_separator(paths, "after")
    words = {"cu_seqlens": True, "order": order, "drop_last": drop_last, "batch_size": 4}
    loader = TrainLoader(tmp_path, seq_len=T, epochs=1, **words)
    assert "dropped" in repr(loader)
    ledger = loader.ledger()
    assert ledger["trained"] == sum(int(batch.mask.sum()) for batch in loader if batch.mask is not None)
    assert ledger["tokens"] == sum(ledger[k] for k in ("trained", "padded", "cropped", "dropped"))


def test_a_bos_aligned_row_s_padding_holds_zeros(tmp_path: Path) -> None:
    paths, ids = write_documents(tmp_path, [3, 4, 5, 1, 30])
    words = {"packing": "bos-aligned", "order": "sequential"}
    for batch in open_loader(paths, "before", window=2, max_doc_len=2, **words):
        assert (batch.inputs[0, 4:] == 0).all()
    first = next(iter(open_loader(paths, "before", window=1, **words)))
    assert first.inputs[0].tolist() == [*ids[:3].tolist(), 0, 0, 0, 0]
    assert first.mask is not None
    assert first.targets[0, first.mask[0]].tolist() == ids[1:4].tolist()  # the next document's separator among them


def test_a_document_s_last_target_is_its_own_where_a_fragment_follows_in_the_row(tmp_path: Path) -> None:
    _, ids = write_documents(tmp_path / "whole", [9, 2, 2, 2, 2, 2])
    cut = tmp_path / "cut_train_000000.bin"
    write_shard(cut, ids[7:], variant="uint32")  # begins with the end of the first document
    loader = open_loader([cut], "before", packing="bos-aligned", batch_size=1)
    checked = 0
    for epoch in range(20):
        row = loader.batch_at(0, epoch=epoch)
        at = np.flatnonzero(row.inputs[0] == ids[7])
        if len(at) and at[0] and row.inputs[0, at[0] - 1] != ids[-1]:
            assert row.mask is None or row.mask[0, at[0] - 1]
            assert row.targets[0, at[0] - 1] == SEPARATOR
            checked += 1
    assert checked


def test_a_step_beyond_any_number_of_epochs_is_found_or_refused_at_once(tmp_path: Path) -> None:
    paths, _ = write_documents(tmp_path, [5, 9, 3] * 20)
    words = {"batch_size": 1, "seq_len": 8, "packing": "best-fit", "separator": 0}
    in_order = TrainLoader(paths, order="sequential", **words)
    assert in_order.batch_at(10**21 * in_order.steps_per_epoch + 3).step == 3
    shuffled = TrainLoader(paths, **words)
    with pytest.raises(UsageError, match=r"more than 10,000 epochs after the start of epoch 0.*give the epoch"):
        shuffled.batch_at(10**21)
    assert shuffled.batch_at(3, epoch=10**15).step == 3


def test_whether_the_last_batch_is_dropped_is_a_truth(tmp_path: Path) -> None:
    paths, _ = write_documents(tmp_path, [5, 9, 3] * 20)
    with pytest.raises(UsageError, match="drop_last is True or False, not 'no'"):
        TrainLoader(paths, batch_size=1, seq_len=8, drop_last="no")
