"""Data sets to the Hub and back: the manifest first and last, in part and whole, never a wrong file under its name."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
import shard_sets
from hub_fixtures import hub_environment
from local_hub import Fault, LocalHub
from made_documents import write_jsonl

import tokenriver
from tokenriver.errors import HubError, IntegrityError, UsageError
from tokenriver.hub.download import download
from tokenriver.hub.publish import publish
from tokenriver.shards.manifest import read_manifest
from tokenriver.shards.record import read_record
from tokenriver.shards.verify import verify

if TYPE_CHECKING:
    from collections.abc import Callable

REPO = "me/tales"
TOKENS = "tokens/toy/tales"


@pytest.fixture
def made(tmp_path: Path) -> Path:
    return shard_sets.make_tokens_set(tmp_path / "made")


def contents(folder: Path) -> dict[str, bytes]:
    return {p.relative_to(folder).as_posix(): p.read_bytes() for p in sorted(folder.rglob("*")) if p.is_file()}


def findings(folder: Path) -> list[str]:
    return [f"{f.path.name}: {f.problem}" for f in verify(folder).findings]


def test_a_data_set_published_and_fetched_is_the_same_and_loads(hub: LocalHub, made: Path, tmp_path: Path) -> None:
    summary = publish(made, REPO)
    repo = hub.repos[REPO]
    assert list(summary.files)[-1] == f"{TOKENS}/_MANIFEST.json"
    assert repo.messages == [[*list(summary.files)[:-1], "README.md", f"{TOKENS}/_MANIFEST.json"]], "one commit, so"
    fetched = download(REPO, out=tmp_path / "got")
    got = contents(tmp_path / "got" / TOKENS)
    before = contents(made)
    record = json.loads(got.pop("_BUILD.json"))
    assert [i["path"] for i in record["inputs"]] == ["a.jsonl", "b.jsonl"], "no folder of the publisher's machine"
    before.pop("_BUILD.json")
    assert got == before
    assert findings(tmp_path / "got") == []
    assert (fetched.fetched, len(fetched.files)) == (4, 3)
    assert tokenriver.TrainLoader(fetched.directories[0], seq_len=4, batch_size=2) is not None


def test_a_second_download_asks_for_the_list_and_the_manifest_alone(hub: LocalHub, made: Path, tmp_path: Path) -> None:
    publish(made, REPO)
    download(REPO, out=tmp_path / "got")
    hub.log.clear()
    again = download(REPO, out=tmp_path / "got")
    assert again.fetched == 0
    assert {r.name for r in hub.log if r.name} == {f"{TOKENS}/_MANIFEST.json", f"{TOKENS}/_BUILD.json"}
    assert len([r for r in hub.log if not r.name]) == 2, "commit and tree"


def test_a_first_download_needs_one_get_for_each_file(hub: LocalHub, made: Path, tmp_path: Path) -> None:
    publish(made, REPO)
    hub.log.clear()
    download(REPO, out=tmp_path / "got")
    names = [r.name for r in hub.log if r.name and r.status != 302]
    assert len(names) == len(set(names)) == 6
    assert names[0].endswith("_MANIFEST.json"), "the manifest first"
    assert names[1].endswith("_BUILD.json"), "then what it says of the indexes"


@pytest.fixture
def built(tmp_path: Path) -> Path:
    """Documents without separators: only the indexes know where they begin."""
    source = write_jsonl(tmp_path / "tales.jsonl", ["a" * 30, "", "b" * 40, "c" * 20, "d" * 50])
    words: dict[str, Any] = {"tokenizer": "byte", "shard_tokens": 60, "split": "first-docs:1"}
    return tokenriver.build([source], out=tmp_path / "built", **words).directory


@pytest.mark.usefixtures("hub")
def test_document_indexes_go_there_and_back(built: Path, tmp_path: Path) -> None:
    names = sorted(path.name for path in built.glob("*.bin.index"))
    assert len(names) > 2
    publish(built, REPO)
    download(REPO, out=tmp_path / "got")
    folder = tmp_path / "got" / "tokens" / "byte" / "tales"
    assert contents(folder).keys() == contents(built).keys()
    assert [(folder / name).read_bytes() for name in names] == [(built / name).read_bytes() for name in names]
    assert findings(folder) == []
    assert download(REPO, out=tmp_path / "got").fetched == 0
    (folder / names[0]).write_bytes((8).to_bytes(8, "little"))
    assert download(REPO, out=tmp_path / "got").fetched == 1
    download(REPO, out=tmp_path / "part", shards=1)
    part = tmp_path / "part" / "tokens" / "byte" / "tales"
    assert sorted(path.name for path in part.glob("*.index")) == [
        f"{path.name}.index" for path in sorted(part.glob("*.bin"))
    ]
    assert set(read_record(part / "_BUILD.json").indexes) == {path.name for path in part.glob("*.index")}
    assert findings(part) == []


def test_a_changed_index_is_not_published(hub: LocalHub, built: Path) -> None:
    index = max(built.glob("*.bin.index"), key=lambda path: path.stat().st_size)
    ends = np.fromfile(index, "<u8")
    (ends - np.arange(len(ends))[::-1].astype("u8")).tofile(index)
    with pytest.raises(IntegrityError, match=f"{index.name}: sha256 is .* its data set says .*; nothing was published"):
        publish(built, REPO)
    assert hub.repos[REPO].messages == []


@pytest.mark.usefixtures("hub")
def test_an_index_goes_with_its_shard_when_a_data_set_shrinks(built: Path, tmp_path: Path) -> None:
    publish(built, REPO)
    source = write_jsonl(tmp_path / "tales.jsonl", ["a" * 30, "b" * 40])
    tokenriver.build([source], out=tmp_path / "built", tokenizer="byte", split="first-docs:1", overwrite=True)
    removed = publish(built, REPO).removed
    assert [name.rpartition("/")[2] for name in removed] == ["train-00001.bin", "train-00001.bin.index"]
    download(REPO, out=tmp_path / "got")
    assert findings(tmp_path / "got") == []


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ({"shards": 1}, ["train-00000.bin", "val-00000.bin"]),
        ({"shards": 0}, ["val-00000.bin"]),
        ({"split": "val"}, ["val-00000.bin"]),
        ({"split": "train", "shards": 1}, ["train-00000.bin"]),
    ],
)
def test_a_part_of_a_data_set_is_one_that_verifies(
    made: Path, tmp_path: Path, words: dict[str, object], expected: list[str]
) -> None:
    publish(made, REPO)
    download(REPO, out=tmp_path / "got", **words)  # type: ignore[arg-type]
    folder = tmp_path / "got" / TOKENS
    assert sorted(p.name for p in folder.glob("*.bin")) == expected
    assert [f.name for f in read_manifest(folder).files] == expected
    assert findings(folder) == []
    download(REPO, out=tmp_path / "got", dataset="tales", shards=1)
    both = {f.name for f in read_manifest(folder).files}
    assert both == {*expected, "train-00000.bin", "val-00000.bin"}, "what was there stays listed"
    assert findings(folder) == []
    download(REPO, out=tmp_path / "got")
    assert (folder / "_MANIFEST.json").read_bytes() == (made / "_MANIFEST.json").read_bytes()


@pytest.mark.usefixtures("hub")
@pytest.mark.parametrize("layout", ["llmc", "golf"])
def test_the_other_layouts_go_there_and_back_too(tmp_path: Path, layout: str) -> None:
    made = tmp_path / "made" / "tales"
    shard_sets.make_cut_set(made, layout)  # type: ignore[arg-type]
    publish(tmp_path / "made", REPO)
    summary = download(REPO, out=tmp_path / "got", dataset="tales")
    assert summary.directories == [tmp_path / "got" / "tales"]
    assert findings(tmp_path / "got") == []
    for path in made.glob("*.bin"):
        assert (tmp_path / "got" / "tales" / path.name).read_bytes() == path.read_bytes()
    download(REPO, out=tmp_path / "part", shards=1)
    assert findings(tmp_path / "part") == []


def test_several_data_sets_share_a_repository(hub: LocalHub, tmp_path: Path) -> None:
    for name in ("tales", "poems"):
        publish(shard_sets.make_tokens_set(tmp_path / name, dataset=name), REPO)
    card = hub.repos[REPO].commits[-1][1]["README.md"].decode()
    assert card.count("tokenriver download me/tales --dataset toy/") == 2
    assert "license" in card.split("---")[1]
    assert len(download(REPO, out=tmp_path / "both").directories) == 2
    assert download(REPO, dataset="toy/poems", out=tmp_path / "one").directories == [
        tmp_path / "one" / "tokens" / "toy" / "poems"
    ]
    with pytest.raises(HubError, match="no data set songs; there are: toy/poems, toy/tales"):
        download(REPO, dataset="songs", out=tmp_path)
    with pytest.raises(UsageError, match="--shards is 3, but tokens/toy/poems/ was published with 2"):
        download(REPO, dataset="poems", shards=3, out=tmp_path)
    hub.add("me/other", {"a.json": b"{}"})
    with pytest.raises(HubError, match="there are: none made by tokenriver"):
        download("me/other", out=tmp_path)


def test_the_users_words_on_the_card_stay(hub: LocalHub, made: Path) -> None:
    publish(made, REPO)
    repo = hub.repos[REPO]
    card = repo.commits[-1][1]["README.md"].decode()
    hub.commit(repo, {**repo.commits[-1][1], "README.md": card.replace("# license: yours", "license: mit\n#").encode()})
    publish(made, REPO)
    again = repo.commits[-1][1]["README.md"].decode()
    assert "license: mit" in again
    assert again.count("<!-- tokenriver: tokens/toy/tales -->") == 1


def test_shards_that_a_new_manifest_does_not_list_are_removed(hub: LocalHub, made: Path, tmp_path: Path) -> None:
    publish(made, REPO)
    (made / "train-00001.bin").unlink()
    manifest = json.loads((made / "_MANIFEST.json").read_bytes())
    manifest["files"] = [f for f in manifest["files"] if f["name"] != "train-00001.bin"]
    (made / "_MANIFEST.json").write_text(json.dumps(manifest, indent=2) + "\n")
    (made / "_BUILD.json").unlink()
    summary = publish(made, REPO)
    assert summary.removed == [f"{TOKENS}/train-00001.bin"]
    assert f"{TOKENS}/train-00001.bin" not in hub.repos[REPO].commits[-1][1]
    download(REPO, out=tmp_path / "got")


def test_a_dry_run_asks_nobody_and_says_everything(hub: LocalHub, made: Path) -> None:
    summary = publish(made, REPO, dry_run=True)
    assert not hub.log
    assert summary.url is None
    assert f"{TOKENS}/train-00000.bin" in summary.files
    assert summary.n_bytes > 3 * 1024
    assert "| train |" in summary.card


def test_private_repositories_are_made_so(hub: LocalHub, made: Path) -> None:
    publish(made, REPO, private=True)
    assert hub.repos[REPO].private


def damage(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[-1] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize(
    ("spoil", "error"),
    [
        (lambda made: damage(made / "train-00001.bin"), "train-00001.bin: sha256 is .*nothing was published"),
        (lambda made: (made / "train-00001.bin").unlink(), "train-00001.bin"),
        (lambda made: (made / "train-00002.bin.part").write_bytes(b""), "unfinished"),
        (lambda made: (made / "_MANIFEST.json").unlink(), "unfinished"),
    ],
    ids=["damaged", "missing", "part", "no manifest"],
)
def test_a_data_set_that_is_not_whole_is_not_published(
    hub: LocalHub, made: Path, spoil: Callable[[Path], object], error: str
) -> None:
    spoil(made)
    with pytest.raises((IntegrityError, OSError), match=error):
        publish(made, REPO)
    assert REPO not in hub.repos or not hub.repos[REPO].messages


def test_without_permission_publishing_is_refused_and_the_token_is_never_shown(
    hub: LocalHub, made: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_wrong_token")
    with pytest.raises(HubError, match="HTTP 401: no permission; set HF_TOKEN") as raised:
        publish(made, REPO)
    assert "hf_wrong_token" not in str(raised.value)
    assert not hub.repos


def test_a_manifest_may_not_name_files_elsewhere(hub: LocalHub, made: Path, tmp_path: Path) -> None:
    publish(made, REPO)
    repo = hub.repos[REPO]
    for bad in ("../../../train-00000.bin", "/etc/train-00000.bin", "C:train-00000.bin"):
        raw = (made / "_MANIFEST.json").read_bytes().replace(b"train-00000.bin", bad.encode())
        hub.commit(repo, {**repo.commits[-1][1], f"{TOKENS}/_MANIFEST.json": raw})
        with pytest.raises(tokenriver.FormatError, match="not a name like train-00000"):
            download(REPO, out=tmp_path / "got")
    assert not (tmp_path / "got").exists()


@pytest.mark.usefixtures("hub")
def test_a_link_that_leads_out_of_the_folder_is_refused(made: Path, tmp_path: Path) -> None:
    publish(made, REPO)
    (tmp_path / "outside").mkdir()
    (tmp_path / "got").mkdir()
    (tmp_path / "got" / "tokens").symlink_to(tmp_path / "outside")
    with pytest.raises(IntegrityError, match=r"a link in the way leads to .*outside"):
        download(REPO, out=tmp_path / "got")
    assert not list((tmp_path / "outside").iterdir())


def test_a_repository_whose_shard_is_not_the_manifests_is_told_before_it_is_sent(
    hub: LocalHub, made: Path, tmp_path: Path
) -> None:
    publish(made, REPO)
    repo = hub.repos[REPO]
    name = f"{TOKENS}/train-00000.bin"
    hub.commit(repo, {**repo.commits[-1][1], name: repo.commits[-1][1][f"{TOKENS}/train-00001.bin"]})
    with pytest.raises(IntegrityError, match=f"{name}: the repository holds a file with sha256"):
        download(REPO, out=tmp_path / "got")
    assert not hub.bodies(name)


def test_links_to_the_shards_load_and_a_dangling_one_is_named(made: Path) -> None:
    for name in ("train-00000.bin", "val-00000.bin"):
        (made / name).rename(made.parent / name)
        (made / name).symlink_to(made.parent / name)
    assert findings(made) == []
    assert tokenriver.open_shard(made / "train-00000.bin").n_tokens > 0
    (made.parent / "train-00000.bin").unlink()
    assert any("train-00000.bin: missing" in line for line in findings(made))


ONE = "from tokenriver.hub.download import download; print(download({repo!r}, out={out!r}).fetched)"
EIGHT = """
import os, sys, huggingface_hub.hf_api, huggingface_hub.file_download
from tokenriver.hub.download import download
children = []
for _ in range(8):
    child = os.fork()
    if not child:
        os.write(1, b"%d " % download({repo!r}, out={out!r}).fetched)
        os._exit(0)
    children.append(child)
sys.exit(max(os.waitpid(child, 0)[1] for child in children))
"""


def start(hub: LocalHub, tmp_path: Path, code: str = ONE) -> subprocess.Popen[str]:
    code = code.format(repo=REPO, out=str(tmp_path / "got"))
    src = str(Path(tokenriver.__file__).parents[1])
    environment = {**os.environ, **hub_environment(hub, tmp_path), "PYTHONPATH": src}
    return subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True, env=environment)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="starts eight processes at once by fork")
def test_eight_processes_into_one_folder_send_each_body_once(hub: LocalHub, made: Path, tmp_path: Path) -> None:
    publish(made, REPO)
    hub.log.clear()
    process = start(hub, tmp_path, EIGHT)
    counts = process.communicate(timeout=300)[0].split()
    assert process.returncode == 0
    assert len(counts) == 8
    assert sum(map(int, counts)) == 4
    for name in ("train-00000.bin", "train-00001.bin", "val-00000.bin"):
        assert len(hub.bodies(f"{TOKENS}/{name}")) == 1
    left = [p.name for p in (tmp_path / "got" / TOKENS).iterdir()]
    assert sorted(left) == sorted(p.name for p in made.iterdir())
    assert findings(tmp_path / "got") == []


def test_a_download_that_is_killed_goes_on(hub: LocalHub, made: Path, tmp_path: Path) -> None:
    publish(made, REPO)
    hub.log.clear()
    name = f"{TOKENS}/train-00000.bin"
    held = threading.Event()
    hub.fail(name, Fault(cut=1200, hang=held))
    process = start(hub, tmp_path)
    part = tmp_path / "got" / (name + ".part")
    for _ in range(2000):
        if part.exists() and part.stat().st_size == 1200:
            break
        held.wait(0.02)
    process.send_signal(signal.SIGKILL)
    process.communicate()
    held.set()
    folder = tmp_path / "got" / TOKENS
    assert not (folder / "_MANIFEST.json").exists(), "nothing takes this for a data set"
    assert not (folder / "train-00000.bin").exists()
    for path in folder.glob("*.bin"):
        assert path.read_bytes() == (made / path.name).read_bytes()
    download(REPO, out=tmp_path / "got")
    assert [r.range for r in hub.bodies(name)] == [None, "bytes=1200-"]
    assert findings(tmp_path / "got") == []
    assert sorted(p.name for p in folder.iterdir()) == sorted(p.name for p in made.iterdir())
