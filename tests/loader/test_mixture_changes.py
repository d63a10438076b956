"""What a mixture's run survives: its end in the middle of a batch, other caps, other batches, another spelling."""

from __future__ import annotations

import json
from itertools import islice
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from packing_cases import record_separator, write_documents

from tokenriver import Mixture, ResumeError, TrainLoader, UsageError
from tokenriver.loader.interleave import Schedule
from tokenriver.loader.mix_plan import plan_mixture
from tokenriver.loader.mixture_rows import MixtureRows

if TYPE_CHECKING:
    from pathlib import Path

OPTIONS: dict[str, Any] = {"batch_size": 4, "seq_len": 8, "order": "sequential", "separator": 0}


@pytest.fixture
def sources(tmp_path: Path) -> dict[str, Path]:
    """Two data sets of 100 and 10 rows."""
    return {name: write_documents(tmp_path / name, lengths)[0][0] for name, lengths in LENGTHS.items()}


LENGTHS = {"long": [7] * 114 + [3], "short": [9] * 9}


def open_mixture(sources: dict[str, Path], cap: int | None = None, share: float = 0.5, **options: Any) -> TrainLoader:
    mixed = {"long": (sources["long"], 1 - share), "short": (sources["short"], share, cap)}
    return TrainLoader(Mixture(mixed), **{**OPTIONS, **options})


@pytest.mark.parametrize("packing", ["concat", "bos-aligned", "best-fit"])
def test_a_run_that_ends_in_a_padded_batch_has_a_state_and_a_ledger_there(
    sources: dict[str, Path], packing: str
) -> None:
    def ranks() -> list[TrainLoader]:
        mixture = Mixture({name: (path, 1) for name, path in sources.items()}, max_epochs=1)
        words = {**OPTIONS, "batch_size": 9, "drop_last": False, "packing": packing, "world_size": 3}
        return [TrainLoader(mixture, rank=rank, **words) for rank in range(3)]

    for loader, again in zip(ranks(), ranks(), strict=True):
        rows = loader.mixture_rows.n_rows(0)
        assert rows is not None
        assert rows % 27
        assert len(list(loader)) == loader.steps_per_epoch == -(-rows // 27)
        ledger = loader.ledger()
        assert ledger["rows"] == sum(s["rows"] for s in ledger["sources"].values()) == rows
        again.load_state_dict(loader.state_dict())
        assert again.state_dict() == loader.state_dict()
        assert list(again) == []


@pytest.mark.parametrize("cap", [None, 3, 2, 1])
def test_a_source_that_was_used_up_goes_on_behind_its_old_cap(sources: dict[str, Path], cap: int | None) -> None:
    old = open_mixture(sources, cap=2)
    list(islice(old, 12))
    assert old.ledger()["sources"]["short"]["rows"] == 20
    new = open_mixture(sources, cap=cap, share=0.75)
    new.load_state_dict(old.state_dict(), allow_change="mixture")
    assert new.ledger()["sources"]["short"]["rows"] == 20
    list(islice(new, 12))
    assert new.ledger()["sources"]["short"]["rows"] == {None: 56, 3: 30, 2: 20, 1: 20}[cap]
    again = open_mixture(sources, cap=cap, share=0.75)
    again.load_state_dict(json.loads(json.dumps(new.state_dict())))
    assert again.state_dict() == new.state_dict()
    assert np.array_equal(next(iter(again)).inputs, next(iter(new)).inputs)


def test_a_mixture_is_the_same_in_whatever_order_its_sources_are_named(sources: dict[str, Path]) -> None:
    one = Mixture({name: (path, 1) for name, path in sources.items()})
    other = Mixture({name: (sources[name], 1) for name in reversed(sources)})
    for packing in ("concat", "best-fit"):
        words = {**OPTIONS, "batch_size": 3, "packing": packing}
        first, second = TrainLoader(one, **words), TrainLoader(other, **words)
        list(islice(first, 3))
        second.load_state_dict(json.loads(json.dumps(first.state_dict(), sort_keys=True)))
        assert [b.inputs.tolist() for b in islice(second, 5)] == [b.inputs.tolist() for b in islice(first, 5)]


@pytest.mark.parametrize("step", [1, 3])
def test_a_run_taken_up_with_larger_batches_is_taken_up_again(sources: dict[str, Path], step: int) -> None:
    small = open_mixture(sources)
    list(islice(small, step))
    large, again = (open_mixture(sources, batch_size=8) for _ in range(2))
    large.load_state_dict(small.state_dict(), allow_change="global_batch_size")
    again.load_state_dict(large.state_dict())
    assert again.state_dict() == large.state_dict()
    assert again.ledger()["rows"] == 4 * step
    assert np.array_equal(next(iter(again)).inputs, next(iter(large)).inputs)


def test_a_refused_state_leaves_the_run_where_it_was(sources: dict[str, Path]) -> None:
    loader = open_mixture(sources)
    list(islice(loader, 5))
    state = loader.state_dict()
    with pytest.raises(ResumeError, match="rows of the sources"):
        loader.load_state_dict({**state, "sources": {"long": 100, "short": 3}})
    assert loader.state_dict() == state


def test_a_run_is_taken_up_without_laying_its_schedule_out_again(
    sources: dict[str, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    first = open_mixture(sources, cap=2, share=0.37)
    list(islice(first, 30))
    state = json.loads(json.dumps(first.state_dict()))
    assert state["sources"]["short"] == -1
    again = open_mixture(sources, cap=2, share=0.37)
    monkeypatch.setattr(MixtureRows, "restart", None)
    again.load_state_dict(state)
    assert again.state_dict() == state
    assert np.array_equal(next(iter(again)).inputs, next(iter(first)).inputs)


def test_a_source_used_up_without_a_cap_is_no_state(sources: dict[str, Path]) -> None:
    loader = open_mixture(sources)
    state = loader.state_dict()
    with pytest.raises(ResumeError, match="short is used up, but has no max_epochs"):
        loader.load_state_dict({**state, "sources": {"long": 0, "short": -1}}, allow_change="mixture")


def test_a_later_epoch_of_one_data_set_is_no_place_in_a_mixture(sources: dict[str, Path]) -> None:
    plain = TrainLoader(sources["short"], **OPTIONS)
    list(islice(plain, 3))
    assert plain.epoch == 1
    with pytest.raises(ResumeError, match="epoch 1 of one data set; a mixture is one run"):
        open_mixture(sources).load_state_dict(plain.state_dict(), allow_change="mixture")


def test_separators_before_and_behind_documents_are_not_mixed(tmp_path: Path) -> None:
    folders = []
    for position in ("before", "after"):
        paths, _ = write_documents(tmp_path / position, [5] * 20, position=position)
        folders.append(record_separator(paths, position))
    words = {**OPTIONS, "separator": None, "packing": "best-fit"}
    for mixed in (folders, folders[::-1]):
        with pytest.raises(UsageError, match=r"cannot be mixed: their separators are 0 \((before|after) each"):
            TrainLoader(Mixture({"a": (mixed[0], 1), "b": (mixed[1], 1)}), **words)
    with pytest.raises(UsageError, match="name is a text, not 1"):
        Mixture({1: (folders[0], 1)})  # type: ignore[dict-item]


def test_shards_listed_in_a_mixture_s_file_are_relative_to_it(tmp_path: Path) -> None:
    paths, _ = write_documents(tmp_path / "set", [5] * 20, shards=2)
    listed = ", ".join(f'"set/{path.name}"' for path in paths)
    (tmp_path / "mix.toml").write_text(f"[sources.a]\npath = [{listed}]\nweight = 1\n")
    assert TrainLoader(Mixture(tmp_path / "mix.toml"), **OPTIONS).n_tokens == 100


@pytest.mark.parametrize(("packing", "order"), [("concat", "shuffled"), ("best-fit", "sequential")])
def test_a_small_source_s_epochs_are_counted_without_walking_through_them(
    sources: dict[str, Path], packing: str, order: str
) -> None:
    loader = open_mixture(sources, packing=packing, order=order)
    step = 10**12
    late = loader.batch_at(step)
    assert late.step == step
    loader.load_state_dict({**loader.state_dict(), "step": step, "sources": {"long": 2 * step, "short": 2 * step}})
    assert np.array_equal(next(iter(loader)).inputs, late.inputs)
    rows = loader.mixture_rows.rows_of(1, 0)
    assert loader.ledger()["sources"]["short"]["epoch"] == (2 * step + 2) // rows


def test_a_plan_of_epochs_without_number_tells_them_by_the_first_thousand(sources: dict[str, Path]) -> None:
    mixture = Mixture({name: (path, 1) for name, path in sources.items()})
    words = {**OPTIONS, "packing": "best-fit", "order": "shuffled"}
    plan = plan_mixture(mixture, steps=10**9, **words)
    assert plan_mixture(mixture, steps=10, world_size=2, **words).tokens == 2 * 10 * plan.tokens // 10**9
    rows = TrainLoader(mixture, **words).mixture_rows.rows_of(1, 0)
    assert plan.total.sources[1].epochs == pytest.approx(2 * 10**9 / rows, rel=0.1)


def test_of_sources_that_rest_the_one_that_is_due_first_comes_first() -> None:
    """Sources 0 and 3 are behind their share, and have no weight from row 12 on; 0 has some again from row 22 on."""
    phases = [(0, [6, 1, 1, 4]), (2, [3, 0, 1, 3]), (12, [0, 3, 1, 0]), (22, [1, 0, 2, 0])]
    dealt = Schedule(phases, caps=[None] * 4).sources(0, 40).tolist()
    assert dealt[12:26] == [0, 1, 1, 2, 1, 1, 1, 2, 1, 2, 3, 2, 2, 0]
