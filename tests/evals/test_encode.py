"""Where the scored completion begins when a context and its completion are encoded apart or in one piece."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pytest

from tokenriver.batches import TokenBatch
from tokenriver.errors import UsageError
from tokenriver.evals.encode import common_prefix, encode_questions
from tokenriver.evals.examples import EvalExample
from tokenriver.evals.tasks import Answer, BadRecordError, Question


@dataclass
class PairTokenizer:
    """Two letters from the start of a text are one id, a last odd one another; spaces at the ends are lost."""

    prefix_space: bool = False

    def encode_batch(self, texts: list[str]) -> TokenBatch:
        rows = []
        for text in texts:
            raw = text.strip().encode()
            rows.append(
                [256 * a + b for a, b in zip(raw[::2], raw[1::2], strict=False)] + list(raw[len(raw) // 2 * 2 :])
            )
        ids = np.array([i for row in rows for i in row], np.uint32)
        return TokenBatch(ids, np.cumsum([0, *(len(row) for row in rows)]))

    def token_bytes_table(self) -> list[bytes]:
        return [bytes([i]) for i in range(256)] + [bytes(divmod(i, 256)) for i in range(256, 65536)]


def ids(text: str) -> list[int]:
    return PairTokenizer().encode_batch([text]).ids.tolist()


def encoded(context: str, *answers: str, joint: bool = True, shared: bool = False) -> tuple[object, dict[str, int]]:
    question = Question(context, tuple(Answer(a) for a in answers), 0)
    result = encode_questions(
        [question], PairTokenizer(), boundary="joint" if joint else "apart", shared_context=shared
    )  # type: ignore[arg-type]
    return result.examples[0], dict(result.notes)


def test_apart_takes_the_two_texts_and_counts_what_is_lost() -> None:
    example, notes = encoded("abc", "de", " f", joint=False)
    assert isinstance(example, EvalExample)
    assert list(example.context) == ids("ab") + ids("c")
    assert [list(c.ids) for c in example.completions] == [ids("de"), ids("f")]
    assert [(c.n_bytes, c.n_chars) for c in example.completions] == [(2, 2), (1, 1)]
    assert notes == {"not_lossless": 1}


def test_joint_scores_the_id_that_spans_the_border() -> None:
    example, notes = encoded("abc", "def", "xy")
    assert isinstance(example, EvalExample)
    assert list(example.context) == ids("ab")
    assert [list(c.ids) for c in example.completions] == [ids("cdef"), ids("cxy")]
    assert notes == {}


def test_a_completion_that_the_tokenizer_loses_has_nothing_to_score() -> None:
    example, notes = encoded("abc", "def", " ")
    assert isinstance(example, BadRecordError)
    assert (example.kind, notes) == ("empty_completion", {"boundary_apart": 1})


def test_a_context_that_the_border_id_swallows_is_encoded_apart_and_counted() -> None:
    example, notes = encoded("a", "bc", "de")
    assert isinstance(example, EvalExample)
    assert list(example.context) == ids("a")
    assert [list(c.ids) for c in example.completions] == [ids("bc"), ids("de")]
    assert notes == {"boundary_apart": 2}


def test_own_contexts_are_cut_where_they_part() -> None:
    question = Question("abcd", (Answer("ef gh", 2), Answer("efijkl", 4)), 1)
    (example,) = encode_questions([question], PairTokenizer()).examples  # type: ignore[arg-type]
    assert isinstance(example, EvalExample)
    assert list(example.context) == ids("abcdef")
    assert [(list(c.ids), c.n_unscored) for c in example.completions] == [(ids("gh"), 0), (ids("ijkl"), 1)]


def test_version_1_has_one_context_so_such_examples_are_encoded_apart_and_counted() -> None:
    class Odd(PairTokenizer):
        """Reads a text with an x in it letter by letter."""

        def encode_batch(self, texts: list[str]) -> TokenBatch:
            rows = [list(t.encode()) if "x" in t else PairTokenizer.encode_batch(self, [t]).ids.tolist() for t in texts]
            return TokenBatch(
                np.array([i for row in rows for i in row], np.uint32), np.cumsum([0, *(len(r) for r in rows)])
            )

    question = Question("abc", (Answer("de"), Answer("c")), 0)
    (example,) = encode_questions([question], Odd(), boundary="joint").examples  # type: ignore[arg-type]
    assert isinstance(example, EvalExample)
    plain = Question("abcd", (Answer("ef"), Answer("x")), 0)
    result = encode_questions([plain], Odd(), boundary="joint", shared_context=True)  # type: ignore[arg-type]
    assert result.notes["boundary_apart"] >= 1
    (example,) = result.examples
    assert isinstance(example, EvalExample)
    assert all(c.n_unscored == 0 for c in example.completions)


def test_an_empty_context_or_completion_is_a_bad_record() -> None:
    for context, answers, kind in (("", ("a", "b"), "empty_context"), ("ab", ("a", " "), "empty_completion")):
        example, _ = encoded(context, *answers, joint=False)
        assert isinstance(example, BadRecordError)
        assert example.kind == kind


def test_common_prefix_and_unknown_boundary() -> None:
    a, b = np.array([1, 2, 3], np.uint32), np.array([1, 2, 4, 5], np.uint32)
    assert (common_prefix(a, b), common_prefix(a, a[:2]), common_prefix(a, b[3:])) == (2, 2, 0)
    with pytest.raises(UsageError, match="boundary 'x' is unknown"):
        encode_questions([], PairTokenizer(), boundary="x")  # type: ignore[arg-type]
