"""Recipes from and to object stores: the bytes of a local run, whatever is read from where, also after a kill."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING, Any

import forked
import fsspec
import pytest
from hub_fixtures import hub_environment
from recipe_sources import DOCS, files_of, jsonl, parquet
from s3_server import environment

import tokenriver
from tokenriver.cli import main
from tokenriver.recipes.engine import prepare_recipe, run_recipe
from tokenriver.recipes.options import RecipeOptions

if TYPE_CHECKING:
    from pathlib import Path

    from local_hub import LocalHub
    from s3_server import Bucket

FINEWEB = "HuggingFaceFW/fineweb"
needs_documents = pytest.mark.skipif(not DOCS.is_dir(), reason="../shared is not beside this checkout")


pytestmark = pytest.mark.usefixtures("staging")


def rows(n: int, start: int) -> list[dict[str, str]]:
    return [{"text": f"{i} " + "the river runs to the sea " * (i % 9)} for i in range(start, start + n)]


def fineweb(hub: LocalHub, n_files: int = 4, n: int = 40) -> list[str]:
    files = {f"sample/10BT/{k:03d}_00000.parquet": parquet(rows(n, k * n)) for k in range(n_files)}
    hub.add(FINEWEB, files)
    return list(files)


def run(name: str, out: Any, **words: Any) -> list[Any]:
    return list(run_recipe(name, RecipeOptions(out=out, **{"tokenizers": ("byte260",), **words})))


def here(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


def stored(s3: Bucket, prefix: str) -> dict[str, bytes]:
    return {key.removeprefix(f"{prefix}/"): s3.get(key) for key in s3.names(f"{prefix}/")}


def but_records(files: dict[str, bytes]) -> dict[str, bytes]:
    """All that does not say when and where it was made."""
    return {name: body for name, body in files.items() if not name.endswith("_BUILD.json")}


def test_a_recipe_to_a_store_gives_the_bytes_of_a_local_one(
    hub: LocalHub, s3: Bucket, tmp_path: Path, staging: Path
) -> None:
    fineweb(hub)
    words = {"tokenizers": ("byte260", "byte"), "shard_tokens": 6000}
    run("fineweb", tmp_path / "out", **words)
    made = run("fineweb", f"{s3.url}/out", **words)
    assert stored(s3, "out").keys() == here(tmp_path / "out").keys()
    assert but_records(stored(s3, "out")) == but_records(here(tmp_path / "out"))
    assert all(str(summary.directory).startswith(f"{s3.url}/out") for summary in made)
    assert list(staging.glob("*")) == []
    with pytest.raises(tokenriver.IntegrityError, match="--overwrite"):
        run("fineweb", f"{s3.url}/out", **words)


def test_a_recipe_to_a_store_goes_on_after_a_kill(hub: LocalHub, s3: Bucket, tmp_path: Path, staging: Path) -> None:
    names = fineweb(hub)
    run("fineweb", tmp_path / "whole", shard_tokens=2500, layout="tokens")
    hub.log.clear()
    arguments = ["recipe", "fineweb", "--tokenizer", "byte260", "--shard-tokens", "2500", "--layout", "tokens"]
    arguments += ["--out", f"{s3.url}/out", "--quiet"]
    steps = "from tokenriver.resuming import uploads\nkill_at(uploads.Uploads, '_upload', 3)\n"
    variables = {**hub_environment(hub, tmp_path), **environment(s3.server.url)}
    forked.killed(steps + forked.command(*arguments), env=variables)
    whole = here(tmp_path / "whole")
    half = stored(s3, "out")
    assert half
    assert all(whole[name] == body for name, body in half.items()), "what has a name is whole"
    assert not any(name.endswith(".json") for name in half)
    body = {name: len(hub.repos[FINEWEB].commits[-1][1][name]) for name in names}
    finished = [name for name in names if sum(r.sent for r in hub.bodies(name)) == body[name]]
    assert finished
    hub.log.clear()
    assert main(arguments) == 0
    assert [name for name in finished if hub.bodies(name)] == []
    assert but_records(stored(s3, "out")) == but_records(whole)
    assert list(staging.glob("*")) == []


def test_a_copy_of_the_source_in_a_store_is_read_like_one_here(hub: LocalHub, s3: Bucket, tmp_path: Path) -> None:
    for name in fineweb(hub):
        path = tmp_path / "copy" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(hub.repos[FINEWEB].commits[-1][1][name])
    s3.put_folder(tmp_path / "copy", "copy")
    hub.log.clear()
    words = {"layout": "tokens", "shard_tokens": 2500}
    run("fineweb", tmp_path / "local", input=tmp_path / "copy", **words)
    [summary] = run("fineweb", tmp_path / "out", input=f"{s3.url}/copy", **words)
    assert but_records(here(tmp_path / "out")) == but_records(here(tmp_path / "local"))
    assert summary.documents == 160
    options = RecipeOptions(tokenizers=("byte",), out=tmp_path / "x", input=f"{s3.url}/copy")
    plan = prepare_recipe("fineweb", options).plan()
    assert plan.source == f"{s3.url}/copy"
    assert not hub.log
    with pytest.raises(tokenriver.CorpusError, match=r"s3://.*/none: no such file or folder; --input names a copy of"):
        run("fineweb", tmp_path / "y", input=f"{s3.url}/none")


@needs_documents
@pytest.mark.parametrize("name", ["tinystories", "piqa", "mmlu", "arc-easy"])
def test_archives_and_tasks_are_read_from_a_store_and_made_there(
    s3: Bucket, tmp_path: Path, staging: Path, name: str
) -> None:
    for file, body in files_of(name).items():
        path = tmp_path / "copy" / file
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(body)
    s3.put_folder(tmp_path / "copy", "copy")
    before = here(tmp_path / "copy")
    run(name, tmp_path / "out", input=tmp_path / "copy")
    run(name, f"{s3.url}/out", input=f"{s3.url}/copy")
    assert but_records(stored(s3, "out")).keys() == but_records(here(tmp_path / "out")).keys()
    for file, body in but_records(here(tmp_path / "out")).items():
        assert file.endswith(".bin.json") or s3.get(f"out/{file}") == body, "a task's record names its input"
    assert here(tmp_path / "copy") == before, "nothing is written beside what is read"
    assert list(staging.glob("*")) == []


def test_zip_archives_and_recipes_of_ones_own_may_lie_in_a_store(tmp_path: Path) -> None:
    import zipfile

    raw = io.BytesIO()
    with zipfile.ZipFile(raw, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("notes/a.jsonl", jsonl(rows(200, 0)))
        archive.writestr("other/b.jsonl", b"no record")
    recipe = 'name = "notes"\nabout = "-"\nsize = "-"\nlicence = "-"\n[source]\narchive = "x.zip"\n'
    recipe += 'urls = ["https://example.org/x.zip"]\nfiles = ["notes/*.jsonl"]\n'
    memory = fsspec.filesystem("memory")
    memory.pipe_file("/recipes/x.zip", raw.getvalue())
    memory.pipe_file("/recipes/notes.toml", recipe.encode())
    words = {"input": "memory://recipes/x.zip", "layout": "tokens"}
    [summary] = run("memory://recipes/notes.toml", "memory://recipes/out", **words)
    assert summary.documents == 200
    (tmp_path / "notes.toml").write_text(recipe)
    [local] = run(f"file://{tmp_path}/notes.toml", f"file://{tmp_path}/out", **words)
    assert local.record.read_bytes() == memory.cat_file(f"/recipes/{str(summary.record).partition('recipes/')[2]}")
    memory.rm("/recipes", recursive=True)


def test_an_output_that_nothing_can_be_written_to_is_one_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(["recipe", "tinyshakespeare", "--out", "http://127.0.0.1:9/x"]) == 2
    error = capsys.readouterr().err
    assert "nothing can be written to http://" in error
    assert error.count("\n") == 1
    assert list(tmp_path.iterdir()) == []
