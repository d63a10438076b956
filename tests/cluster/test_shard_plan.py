"""Shards planned from chunks' totals are those that one machine cuts from all documents at once."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenriver.building.plan import (
    VAL,
    Close,
    Cutting,
    PlanState,
    Write,
    assign_splits,
    close_all,
    cut_runs,
    side_of_all,
    take_whole,
)
from tokenriver.building.ray_engine.segments import BLOCK_DTYPE, Chunk, ChunkDocuments
from tokenriver.building.ray_engine.shard_plan import ShardPlanner

LENGTHS = st.lists(st.integers(1, 30), min_size=1, max_size=60)


@st.composite
def cases(draw):
    """A cutting, documents' lengths, their sides where the rule gives one, and where the chunks end."""
    lengths = draw(LENGTHS)
    n = len(lengths)
    whole = draw(st.booleans())
    rule = draw(st.sampled_from(["given", "docs", "tokens", "train"]))
    cutting = Cutting(
        shard_tokens=draw(st.integers(1, 120)),
        whole_documents=whole,
        running_index=draw(st.booleans()),
        first_docs=draw(st.integers(0, n + 2)) if rule == "docs" else None,
        first_tokens=draw(st.integers(0, sum(lengths) + 5)) if rule == "tokens" else None,
    )
    sides = draw(st.lists(st.integers(0, 1), min_size=n, max_size=n)) if rule == "given" else None
    ends = sorted({*draw(st.lists(st.integers(0, n), max_size=8)), n})
    return cutting, np.array(lengths), None if sides is None else np.array(sides, np.uint8), ends


def cut_at_once(cutting, lengths, sides):
    """Each shard as (split, index, tokens, documents, ids as (document, token of it))."""
    bounds = np.concatenate([[0], np.cumsum(lengths)])
    names = [(d, t) for d, n in enumerate(lengths.tolist()) for t in range(n)]
    state, open_ids, shards = PlanState(), {}, []
    runs, after = assign_splits(cutting, state, bounds, sides)
    for step in cut_runs(cutting, state, runs, bounds):
        if isinstance(step, Write):
            open_ids.setdefault(step.split, []).extend(names[step.start : step.stop])
        elif isinstance(step, Close):
            shards.append((step, open_ids.pop(step.split)))
        else:
            after = step
    shards += [(step, open_ids.pop(step.split)) for step in close_all(after)]
    return sorted((s.split, s.shard.index, s.shard.tokens, s.shard.documents, ids) for s, ids in shards)


def planned(cutting, lengths, sides, ends):
    """The same from chunks."""
    chunks, streams = {}, {}
    begin = 0
    for k, end in enumerate(ends):
        part = lengths[begin:end]
        given = None if sides is None else sides[begin:end]
        documents = ChunkDocuments(part.astype(np.uint32), given, np.zeros(0, BLOCK_DTYPE), part * 4)
        val = np.zeros(len(part), bool) if given is None else given == VAL
        counts = [(int((~val).sum()), int(val.sum())), (int(part[~val].sum()), int(part[val].sum()))]
        texts = (4 * counts[1][0], 4 * counts[1][1])
        chunk = Chunk(k, *counts, texts, (0, 0), 0, 0, [(0, len(part))] if len(part) else [])
        chunks[k] = (chunk, documents)
        for stream, chosen in ((0, ~val), (1, val)):
            streams[k, stream] = [(begin + d, t) for d in np.flatnonzero(chosen).tolist() for t in range(int(part[d]))]
        begin = end
    planner = ShardPlanner(cutting, two_streams=sides is not None, read=lambda chunk, _text: chunks[chunk.segment][1])
    shards = [shard for chunk, _ in chunks.values() for shard in planner.add(chunk)] + planner.finish()
    made = []
    for shard in shards:
        ids, at = [], 0
        for piece in shard.pieces:
            assert piece.at == at
            ids += streams[piece.chunk.segment, piece.stream][piece.start : piece.stop]
            at += piece.stop - piece.start
        made.append((shard.split, shard.index, shard.tokens, shard.documents, ids))
    return sorted(made), planner.counts


@given(cases())
@settings(max_examples=400)
def test_chunks_of_any_size_give_the_shards_of_one_machine(case):
    cutting, lengths, sides, ends = case
    expected = cut_at_once(cutting, lengths, sides)
    made, counts = planned(cutting, lengths, sides, ends)
    assert made == expected
    assert sum(counts.documents) == len(lengths)
    assert counts.tokens == [sum(s[2] for s in expected if s[0] == split) for split in (0, 1)]
    assert sum(counts.text_bytes) == 4 * int(lengths.sum())


@given(cases())
@settings(max_examples=200)
def test_totals_say_what_the_lengths_would_say(case):
    cutting, lengths, sides, _ = case
    if sides is not None:
        return
    state = PlanState()
    for end in range(0, len(lengths), 3):
        part = lengths[end : end + 3]
        bounds = np.concatenate([[0], np.cumsum(part)])
        runs, after = assign_splits(cutting, state, bounds, None)
        steps = list(cut_runs(cutting, state, runs, bounds))
        side = side_of_all(cutting, state, len(part), int(bounds[-1]))
        if side is not None:
            assert [run.split for run in runs] == [side]
            whole = take_whole(cutting, state, side, len(part), int(bounds[-1]))
            if whole is not None:
                assert len(steps) == 2
                assert whole.open == steps[-1].open
        last = steps[-1]
        state = PlanState(after.documents, after.tokens, after.val_full, last.shards_begun, last.open)
