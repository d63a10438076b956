"""Mixtures: each source within one row of its share, any position on its own, and what changes keep."""

from __future__ import annotations

import json
import re
import sys
from fractions import Fraction
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from packing_cases import joined, write_documents

from tokenriver import FormatError, Mixture, ResumeError, TrainLoader, UsageError, write_shard
from tokenriver.cli import main
from tokenriver.loader import dealt
from tokenriver.loader.interleave import MAX_DENOMINATOR, Schedule, whole_weights
from tokenriver.loader.mixture_rows import MixtureRows
from tokenriver.loader.trace import trace_step

if TYPE_CHECKING:
    from pathlib import Path

WEIGHTS = st.lists(st.integers(0, 40), min_size=1, max_size=6)


@settings(max_examples=150)
@given(data=st.data(), n=st.integers(1, 6))
def test_after_any_row_each_source_is_within_one_row_of_its_share(data: st.DataObject, n: int) -> None:
    weights = st.lists(st.integers(0, 40), min_size=n, max_size=n).filter(any)
    starts = sorted({0, *data.draw(st.lists(st.integers(1, 120), max_size=3))})
    phases = [(start, data.draw(weights)) for start in starts]
    schedule = Schedule(phases, caps=[None] * n)
    dealt = schedule.sources(0, 300).tolist()
    counts, share = [0] * n, [Fraction(0)] * n
    for k, source in enumerate(dealt):
        now = next(w for start, w in reversed(phases) if start <= k)
        counts[source] += 1
        share = [s + Fraction(w, sum(now)) for s, w in zip(share, now, strict=True)]
        assert all(abs(c - s) < 1 for c, s in zip(counts, share, strict=True))
    first, stop = sorted([data.draw(st.integers(0, 300)), data.draw(st.integers(0, 300))])
    assert schedule.sources(first, stop).tolist() == dealt[first:stop]
    assert schedule.counts(first) == [dealt[:first].count(i) for i in range(n)]


@settings(max_examples=80)
@given(data=st.data(), n=st.integers(1, 4), stop=st.booleans())
def test_a_source_that_is_used_up_gives_no_more(data: st.DataObject, n: int, stop: bool) -> None:
    weights = data.draw(st.lists(st.integers(1, 9), min_size=n, max_size=n))
    caps = data.draw(st.lists(st.none() | st.integers(1, 50), min_size=n, max_size=n))
    schedule = Schedule([(0, weights)], caps=caps, stop=stop)
    rows = 400 if schedule.total is None else schedule.total
    counts = [schedule.sources(0, rows).tolist().count(i) for i in range(n)]
    assert schedule.counts(rows) == counts
    assert all(cap is None or count <= cap for cap, count in zip(caps, counts, strict=True))
    if stop and any(cap is not None for cap in caps):
        assert any(cap == count for cap, count in zip(caps, counts, strict=True))
    if not stop and None not in caps:
        assert counts == caps


def test_weights_are_exact_fractions_while_they_are_small_enough() -> None:
    assert whole_weights({"a": 0.7, "b": 0.2, "c": 0.1}) == {"a": 7, "b": 2, "c": 1}
    rounded = whole_weights({"a": 0.123456789, "b": 1e-12, "c": 0})
    assert sum(rounded.values()) == MAX_DENOMINATOR
    assert rounded["b"] == 1
    assert rounded["c"] == 0
    far = Schedule([(0, list(whole_weights({"a": 0.4999, "b": 0.5001}).values()))], caps=[None, None])
    assert abs(far.counts(10**12)[0] - 0.4999 * 10**12) < 1
    for bad in (
        {"a": -1},
        {"a": 0},
        {"a": "x"},
        {},
        {"a": None},
        {"a": "1/0"},
        {"a": "1e-999999999"},
        {"a": float("nan")},
    ):
        with pytest.raises(UsageError):
            whole_weights(bad)


def make_sources(root: Path, sizes: dict[str, int]) -> dict[str, Path]:
    """Data sets whose ids count from 10,000 · (k + 1), so that each id names its source and place."""
    paths = {}
    for k, (name, size) in enumerate(sizes.items()):
        paths[name] = root / f"{name}_train_000000.bin"
        root.mkdir(parents=True, exist_ok=True)
        write_shard(paths[name], np.arange(size) + 10_000 * (k + 1), variant="uint32")
    return paths


def rows_of(batches: Any) -> list[list[int]]:
    return [batch.inputs[:, 0].tolist() for batch in batches]


OPTIONS: dict[str, Any] = {"batch_size": 4, "seq_len": 5, "order": "sequential", "cu_seqlens": None}


def test_every_source_is_read_in_its_own_order_and_repeats(tmp_path: Path) -> None:
    paths = make_sources(tmp_path, {"a": 101, "b": 51})
    loader = TrainLoader(Mixture({"a": (paths["a"], 3), "b": (paths["b"], 1)}), **OPTIONS)
    rows = np.array(rows_of(islice(loader, 40))).ravel()
    a, b = rows[rows < 20_000] - 10_000, rows[rows >= 20_000] - 20_000
    assert (len(a), len(b)) == (120, 40)
    assert a.tolist() == [5 * (k % 20) for k in range(120)]
    assert b.tolist() == [5 * (k % 10) for k in range(40)]
    ledger = loader.ledger()
    assert ledger["sources"]["a"] == {"tokens": 101, "rows": 120, "targets": 600, "epoch": 6, "row": 0, "share": 0.75}
    assert loader.steps_per_epoch is None
    assert "mixture of a, b" in repr(loader)


@pytest.mark.parametrize("packing", ["concat", "best-fit", "bos-aligned"])
def test_the_same_global_batches_for_every_world_size_and_any_resume(tmp_path: Path, packing: str) -> None:
    rng = np.random.default_rng(1)
    mixed = {}
    for name, weight in (("a", 5), ("b", 2), ("c", 0.5)):
        folder = write_documents(tmp_path / name, rng.integers(1, 20, 40).tolist())[0][0].parent
        mixed[name] = (folder, weight)
    mixture = Mixture(
        mixed, phases=[(10, {"a": 1, "c": 1}), (20, {"b": 1, "c": 3})], max_epochs={"c": 1}, exhausted="continue"
    )
    words = {**OPTIONS, "order": "shuffled", "packing": packing, "separator": 0, "seed": 4}

    def loader(rank: int, world: int) -> TrainLoader:
        return TrainLoader(mixture, **{**words, "batch_size": 12 // world, "rank": rank, "world_size": world})

    expected = [(b.step, b.inputs.tolist(), b.targets.tolist()) for b in islice(loader(0, 1), 40)]
    state, got = loader(0, 1).state_dict(), []
    for run, world in [(7, 2), (0, 1), (1, 4), (13, 3), (19, 1)]:
        parts, last = [], state
        for rank in range(world):
            one = loader(rank, world)
            one.load_state_dict(json.loads(json.dumps(state)))
            assert one.state_dict() == state
            parts.append([(b.step, b.inputs.tolist(), b.targets.tolist()) for b in islice(one, run)])
            last = one.state_dict()
        state = last
        got += [(p[0][0], joined(q[1] for q in p), joined(q[2] for q in p)) for p in zip(*parts, strict=True)]
    assert got == expected
    assert [loader(0, 1).batch_at(k).inputs.tolist() for k in (0, 11, 39)] == [expected[k][1] for k in (0, 11, 39)]
    assert set(state["sources"]) == {"a", "b", "c"}
    assert state["sources"]["c"] == -1
    assert all(type(n) is int for n in state["sources"].values())


@pytest.mark.parametrize("packing", ["concat", "bos-aligned", "best-fit"])
@pytest.mark.parametrize("span", [1 << 20, 40])
def test_steps_that_are_planned_together_are_those_found_one_by_one(
    tmp_path: Path, packing: Any, span: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(dealt, "_SPAN", span)
    rng = np.random.default_rng(3)
    sources = {
        name: (write_documents(tmp_path / name, rng.integers(1, 50, 60).tolist())[0], weight, epochs)
        for name, weight, epochs in (("a", 0.5, 3), ("b", 0.3, None), ("c", 0.2, None))
    }
    mixture = Mixture(sources, phases=[(20, {"b": 1, "c": 2})])
    words: dict[str, Any] = {"batch_size": 3, "seq_len": 16, "world_size": 2, "packing": packing, "separator": 0}
    words["max_doc_len"] = 12 if packing == "bos-aligned" else None  # targets that lie elsewhere
    for rank in range(2):
        loader = TrainLoader(mixture, rank=rank, **words)
        for batch in islice(loader, 90):
            one = loader.batch_at(batch.step)
            assert np.array_equal(batch.inputs, one.inputs)
            assert np.array_equal(batch.targets, one.targets)
            assert (batch.mask is None) == (one.mask is None)
            assert batch.mask is None or np.array_equal(batch.mask, one.mask)


@pytest.mark.parametrize("packing", ["concat", "best-fit"])
def test_few_epochs_of_a_tiny_source_are_planned_together(tmp_path: Path, packing: Any) -> None:
    large, tiny = (write_documents(tmp_path / name, n)[0] for name, n in (("large", [40] * 900), ("tiny", [20])))
    mixture = Mixture({"large": (large, 0.5), "tiny": (tiny, 0.5)})
    loader = TrainLoader(mixture, batch_size=8, seq_len=16, packing=packing, separator=0)
    first = next(loader.plan.walk(0, 0, None))[2]
    n_steps = len(first) if isinstance(first, list) else len(first[1]) - 1
    assert 1 < n_steps <= 64
    with pytest.raises(UsageError, match="beyond every run"):
        loader.batch_at(2**70)


def test_a_source_added_later_begins_at_its_start_and_the_others_go_on(tmp_path: Path) -> None:
    paths = make_sources(tmp_path, {"a": 1001, "b": 1001, "c": 1001})
    old = TrainLoader(Mixture({"a": (paths["a"], 1), "b": (paths["b"], 1)}), **OPTIONS)
    seen = np.array(rows_of(islice(old, 10))).ravel()
    new_mixture = Mixture({"a": (paths["a"], 1), "b": (paths["b"], 1), "c": (paths["c"], 2)}, max_epochs={"b": 1})
    new = TrainLoader(new_mixture, **OPTIONS)
    with pytest.raises(ResumeError, match=r"mixture\.weights was"):
        new.load_state_dict(old.state_dict())
    new.load_state_dict(old.state_dict(), allow_change="mixture")
    rows = np.array(rows_of(islice(new, 10))).ravel()
    for base, begin, n in ((10_000, 20, 10), (20_000, 20, 10), (30_000, 0, 20)):
        own = rows[(rows >= base) & (rows < base + 10_000)] - base
        assert own.tolist() == [5 * k for k in range(begin, begin + n)]
    assert not set(seen.tolist()) & set(rows.tolist())
    for ask in (new.batch_at, lambda step: trace_step(new, step)):
        with pytest.raises(UsageError, match="this mixture began at step 10; step 9 was another's"):
            ask(9)
    state = new.state_dict()
    assert state["sources"] == {"a": 30, "b": 30, "c": 20}
    assert state["mixture_step"] == 10
    again = TrainLoader(new_mixture, **OPTIONS)
    again.load_state_dict(json.loads(json.dumps(state)))
    assert rows_of(islice(again, 200)) == rows_of(islice(new, 200))
    late = again.state_dict()
    assert late["sources"]["b"] == -1 - 20  # used up: what it had given when this schedule began
    last = TrainLoader(new_mixture, **OPTIONS)
    last.load_state_dict(late)
    assert last.state_dict() == late
    assert rows_of(islice(last, 20)) == rows_of(islice(again, 20))


def test_the_run_ends_where_a_source_is_used_up_if_that_was_chosen(tmp_path: Path) -> None:
    paths = make_sources(tmp_path, {"a": 101, "b": 501})
    mixture = Mixture({"a": (paths["a"], 1, 2), "b": (paths["b"], 1)}, exhausted="stop")
    loader = TrainLoader(mixture, **OPTIONS)
    batches = list(loader)
    assert len(batches) == loader.steps_per_epoch == 79 // 4
    assert list(loader) == []
    again = TrainLoader(mixture, **OPTIONS)
    again.load_state_dict(loader.state_dict())
    assert list(again) == []
    with pytest.raises(UsageError, match="no step"):
        loader.batch_at(len(batches))
    both = Mixture({"a": (paths["a"], 1), "b": (paths["b"], 1)}, max_epochs=1)
    rows = np.array(rows_of(TrainLoader(both, **OPTIONS))).ravel()
    assert len(rows) == len(set(rows.tolist())) == 120


def test_changed_data_or_contradicting_words_are_refused_by_name(tmp_path: Path) -> None:
    paths = make_sources(tmp_path, {"a": 201, "b": 201})
    mixture = Mixture({"a": (paths["a"], 1), "b": (paths["b"], 1)})
    loader = TrainLoader(mixture, **OPTIONS)
    state = loader.state_dict()
    plain = TrainLoader(paths["a"], **OPTIONS)
    with pytest.raises(ResumeError, match="mixture was a mixture, here it is one data set"):
        plain.load_state_dict(state)
    with pytest.raises(ResumeError, match="mixture was one data set"):
        loader.load_state_dict(plain.state_dict())
    write_shard(paths["b"], np.arange(301), variant="uint32")
    with pytest.raises(ResumeError, match="b: the data changed: the number of tokens"):
        TrainLoader(mixture, **OPTIONS).load_state_dict(state)
    with pytest.raises(ResumeError):
        loader.load_state_dict(state | {"sources": {"a": 7, "b": 0}})
    for words in ({"phases": [(0, {})]}, {"phases": [(3, {"x": 1})]}, {"max_epochs": {"x": 1}}, {"max_epochs": 0}):
        with pytest.raises(UsageError):
            Mixture({"a": (paths["a"], 1)}, **words)
    for sources in ({}, {"a": "path"}, {"a": {"path": "p"}}, {"a": ("p", 0)}):
        with pytest.raises(UsageError):
            Mixture(sources)
    with pytest.raises(UsageError, match="no epochs"):
        TrainLoader(mixture, **OPTIONS, epochs=1)


TOML = """
[sources.web]
path = "web_train_000000.bin"
weight = 0.75
[sources.code]
path = "code_train_000000.bin"
weight = 0.25
max_epochs = 3
[[phases]]
step = 20
weights = {code = 1, web = 1}
"""


def test_a_mixture_is_read_from_toml_and_planned_without_reading(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sources(tmp_path, {"web": 2001, "code": 201})
    (tmp_path / "mix.toml").write_text(TOML)
    words = ["mix", "plan", str(tmp_path / "mix.toml"), "--steps", "30", "--batch-size", "4", "--seq-len", "5"]
    assert main([*words, "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert [(p["start"], p["stop"]) for p in plan["phases"]] == [(0, 20), (20, 30)]
    loader = TrainLoader(Mixture(tmp_path / "mix.toml"), **OPTIONS)
    rows = np.array(rows_of(islice(loader, 30)))
    for phase in [*plan["phases"], plan["total"]]:
        part = rows[phase["start"] : phase["stop"]]
        web, code = (int((part // 10_000 == k).sum()) for k in (1, 2))
        assert [(s["name"], s["rows"]) for s in phase["sources"]] == [("code", code), ("web", web)]
        assert phase["sources"][0]["share"] == pytest.approx(code / part.size)
    assert plan["total"]["sources"][0]["epochs"] == pytest.approx(1.0)
    assert main(words) == 0
    out = capsys.readouterr().out
    assert "steps 0 to 19" in out
    assert "75.00%" in out
    assert "600 tokens in 30 steps" in out
    (tmp_path / "mix.toml").write_text("[sources")
    assert main(words) == 1
    with pytest.raises(FormatError, match="not TOML"):
        Mixture(tmp_path / "mix.toml")


def test_the_picture_needs_the_extra_and_says_so(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sources(tmp_path, {"web": 2001, "code": 201})
    (tmp_path / "mix.toml").write_text(TOML)
    words = ["mix", "plan", str(tmp_path / "mix.toml"), "--steps", "30", "--batch-size", "4", "--seq-len", "5"]
    with monkeypatch.context() as patch:
        patch.setitem(sys.modules, "matplotlib.figure", None)
        assert main([*words, "--plot", str(tmp_path / "mix.png")]) == 1
        assert "tokenriver[report]" in capsys.readouterr().err
    pytest.importorskip("matplotlib")
    assert main([*words, "--plot", str(tmp_path / "mix.png")]) == 0
    assert (tmp_path / "mix.png").read_bytes().startswith(b"\x89PNG")
    assert main([*words, "--plot", str(tmp_path / "mix.SVG")]) == 0
    assert b"<svg" in (tmp_path / "mix.SVG").read_bytes()
    for ending in ("pgf", "raw", "xyz"):  # matplotlib needs LaTeX for the first
        assert main([*words, "--plot", str(tmp_path / f"mix.{ending}")]) == 2
        assert "a picture's name ends in .png, .svg or .pdf" in capsys.readouterr().err


@pytest.mark.parametrize("sources", [None, 5, b"mix.toml", [("a", "x", 1)]])
def test_what_is_no_mixture_is_refused(sources: Any) -> None:
    with pytest.raises(UsageError, match="a mixture is a dict of sources or the path of a TOML file"):
        Mixture(sources)


@pytest.mark.parametrize("phases", [5, [5], [(5,)], [(5, [1, 2])], {5: {"a": 1}}])
def test_what_is_no_phase_is_refused(phases: Any) -> None:
    with pytest.raises(UsageError, match=r"phases are a list of \(step, weights\)"):
        Mixture({"a": ("x", 1)}, phases=phases)


def test_steps_and_caps_beyond_every_run_are_refused_and_numpy_s_are_taken() -> None:
    with pytest.raises(UsageError, match=r"below 2\^40"):
        Mixture({"a": ("x", 1)}, phases=[(2**70, {"a": 1})])
    for cap in (10**30, 0, 1.5):
        with pytest.raises(UsageError, match="max_epochs of a is at least 1 and at most 1,000,000, or None"):
            Mixture({"a": ("x", 1, cap)})
    plain = Mixture({"a": ("x", 1, 2)}, phases=[(3, {"a": 1})]).description()
    given = Mixture({"a": ("x", 1, np.int64(2))}, phases=[(np.int64(3), {"a": 1})]).description()
    assert json.loads(json.dumps(given)) == json.loads(json.dumps(plain))


def test_numbers_that_python_will_not_write_out_are_refused_in_words(tmp_path: Path) -> None:
    huge = 10**5000
    for source, words in ((("x", huge), {}), (("x", 1, huge), {}), (("x", 1), {"phases": [(huge, {"a": 1})]})):
        with pytest.raises(UsageError, match="a number of thousands of digits"):
            Mixture({"a": source}, **words)
    for text in (f"{huge:x}".join(["0x", ""]), "1" * 5000):
        (tmp_path / "mix.toml").write_text(f"[sources.a]\npath = 'a'\nweight = {text}\n")
        with pytest.raises((UsageError, FormatError), match=r"mix\.toml: "):
            Mixture(tmp_path / "mix.toml")
    with pytest.raises(UsageError, match="seq_len has at most 40 digits, unlike a number of thousands of digits"):
        TrainLoader("x", batch_size=1, seq_len=-huge)


def test_caps_of_no_source_and_mixtures_of_mixtures_are_refused() -> None:
    with pytest.raises(UsageError, match="max_epochs names 1, b; the sources are a"):
        Mixture({"a": ("x", 1)}, max_epochs={1: 2, "b": 3})  # type: ignore[dict-item]
    with pytest.raises(UsageError, match="source all is a mixture itself"):
        Mixture({"all": (Mixture({"a": ("x", 1)}), 1)})


@pytest.mark.parametrize("packing", ["concat", "best-fit", "bos-aligned"])
def test_a_source_without_data_is_named(tmp_path: Path, packing: Any) -> None:
    sources: dict[str, Any] = {}
    for name, ids in (("full", [0, 1, 2, 3] * 50), ("hollow", [])):
        (tmp_path / name).mkdir()
        write_shard(tmp_path / name / "x_train_000000.bin", np.array(ids, np.uint16))
        sources[name] = (tmp_path / name, 1)
    with pytest.raises(UsageError, match="source hollow has too little data for one row"):
        TrainLoader(Mixture(sources), batch_size=1, seq_len=8, packing=packing, separator=0)


@pytest.mark.parametrize(
    "change",
    [
        {"mixture_step": -1},
        {"mixture_step": 10},
        {"mixture_step": 2**70},
        {"step": 2**70},
        {"global_batch_size": 2**62 - 1},
        {"epoch": 1},
        {"fingerprint": {}},
        {"fingerprint": {"a": 5, "b": 6, "c": 7}},
        {"mixture": {"max_epochs": 5}},
        {"mixture": {"max_epochs": None}},
    ],
)
def test_an_edited_state_of_a_mixture_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    paths = make_sources(tmp_path, {"a": 101, "b": 51, "c": 61})
    loader = TrainLoader(Mixture({name: (path, 1) for name, path in paths.items()}), batch_size=2, seq_len=8)
    list(islice(loader, 2))
    state = loader.state_dict()
    for allowed in (False, True):
        with pytest.raises(ResumeError, match="not the state of a loader"):
            loader.load_state_dict(state | change, allow_change=allowed)
    loader.load_state_dict(state)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("phases = 5\n[sources.a]\npath = 'a'\nweight = 1\n", r"every \[\[phases\]\] has step and weights"),
        ("[sources.a]\npath = 'a'\nweight = 1\n[[phases]]\nstep = 1\nweights = 5\n", "has step and weights"),
        ("a = " + "[" * 100_000, "not TOML"),
        ("#" * ((16 << 20) + 1), "mix.toml: over 16 MiB"),
    ],
)
def test_a_mixture_s_file_of_another_shape_is_refused(tmp_path: Path, text: str, words: str) -> None:
    (tmp_path / "mix.toml").write_text(text)
    with pytest.raises(FormatError, match=words):
        Mixture(tmp_path / "mix.toml")


def test_a_source_s_name_is_told_where_its_path_is_wrong_and_moves_no_cursor_in_a_plan(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    make_sources(tmp_path, {"web": 201})
    words = ["mix", "plan", str(tmp_path / "mix.toml"), "--steps", "3", "--batch-size", "4", "--seq-len", "5"]
    for path, code in (("web_train_000000.bin", 0), ("nowhere", 2)):
        (tmp_path / "mix.toml").write_text(f'[sources."a\\u001b[2Jb"]\npath = "{path}"\nweight = 1\n')
        assert main(words) == code
    out, err = capsys.readouterr()
    assert "\n  a\\x1b[2Jb    " in out
    assert "\x1b" not in out
    assert re.fullmatch(r"tokenriver: source a.*b: .*nowhere: no such data set directory, manifest or shard\n", err)
    (tmp_path / "mix.toml").write_text("[sources.all]\npath = 5\nweight = 1\n")
    with pytest.raises(UsageError, match="source all: a source is a path"):
        TrainLoader(Mixture(tmp_path / "mix.toml"), **OPTIONS)


def test_a_mixture_s_file_may_begin_with_a_byte_order_mark(tmp_path: Path) -> None:
    (tmp_path / "mix.toml").write_bytes(b"\xef\xbb\xbf[sources.a]\npath = 'a'\nweight = 1\n")
    assert list(Mixture(tmp_path / "mix.toml").sources) == ["a"]
    (tmp_path / "mix.toml").write_text("[sources.a]\npath = ''\nweight = 1\n")
    with pytest.raises(UsageError, match="a path is empty"):
        Mixture(tmp_path / "mix.toml")


def test_a_plan_of_more_steps_than_any_run_has_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "mix.toml").write_text(f"[sources.a]\npath = '{tmp_path}'\nweight = 1\n")
    assert main(["mix", "plan", str(tmp_path / "mix.toml"), "--steps", str(10**23)]) == 2
    assert "steps is at least 1 and below 2^40" in capsys.readouterr().err


def test_threads_that_look_for_a_source_s_epochs_at_the_same_time_find_the_same() -> None:
    class Rows:
        """Epochs of 10, 11, 12 … rows; while the first thread counts them another does."""

        alike, meanwhile = False, 3

        def n_rows(self, epoch: int) -> int:
            if self.meanwhile:
                self.meanwhile -= 1
                assert rows.epoch_of(0, 40) == (3, 7)
            return 10 + epoch

    mixture = Mixture({"a": ("a", 1)})
    rows = MixtureRows(mixture, [Rows()], global_batch_size=1)  # type: ignore[list-item]
    assert rows.epoch_of(0, 50) == (4, 4)
    assert rows.epoch_of(0, 10) == (1, 0)
    assert rows._epochs[0] == [0, 10, 21, 33, 46, 60]
