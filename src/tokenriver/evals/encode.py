"""Questions to ids: where the context ends and the scored completion begins, apart or in one piece."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal

import numpy as np

from tokenriver.errors import UsageError
from tokenriver.evals.examples import Completion, EvalExample
from tokenriver.evals.tasks import BadRecordError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tokenriver.batches import TokenBatch
    from tokenriver.evals.tasks import Question
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["Boundary", "Encoded", "common_prefix", "encode_questions"]

Boundary = Literal["apart", "joint"]


@dataclass(slots=True)
class Encoded:
    """An example or what is wrong, for each question; and counts of what did not go the plain way.

    "boundary_apart": completions that `joint` could not cut and that were encoded apart. "not_lossless": completions
    whose ids stand for another number of bytes (a space lost at the start, normalised letters).
    """

    examples: list[EvalExample | BadRecordError] = field(default_factory=list)
    notes: Counter[str] = field(default_factory=Counter)


@dataclass(frozen=True, slots=True)
class _Row:
    """What is encoded for one answer: the text before what is scored, and the scored text."""

    before: str
    scored: str


def encode_questions(
    questions: Sequence[Question], tokenizer: Tokenizer, *, boundary: Boundary = "apart", shared_context: bool = False
) -> Encoded:
    """Encode questions in one batch.

    `apart`: context and completion are two texts (llm.c). `joint`: they are one text, cut after the ids that the
    context alone begins with; an id that spans the border is scored. Either way every completion has a scored id, or
    the question is a BadRecordError. `shared_context`: all completions of an example must have one and the same
    context (version 1); where `joint` cuts them at different ids the example is encoded apart, and counted.
    """
    if boundary not in ("apart", "joint"):
        raise UsageError(f"boundary {boundary!r} is unknown; choose apart or joint")
    rows = [_Row(q.context + a.text[: a.lead], a.text[a.lead :]) for q in questions for a in q.answers]
    befores = _encode_unique([row.before for row in rows], tokenizer)
    scoreds = tokenizer.encode_batch([row.scored for row in rows])
    wholes = tokenizer.encode_batch([row.before + row.scored for row in rows]) if boundary == "joint" else None
    result = Encoded()
    at = 0
    for question in questions:
        n = len(question.answers)
        apart = [(befores[row.before], scoreds[at + i]) for i, row in enumerate(rows[at : at + n])]
        cuts = apart
        if wholes is not None:
            joint = [_cut(wholes[at + i], before) for i, (before, _) in enumerate(apart)]
            missing = sum(cut is None for cut in joint)
            cuts = [cut or pair for cut, pair in zip(joint, apart, strict=True)]
            if shared_context and any(len(c) != len(cuts[0][0]) for c, _ in cuts):
                cuts, missing = apart, n
            result.notes["boundary_apart"] += missing
        result.examples.append(_example(question, cuts))
        at += n
    if wholes is None:
        result.notes["not_lossless"] = _n_not_lossless(rows, scoreds, tokenizer)
    result.notes = Counter({kind: count for kind, count in result.notes.items() if count})
    return result


def _n_not_lossless(rows: list[_Row], ids: TokenBatch, tokenizer: Tokenizer) -> int:
    """How many texts have another length in bytes than their ids stand for."""
    lengths = np.array([len(piece) for piece in tokenizer.token_bytes_table()], np.int64)
    ends = np.append(0, np.cumsum(lengths[ids.ids]))[ids.offsets]
    added = int(tokenizer.prefix_space)
    return int(np.count_nonzero(np.diff(ends) - added != [len(row.scored.encode()) for row in rows]))


def _encode_unique(texts: list[str], tokenizer: Tokenizer) -> dict[str, NDArray[np.uint32]]:
    unique = list(dict.fromkeys(texts))
    return dict(zip(unique, tokenizer.encode_batch(unique), strict=True))


_Cut = tuple["NDArray[np.uint32]", "NDArray[np.uint32]"]


def _cut(whole: NDArray[np.uint32], before: NDArray[np.uint32]) -> _Cut | None:
    """The whole's ids cut where they leave the context's own; None where one side would be empty."""
    n = common_prefix(whole, before)
    return (whole[:n], whole[n:]) if 0 < n < len(whole) else None


def common_prefix(a: NDArray[np.uint32], b: NDArray[np.uint32]) -> int:
    """How many ids two arrays begin with alike: [1, 2, 3] and [1, 2, 4] → 2."""
    n = min(len(a), len(b))
    different = np.flatnonzero(a[:n] != b[:n])
    return int(different[0]) if len(different) else n


def _example(question: Question, cuts: Sequence[_Cut]) -> EvalExample | BadRecordError:
    context = cuts[0][0]
    for before, _ in cuts[1:]:
        context = context if before is context else context[: common_prefix(context, before)]
    completions = []
    for (before, ids), answer in zip(cuts, question.answers, strict=True):
        if not len(before):
            return BadRecordError("empty_context", "no ids before the completion, so nothing predicts its first id")
        if not len(ids):
            return BadRecordError("empty_completion", f"the completion {answer.text!r} has no ids to score")
        n_unscored = len(before) - len(context)
        row = np.concatenate([before[len(context) :], ids]) if n_unscored else ids
        completions.append(Completion(row, n_unscored, len(answer.scored.encode()), len(answer.scored)))
    return EvalExample(context, completions, question.label)
