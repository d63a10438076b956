"""What an error advises is an option of the command that met it."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

import tokenriver
from tokenriver.cli import main
from tokenriver.errors import CorpusError, advising_only

RECIPE = """
name = "mine"
about = "documents that name their side"
size = "two documents"
licence = "none"
split = "column"
[source]
hub = "nobody/nothing"
files = ["*.jsonl"]
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Documents, some of them broken, a data set of the good ones, a recipe and the specification of an export."""
    monkeypatch.chdir(tmp_path)
    good = "".join(json.dumps({"text": f"text {k}"}) + "\n" for k in range(80))
    Path("good.jsonl").write_text(good)
    tokenriver.build("good.jsonl", tokenizer="byte260", out="good", layout="golf", split="first-docs:7", doc_index=True)
    Path("docs_selected.jsonl").write_text(good + "{broken\n")
    Path("sided.jsonl").write_text('{"text": "a", "split": "train"}\n{"text": "b", "split": "neither"}\n')
    Path("other_field.jsonl").write_text('{"content": "a"}\n')
    Path("specs.json").write_text('[{"name": "pure_byte_260", "dataset_suffix": "byte260"}]')
    Path("mine.toml").write_text(RECIPE)
    return tmp_path


EXPORT = "golf export --docs {} --tokenizer-config specs.json --output-root export --num-val-docs 1"


RECIPE_RUN = "recipe mine.toml --input sided.jsonl --tokenizer byte260 --out recipe"


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("words", "what", "advice"),
    [
        ("build docs_selected.jsonl --tokenizer byte260 --out out", "broken JSON", ["--on-bad-record"]),
        ("build other_field.jsonl --tokenizer byte260 --out out", "no field", ["--text-field", "--on-bad-record"]),
        ("build sided.jsonl --tokenizer byte260 --out out", "the split field", ["--split"]),
        (
            "build good.jsonl --tokenizer byte260 --out good --layout golf",
            "a finished data set",
            ["--overwrite", "--out", "--dataset", "--tokenizer-id"],
        ),
        ("corpus docs_selected.jsonl --out out", "broken JSON", ["--on-bad-record"]),
        ("golf select docs_selected.jsonl --docs 2 --seed 1 --out out", "broken JSON", ["--on-bad-record"]),
        (
            "train-tokenizer docs_selected.jsonl --type sp-bpe --vocab-size 300 --out out",
            "broken JSON",
            ["--on-bad-record"],
        ),
        (RECIPE_RUN, "the split field", []),
        (EXPORT.format("docs_selected.jsonl"), "broken JSON", []),
        (EXPORT.format("other_field.jsonl"), "no field", []),
        ("bpb-audit good --tokenizer byte260 --docs docs_selected.jsonl", "broken JSON", []),
        ("bpb-audit good --tokenizer byte260 --docs other_field.jsonl", "no field", []),
    ],
)
def test_an_error_advises_options_that_the_command_has(
    capsys: pytest.CaptureFixture[str], words: str, what: str, advice: list[str]
) -> None:
    given = words.split()
    assert main(given) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert what in line
    assert re.findall(r"--[a-z-]+", line) == advice
    assert main([*given[: 2 if given[0] == "golf" else 1], "--help"]) == 0
    assert set(advice) <= set(re.findall(r"--[a-z-]+", capsys.readouterr().out))


@pytest.mark.usefixtures("folder")
def test_an_export_that_was_begun_otherwise_is_told_what_an_export_can_do(capsys: pytest.CaptureFixture[str]) -> None:
    words = EXPORT.format("good.jsonl").split()
    assert main([*words, "--chunk-tokens", "50"]) == 0
    (made,) = Path("export/datasets").iterdir()
    for path in [*made.glob("*_BUILD.json"), *made.glob("*_CORPUS.json")]:
        path.unlink()
    capsys.readouterr()
    assert main(words) == 1
    line = capsys.readouterr().err.splitlines()[-1]
    assert "nothing tells what they are; give the command as before, remove the data set's folder" in line
    assert "--overwrite" not in line


@pytest.mark.usefixtures("folder")
def test_an_audit_leaves_out_the_bad_records_that_the_build_left_out() -> None:
    tokenriver.build("docs_selected.jsonl", tokenizer="byte260", out="skipped", dataset="d", on_bad_record="skip")
    words = "bpb-audit skipped/tokens/byte260/d --tokenizer byte260 --docs docs_selected.jsonl"
    assert main(words.split()) == 0


def test_advice_goes_where_its_option_is_not_there_or_is_replaced() -> None:
    def fail() -> None:
        raise CorpusError("broken", advice=("--one does", "give it again", "or --two or --three"))

    for offered, instead, expected in (
        (["--one", "--two", "--three"], {}, "broken; --one does; give it again; or --two or --three"),
        (["--two"], {}, "broken; give it again"),
        (["--one", "--two"], {"--three": "take less"}, "broken; --one does; give it again; take less"),
    ):
        with pytest.raises(CorpusError) as caught, advising_only(*offered, instead=instead):
            fail()
        assert str(caught.value) == expected
