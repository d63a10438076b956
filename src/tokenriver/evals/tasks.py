"""The tasks as questions: each task's own published records → context, answers and label, in words.

`rendering` says how the words are put together: "llmc" as llm.c does for HellaSwag and MMLU (the other tasks follow
the one or the other), "harness" as EleutherAI's lm-evaluation-harness does. docs/evals.md states every rule.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tokenriver.errors import CorpusError
from tokenriver.storage.paths import is_unicode

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["LETTERS", "TASKS", "Answer", "BadRecordError", "Question", "Rendering", "mmlu_question", "render"]

Rendering = Literal["llmc", "harness"]

LETTERS = "ABCD"


_MOST_DIGITS = 20
"""Of a label: Python reads no number of thousands of digits."""


class BadRecordError(CorpusError):
    """A record that is no question; `kind` is the word it is counted under where bad records are skipped."""

    def __init__(self, kind: str, problem: str) -> None:
        super().__init__(problem)
        self.kind = kind


@dataclass(frozen=True, slots=True)
class Answer:
    """The text after the context; `lead` of its characters come before what is scored (Winogrande's option)."""

    text: str
    lead: int = 0

    @property
    def scored(self) -> str:
        """What is scored, without the space that joins it to what stands before: the length of acc_norm."""
        return self.text[self.lead :].removeprefix(" ")


@dataclass(frozen=True, slots=True)
class Question:
    """A context, the answers to choose from (each with the space that joins it), the index of the right one."""

    context: str
    answers: tuple[Answer, ...]
    label: int


def _text(record: dict[str, Any], key: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        found = "is missing" if key not in record else f"is {type(value).__name__}, not text"
        raise BadRecordError("malformed", f"field {key!r} {found}; fields here: {', '.join(record) or 'none'}")
    return value


def _texts(value: object, what: str) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(v, str) for v in value):
        raise BadRecordError("malformed", f"{what} is not a list of texts")
    return value


def _number(value: object, what: str, n: int) -> int:
    """A label that counts from 0, as a number or in digits."""
    digits = value if isinstance(value, str) else str(value)
    if isinstance(value, bool) or not (digits.isascii() and digits.isdigit() and len(digits) < _MOST_DIGITS):
        raise BadRecordError("no_label", f"{what} is {value!r:.40}; expected a number from 0 to {n - 1}")
    if int(digits) >= n:
        raise BadRecordError("malformed", f"{what} is {value!r}, and there are {n} answers, counted from 0")
    return int(digits)


def _joined(texts: list[str]) -> tuple[Answer, ...]:
    return tuple(Answer(" " + text) for text in texts)


def clean_hellaswag(text: str) -> str:
    """The harness' clean-up of WikiHow's marks: " [title]" ends a sentence, other [marks] go, double spaces too."""
    text = text.strip().replace(" [title]", ". ")
    return re.sub(r"\[.*?\]", "", text).replace("  ", " ")


def _hellaswag(record: dict[str, Any], rendering: Rendering) -> Question:
    endings = _texts(record.get("endings"), "field 'endings'")
    label = _number(record.get("label"), "field 'label'", len(endings))
    if rendering == "llmc":
        return Question(_text(record, "ctx"), _joined(endings), label)
    context = f"{_text(record, 'activity_label')}: {_text(record, 'ctx_a')} {_text(record, 'ctx_b').capitalize()}"
    return Question(clean_hellaswag(context), _joined([clean_hellaswag(e) for e in endings]), label)


def _lettered(record: dict[str, Any]) -> tuple[str, list[str], int]:
    """(question, choices, label) of ARC and OpenBookQA, in AI2's own form or the flat one of the Hub's copies."""
    question = record.get("question")
    if isinstance(question, dict):
        stem, choices = question.get("stem"), question.get("choices")
    else:
        stem, choices = record.get("question_stem", question), record.get("choices")
    if isinstance(choices, dict):
        texts, letters = choices.get("text"), choices.get("label")
    elif isinstance(choices, list) and all(isinstance(c, dict) for c in choices):
        texts, letters = [c.get("text") for c in choices], [c.get("label") for c in choices]
    else:
        texts = letters = None
    if not isinstance(stem, str):
        raise BadRecordError("malformed", "no question in it: expected question.stem, question_stem or question")
    texts, letters = _texts(texts, "the choices' text"), _texts(letters, "the choices' label")
    key = record.get("answerKey")
    if not key:
        raise BadRecordError("no_label", "no answerKey in it (test sets are published without)")
    if key not in letters or len(texts) != len(letters):
        raise BadRecordError("malformed", f"answerKey {key!r} is none of the labels {letters}")
    return stem, texts, letters.index(key)


def _arc(record: dict[str, Any], rendering: Rendering) -> Question:
    stem, texts, label = _lettered(record)
    context = f"Question: {stem}\n\nAnswer:" if rendering == "llmc" else f"Question: {stem}\nAnswer:"
    return Question(context, _joined(texts), label)


def _openbookqa(record: dict[str, Any], rendering: Rendering) -> Question:
    stem, texts, label = _lettered(record)
    return Question(f"Question: {stem}\n\nAnswer:" if rendering == "llmc" else stem, _joined(texts), label)


def _piqa(record: dict[str, Any], rendering: Rendering) -> Question:
    goal = _text(record, "goal")
    label = _number(record.get("label"), "the label (field 'label', or its line in the -labels.lst file)", 2)
    context = goal if rendering == "llmc" else f"Question: {goal}\nAnswer:"
    return Question(context, _joined([_text(record, "sol1"), _text(record, "sol2")]), label)


def _winogrande(record: dict[str, Any], rendering: Rendering) -> Question:
    before, gap, after = _text(record, "sentence").partition("_")
    if not gap:
        raise BadRecordError("malformed", "its sentence has no gap (_)")
    options = [_text(record, "option1"), _text(record, "option2")]
    answer = record.get("answer")
    if answer not in ("1", "2", 1, 2) or isinstance(answer, bool):
        raise BadRecordError("no_label", f"field 'answer' is {answer!r}; expected 1 or 2")
    label = int(answer) - 1
    if rendering == "llmc":
        return Question(before.rstrip(), _joined([option + after for option in options]), label)
    # The harness scores what comes after the gap alone, given the sentence filled in up to it.
    rest = " " + after.strip()
    return Question(before, tuple(Answer(option + rest, len(option)) for option in options), label)


def mmlu_question(cells: list[str], rendering: Rendering, *, subject: str = "", examples: list[list[str]]) -> Question:
    """One row of a subject's .csv: question, four choices, letter. `examples`: rows shown, answered, before it.

    llm.c's prompt has neither subject nor examples, and the answers are the choices; the harness' names the choices
    A to D, and the answers are these letters.
    """
    if len(cells) != 6:
        raise BadRecordError("malformed", f"{len(cells)} cells; expected a question, four choices and a letter")
    question, *choices, letter = cells
    if letter not in LETTERS or len(letter) != 1:
        raise BadRecordError("no_label", f"the last cell is {letter!r}; expected a letter from A to D")
    label = LETTERS.index(letter)
    if rendering == "llmc":
        return Question(f"Question: {question}\n\nAnswer:", _joined(choices), label)
    shots = "".join(f"{_lettered_prompt(row)} {row[-1]}\n\n" for row in examples)
    intro = f"The following are multiple choice questions (with answers) about {subject}.\n\n"
    return Question(intro + shots + _lettered_prompt(cells), _joined(list(LETTERS)), label)


def _lettered_prompt(cells: list[str]) -> str:
    choices = "\n".join(f"{name}. {text}" for name, text in zip(LETTERS, cells[1:5], strict=True))
    return f"{cells[0].strip()}\n{choices}\nAnswer:"


TASKS: dict[str, Callable[[dict[str, Any], Rendering], Question] | None] = {
    "hellaswag": _hellaswag,
    "mmlu": None,
    "arc-easy": _arc,
    "arc-challenge": _arc,
    "piqa": _piqa,
    "winogrande": _winogrande,
    "openbookqa": _openbookqa,
}
"""Tasks by name; MMLU alone is not records but rows of .csv files."""


def render(task: str, record: dict[str, Any], rendering: Rendering) -> Question:
    """The question of one JSON record of a task. BadRecordError says what is wrong with it."""
    make = TASKS[task]
    assert make is not None, "MMLU has its own reader"
    question = make(record, rendering)
    if len(question.answers) < 2:
        raise BadRecordError("malformed", f"{len(question.answers)} answers; at least 2 are needed")
    if not all(is_unicode(text) for text in (question.context, *(answer.text for answer in question.answers))):
        raise BadRecordError(
            "lone_surrogate", "half of a surrogate pair in its text (\\ud800 to \\udfff), no character"
        )
    return question
