"""Each task's own published records become the right words, and records that are no question are named."""

from __future__ import annotations

import gzip
import json
from typing import TYPE_CHECKING, Any

import pytest
import zstandard

from tokenriver import load_tokenizer, make_eval_file, open_eval_file
from tokenriver.errors import CorpusError, FormatError, UsageError
from tokenriver.evals.sources import read_task
from tokenriver.evals.tasks import Question, clean_hellaswag, render

if TYPE_CHECKING:
    from pathlib import Path

HELLASWAG = {
    "activity_label": "Cooking",
    "ctx_a": "[header] How to boil an egg [title] Fill the pot.",
    "ctx_b": "use cold",
    "ctx": "[header] How to boil an egg [title] Fill the pot. use cold",
    "endings": ["water.", "[step] fire.", "air.", "ice."],
    "label": 2,
}
ARC = {
    "id": "x",
    "question": {
        "stem": "What falls?",
        "choices": [{"text": t, "label": n} for t, n in zip(["rain", "sun", "wind"], "ABC", strict=True)],
    },
    "answerKey": "B",
}
FLAT = {"question_stem": "What falls?", "choices": {"text": ["rain", "sun"], "label": ["1", "2"]}, "answerKey": "2"}
PIQA = {"goal": "To open a jar,", "sol1": "turn the lid.", "sol2": "eat it.", "label": 0}
WINOGRANDE = {
    "sentence": "The cup did not fit the box because _ was too large.",
    "option1": "the cup",
    "option2": "the box",
    "answer": "1",
}


def words(question: Question) -> tuple[str, list[str], int]:
    return question.context, [answer.text for answer in question.answers], question.label


def test_hellaswag_is_left_as_it_is_for_llmc_and_cleaned_for_the_harness() -> None:
    endings = [" water.", " [step] fire.", " air.", " ice."]
    assert words(render("hellaswag", HELLASWAG, "llmc")) == (HELLASWAG["ctx"], endings, 2)
    context, answers, _ = words(render("hellaswag", HELLASWAG, "harness"))
    assert context == "Cooking: How to boil an egg. Fill the pot. Use cold"
    assert answers == [" water.", "  fire.", " air.", " ice."]
    assert (
        clean_hellaswag("[header] How to boil an egg [title] Fill the pot. [step] Use cold water.")
        == " How to boil an egg. Fill the pot. Use cold water."
    )


def test_arc_and_openbookqa_in_both_published_forms() -> None:
    for task in ("arc-easy", "arc-challenge"):
        assert words(render(task, ARC, "llmc")) == ("Question: What falls?\n\nAnswer:", [" rain", " sun", " wind"], 1)
        assert render(task, ARC, "harness").context == "Question: What falls?\nAnswer:"
    assert words(render("openbookqa", FLAT, "harness")) == ("What falls?", [" rain", " sun"], 1)
    assert render("openbookqa", ARC, "llmc").context == "Question: What falls?\n\nAnswer:"
    assert render("arc-easy", {**FLAT, "question": "Flat?", "question_stem": "Flat?"}, "harness").context.startswith(
        "Question: Flat?"
    )


def test_piqa_and_winogrande() -> None:
    assert words(render("piqa", PIQA, "llmc")) == ("To open a jar,", [" turn the lid.", " eat it."], 0)
    assert render("piqa", PIQA, "harness").context == "Question: To open a jar,\nAnswer:"
    assert words(render("winogrande", WINOGRANDE, "llmc")) == (
        "The cup did not fit the box because",
        [" the cup was too large.", " the box was too large."],
        0,
    )
    harness = render("winogrande", WINOGRANDE, "harness")
    assert harness.context == "The cup did not fit the box because "
    assert [a.text[: a.lead] for a in harness.answers] == ["the cup", "the box"]
    assert [a.scored for a in harness.answers] == ["was too large."] * 2


@pytest.mark.parametrize(
    ("task", "record", "kind", "problem"),
    [
        ("hellaswag", {**HELLASWAG, "label": ""}, "no_label", "label"),
        ("hellaswag", {**HELLASWAG, "label": 4}, "malformed", "4 answers"),
        ("hellaswag", {**HELLASWAG, "label": "9" * 5000}, "no_label", "expected a number from 0 to 3"),
        ("hellaswag", {**HELLASWAG, "endings": "x"}, "malformed", "endings"),
        ("hellaswag", {**HELLASWAG, "ctx": "a \ud800 b"}, "lone_surrogate", "surrogate"),
        ("hellaswag", {**HELLASWAG, "endings": ["a", "b", "\udfff", "c"]}, "lone_surrogate", "surrogate"),
        ("hellaswag", {"label": 0, "endings": ["a", "b"]}, "malformed", "field 'ctx' is missing"),
        ("hellaswag", {**HELLASWAG, "endings": ["a"], "label": 0}, "malformed", "at least 2"),
        ("arc-easy", {**ARC, "answerKey": ""}, "no_label", "no answerKey"),
        ("arc-easy", {**ARC, "answerKey": "Z"}, "malformed", "none of the labels"),
        ("arc-easy", {"question": 5}, "malformed", "no question"),
        ("piqa", {"goal": "a", "sol1": "b", "sol2": "c"}, "no_label", "expected a number from 0 to 1"),
        ("winogrande", {**WINOGRANDE, "answer": ""}, "no_label", "expected 1 or 2"),
        ("winogrande", {**WINOGRANDE, "answer": True}, "no_label", "expected 1 or 2"),
        ("winogrande", {**WINOGRANDE, "sentence": "no gap"}, "malformed", "no gap"),
    ],
)
def test_a_record_that_is_no_question_is_named_or_counted(
    task: str, record: dict[str, Any], kind: str, problem: str, tmp_path: Path
) -> None:
    good = {"hellaswag": HELLASWAG, "arc-easy": ARC, "piqa": PIQA, "winogrande": WINOGRANDE}[task]
    source = tmp_path / "in.jsonl"
    source.write_text("\n".join(json.dumps(r) for r in (good, record)))
    tokenizer = load_tokenizer("byte")
    out = tmp_path / "out.bin"
    with pytest.raises(CorpusError, match=rf"in\.jsonl:2: .*{problem}"):
        make_eval_file(task, source, tokenizer=tokenizer, out=out)
    assert not out.exists()
    summary = make_eval_file(task, source, tokenizer=tokenizer, out=out, on_bad_record="skip")
    assert (summary.examples, summary.skipped) == (1, {kind: 1})
    assert json.loads(summary.record.read_bytes())["skipped"] == {kind: 1}


def test_piqa_s_labels_stand_in_a_file_of_their_own(tmp_path: Path) -> None:
    bare = {k: v for k, v in PIQA.items() if k != "label"}
    (tmp_path / "valid.jsonl").write_text(f"{json.dumps(bare)}\n{json.dumps(bare)}\n")
    (tmp_path / "valid-labels.lst").write_text("1\n0\n")
    located, inputs = read_task("piqa", tmp_path / "valid.jsonl", rendering="llmc")
    assert [one.question.label for one in located if one.question] == [1, 0]
    assert [i.name for i in inputs] == ["valid.jsonl", "valid-labels.lst"]
    (tmp_path / "valid-labels.lst").write_text("1\n0\n1\n")
    with pytest.raises(CorpusError, match="2 records, but 3 labels"):
        list(read_task("piqa", tmp_path / "valid.jsonl", rendering="llmc")[0])


def mmlu(folder: Path) -> Path:
    (folder / "test").mkdir(parents=True)
    (folder / "dev").mkdir()
    (folder / "test/world_facts_test.csv").write_text('"How many,\nsay?",None,2,3,4,A\nWhy?,a,b,c,d,D\n')
    (folder / "test/anatomy_test.csv").write_text("Where?,w,x,y,z,B\n")
    (folder / "dev/world_facts_dev.csv").write_text("First?,1,2,3,4,B\nSecond?,5,6,7,8,C\n")
    (folder / "dev/anatomy_dev.csv").write_text("Bone?,1,2,3,4,A\nSkin?,5,6,7,8,D\n")
    return folder


def test_mmlu_reads_a_folder_in_the_order_of_names(tmp_path: Path) -> None:
    located, inputs = read_task("mmlu", mmlu(tmp_path / "data"), rendering="llmc")
    questions = [one.question for one in located if one.question]
    assert [words(q) for q in questions] == [
        ("Question: Where?\n\nAnswer:", [" w", " x", " y", " z"], 1),
        ("Question: How many,\nsay?\n\nAnswer:", [" None", " 2", " 3", " 4"], 0),
        ("Question: Why?\n\nAnswer:", [" a", " b", " c", " d"], 3),
    ]
    assert [i.name for i in inputs] == ["anatomy_test.csv", "world_facts_test.csv"]


def test_mmlu_for_the_harness_names_the_choices_and_shows_examples_in_file_order(tmp_path: Path) -> None:
    located, _ = read_task("mmlu", mmlu(tmp_path / "data"), rendering="harness", shots=2)
    question = [one.question for one in located if one.question][2]
    assert words(question) == (
        (
            "The following are multiple choice questions (with answers) about world facts.\n\n"
            "First?\nA. 1\nB. 2\nC. 3\nD. 4\nAnswer: B\n\n"
            "Second?\nA. 5\nB. 6\nC. 7\nD. 8\nAnswer: C\n\n"
            "Why?\nA. a\nB. b\nC. c\nD. d\nAnswer:"
        ),
        [" A", " B", " C", " D"],
        3,
    )
    with pytest.raises(CorpusError, match="3 were asked for"):
        list(read_task("mmlu", tmp_path / "data", rendering="harness", shots=3)[0])


def test_a_bad_row_of_a_csv_is_named_by_its_line(tmp_path: Path) -> None:
    path = tmp_path / "x_test.csv"
    path.write_text('"a\nb",1,2,3,4,A\nc,1,2,3,A\n')
    with pytest.raises(CorpusError, match=r"x_test\.csv:3: 5 cells"):
        make_eval_file("mmlu", path, tokenizer=load_tokenizer("byte"), out=tmp_path / "o.bin")
    path.write_text("a,1,2,3,4,E\n")
    with pytest.raises(CorpusError, match="letter from A to D"):
        make_eval_file("mmlu", path, tokenizer=load_tokenizer("byte"), out=tmp_path / "o.bin")


def test_what_cannot_be_read_is_an_error_with_its_name(tmp_path: Path) -> None:
    tokenizer, out = load_tokenizer("byte"), tmp_path / "o.bin"
    with pytest.raises(CorpusError, match=r"nothing\.jsonl: no such file"):
        make_eval_file("piqa", tmp_path / "nothing.jsonl", tokenizer=tokenizer, out=out)
    with pytest.raises(CorpusError, match=r"no \.csv files"):
        make_eval_file("mmlu", tmp_path, tokenizer=tokenizer, out=out)
    (tmp_path / "x.jsonl.gz").write_bytes(gzip.compress(b"{}")[:-4])
    with pytest.raises(CorpusError, match=r"not a whole \.gz file"):
        make_eval_file("piqa", tmp_path / "x.jsonl.gz", tokenizer=tokenizer, out=out)
    (tmp_path / "x.jsonl").write_bytes(b"\xff")
    with pytest.raises(CorpusError, match="not UTF-8 at byte 0"):
        make_eval_file("piqa", tmp_path / "x.jsonl", tokenizer=tokenizer, out=out)
    (tmp_path / "x.jsonl").write_bytes(b"\n")
    with pytest.raises(CorpusError, match="no example in it"):
        make_eval_file("piqa", tmp_path / "x.jsonl", tokenizer=tokenizer, out=out)
    with pytest.raises(UsageError, match="task 'boolq' is unknown"):
        make_eval_file("boolq", tmp_path / "x.jsonl", tokenizer=tokenizer, out=out)
    with pytest.raises(UsageError, match="--shots"):
        make_eval_file("piqa", tmp_path / "x.jsonl", tokenizer=tokenizer, out=out, shots=1)


def test_a_file_with_a_byte_order_mark_keeps_its_first_record(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_bytes(b"\xef\xbb\xbf" + json.dumps(PIQA).encode())
    summary = make_eval_file("piqa", tmp_path / "x.jsonl", tokenizer=load_tokenizer("byte"), out=tmp_path / "o.bin")
    assert summary.examples == 1


def test_winogrande_s_own_contexts_are_stored_unscored(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(json.dumps(WINOGRANDE))
    tokenizer = load_tokenizer("byte")
    summary = make_eval_file(
        "winogrande", tmp_path / "x.jsonl", tokenizer=tokenizer, out=tmp_path / "o.bin", rendering="harness"
    )
    assert summary.version == 2
    example = open_eval_file(tmp_path / "o.bin")[0]
    assert tokenizer.decode(example.context) == "The cup did not fit the box because the "
    for completion, option in zip(example.completions, ("cup", "box"), strict=True):
        assert tokenizer.decode(completion.ids[: completion.n_unscored]) == option
        assert tokenizer.decode(completion.ids[completion.n_unscored :]) == " was too large."
        assert (completion.n_bytes, completion.n_chars) == (14, 14)
    with pytest.raises(FormatError, match="version 1 holds 4"):
        make_eval_file("winogrande", tmp_path / "x.jsonl", tokenizer=tokenizer, out=tmp_path / "o.bin", version=1)


def test_the_record_has_nothing_of_the_clock_or_the_folder(tmp_path: Path) -> None:
    records = []
    for name in ("a", "b"):
        folder = tmp_path / name
        folder.mkdir()
        (folder / "x.jsonl").write_text(json.dumps(PIQA))
        summary = make_eval_file("piqa", folder / "x.jsonl", tokenizer=load_tokenizer("byte"), out=folder / "o.bin")
        records.append(summary.record.read_bytes())
    assert records[0] == records[1]


def test_names_that_no_record_can_hold_are_refused(tmp_path: Path) -> None:
    source = tmp_path / "q\udcff.jsonl"
    try:
        source.write_text("{}\n")
    except OSError:
        pytest.skip("the file system takes UTF-8 alone")
    out = tmp_path / "out.bin"
    with pytest.raises(CorpusError, match="its name is not UTF-8"):
        make_eval_file("hellaswag", source, tokenizer=load_tokenizer("byte"), out=out)
    with pytest.raises(UsageError, match="the name is not UTF-8"):
        make_eval_file("hellaswag", source, tokenizer=load_tokenizer("byte"), out=tmp_path / "o\udcff.bin")
    assert not out.exists()


@pytest.mark.parametrize("ending", [".gz", ".zst"])
def test_a_compressed_file_that_is_cut_short_or_damaged_is_an_error(tmp_path: Path, ending: str) -> None:
    plain = b"".join(json.dumps(PIQA | {"n": str(n)}).encode() + b"\n" for n in range(2000))
    raw = gzip.compress(plain) if ending == ".gz" else zstandard.ZstdCompressor(write_checksum=True).compress(plain)
    path, out = tmp_path / f"x.jsonl{ending}", tmp_path / "o.bin"
    middle = len(raw) // 2
    for damaged in (raw[:middle], raw[:-1], raw[:middle] + bytes(20) + raw[middle + 20 :], raw + b"junk"):
        path.write_bytes(damaged)
        with pytest.raises(CorpusError, match=rf"not a whole \{ending} file"):
            make_eval_file("piqa", path, tokenizer=load_tokenizer("byte"), out=out)
    path.write_bytes(raw + raw)
    assert make_eval_file("piqa", path, tokenizer=load_tokenizer("byte"), out=out).examples == 4000


@pytest.mark.parametrize(("source", "out"), [("x.jsonl", "x.jsonl"), ("x.json", "x")])
def test_the_source_is_never_replaced_by_what_is_made_of_it(tmp_path: Path, source: str, out: str) -> None:
    before = json.dumps(PIQA)
    (tmp_path / source).write_text(before)
    with pytest.raises(UsageError, match="would be replaced by what is made of it"):
        make_eval_file("piqa", tmp_path / source, tokenizer=load_tokenizer("byte"), out=tmp_path / out)
    assert (tmp_path / source).read_text() == before
    assert len(list(tmp_path.iterdir())) == 1


def test_a_record_nested_too_deeply_is_a_bad_record(tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text("[" * 100_000 + "\n")
    with pytest.raises(CorpusError, match=r"x\.jsonl:1: not valid JSON"):
        make_eval_file("piqa", tmp_path / "x.jsonl", tokenizer=load_tokenizer("byte"), out=tmp_path / "o.bin")
