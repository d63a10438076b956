"""A task's published files read into questions: JSON lines (plain, .gz, .zst) or MMLU's folders of .csv."""

from __future__ import annotations

import csv
import gzip
import hashlib
import io
import json
import zlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from tokenriver.errors import CorpusError, MissingDependencyError, UsageError
from tokenriver.evals.tasks import TASKS, BadRecordError, Question, Rendering, mmlu_question, render
from tokenriver.files import file_exists, open_binary
from tokenriver.storage.objects import below
from tokenriver.storage.paths import is_remote, is_unicode

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["EvalInput", "Located", "read_task"]


@dataclass(frozen=True, slots=True)
class EvalInput:
    """A file that was read: its name, size and SHA-256 as stored."""

    name: str
    n_bytes: int
    sha256: str


@dataclass(frozen=True, slots=True)
class Located:
    """A question, or what is wrong with its record, and where it stands ("FILE:LINE")."""

    where: str
    question: Question | None
    problem: BadRecordError | None = None


def read_task(
    task: str, path: Path, *, rendering: Rendering, shots: int = 0
) -> tuple[Iterator[Located], list[EvalInput]]:
    """The questions of a task's file (MMLU: file or folder), in order, and the list of files, filled while reading.

    `shots`: answered examples before each MMLU question, from the subject's file in `dev` beside, in file order.
    Raises UsageError (unknown task, shots where they have no meaning) and CorpusError (nothing there, damaged file).
    """
    if task not in TASKS:
        raise UsageError(f"task {task!r} is unknown; choose one of {', '.join(TASKS)}")
    if rendering not in ("llmc", "harness"):
        raise UsageError(f"rendering {rendering!r} is unknown; choose llmc or harness")
    if shots and (task, rendering) != ("mmlu", "harness"):
        raise UsageError("examples before the question (--shots) are for mmlu with the harness rendering")
    inputs: list[EvalInput] = []
    if task == "mmlu":
        return _mmlu(_mmlu_files(path), rendering, shots, inputs), inputs
    return _records(task, path, rendering, inputs), inputs


def _read(path: Path, inputs: list[EvalInput]) -> str:
    """A file's text, decompressed; it is noted with the checksum of its bytes as stored."""
    try:
        with open_binary(path) as file:
            raw = file.read() or b""
    except FileNotFoundError:
        raise CorpusError(f"{path}: no such file; give the task's own published file") from None
    if not is_unicode(path.name):
        raise CorpusError(f"{path}: its name is not UTF-8, so no record can hold it; rename the file")
    inputs.append(EvalInput(path.name, len(raw), hashlib.sha256(raw).hexdigest()))
    try:
        if path.suffix == ".gz":
            raw = gzip.decompress(raw)
        elif path.suffix == ".zst":
            raw = _decompress_zst(raw)
        return raw.decode("utf-8-sig")
    except (OSError, EOFError, zlib.error) as error:
        raise CorpusError(f"{path}: not a whole {path.suffix} file ({error})") from None
    except UnicodeDecodeError as error:
        raise CorpusError(f"{path}: not UTF-8 at byte {error.start:,} ({error.reason})") from None


def _decompress_zst(raw: bytes) -> bytes:
    try:
        import zstandard
    except ImportError:
        raise MissingDependencyError("reading .zst needs the package zstandard") from None
    texts = []
    while raw:
        frame = zstandard.ZstdDecompressor().decompressobj()
        try:
            texts.append(frame.decompress(raw))
        except zstandard.ZstdError as error:
            raise OSError(str(error)) from None
        if not frame.eof:  # the library takes what is there of a frame that was cut short for all of it
            raise EOFError("cut short: its last frame has no end")
        raw = frame.unused_data
    return b"".join(texts)


def _records(task: str, path: Path, rendering: Rendering, inputs: list[EvalInput]) -> Iterator[Located]:
    lines = _read(path, inputs).split("\n")
    labels = _piqa_labels(path, inputs) if task == "piqa" else None
    n = 0
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        try:
            record = _record(line)
            if labels is not None and "label" not in record:
                record["label"] = labels[n] if n < len(labels) else None
            yield Located(f"{path}:{number}", render(task, record, rendering))
        except BadRecordError as problem:
            yield Located(f"{path}:{number}", None, problem)
        n += 1
    if labels is not None and len(labels) != n:
        raise CorpusError(f"{path}: {n:,} records, but {len(labels):,} labels in {_labels_path(path)}")


def _record(line: str) -> dict[str, Any]:
    try:
        record = json.loads(line)
    except (ValueError, RecursionError) as error:
        raise BadRecordError("malformed", f"not valid JSON ({error})") from None
    if not isinstance(record, dict):
        raise BadRecordError("malformed", f"a JSON {type(record).__name__}, not an object")
    return record


def _labels_path(path: Path) -> Path:
    stem = path.name.removesuffix(".gz").removesuffix(".zst").removesuffix(".jsonl")
    return path.with_name(f"{stem}-labels.lst")


def _piqa_labels(path: Path, inputs: list[EvalInput]) -> list[str] | None:
    """PIQA publishes labels apart, one a line: valid.jsonl with valid-labels.lst."""
    labels = _labels_path(path)
    return _read(labels, inputs).split() if file_exists(labels) else None


def _mmlu_files(path: Path) -> list[Path]:
    """The .csv itself, or those of a folder (or of `test` in it) sorted by name."""
    if is_remote(path):
        files = _remote_csv_files(path)
    elif path.is_file():
        return [path]
    else:
        folder = path / "test" if (path / "test").is_dir() else path
        files = sorted(folder.glob("*.csv")) if folder.is_dir() else []
    if not files:
        raise CorpusError(f"{path}: no .csv files there or in its folder test; give MMLU's data folder or one .csv")
    return files


def _remote_csv_files(path: Path) -> list[Path]:
    if file_exists(path):
        return [path]
    there = [name for name in below(str(path)) if name.endswith(".csv")]
    wanted = [n for n in there if n.startswith("test/") and n.count("/") == 1] or [n for n in there if "/" not in n]
    return [path / name for name in wanted]


def _mmlu(files: list[Path], rendering: Rendering, shots: int, inputs: list[EvalInput]) -> Iterator[Located]:
    for file in files:
        stem = file.stem
        for ending in ("_test", "_val", "_dev"):
            stem = stem.removesuffix(ending)
        examples = _shots(file, stem, shots, inputs) if shots else []
        for line, cells in _rows(file, inputs):
            where = f"{file}:{line}"
            try:
                subject = stem.replace("_", " ")
                yield Located(where, mmlu_question(cells, rendering, subject=subject, examples=examples))
            except BadRecordError as problem:
                yield Located(where, None, problem)


def _shots(file: Path, stem: str, shots: int, inputs: list[EvalInput]) -> list[list[str]]:
    dev = file.parent.parent / "dev" / f"{stem}_dev.csv"
    if not file_exists(dev):
        raise CorpusError(f"{dev}: missing; examples before a question are taken from the subject's dev file")
    rows = [cells for _, cells in _rows(dev, inputs)]
    if len(rows) < shots or any(len(row) != 6 for row in rows[:shots]):
        raise CorpusError(f"{dev}: {len(rows)} rows of six cells are there; {shots} were asked for")
    return rows[:shots]


def _rows(path: Path, inputs: list[EvalInput]) -> Iterator[tuple[int, list[str]]]:
    """Rows with the line they begin at. Cells are taken as they are: "None" and "N/A" are words here."""
    reader = csv.reader(io.StringIO(_read(path, inputs), newline=""), strict=True)
    line = 1
    try:
        for cells in reader:
            if cells:
                yield line, cells
            line = reader.line_num + 1
    except csv.Error as error:
        raise CorpusError(f"{path}:{line}: not a row of a .csv file ({error})") from None
