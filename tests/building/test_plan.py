"""Where cuts fall, against a slow reading of the rules one document and one token at a time."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenriver.building.plan import (
    Close,
    Cutting,
    PlanState,
    Write,
    assign_splits,
    close_all,
    cut_runs,
    document_ends,
)
from tokenriver.building.whole_runs import take_block
from tokenriver.corpus.splits import TRAIN, VAL

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60)


def plan_all(cutting, lengths, sides=None, block=1000):
    """Files {(split, index): token numbers} and closings in order, cutting block by block."""
    files, closed = {}, []
    state, base = PlanState(), 0
    for at in range(0, len(lengths), block):
        part = lengths[at : at + block]
        bounds = np.concatenate([[0], np.cumsum(part)]).astype(np.int64)
        side = None if sides is None else np.array(sides[at : at + block], np.uint8)
        runs, after = assign_splits(cutting, state, bounds, side)
        for step in cut_runs(cutting, state, runs, bounds):
            if isinstance(step, Write):
                files.setdefault((step.split, step.index), []).extend(range(base + step.start, base + step.stop))
            elif isinstance(step, Close):
                closed.append((step.split, step.shard))
            else:
                state = replace(after, open=step.open, shards_begun=step.shards_begun)
        base += int(bounds[-1])
    closed += [(c.split, c.shard) for c in close_all(state)]
    return files, closed


def starts(lengths):
    return np.concatenate([[0], np.cumsum(lengths)[:-1]]).tolist()


@given(LENGTHS, st.integers(1, 50), st.integers(1, 7))
def test_exact_cuts_give_files_of_exactly_the_size_but_the_last(lengths, size, block):
    files, closed = plan_all(Cutting(size, whole_documents=False), lengths, block=block)
    total = sum(lengths)
    assert [t for k in sorted(files) for t in files[k]] == list(range(total))
    sizes = [len(files[k]) for k in sorted(files)]
    assert all(n == size for n in sizes[:-1])
    assert 0 < sizes[-1] <= size
    assert sum(shard.documents for _, shard in closed) == len(lengths)
    assert [shard.tokens for _, shard in closed] == sizes


@given(LENGTHS, st.integers(1, 50), st.integers(1, 7))
def test_whole_documents_never_pass_the_size_unless_alone(lengths, size, block):
    files, closed = plan_all(Cutting(size, whole_documents=True), lengths, block=block)
    assert [t for k in sorted(files) for t in files[k]] == list(range(sum(lengths)))
    expected, current = [], []
    for i, n in enumerate(lengths):
        if current and sum(lengths[j] for j in current) + n > size:
            expected.append(current)
            current = []
        current.append(i)
    expected.append(current)
    assert [shard.documents for _, shard in closed] == [len(docs) for docs in expected]
    assert [shard.tokens for _, shard in closed] == [sum(lengths[j] for j in docs) for docs in expected]


@given(LENGTHS, st.data(), st.booleans(), st.booleans())
def test_given_splits_keep_each_document_on_its_side_and_in_order(lengths, data, whole, running):
    sides = data.draw(st.lists(st.sampled_from([TRAIN, VAL]), min_size=len(lengths), max_size=len(lengths)))
    cutting = Cutting(25, whole_documents=whole, running_index=running)
    files, closed = plan_all(cutting, lengths, sides, block=data.draw(st.integers(1, 9)))
    first = starts(lengths)
    for split in (TRAIN, VAL):
        expected = [t for s, n, d in zip(first, lengths, sides, strict=True) if d == split for t in range(s, s + n)]
        assert [t for k in sorted(files) if k[0] == split for t in files[k]] == expected
        assert sum(shard.documents for s, shard in closed if s == split) == sides.count(split)
    numbers = [index for _, index in files]
    if running:
        assert sorted(numbers) == list(range(len(files)))


@given(LENGTHS, st.integers(0, 70), st.booleans(), st.integers(1, 9))
def test_the_first_documents_are_val(lengths, n_val, whole, block):
    files, _ = plan_all(Cutting(20, whole_documents=whole, first_docs=n_val), lengths, block=block)
    border = sum(lengths[:n_val])
    assert [t for k in sorted(files) if k[0] == VAL for t in files[k]] == list(range(border))
    assert [t for k in sorted(files) if k[0] == TRAIN for t in files[k]] == list(range(border, sum(lengths)))


@given(LENGTHS, st.integers(0, 200), st.integers(1, 9))
def test_the_first_tokens_are_val_exactly_where_documents_may_be_cut(lengths, n_val, block):
    files, _ = plan_all(Cutting(20, whole_documents=False, first_tokens=n_val), lengths, block=block)
    val = [t for k in sorted(files) if k[0] == VAL for t in files[k]]
    assert val == list(range(min(n_val, sum(lengths))))


@given(LENGTHS, st.integers(1, 200), st.integers(1, 9))
def test_the_first_tokens_are_whole_documents_where_documents_stay_whole(lengths, n_val, block):
    files, _ = plan_all(Cutting(20, whole_documents=True, first_tokens=n_val), lengths, block=block)
    val = [t for k in sorted(files) if k[0] == VAL for t in files[k]]
    ends = np.cumsum(lengths)
    n_docs = max(int((ends <= n_val).sum()), 1)
    assert val == list(range(int(ends[n_docs - 1])))


@settings(max_examples=200)
@given(LENGTHS, st.data(), st.booleans(), st.sampled_from(["given", "docs", "tokens", "train"]))
def test_going_on_after_any_closed_file_with_any_blocks_gives_the_same_files(lengths, data, whole, rule):
    sides = None
    if rule == "given":
        sides = data.draw(st.lists(st.sampled_from([TRAIN, VAL]), min_size=len(lengths), max_size=len(lengths)))
    cutting = Cutting(
        data.draw(st.integers(1, 40)),
        whole_documents=whole,
        first_docs=data.draw(st.integers(0, 40)) if rule == "docs" else None,
        first_tokens=data.draw(st.integers(0, 300)) if rule == "tokens" else None,
    )
    expected = plan_all(cutting, lengths, sides)[0]
    block = data.draw(st.integers(1, 9))
    first = starts(lengths)

    def walk(state, skip, document, size, files, stop_after):
        """Cut from a document on; stop after some closings, returning the place to go on from."""
        n_closed = 0
        while document < len(lengths):
            part = lengths[document : document + size]
            bounds = np.concatenate([[0], np.cumsum(part)]).astype(np.int64)
            side = None if sides is None else np.array(sides[document : document + size], np.uint8)
            runs, after = assign_splits(cutting, state, bounds, side)
            for step in cut_runs(cutting, state, runs, bounds, skip):
                if isinstance(step, Write):
                    tokens = range(first[document] + step.start, first[document] + step.stop)
                    files.setdefault((step.split, step.index), []).extend(tokens)
                elif isinstance(step, Close):
                    n_closed += 1
                    if n_closed == stop_after:
                        return PlanState.from_json(step.state.to_json()), step.skip, document
                else:
                    state = replace(after, open=step.open, shards_begun=step.shards_begun)
            skip = max(0, skip - int(bounds[-1]))
            document += size
        return None

    files: dict = {}
    place = (PlanState(), 0, 0)
    while place is not None:
        state, skip, document = place
        place = walk(state, skip, document, block, files, data.draw(st.integers(1, 4)))
        block = data.draw(st.integers(1, 9))
    assert files == expected


@given(st.lists(LENGTHS, min_size=1, max_size=6), st.data(), st.integers(20, 200), st.booleans(), st.booleans())
def test_a_block_taken_at_once_is_what_cutting_it_run_by_run_gives(blocks, data, size, whole, running):
    cutting = Cutting(size, whole_documents=whole, running_index=running)
    state = PlanState()
    for lengths in blocks:
        bounds = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int64)
        sides = data.draw(st.lists(st.sampled_from([TRAIN, VAL]), min_size=len(lengths), max_size=len(lengths)))
        sides = np.array(sides, np.uint8)
        runs, after = assign_splits(cutting, state, bounds, sides)
        steps = list(cut_runs(cutting, state, runs, bounds))
        taken = take_block(cutting, state, bounds, sides)
        begins_or_ends = steps[-1].shards_begun != state.shards_begun or any(isinstance(step, Close) for step in steps)
        assert (taken is None) == begins_or_ends
        state = replace(after, open=steps[-1].open, shards_begun=steps[-1].shards_begun)
        if taken is None:
            continue
        assert taken[1] == state
        for one in taken[0]:
            writes = [step for step in steps[:-1] if step.split == one.split]
            assert {step.index for step in writes} == {one.index}
            assert [step.start for step in writes] == one.starts.tolist()
            assert [step.stop for step in writes] == one.stops.tolist()
            ends = [document_ends(bounds, step.start, step.stop) + step.at - step.start for step in writes]
            assert np.concatenate(ends).tolist() == one.ends.tolist()
        assert {one.split for one in taken[0]} == {step.split for step in steps[:-1]}
