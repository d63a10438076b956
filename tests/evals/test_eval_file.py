"""Evaluation files: what was written is read back, and whatever is wrong with a file is named."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np
import pytest
from eval_cases import eval_file, examples
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenriver import open_eval_file
from tokenriver.errors import FormatError, UsageError
from tokenriver.evals.examples import Completion, EvalExample
from tokenriver.evals.file import require_example
from tokenriver.evals.write import choose_version, render_eval_file, write_eval_file

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.evals.file import EvalFile


def plain(example: EvalExample) -> tuple[object, ...]:
    return (
        list(example.context),
        [(list(c.ids), c.n_unscored, c.n_bytes, c.n_chars) for c in example.completions],
        example.label,
    )


ids = st.integers(0, 70_000)


@st.composite
def any_examples(draw: st.DrawFn) -> list[EvalExample]:
    found = []
    for _ in range(draw(st.integers(0, 5))):
        completions = []
        for _ in range(draw(st.integers(2, 6))):
            row = draw(st.lists(ids, min_size=1, max_size=5))
            n_unscored = draw(st.integers(0, len(row) - 1))
            completions.append(Completion(row, n_unscored, *draw(st.tuples(st.integers(-1, 9), st.integers(-1, 9)))))
        least = 1 if any(c.n_unscored == 0 for c in completions) else 0
        context = draw(st.lists(ids, min_size=least, max_size=4))
        found.append(EvalExample(context, completions, draw(st.integers(0, len(completions) - 1))))
    return found


@settings(max_examples=60)
@given(any_examples())
def test_version_2_gives_back_any_examples(tmp_path_factory: pytest.TempPathFactory, given_: list[EvalExample]) -> None:
    path = tmp_path_factory.mktemp("evals") / "x.bin"
    write_eval_file(path, given_, version=2, vocab_size=70_001)
    opened = open_eval_file(path)
    assert (len(opened), opened.version) == (len(given_), 2)
    assert [plain(e) for e in opened] == [plain(e) for e in given_]


def test_version_1_gives_back_examples_without_their_lengths(tmp_path: Path) -> None:
    opened = open_eval_file(eval_file(tmp_path / "x.bin", 9, version=1))
    assert [plain(e) for e in opened] == [plain(e) for e in examples(9, lengths=False)]
    assert opened.max_completions == 4
    assert plain(opened[-1]) == plain(opened[8])


def test_the_worked_example_of_the_docs() -> None:
    one = EvalExample([5, 6], [Completion([7], n_bytes=3, n_chars=3), Completion([8, 9], 1)], 1)
    raw = render_eval_file([one], version=2, vocab_size=10)
    header = np.frombuffer(raw, "<i4", 9)
    assert header.tolist() == [20240522, 2, 1, 0, 18, 0, 4, 2, 10]
    assert np.frombuffer(raw, "<u8", 2, 1024).tolist() == [0, 18]
    unknown = 0xFFFFFFFF
    words = [unknown, 0, 1, 2, 2, 1, 0, 3, 3, 2, 1, unknown, unknown, 5, 6, 7, 8, 9]
    assert np.frombuffer(raw, "<u4", -1, 1040).tolist() == words


def test_an_example_opens_without_looking_at_the_others(tmp_path: Path) -> None:
    path = eval_file(tmp_path / "x.bin", 50)
    raw = bytearray(path.read_bytes())
    start = int(np.frombuffer(raw, "<u8", 51, 1024)[10])
    raw[1024 + 8 * 51 + 4 * start] = 0  # the delimiter of example 10
    path.write_bytes(raw)
    opened = open_eval_file(path, check=False)
    assert plain(opened[11]) == plain(examples(50)[11])
    with pytest.raises(FormatError, match="example 10 "):
        _ = opened[10]
    with pytest.raises(FormatError, match=r"example 10 .*delimiter"):
        open_eval_file(path)


def test_there_is_no_example_behind_the_last(tmp_path: Path) -> None:
    opened = open_eval_file(eval_file(tmp_path / "x.bin", 3))
    with pytest.raises(UsageError, match="no example 3; it has 3"):
        require_example(opened, 3)
    with pytest.raises(IndexError):
        _ = opened[3]


def damaged(tmp_path: Path, version: int, change: object) -> EvalFile:
    path = eval_file(tmp_path / "x.bin", 3, version=version)
    raw = bytearray(path.read_bytes())
    assert callable(change)
    path.write_bytes(bytes(change(raw) or raw))
    return open_eval_file(path)


def put(at: int, value: int, width: int = 2) -> object:
    def change(raw: bytearray) -> None:
        raw[at : at + width] = value.to_bytes(width, "little")

    return change


BODY = 1024 + 8 * 4
"""Where the words of a version 2 file of 3 examples begin."""


@pytest.mark.parametrize(
    ("version", "change", "words"),
    [
        (1, put(0, 1, 4), "magic 1 at byte 0; expected 20240522"),
        (1, put(4, 3, 4), "version 3 at byte 4; expected 1 or 2"),
        (1, put(8, 4, 4), "3 examples begin in it; its header says 4"),
        (1, put(12, 7, 4), "longest example has 7 bytes"),
        (1, put(1024, 5), "2 examples begin in it; its header says 3"),
        (1, put(1026, 8), "example 0 .byte 1,024.: says 8 bytes, has"),
        (1, put(1028, 2), "says it is example 2"),
        (1, put(1030, 4), "label 4 is not below its 4 completions"),
        (1, put(1032, 3), "3 completions; version 1 has 4"),
        (1, put(1034, 900), "its parts run past its end"),
        (1, put(1034, 0), "example 0"),
        (1, lambda raw: raw[:-2], "example 2"),
        (1, lambda raw: raw[:-1], "odd number of bytes"),
        (1, lambda raw: raw + b"\1\0", "example 2"),
        (1, lambda raw: raw[:1000], "1,000 bytes; an evaluation file has a header of 1,024"),
        (2, put(8, 900, 4), "the index of 900 examples alone"),
        (2, put(16, 1, 4), "the header says 1"),
        (2, put(24, 99, 4), "longest example has 99 ids"),
        (2, put(28, 5, 4), "byte 28: the header's examples have at most 5 completions, the file's 4"),
        (2, put(28, 3, 4), "4 completions; the header says at most 3"),
        (2, put(32, 5, 4), "is not below the header's vocabulary of 5"),
        (2, put(1032, 10_000, 8), "index goes back or past the end at example 0"),
        (2, put(BODY, 1, 4), "begins with 1, not with the delimiter"),
        (2, put(BODY + 4, 1, 4), "says it is example 1"),
        (2, put(BODY + 8, 4, 4), "label 4 is not below its 4 completions"),
        (2, put(BODY + 12, 1, 4), "1 completions; at least 2"),
        (2, put(BODY + 16, 2, 4), "its parts run past its end"),
        (2, put(BODY + 20, 0, 4), "example 0"),
        (2, put(BODY + 24, 1, 4), "without an id to score"),
        (2, lambda raw: raw[:16] + bytes(8) + raw[24:1024] + bytes(8 * 4), "its parts run past its end"),
        (2, lambda raw: raw[:-4], "cut off or damaged"),
        (2, lambda raw: raw + b"\1\0\0\0", "cut off or damaged"),
    ],
)
def test_a_damaged_file_is_refused_with_the_place(tmp_path: Path, version: int, change: object, words: str) -> None:
    with pytest.raises(FormatError, match=re.escape("x.bin") + ".*" + words):
        damaged(tmp_path, version, change)


def test_every_limit_of_version_1_is_a_clear_error() -> None:
    one = examples(1)[0]
    with pytest.raises(FormatError, match="65,536 examples; version 1 holds at most 65,535"):
        render_eval_file([one] * 65_536, version=1)
    with pytest.raises(FormatError, match="example 0: 3 completions; version 1 holds 4"):
        render_eval_file(examples(1, n_completions=3), version=1)
    with pytest.raises(FormatError, match="example 0: id 65535; version 1 holds ids below 65,535"):
        render_eval_file([EvalExample([65535], one.completions, 0)], version=1)
    with pytest.raises(FormatError, match=r"example 0: .* bytes; version 1 holds at most 65,535"):
        render_eval_file([EvalExample([1] * 33_000, one.completions, 0)], version=1)
    with pytest.raises(FormatError, match="label 4 is not below its 4"):
        render_eval_file([EvalExample([1], one.completions, 4)], version=1)
    with pytest.raises(FormatError, match="not scored: write version 2"):
        render_eval_file([EvalExample([1], [Completion([1, 2], 1)] * 4, 0)], version=1)
    with pytest.raises(FormatError, match="example 0: completion 0 has no id to score"):
        render_eval_file([EvalExample([1], [Completion([])] * 4, 0)], version=1)
    with pytest.raises(FormatError, match="its context is empty"):
        render_eval_file([EvalExample([], one.completions, 0)], version=1)


def test_version_2_holds_ids_below_the_vocabulary_alone() -> None:
    with pytest.raises(FormatError, match=r"example 0: id 70000 is not in \[0, 65,536\)"):
        render_eval_file([EvalExample([70_000], examples(1)[0].completions, 0)], version=2, vocab_size=65_536)
    with pytest.raises(FormatError, match="1 completions"):
        render_eval_file([EvalExample([1], [Completion([1])], 0)], version=2)


def test_version_1_is_chosen_where_it_holds_everything() -> None:
    assert choose_version(examples(2), vocab_size=65_535) == 1
    assert choose_version(examples(2), vocab_size=65_536) == 2
    assert choose_version(examples(2, n_completions=3), vocab_size=300) == 2
    assert choose_version([EvalExample([1] * 33_000, examples(1)[0].completions, 0)], vocab_size=300) == 2
    with pytest.raises(UsageError, match="version 3 is unknown"):
        render_eval_file([], version=3)


def test_more_examples_than_version_1_can_count_open_in_version_2(tmp_path: Path) -> None:
    one = EvalExample([1], [Completion([2]), Completion([3])], 0)
    write_eval_file(tmp_path / "x.bin", [one] * 70_000, version=2)
    opened = open_eval_file(tmp_path / "x.bin")
    assert len(opened) == 70_000
    assert plain(opened[69_999]) == plain(one)


@settings(max_examples=150)
@given(st.integers(1, 2), st.integers(0, 400), st.integers(0, 255))
def test_a_changed_byte_is_refused_or_read_but_never_crashes(
    tmp_path_factory: pytest.TempPathFactory, version: int, at: int, value: int
) -> None:
    path = eval_file(tmp_path_factory.mktemp("evals") / "x.bin", 3, version=version)
    raw = bytearray(path.read_bytes())
    raw[(at if at < 36 else 1024 + at - 36) % len(raw)] = value
    path.write_bytes(raw)
    try:
        found = list(open_eval_file(path))
    except FormatError:
        return
    assert len(found) == 3
