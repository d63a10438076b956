"""Interruptions, several tokenizers, limits, plans and errors of recipes, with small documents on the local Hub."""

from __future__ import annotations

import functools
import hashlib
import io
import json
import random
import tarfile
from pathlib import Path

import forked
import pytest
from build_helpers_recipes import build_records
from hub_fixtures import hub_environment
from plain_server import files_over_http
from recipe_sources import jsonl, parquet, publish, tar

import tokenriver
from tokenriver.building.dataset import DatasetWriter
from tokenriver.building.options import BuildOptions
from tokenriver.cli import main
from tokenriver.hub.repository import open_repository
from tokenriver.hub.transfer import FetchJob
from tokenriver.recipes import build_options, engine
from tokenriver.recipes.archive import extract
from tokenriver.recipes.engine import prepare_recipe, run_recipe
from tokenriver.recipes.options import RecipeOptions
from tokenriver.recipes.plan import RecipePlan
from tokenriver.recipes.recipe import load_recipe
from tokenriver.recipes.supply import FileSupply
from tokenriver.shards.writer import ShardWriter

SRC = str(Path(tokenriver.__file__).parents[1])
FINEWEB = "HuggingFaceFW/fineweb"


def rows(n, start=0):
    return [
        {"text": f"{i} " + "the river runs to the sea and back again " * (i % 9), "id": str(i)}
        for i in range(start, start + n)
    ]


def fineweb(hub, n_files=4, n=60):
    files = {f"sample/10BT/{k:03d}_00000.parquet": parquet(rows(n, k * n)) for k in range(n_files)}
    hub.add(FINEWEB, files)
    return list(files)


@pytest.fixture
def small_blocks(monkeypatch):
    """Blocks of a few documents, so that these small files are what the large ones of the Hub are to real blocks."""
    monkeypatch.setattr(build_options, "BuildOptions", functools.partial(BuildOptions, block_bytes=2048))


def run(name, out, **words):
    words = {"tokenizers": ("byte260",), **words}
    return run_recipe(name, RecipeOptions(out=out, **words))


load_once = functools.cache(engine.load_tokenizer)


def shards(directory):
    return {p.name: p.read_bytes() for p in sorted(directory.rglob("*.bin"))}


@pytest.mark.parametrize("after", [2, 9, 14])
def test_a_kill_in_the_middle_of_fineweb_fetches_no_finished_file_again(hub, tmp_path, after):
    names = fineweb(hub)
    run("fineweb", tmp_path / "whole", shard_tokens=2500)
    hub.log.clear()
    words = {"out": str(tmp_path / "out"), "tokenizer": "byte260", "shard-tokens": 2500, "workers": 1}
    arguments = ["recipe", "fineweb", *(str(w) for k, v in words.items() for w in (f"--{k}", v)), "--quiet"]
    steps = f"from tokenriver.shards import writer\nkill_at(writer.ShardWriter, 'publish', {after})\n"
    forked.killed(steps + forked.command(*arguments), env=hub_environment(hub, tmp_path))
    finished = [n for n in names if sum(r.sent for r in hub.bodies(n)) == len(hub.repos[FINEWEB].commits[-1][1][n])]
    assert finished
    hub.add(FINEWEB, {names[-1]: parquet(rows(5))})  # the owner changes the data set: the commit is pinned
    asked_before = len(hub.log)
    assert main([*arguments]) == 0
    again = [r.name for r in hub.log[asked_before:] if r.sent]
    assert [n for n in again if n in finished] == []
    assert shards(tmp_path / "out") == shards(tmp_path / "whole")
    assert not (tmp_path / "out/.source").exists()


def test_files_come_one_ahead_and_go_when_no_resumed_build_would_read_them(hub, tmp_path):
    names = fineweb(hub, n_files=5)
    repository = open_repository(FINEWEB)
    jobs = [FetchJob(name, tmp_path / name, repository.expected(name)) for name in names]

    def there():
        return [i for i, job in enumerate(jobs) if job.path.exists()]

    with FileSupply(repository, jobs, keep=False) as supply:
        supply.need(0)
        supply._coming[1].result()
        assert there() == [0, 1]
        supply.need(1)
        supply._coming[2].result()
        assert there() == [0, 1, 2]
        supply.passed(1)
        supply.passed(1)
        assert there() == [1, 2]
        supply.need(2)
        supply._coming[3].result()
        supply.passed(3)
        assert there() == [3]
    assert there() == []


def test_what_was_fetched_is_kept_where_asked(hub, tmp_path):
    fineweb(hub)
    [kept] = run("fineweb", tmp_path / "kept", shard_tokens=2500, keep_source=True)
    assert len(list((tmp_path / "kept/.source/fineweb-10B").rglob("*.parquet"))) == 4
    assert kept.documents == 240


@pytest.mark.usefixtures("small_blocks")
def test_a_build_tells_the_supply_what_it_is_past(hub, tmp_path, monkeypatch):
    fineweb(hub, n_files=6)
    told = []
    monkeypatch.setattr(FileSupply, "passed", lambda _self, index: told.append(index))
    add = DatasetWriter.add

    def add_and_wait(self, block):
        add(self, block)
        while not self._thread._queue.empty():
            pass

    monkeypatch.setattr(DatasetWriter, "add", add_and_wait)
    run("fineweb", tmp_path / "out", shard_tokens=2500, workers=1)
    assert told == sorted(told)
    assert set(told) > {0, 2, 4, 6}


def test_several_tokenizers_in_one_pass_give_what_each_gives_alone(hub, tmp_path, shared):
    names = fineweb(hub)
    words = ("byte260", "byte", str(shared / "data/gpt2"))
    for layout in ("llmc", "tokens"):
        hub.log.clear()
        together = run("fineweb", tmp_path / layout, tokenizers=words, layout=layout, shard_tokens=2500)
        assert [len(hub.bodies(name)) for name in names] == [1] * 4
        for word, summary in zip(words, together, strict=True):
            [alone] = run(
                "fineweb",
                tmp_path / f"{layout}-{Path(word).name}",
                tokenizers=(word,),
                layout=layout,
                shard_tokens=2500,
            )
            assert shards(summary.directory) == shards(alone.directory)
            assert (summary.documents, summary.tokens) == (alone.documents, alone.tokens)
            if layout == "tokens":
                assert summary.record.read_bytes() == alone.record.read_bytes()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("stop", [2, 3, 5, 7, 11])
def test_several_data_sets_that_stand_at_different_places_go_on_together(hub, tmp_path, shared, monkeypatch, stop):
    fineweb(hub)
    monkeypatch.setattr(engine, "load_tokenizer", load_once)
    words = {"tokenizers": ("byte260", str(shared / "data/gpt2")), "shard_tokens": 2500, "layout": "tokens"}
    whole = run("fineweb", tmp_path / "whole", **words)
    original, calls = ShardWriter.publish, [0]

    def publish(self):
        calls[0] += 1
        if calls[0] % stop == 0:
            raise OSError(5, "scripted")
        original(self)

    monkeypatch.setattr(ShardWriter, "publish", publish)
    for _ in range(80):
        try:
            made = run("fineweb", tmp_path / "out", **words, workers=2)
            break
        except OSError:
            continue
    assert stop > 9 or calls[0] > 2 * stop
    for summary, expected in zip(made, whole, strict=True):
        assert shards(summary.directory) == shards(expected.directory)
        assert summary.record.read_bytes() == expected.record.read_bytes()


@pytest.mark.usefixtures("small_blocks")
@pytest.mark.parametrize("layout", ["llmc", "tokens"])
def test_limits_take_whole_documents_from_the_beginning(hub, tmp_path, layout):
    names = fineweb(hub)
    hub.log.clear()
    [few] = run("fineweb", tmp_path / "few", layout=layout, max_docs=70, workers=1)
    assert few.documents == 70
    assert len(build_records(tmp_path / "few")[0]["inputs"]) == 2
    assert hub.bodies(names[3]) == []
    [same] = run("fineweb", tmp_path / "same", layout=layout, max_tokens=few.tokens)
    assert (same.documents, same.tokens) == (70, few.tokens)
    assert [f.sha256 for f in same.files] == [f.sha256 for f in few.files]
    [less] = run("fineweb", tmp_path / "less", layout=layout, max_tokens=few.tokens - 1)
    assert less.documents == 69
    assert tokenriver.verify([tmp_path / "few"]).findings == []


MINE = """
name = "mine"
about = "notes"
size = "small"
licence = "mine"
split = "first-docs:2"

[source]
hub = "me/notes"
files = ["notes/*.jsonl"]

[documents]
text_field = "body"
strip = true
"""


def test_adding_a_recipe_takes_only_a_toml_file(hub, tmp_path):
    hub.add("me/notes", {"notes/a.jsonl": jsonl([{"body": f" note {i} "} for i in range(5)]), "README.md": b""})
    recipe = tmp_path / "mine.toml"
    recipe.write_text(MINE)
    [summary] = run(str(recipe), tmp_path / "out")
    assert summary.documents_by_split == {"train": 3, "val": 2}
    assert summary.text_bytes == 5 * len("note 0")
    assert tokenriver.verify([tmp_path / "out"]).findings == []


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        ('name = "mine"', 'name = "mine"\nsizes = 1', "sizes"),
        ('hub = "me/notes"', "", "either hub or urls"),
        ("first-docs:2", "first-two", "first-two"),
        ('files = ["notes/*.jsonl"]', "", "names no files"),
        ("strip = true", "shuffle_seed = 1", "json_arrays"),
        ('licence = "mine"', "", "licence"),
        ("[source]", '[eval]\ntask = "piqa"\noutput = "../x.bin"\n[source]', "eval.output .* holds '/'"),
        ("[source]", "[source", "TOML|toml|Expected|expected"),
    ],
)
def test_a_file_that_is_no_recipe_says_which_key_is_wrong(tmp_path, old, new, message):
    recipe = tmp_path / "mine.toml"
    recipe.write_text(MINE.replace(old, new))
    with pytest.raises(tokenriver.FormatError, match=message):
        run(str(recipe), tmp_path / "out")


def test_unknown_names_and_versions_list_what_there_is(tmp_path):
    with pytest.raises(tokenriver.UsageError, match="tinyshakespeare"):
        run("tinyshakespear", tmp_path)
    with pytest.raises(tokenriver.UsageError, match="10B, 100B"):
        run("fineweb", tmp_path, version="1B")
    with pytest.raises(tokenriver.UsageError, match="no versions"):
        run("c4-en", tmp_path, version="1B")
    with pytest.raises(tokenriver.UsageError, match="no such recipe file"):
        run(str(tmp_path / "none.toml"), tmp_path)


def test_a_dry_run_prints_the_plan_and_writes_nothing(hub, tmp_path, capsys):
    names = fineweb(hub)
    assert main(["recipe", "fineweb", "--tokenizer", "byte260", "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    text = capsys.readouterr().out
    for word in (
        "4 files of hub:HuggingFaceFW/fineweb",
        "to fetch",
        "tokens: about",
        "needed",
        "free",
        "MB/s",
        "goes to:",
    ):
        assert word in text
    assert not (tmp_path / "out").exists()
    assert [hub.requests(name) for name in names] == [[]] * 4


def test_too_little_disk_is_an_error_before_anything_is_fetched(hub, tmp_path, monkeypatch):
    names = fineweb(hub)
    monkeypatch.setattr("tokenriver.recipes.estimate.free_bytes", lambda _directory: 1000)
    with pytest.raises(tokenriver.UsageError, match=r"needed, 1\.0 kB free.*--out"):
        run("fineweb", tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert [hub.requests(name) for name in names] == [[]] * 4


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("fineweb", r"sample/10BT/\*\.parquet of https://huggingface\.co/datasets/HuggingFaceFW/fineweb.*--input"),
        ("tinystories", r"TinyStories_all_data\.tar\.gz of .*roneneldan/TinyStories.*--input"),
        ("tinyshakespeare", r"tinyshakespeare/input\.txt.*--input"),
        ("piqa", r"valid\.jsonl and .*valid-labels\.lst.*--input"),
        ("hub:some/where", r"datasets/some/where.*--input"),
    ],
)
def test_without_a_network_the_error_says_what_to_download_and_where_to_put_it(tmp_path, monkeypatch, name, message):
    def no_network(*_args, **_words):
        raise ConnectionRefusedError(111, "Connection refused")

    monkeypatch.setattr("socket.socket.connect", no_network)
    monkeypatch.setattr("huggingface_hub.utils._http.time.sleep", lambda _seconds: None)
    with pytest.raises(tokenriver.HubError, match=message):
        run(name, tmp_path)


def test_an_input_that_is_not_the_source_says_what_is_expected(tmp_path):
    (tmp_path / "in").mkdir()
    (tmp_path / "in/notes.pdf").write_bytes(b"-")
    with pytest.raises(tokenriver.CorpusError, match=r"sample/10BT.*it holds notes\.pdf"):
        run("fineweb", tmp_path / "out", input=tmp_path / "in")
    with pytest.raises(tokenriver.CorpusError, match="no such file or folder"):
        run("fineweb", tmp_path / "out", input=tmp_path / "nowhere")


def test_any_data_set_of_the_hub_takes_its_sides_from_the_names(hub, tmp_path):
    hub.add(
        "some/set",
        {
            "data/train-00000-of-00001.parquet": parquet([{"content": r["text"]} for r in rows(9)]),
            "data/validation-00000-of-00001.parquet": parquet([{"content": r["text"]} for r in rows(3, 9)]),
            "data/test-00000-of-00001.parquet": parquet([{"content": r["text"]} for r in rows(2, 12)]),
            "data/train.jsonl": jsonl(rows(4)),
        },
    )
    [summary] = run("hub:some/set", tmp_path / "out", text_field="content")
    assert summary.documents_by_split == {"train": 9, "val": 3}
    assert summary.dataset == "set"


def test_a_data_set_of_several_subsets_must_be_told_which(hub, tmp_path):
    hub.add("some/set", {f"{s}/train.jsonl": jsonl(rows(4 + i)) for i, s in enumerate(("en", "de"))})
    with pytest.raises(tokenriver.UsageError, match=r"2 folders \(de, en\).*--subset"):
        run("hub:some/set", tmp_path / "out")
    [summary] = run("hub:some/set", tmp_path / "de", subset="de")
    assert summary.documents == 5
    [both] = run("hub:some/set", tmp_path / "both", subset=".")
    assert both.documents == 9


def test_a_check_that_fails_says_that_the_source_has_changed(hub, tmp_path):
    hub.add("me/notes", {"notes/a.jsonl": jsonl([{"body": "x"}])})
    recipe = tmp_path / "mine.toml"
    recipe.write_text(MINE + "\n[checks]\ndocuments = 5\n")
    with pytest.raises(tokenriver.IntegrityError, match=r"1 documents.*says 5"):
        run(str(recipe), tmp_path / "out")


def test_a_pinned_file_that_changed_is_refused(hub, tmp_path):
    hub.add("me/notes", {"notes/a.jsonl": jsonl([{"body": "x"}])})
    recipe = tmp_path / "mine.toml"
    recipe.write_text(MINE.replace("[documents]", f'sha256 = {{ "notes/a.jsonl" = "{"0" * 64}" }}\n\n[documents]'))
    with pytest.raises(tokenriver.IntegrityError, match=r"notes/a\.jsonl"):
        run(str(recipe), tmp_path / "out")


def test_a_revision_is_taken_and_recorded(hub, tmp_path):
    repo = hub.add("me/notes", {"notes/a.jsonl": jsonl([{"body": "old"}])})
    hub.add("me/notes", {"notes/a.jsonl": jsonl([{"body": "new one"}])})
    recipe = tmp_path / "mine.toml"
    recipe.write_text(MINE)
    [summary] = run(str(recipe), tmp_path / "out", revision=repo.commits[0][0])
    assert summary.text_bytes == 3
    assert build_records(tmp_path / "out")[0]["origin"]["commit"] == repo.commits[0][0]


def test_an_archive_that_leads_out_of_its_folder_is_refused(tmp_path):
    archive = tmp_path / "bad.tar.gz"
    archive.write_bytes(tar({"../data.json": b"[]"}))
    with pytest.raises(tokenriver.IntegrityError, match="may not lead out"):
        extract(archive, tmp_path / "files", wanted=lambda _name: True)
    assert not (tmp_path / "data.json").exists()


def test_a_link_in_an_archive_where_a_file_is_wanted_is_refused(tmp_path):
    archive = tmp_path / "linked.tar"
    with tarfile.open(archive, "w") as file:
        link = tarfile.TarInfo("data00.json")
        link.type, link.linkname = tarfile.SYMTYPE, "data01.json"
        file.addfile(link)
        file.addfile(tarfile.TarInfo("data01.json"))
    with pytest.raises(tokenriver.CorpusError, match=r"data00\.json is a link or a device"):
        extract(archive, tmp_path / "files", wanted=lambda name: name.endswith(".json"))
    assert extract(archive, tmp_path / "files", wanted=lambda name: name == "data01.json") == ["data01.json"]


def test_what_was_taken_out_of_another_archive_is_not_kept_for_this_one(tmp_path):
    archive = tmp_path / "mine.tar"
    bad = [b'[{"story": 1}]    ', b'[{"story": "b"}]  ']
    archive.write_bytes(tar({"data00.json": bad[0], "data01.json": bad[1]}))
    with pytest.raises(tokenriver.CorpusError, match="is int, not a text"):
        run("tinystories", tmp_path / "out", input=archive)
    archive.write_bytes(tar({"data00.json": b'[{"story": "a"}]  ', "data01.json": bad[1]}))
    [summary] = run("tinystories", tmp_path / "out", input=archive)
    assert summary.documents == 2


@pytest.mark.parametrize("ending", ["gz", "xz", "bz2"])
def test_an_archive_that_is_cut_short_or_damaged_is_refused(tmp_path, ending):
    raw = io.BytesIO()
    content = random.Random(1).randbytes(50_000)
    with tarfile.open(fileobj=raw, mode=f"w:{ending}") as file:
        info = tarfile.TarInfo("data.json")
        info.size = len(content)
        file.addfile(info, io.BytesIO(content))
    whole = raw.getvalue()
    archive = tmp_path / f"bad.tar.{ending}"
    for damaged in (whole[:-20_000], whole[: len(whole) // 2], whole[:20_000] + bytes(100) + whole[20_100:], b"junk"):
        archive.write_bytes(damaged)
        with pytest.raises(tokenriver.CorpusError, match="not a whole archive"):
            extract(archive, tmp_path / "files", wanted=lambda _name: True)
        assert not (tmp_path / "files" / "data.json").exists()


def test_two_outputs_are_all_that_a_set_without_numbers_has(tmp_path, shared):
    local = shared / "data/tinyshakespeare"
    with pytest.raises(tokenriver.UsageError, match="one file for each split"):
        run("tinyshakespeare", tmp_path / "out", input=local, shard_tokens=100_000)
    [summary] = run("tinyshakespeare", tmp_path / "tokens", input=local, layout="tokens", shard_tokens=100_000)
    assert len(summary.files) > 2


def test_a_finished_data_set_is_not_made_again_by_chance(hub, tmp_path):
    fineweb(hub, n_files=1)
    run("fineweb", tmp_path / "out")
    with pytest.raises(tokenriver.IntegrityError, match="--overwrite"):
        run("fineweb", tmp_path / "out")
    assert run("fineweb", tmp_path / "out", overwrite=True)


def test_the_plan_counts_what_is_there_already(hub, tmp_path):
    fineweb(hub, n_files=2)
    options = RecipeOptions(tokenizers=("byte260",), out=tmp_path / "out", keep_source=True)
    before = prepare_recipe("fineweb", options).plan()
    run("fineweb", tmp_path / "out", keep_source=True)
    after = prepare_recipe("fineweb", options).plan()
    assert after.fetch_bytes == 0 < before.fetch_bytes
    assert after.disk_bytes < before.disk_bytes


def test_the_summary_can_be_read_by_programs(hub, tmp_path, capsys):
    fineweb(hub, n_files=1)
    assert main(["recipe", "fineweb", "--tokenizer", "byte260", "--out", str(tmp_path / "out"), "--json"]) == 0
    [summary] = json.loads(capsys.readouterr().out)
    assert summary["documents"] == 60


def test_a_second_run_over_the_same_files_is_told_so(hub, tmp_path):
    fineweb(hub, n_files=1)
    options = RecipeOptions(tokenizers=("byte260",), out=tmp_path / "out")
    prepared = prepare_recipe("fineweb", options)
    with prepared._locked(), pytest.raises(tokenriver.ResumeError, match="another run of recipe fineweb"):
        prepare_recipe("fineweb", options).run()
    assert not (tmp_path / "out").exists()
    assert prepared.run()


def test_a_damaged_note_of_the_commit_is_told_and_restart_goes_past_it(hub, tmp_path):
    fineweb(hub, 1)
    note = tmp_path / "out/.source/fineweb-10B/_SOURCE.json"
    note.parent.mkdir(parents=True)
    note.write_bytes(b'{"repository":')
    with pytest.raises(tokenriver.FormatError, match=r"_SOURCE\.json: not JSON"):
        run("fineweb", tmp_path / "out")
    assert run("fineweb", tmp_path / "out", restart=True)[0].documents == 60


def test_another_subset_is_not_held_to_the_files_of_an_interrupted_one(hub, tmp_path, monkeypatch):
    hub.add("some/set", {f"{s}/train.jsonl": jsonl(rows(4 + i)) for i, s in enumerate(("en", "de"))})

    def publish(_self):
        raise OSError(5, "scripted")

    with monkeypatch.context() as patch:
        patch.setattr(ShardWriter, "publish", publish)
        with pytest.raises(OSError, match="scripted"):
            run("hub:some/set", tmp_path / "out", subset="de")
    [summary] = run("hub:some/set", tmp_path / "out", subset="en", layout="tokens")
    assert summary.documents == 4


WEB = """
name = "notes"
about = "a"
size = "s"
licence = "l"
[source]
urls = ["{url}/notes.jsonl"]
files = ["*"]
{pins}
"""


def test_a_wrong_file_of_the_web_is_fetched_anew_by_restart_and_by_its_hash(tmp_path):
    (tmp_path / "web").mkdir()
    served, here = tmp_path / "web/notes.jsonl", tmp_path / "out/.source/notes/notes.jsonl"
    served.write_bytes(b"<html>sign in first</html>")
    with files_over_http(tmp_path / "web") as url:
        recipe = tmp_path / "notes.toml"
        recipe.write_text(WEB.format(url=url, pins=""))
        with pytest.raises(tokenriver.CorpusError, match="broken JSON"):
            run(str(recipe), tmp_path / "out")
        served.write_bytes(jsonl(rows(40)))
        here.with_name("notes.jsonl.part").write_bytes(b"of another file")
        assert run(str(recipe), tmp_path / "out", restart=True)[0].documents == 40
        pin = hashlib.sha256(served.read_bytes()).hexdigest()
        recipe.write_text(WEB.format(url=url, pins=f'sha256 = {{ "notes.jsonl" = "{pin}" }}'))
        here.parent.mkdir(parents=True)
        here.write_bytes(b"shorter, and wrong")
        assert run(str(recipe), tmp_path / "out", overwrite=True)[0].documents == 40


def test_a_plan_says_where_the_server_tells_no_size():
    plan = RecipePlan(
        recipe="notes", source="web", outputs=["data"], files=2, fetch_bytes=0, n_unsized=1, tokens=None,
        disk_bytes=0, free_bytes=0, seconds=0, bytes_per_second=0,
    )  # fmt: skip
    assert "1 to fetch of a size that the server does not tell, not counted below" in plan.lines()[0]
    assert not [line for line in plan.lines() if line.startswith("time:")]


def test_a_recipe_nested_too_deeply_is_no_recipe(tmp_path):
    (tmp_path / "deep.toml").write_text("a = " + "[" * 100_000)
    with pytest.raises(tokenriver.FormatError, match="not a recipe"):
        load_recipe(str(tmp_path / "deep.toml"))


def web_recipe(folder, url, *names):
    path = folder / "notes.toml"
    path.write_text(
        'name = "notes"\nabout = "a"\nsize = "s"\nlicence = "l"\nsplit = "train"\n'
        f'[source]\nurls = {json.dumps([f"{url}/{name}" for name in names])}\nfiles = ["*"]\n'
    )
    return str(path)


@pytest.mark.parametrize("source", ["hub", "web", "eval"])
def test_nothing_is_fetched_for_what_is_finished_already(hub, tmp_path, request, source):
    fineweb(hub, n_files=1)
    hub.add("w/f", {"a.jsonl": jsonl(rows(30))})
    name = "fineweb" if source == "hub" else web_recipe(tmp_path, f"{hub.url}/datasets/w/f/resolve/main", "a.jsonl")
    if source == "eval":
        request.getfixturevalue("shared")  # real questions
        name = publish(hub, "piqa", tmp_path)
    words = {} if source == "eval" else {"layout": "tokens"}
    run(name, tmp_path / "out", **words)
    before = sum(r.sent for r in hub.log)
    assert before
    with pytest.raises(tokenriver.IntegrityError, match="--overwrite"):
        run(name, tmp_path / "out", **words)
    assert sum(r.sent for r in hub.log) == before
    assert not (tmp_path / "out/.source").exists()


def test_what_a_run_had_fetched_that_was_killed_when_all_was_whole_goes_with_the_next(hub, tmp_path):
    hub.add("w/f", {"a.jsonl": jsonl(rows(30))})
    name = web_recipe(tmp_path, f"{hub.url}/datasets/w/f/resolve/main", "a.jsonl")
    steps = "from tokenriver.recipes import engine\nkill_at(engine.PreparedRecipe, '_forget_source', before=True)\n"
    arguments = ["recipe", name, "--tokenizer", "byte260", "--out", str(tmp_path / "out"), "--quiet"]
    forked.killed(steps + forked.command(*arguments), env=hub_environment(hub, tmp_path))
    assert (tmp_path / "out/.source/notes/a.jsonl").exists()
    with pytest.raises(tokenriver.IntegrityError, match="--overwrite"):
        run(name, tmp_path / "out")
    assert not (tmp_path / "out/.source").exists()


def test_what_was_to_be_kept_is_kept_also_when_the_data_set_is_finished_already(hub, tmp_path):
    hub.add("w/f", {"a.jsonl": jsonl(rows(30))})
    name = web_recipe(tmp_path, f"{hub.url}/datasets/w/f/resolve/main", "a.jsonl")
    run(name, tmp_path / "out", keep_source=True)
    for _ in range(2):
        with pytest.raises(tokenriver.IntegrityError, match="--overwrite"):
            run(name, tmp_path / "out")
    assert (tmp_path / "out/.source/notes/a.jsonl").exists()
