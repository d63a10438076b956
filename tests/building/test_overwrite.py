"""`--overwrite`: the data set that is there stays whole until the new one is, whatever happens in between."""

from __future__ import annotations

from pathlib import Path

import pytest
from build_helpers import hashes
from made_documents import make_texts, write_jsonl

import tokenriver
from tokenriver.building.target import Target


def build(source: Path, out: Path, **words: object) -> tokenriver.BuildSummary:
    return tokenriver.build([source], tokenizer="byte260", out=out, dataset="d", **{"shard_tokens": 500, **words})


@pytest.mark.parametrize("layout", ["tokens", "llmc", "golf"])
def test_a_bad_record_in_the_new_input_leaves_the_old_data_set(tmp_path: Path, layout: str) -> None:
    first = build(write_jsonl(tmp_path / "a.jsonl", make_texts(60)), tmp_path / "out", layout=layout)
    before = hashes(first.directory)
    bad = tmp_path / "b.jsonl"
    bad.write_bytes(write_jsonl(tmp_path / "c.jsonl", make_texts(80)).read_bytes() + b"no json\n")
    with pytest.raises(tokenriver.CorpusError):
        build(bad, tmp_path / "out", layout=layout, overwrite=True)
    assert hashes(first.directory) == before
    assert tokenriver.verify(first.directory).ok


@pytest.mark.parametrize("layout", ["tokens", "llmc", "golf"])
def test_the_new_data_set_is_what_a_fresh_build_makes(tmp_path: Path, layout: str) -> None:
    new = write_jsonl(tmp_path / "new.jsonl", make_texts(30))
    fresh = build(new, tmp_path / "fresh", layout=layout)
    build(write_jsonl(tmp_path / "old.jsonl", make_texts(90)), tmp_path / "out", layout=layout)
    second = build(new, tmp_path / "out", layout=layout, overwrite=True)
    assert hashes(second.directory) == hashes(fresh.directory)
    assert second.record.is_file()
    assert second.record.parent == second.directory
    assert [p.name for p in second.directory.iterdir() if p.is_dir()] == []


@pytest.mark.parametrize("fails_at", range(9))
@pytest.mark.parametrize("again", [{}, {"overwrite": True}])
def test_a_swap_that_is_interrupted_anywhere_is_ended_by_the_next_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, fails_at: int, again: dict[str, bool]
) -> None:
    new = write_jsonl(tmp_path / "new.jsonl", make_texts(30))
    fresh = build(new, tmp_path / "fresh", shard_tokens=1500)
    build(write_jsonl(tmp_path / "old.jsonl", make_texts(90)), tmp_path / "out")
    real_swap, steps = Target.swap, [0]

    def power_cut(real):
        def step(*words, **more):
            steps[0] += 1
            if steps[0] > fails_at:
                raise KeyboardInterrupt
            return real(*words, **more)

        return step

    def swap(self):
        with monkeypatch.context() as patches:
            patches.setattr(Path, "replace", power_cut(Path.replace))
            patches.setattr(Path, "unlink", power_cut(Path.unlink))
            patches.setattr(Path, "touch", power_cut(Path.touch))
            real_swap(self)

    with monkeypatch.context() as patches:
        patches.setattr(Target, "swap", swap)
        with pytest.raises(KeyboardInterrupt):
            build(new, tmp_path / "out", shard_tokens=1500, overwrite=True)
    if again:
        build(new, tmp_path / "out", shard_tokens=1500, **again)
    else:
        with pytest.raises(tokenriver.IntegrityError, match="finished data set already"):
            build(new, tmp_path / "out", shard_tokens=1500)
    there = tmp_path / "out" / "tokens" / "byte260" / "d"
    assert hashes(there) == hashes(fresh.directory)
    assert tokenriver.verify(there).ok
