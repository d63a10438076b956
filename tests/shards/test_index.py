"""The document index: datatrove's convention, the same from separators as from a build, refused when it is wrong."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import tokenriver
from tokenriver import FormatError, UsageError, write_shard
from tokenriver.cli import main
from tokenriver.shards.index import find_ends, index_path, index_shard, read_index
from tokenriver.shards.verify import verify

if TYPE_CHECKING:
    from pathlib import Path

SEPARATOR = 7


def naive_ends(ids: list[int], position: str) -> list[int]:
    """Ends by walking: a document ends before the next separator, or right after its own."""
    ends = []
    for i, one in enumerate(ids):
        if one == SEPARATOR:
            if position == "after":
                ends.append(i + 1)
            elif i:
                ends.append(i)
    return ends if not ids or (ends and ends[-1] == len(ids)) else [*ends, len(ids)]


@settings(max_examples=25)
@given(
    ids=st.lists(st.sampled_from([SEPARATOR, 1, 2, 65535]), max_size=60),
    position=st.sampled_from(["before", "after"]),
    threads=st.integers(1, 3),
    variant=st.sampled_from(["uint16", "uint32"]),
)
def test_the_ends_are_those_found_by_walking(
    tmp_path_factory: pytest.TempPathFactory, ids: list[int], position: str, threads: int, variant: str
) -> None:
    path = tmp_path_factory.mktemp("index") / "a.bin"
    write_shard(path, ids, variant=variant)
    facts = index_shard(path, separator_id=SEPARATOR, position=position, threads=threads)
    expected = naive_ends(ids, position)
    assert np.fromfile(index_path(path), "<u8").tolist() == expected
    assert (facts.n_docs, facts.n_tokens) == (len(expected), len(ids))
    assert read_index(index_path(path), len(ids)).tolist() == expected


def test_pieces_and_threads_meet_without_a_seam(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    ids = rng.integers(10, 1000, 1_000_003, dtype=np.uint16)
    step = (256 << 10) // 2
    places = sorted({0, 1, 8, step - 1, step, step + 1, 2 * step, 500_001, 500_002, len(ids) - 1})
    ids[places] = SEPARATOR
    write_shard(tmp_path / "a.bin", ids)
    for threads in (1, 2, 5):
        ends = find_ends(tmp_path / "a.bin", separator_id=SEPARATOR, threads=threads)
        assert ends.tolist() == [*places[1:], len(ids)]


@pytest.mark.parametrize(
    ("ends", "problem"),
    [
        (b"\1\0\0", "not a whole number"),
        (np.array([3, 2, 10], "<u8").tobytes(), "document 1 ends at 2, before document 0"),
        (np.array([3, 9], "<u8").tobytes(), "last document ends at 9, but the shard has 10"),
        (b"", "holds no document"),
    ],
)
def test_a_wrong_index_is_refused_with_what_is_wrong(tmp_path: Path, ends: bytes, problem: str) -> None:
    (tmp_path / "a.bin.index").write_bytes(ends)
    with pytest.raises(FormatError, match=problem):
        read_index(tmp_path / "a.bin.index", 10)


def build(tmp_path: Path, texts: list[str], **words: object) -> Path:
    tmp_path.mkdir(exist_ok=True)
    source = tmp_path / "docs.jsonl"
    source.write_text("".join(json.dumps({"text": t}) + "\n" for t in texts))
    words = {"tokenizer": "byte260", "shard_tokens": 100, "split": "train", **words}
    return tokenriver.build([source], out=tmp_path / "out", **words).directory


def test_a_build_and_the_separators_give_the_same_index(tmp_path: Path) -> None:
    texts = ["a" * (1 + 17 * i % 90) for i in range(40)]
    for layout in ("tokens", "llmc", "golf"):
        directory = build(tmp_path / layout, texts, layout=layout, doc_index=True)
        shards = sorted(directory.glob("*.bin"))
        assert len(shards) > 5
        for shard in shards:
            made = index_path(shard).read_bytes()
            assert made == find_ends(shard, separator_id=1).astype("<u8").tobytes()
        assert verify(directory).findings == []
    assert not list(build(tmp_path / "off", texts, layout="llmc").glob("*.index"))
    assert not list(build(tmp_path / "no", texts, doc_index=False).glob("*.index"))


def test_without_separators_the_build_knows_the_documents(tmp_path: Path) -> None:
    directory = build(tmp_path, ["abc", "de", "f" * 98, "g"], tokenizer="byte", block_bytes=1)
    lengths = []
    for shard in sorted(directory.glob("*.bin")):
        n = len(tokenriver.open_shard(shard))
        lengths += np.diff(read_index(index_path(shard), n), prepend=0).tolist()
    assert lengths == [3, 2, 98, 1]
    assert verify(directory).findings == []


def test_without_separators_one_changed_end_is_found_by_the_recorded_hash(tmp_path: Path) -> None:
    directory = build(tmp_path, ["abc", "de", "fgh"], tokenizer="byte")
    index = index_path(directory / "train-00000.bin")
    np.array([3, 6, 8], "<u8").tofile(index)
    (finding,) = verify(directory).findings
    assert finding.path == index
    assert "sha256 is " in finding.problem
    assert "_BUILD.json says " in finding.problem
    assert verify(index.with_suffix("")).findings == [finding]
    np.array([3, 5, 8], "<u8").tofile(index)
    assert verify(directory).findings == []


def test_verify_names_every_kind_of_wrong_index(tmp_path: Path) -> None:
    directory = build(tmp_path, ["abc", "de", "fgh"])
    index = directory / "train-00000.bin.index"
    good = np.fromfile(index, "<u8")
    for ends, problem in [
        (good[:-1], "last document ends at"),
        (good[[1, 0, 2]], "before document 0"),
        (good[1:], "document 0 ends at 7, but by the separators"),
        (good + np.array([1, 0, 0], "<u8"), "document 0 ends at 5, but by the separators"),
    ]:
        ends.astype("<u8").tofile(index)
        findings = verify(directory).findings
        assert [f.path.name for f in findings] == [index.name]
        assert problem in findings[0].problem
        assert verify(directory / "train-00000.bin").findings == findings == verify(index).findings
    good.tofile(index)
    (directory / "train-00009.bin.index").write_bytes(b"")
    assert [f.problem for f in verify(directory).findings] == ["additional: a document index without its shard"]


def test_the_command_makes_an_index_by_record_option_or_tokenizer(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    directory = build(tmp_path, ["abc", "de", "fgh"])
    shard = directory / "train-00000.bin"
    good = index_path(shard).read_bytes()
    index_path(shard).unlink()
    assert main(["index", str(shard)]) == 0
    assert index_path(shard).read_bytes() == good
    assert "3 documents in 11 tokens" in capsys.readouterr().out
    loose = tmp_path / "loose.bin"
    loose.write_bytes(shard.read_bytes())
    assert main(["index", str(loose)]) == 2
    assert "--separator" in capsys.readouterr().err
    for words in (["--separator", "1"], ["--tokenizer", "byte260", "--json"]):
        index_path(loose).unlink(missing_ok=True)
        assert main(["index", str(loose), *words]) == 0
        assert index_path(loose).read_bytes() == good
    assert main(["index", str(tmp_path / "missing.bin"), "--separator", "1"]) == 1
    assert main(["index", str(loose), "--separator", "1", "--separator-position", "between"]) == 2


def test_overwriting_takes_the_old_indexes_along(tmp_path: Path) -> None:
    directory = build(tmp_path, ["abc" * 30, "de" * 40, "fgh" * 30])
    assert len(list(directory.glob("*.index"))) == 3
    build(tmp_path, ["abc"], overwrite=True, doc_index=False)
    assert sorted(p.name for p in directory.glob("train*")) == ["train-00000.bin"]


@pytest.mark.parametrize("separator", [-1, 256, 70_000])
def test_a_separator_that_is_no_id_of_the_shard_replaces_no_index(tmp_path: Path, separator: int) -> None:
    path = tmp_path / "x.bin"
    write_shard(path, np.array([10, 1, 2, 10, 3]), vocab_size=256)
    index_shard(path, separator_id=10)
    before = index_path(path).read_bytes()
    with pytest.raises(UsageError, match=f"separator {separator} is no id of this shard, which holds ids below 256"):
        index_shard(path, separator_id=separator)
    assert index_path(path).read_bytes() == before
