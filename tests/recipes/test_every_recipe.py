"""Each recipe that comes with tokenriver, run against a local copy of its source in the source's own form."""

from __future__ import annotations

import json

import msgspec
import pytest
from build_helpers_recipes import build_records
from recipe_sources import files_of, publish, records

import tokenriver
from tokenriver.cli import main
from tokenriver.recipes.engine import run_recipe
from tokenriver.recipes.options import RecipeOptions
from tokenriver.recipes.recipe import load_recipe, recipe_names

pytestmark = pytest.mark.usefixtures("shared")

EVALS = [name for name in recipe_names() if load_recipe(name).recipe.eval is not None]
TEXTS = [name for name in recipe_names() if name not in EVALS]


def run(name, out, **words):
    words = {"tokenizers": ("byte260",), **words}
    return run_recipe(name, RecipeOptions(out=out, **words))


def texts_in(summary):
    """The documents of a data set, train after val."""
    ids = []
    for file in sorted(summary.files, key=lambda f: (f.split != "val", f.name)):
        ids += tokenriver.open_shard(summary.directory / file.name).ids.tolist()
    tokenizer = tokenriver.load_tokenizer("byte260")
    documents, start = [], 1
    for i in [*(k for k, id_ in enumerate(ids) if id_ == summary.separator_id and k), len(ids)]:
        documents.append(tokenizer.decode(ids[start:i]))
        start = i + 1
    return documents


@pytest.mark.parametrize("name", TEXTS)
@pytest.mark.parametrize("layout", ["llmc", "tokens"])
def test_a_data_set_is_made_from_its_source_and_is_whole(hub, tmp_path, name, layout):
    out = tmp_path / "out"
    [summary] = run(publish(hub, name, tmp_path), out, layout=layout)
    assert summary.documents > 2
    report = tokenriver.verify([out])
    assert report.findings == []
    [record] = build_records(out)
    assert record["origin"]["recipe"] == name
    assert record["origin"]["licence"]
    assert record["origin"].get("urls") or len(record["origin"]["commit"]) == 40
    assert all(len(one["sha256"]) == 64 for one in record["inputs"])
    assert not (out / ".source").exists()


@pytest.mark.parametrize("name", TEXTS)
def test_a_local_copy_gives_the_same_bytes_as_the_hub(hub, tmp_path, name):
    copy = tmp_path / "copy"
    for path, body in files_of(name).items():
        (copy / path).parent.mkdir(parents=True, exist_ok=True)
        (copy / path).write_bytes(body)
    [remote] = run(publish(hub, name, tmp_path), tmp_path / "a")
    asked = len(hub.log)
    [local] = run(name, tmp_path / "b", input=copy)
    assert len(hub.log) == asked
    assert [f.sha256 for f in local.files] == [f.sha256 for f in remote.files]


@pytest.mark.parametrize("name", EVALS)
def test_an_evaluation_file_is_made_with_its_record(hub, tmp_path, name):
    [summary] = run(publish(hub, name, tmp_path), tmp_path / "out")
    record = json.loads(summary.record.read_text())
    assert record["origin"]["recipe"] == name
    assert record["task"] == load_recipe(name).recipe.eval.task
    assert summary.examples >= 5
    assert len(tokenriver.open_eval_file(summary.path)) == summary.examples
    with pytest.raises(tokenriver.IntegrityError, match="--overwrite"):
        run(publish(hub, name, tmp_path), tmp_path / "out")


def test_the_list_names_every_recipe_with_licence_size_and_source(capsys):
    assert main(["recipe", "list"]) == 0
    text = capsys.readouterr().out
    wanted = ["tinyshakespeare", "tinystories", "fineweb", "fineweb-edu", "openwebtext", "wikitext-103", "c4-en"]
    wanted += ["dclm-sample", "the-stack-smol", "hub:OWNER/NAME", "hellaswag", "mmlu", "arc-easy", "arc-challenge"]
    assert [name for name in [*wanted, "piqa", "winogrande", "openbookqa"] if f"{name}\n" not in text] == []
    assert main(["recipe", "list", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert all(row[key] for row in rows for key in ("name", "about", "size", "licence", "source"))


def test_wikitext_articles_are_joined_from_their_lines(hub, tmp_path):
    [summary] = run(publish(hub, "wikitext-103", tmp_path), tmp_path / "out")
    documents = texts_in(summary)
    assert len(documents) == 14  # per side: six articles, and the blank row before the first
    assert documents[1].startswith(" = Article 0 = \n \n = = Part = = \n ")
    assert summary.documents_by_split == {"train": 7, "val": 7}


def test_c4_takes_its_own_validation_files_as_val(hub, tmp_path):
    [summary] = run(publish(hub, "c4-en", tmp_path), tmp_path / "out")
    rows = [r["text"] for r in records("dclm_annotated.jsonl.gz")]
    assert texts_in(summary) == rows[10:15] + rows[:10]
    assert summary.documents_by_split == {"train": 10, "val": 5}


def test_a_subset_of_the_code_is_one_language(hub, tmp_path):
    name = publish(hub, "the-stack-smol", tmp_path)
    [summary] = run(name, tmp_path / "out", subset="python")
    assert texts_in(summary) == [r["text"] for r in records("code_sample.jsonl")[:9]]
    with pytest.raises(tokenriver.UsageError, match=r"data/c, data/python"):
        run(name, tmp_path / "no", subset="cobol")


def test_tinystories_says_which_archive_it_was_made_from(hub, tmp_path):
    [summary] = run(publish(hub, "tinystories", tmp_path), tmp_path / "out", keep_source=True)
    [record] = build_records(tmp_path / "out")
    assert record["origin"]["archive"]["name"] == "TinyStories_all_data.tar.gz"
    assert [one["name"] for one in record["inputs"]] == ["data00.json", "data01.json", "data02.json"]
    assert summary.documents_by_split == {"train": 20, "val": 10}
    assert (tmp_path / "out/.source/tinystories/TinyStories_all_data.tar.gz").exists()


def test_every_recipe_says_what_it_is_in_a_short_file():
    for name in recipe_names():
        loaded = load_recipe(name)
        assert loaded.recipe.name == name
        assert loaded.text.count(b"\n") < 40
        assert msgspec.to_builtins(loaded.recipe)
