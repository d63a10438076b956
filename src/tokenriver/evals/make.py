"""A task's published file to an evaluation file, with a record of how it was made beside it."""

from __future__ import annotations

import json
from collections import Counter
from dataclasses import asdict, dataclass
from hashlib import sha256
from typing import TYPE_CHECKING, Any, Literal

import tokenriver
from tokenriver.errors import CorpusError, UsageError
from tokenriver.evals.encode import Boundary, encode_questions
from tokenriver.evals.sources import Located, read_task
from tokenriver.evals.tasks import BadRecordError, Question, Rendering
from tokenriver.evals.write import choose_version, render_eval_file
from tokenriver.files import atomic_write, is_same_file, require_folder_for
from tokenriver.storage.paths import is_unicode, to_output, to_path

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence
    from pathlib import Path

    from tokenriver.evals.examples import EvalExample
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["EvalSummary", "make_eval_file", "record_path"]


@dataclass(frozen=True, slots=True)
class EvalSummary:
    """What `make_eval_file` wrote: the file, its record, and the counts in it."""

    path: Path
    record: Path
    version: int
    examples: int
    tokens: int
    skipped: dict[str, int]
    notes: dict[str, int]


def record_path(path: Path) -> Path:
    """Where the record of an evaluation file stands: hellaswag_val.bin → hellaswag_val.bin.json."""
    return path.with_name(path.name + ".json")


def make_eval_file(
    task: str,
    source: str | os.PathLike[str],
    *,
    tokenizer: Tokenizer,
    out: str | os.PathLike[str],
    rendering: Rendering = "llmc",
    boundary: Boundary = "apart",
    version: Literal["auto", 1, 2] = "auto",
    shots: int = 0,
    on_bad_record: Literal["error", "skip"] = "error",
    origin: dict[str, Any] | None = None,
) -> EvalSummary:
    """Write the evaluation file of a task, and `<out>.json` with rendering, tokenizer, counts and input checksums.

    `version` "auto" is llm.c's version 1 where it can hold every example, else 2. A record that is no question, or
    whose ids would leave nothing to score, raises CorpusError naming FILE:LINE, or is skipped and counted. `origin`
    goes into the record: what a recipe says of where the source comes from.
    """
    if on_bad_record not in ("error", "skip"):
        raise UsageError(f"on_bad_record is {on_bad_record!r}; choose error or skip")
    if version not in ("auto", 1, 2):
        raise UsageError(f"evaluation file version {version!r} is unknown; choose auto, 1 or 2")
    out, source = to_output(out), to_path(source)
    _check_out(out, source)
    skipped: Counter[str] = Counter()
    located, inputs = read_task(task, source, rendering=rendering, shots=shots)
    wheres, questions = _questions(located, skipped, on_bad_record)
    encoded = encode_questions(questions, tokenizer, boundary=boundary, shared_context=version == 1)
    examples = _good(wheres, encoded.examples, skipped, on_bad_record)
    if not examples:
        raise CorpusError(f"{source}: no example in it ({_listed(skipped) or 'no records'})")
    chosen = choose_version(examples, vocab_size=tokenizer.vocab_size) if version == "auto" else version
    rendered = render_eval_file(examples, version=chosen, vocab_size=tokenizer.vocab_size)
    summary = EvalSummary(
        out,
        record_path(out),
        chosen,
        len(examples),
        sum(len(e.context) + sum(len(c.ids) for c in e.completions) for e in examples),
        dict(sorted(skipped.items())),
        dict(sorted(encoded.notes.items())),
    )
    settings: dict[str, Any] = {"task": task, "rendering": rendering, "boundary": boundary, "shots": shots}
    if origin is not None:
        settings["origin"] = origin
    record = _record(summary, settings, tokenizer, [asdict(i) for i in inputs], sha256=sha256(rendered).hexdigest())
    # The record's part is held for both, so that of two processes that make one file neither gets the other's record.
    with atomic_write(summary.record) as record_file, atomic_write(out) as file:
        file.write(rendered)
        record_file.write(record)
    return summary


def _check_out(out: Path, source: Path) -> None:
    """UsageError for a name that no record can hold, and where the source itself would be replaced; OSError where there
    is no folder for it."""
    if not is_unicode(out.name):
        raise UsageError(f"{out}: the name is not UTF-8, so no record can hold it; choose another")
    if any(is_same_file(source, written) for written in (out, record_path(out))):
        raise UsageError(f"{source}: would be replaced by what is made of it; name another file with --out")
    require_folder_for(out)


def _questions(located: Any, skipped: Counter[str], on_bad_record: str) -> tuple[list[str], list[Question]]:
    wheres: list[str] = []
    questions: list[Question] = []
    one: Located
    for one in located:
        if one.problem is not None:
            _refuse(one.where, one.problem, skipped, on_bad_record)
        elif one.question is not None:
            wheres.append(one.where)
            questions.append(one.question)
    return wheres, questions


def _good(
    wheres: list[str], encoded: Sequence[EvalExample | BadRecordError], skipped: Counter[str], on_bad_record: str
) -> list[EvalExample]:
    examples = []
    for where, one in zip(wheres, encoded, strict=True):
        if isinstance(one, BadRecordError):
            _refuse(where, one, skipped, on_bad_record)
        else:
            examples.append(one)
    return examples


def _refuse(where: str, problem: BadRecordError, skipped: Counter[str], on_bad_record: str) -> None:
    if on_bad_record == "error":
        raise CorpusError(f"{where}: {problem} (--on-bad-record skip counts and leaves out such records)")
    skipped[problem.kind] += 1


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{n:,} {kind}" for kind, n in sorted(counts.items()))


def _record(
    summary: EvalSummary, settings: dict[str, Any], tokenizer: Tokenizer, inputs: list[dict[str, Any]], *, sha256: str
) -> bytes:
    """Every fact that the file's bytes follow from; nothing of the clock or the machine."""
    record = {
        "tool": "tokenriver",
        "tool_version": tokenriver.__version__,
        **settings,
        "file": {"name": summary.path.name, "version": summary.version, "sha256": sha256},
        "examples": summary.examples,
        "tokens": summary.tokens,
        "skipped": summary.skipped,
        "notes": summary.notes,
        "tokenizer": {
            "tokenizer_id": tokenizer.tokenizer_id,
            "sha256": tokenizer.sha256,
            "vocab_size": tokenizer.vocab_size,
            "backend": tokenizer.backend,
            "backend_version": tokenizer.backend_version,
        },
        "inputs": inputs,
    }
    return (json.dumps(record, indent=2, ensure_ascii=False) + "\n").encode()
