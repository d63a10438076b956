"""Fetching a published export: the manifest decides, every file is checked, and what cannot be had is named."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import golf_roots
import pytest
from local_hub import Fault, LocalHub

from tokenriver.errors import FormatError, HubError, IntegrityError, UsageError
from tokenriver.golfing.check import check_golf
from tokenriver.golfing.export import export_golf
from tokenriver.golfing.fetch import GolfSource, fetch_golf
from tokenriver.hub.publish import publish
from tokenriver.shards.verify import verify
from tokenriver.storage.directory import STAGING_VARIABLE

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from s3_server import Bucket

REPO = "me/golf"
SP = "datasets/fineweb10B_sp300"


@pytest.fixture(scope="module")
def export(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("golf")
    golf_roots.make_root(folder)
    return folder / "export"


@pytest.fixture
def published(hub: LocalHub, export: Path) -> LocalHub:
    hub.add_folder(REPO, export, "datasets/")
    return hub


def names(root: Path) -> list[str]:
    return sorted(p.relative_to(root).as_posix() for p in root.rglob("*") if p.is_file())


def change_manifest(hub: LocalHub, change: Callable[[dict[str, Any]], None]) -> None:
    repo = hub.repos[REPO]
    files = dict(repo.commits[-1][1])
    manifest = json.loads(files["datasets/manifest.json"])
    change(manifest)
    hub.commit(repo, {**files, "datasets/manifest.json": json.dumps(manifest).encode()})


def test_val_whole_the_first_train_shards_and_the_tokenizer(published: LocalHub, export: Path, tmp_path: Path) -> None:
    done = fetch_golf(variant="sp300", train_shards=2, root=tmp_path / "data", repo_id=REPO)
    vals = sorted(p.name for p in (export / SP).glob("fineweb_val_*.bin"))
    assert vals
    assert names(tmp_path / "data") == sorted(
        [
            *(f"{SP}/{v}" for v in vals),
            f"{SP}/fineweb_train_000000.bin",
            f"{SP}/fineweb_train_000001.bin",
            "manifest.json",
            "tokenizers/fineweb_300_bpe.model",
            "tokenizers/fineweb_300_bpe.vocab",
        ]
    )
    for name in names(tmp_path / "data"):
        assert (tmp_path / "data" / name).read_bytes() == (export / name).read_bytes()
    order = [r.name for r in published.log if r.name]
    assert order[0] == "datasets/manifest.json", "manifest first"
    stats = json.loads((export / "manifest.json").read_bytes())["datasets"][1]["stats"]
    assert (done.val_tokens, done.train_tokens) == (stats["tokens_val"], 2000)


def test_what_is_there_is_not_fetched_again_and_what_is_wrong_is(
    published: LocalHub, export: Path, tmp_path: Path
) -> None:
    words = {"variant": "sp300", "train_shards": 1, "root": tmp_path, "repo_id": REPO}
    fetch_golf(**words)  # type: ignore[arg-type]
    published.log.clear()
    assert fetch_golf(**words).fetched == 0  # type: ignore[arg-type]
    assert not [r for r in published.log if r.name]
    wrong = tmp_path / SP / "fineweb_train_000000.bin"
    raw = bytearray(wrong.read_bytes())
    raw[1500] ^= 1
    wrong.write_bytes(raw)
    assert fetch_golf(**words).fetched == 1  # type: ignore[arg-type]
    assert wrong.read_bytes() == (export / SP / wrong.name).read_bytes()


def test_two_and_ten_train_shards_come_with_the_same_val(published: LocalHub, tmp_path: Path) -> None:
    del published
    shards = {}
    for n in (0, 3):
        fetch_golf(variant="sp300", train_shards=n, root=tmp_path / str(n), repo_id=REPO)
        shards[n] = {p.name: p.read_bytes() for p in (tmp_path / str(n) / SP).glob("fineweb_val_*.bin")}
    assert shards[0] == shards[3] != {}


def test_all_shards_come_with_our_records_so_that_verify_knows_every_hash(published: LocalHub, tmp_path: Path) -> None:
    del published
    done = fetch_golf(variant="sp300", train_shards=None, root=tmp_path, repo_id=REPO)
    assert (tmp_path / SP / "fineweb_BUILD.json").exists()
    report = verify(tmp_path)
    assert report.ok
    assert report.files_checked == len([p for p in done.files if p.suffix == ".bin"])


def test_the_environment_names_repository_and_folder(
    published: LocalHub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, export: Path
) -> None:
    published.add_folder("you/fork", export, "exports/10B/")
    monkeypatch.setenv("MATCHED_FINEWEB_REPO_ID", "you/fork")
    monkeypatch.setenv("MATCHED_FINEWEB_REMOTE_ROOT_PREFIX", "exports/10B")
    done = fetch_golf(variant="byte260", train_shards=1, root=tmp_path)
    assert done.repo_id == "you/fork"
    assert (tmp_path / "manifest.json").exists(), "the prefix is dropped"
    assert GolfSource.chosen("a/b", "", environment={}) == GolfSource("a/b", "")
    assert GolfSource.chosen(environment={}).remote("x") == "datasets/x"
    with pytest.raises(UsageError, match="may not lead out"):
        GolfSource.chosen("a/b", "../..")


def test_a_publication_goes_to_a_folder_of_the_repository_alone(export: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for prefix in ("../x", "a//b", "a/../.."):
        monkeypatch.setenv("MATCHED_FINEWEB_REMOTE_ROOT_PREFIX", prefix)
        with pytest.raises(UsageError, match=r"MATCHED_FINEWEB_REMOTE_ROOT_PREFIX: the file name .* may not lead out"):
            publish(export, REPO, dry_run=True)
    monkeypatch.setenv("MATCHED_FINEWEB_REMOTE_ROOT_PREFIX", "/")
    assert "manifest.json" in publish(export, REPO, dry_run=True).files


def test_what_was_never_published_is_named(published: LocalHub, tmp_path: Path) -> None:
    for words, error, text in (
        ({"variant": "sp4096"}, UsageError, "there are: byte260, sp300"),
        ({"variant": "sp300", "train_shards": 4000}, UsageError, "published with"),
        ({"variant": "sp300", "remote_root": "elsewhere"}, HubError, "elsewhere/manifest.json: not in the repository"),
    ):
        with pytest.raises(error, match=text):
            fetch_golf(**{"root": tmp_path, "repo_id": REPO, **words})  # type: ignore[arg-type]
    assert names(tmp_path) == [], "a manifest that nothing came of speaks of what is not there"

    def add(manifest: dict[str, Any]) -> None:
        ghost = {**manifest["datasets"][1], "name": "fineweb10B_sp999", "path": "datasets/fineweb10B_sp999"}
        manifest["datasets"].append(ghost)

    change_manifest(published, add)
    with pytest.raises(HubError, match=r"fineweb10B_sp999: the manifest lists it, but .* it was never uploaded"):
        fetch_golf(variant="sp999", train_shards=1, root=tmp_path, repo_id=REPO)
    found = check_golf(repo_id=REPO, root=tmp_path)
    assert set(found.problems.values()) == {"not in the repository"}
    assert all("fineweb10B_sp999" in name for name in found.problems)


def test_check_asks_for_every_file_of_the_manifest_and_fetches_none(published: LocalHub, tmp_path: Path) -> None:
    found = check_golf(repo_id=REPO, root=tmp_path)
    assert found.ok
    heads = {r.name for r in published.log if r.method == "HEAD"}
    assert len(heads) == found.checked > 8
    assert names(tmp_path) == [], "a manifest alone would make a broken export of the folder"
    gone = f"datasets/{SP}/fineweb_train_000001.bin"
    published.vanished.add(gone)
    problems = check_golf(repo_id=REPO, root=tmp_path).problems
    assert list(problems) == [f"{SP}/fineweb_train_000001.bin"]
    assert "HTTP 404" in problems[f"{SP}/fineweb_train_000001.bin"]


@pytest.mark.parametrize("path", ["../datasets/x", "/datasets/x", "C:/x", "datasets\\x"])
def test_a_manifest_that_names_folders_elsewhere_is_refused(published: LocalHub, tmp_path: Path, path: str) -> None:
    def lead_out(manifest: dict[str, Any]) -> None:
        manifest["datasets"][1]["path"] = path

    change_manifest(published, lead_out)
    with pytest.raises((IntegrityError, HubError)):
        fetch_golf(variant="sp300", train_shards=1, root=tmp_path / "data", repo_id=REPO)
    assert names(tmp_path / "data") == []
    with pytest.raises(IntegrityError, match="may not lead out"):
        check_golf(repo_id=REPO, root=tmp_path / "data")


def test_a_manifest_that_contradicts_itself_or_its_shards_is_told(published: LocalHub, tmp_path: Path) -> None:
    def miscount(manifest: dict[str, Any]) -> None:
        manifest["datasets"][1]["stats"]["tokens_val"] += 1
        manifest["datasets"][1]["stats"]["tokens_total"] += 1

    change_manifest(published, miscount)
    with pytest.raises(IntegrityError, match="the val shards hold"):
        fetch_golf(variant="sp300", train_shards=1, root=tmp_path, repo_id=REPO)

    def worse(manifest: dict[str, Any]) -> None:
        manifest["datasets"][1]["stats"]["tokens_total"] += 1

    change_manifest(published, worse)
    with pytest.raises(FormatError, match="tokens_total is"):
        fetch_golf(variant="sp300", train_shards=1, root=tmp_path, repo_id=REPO)
    hub = published
    hub.commit(hub.repos[REPO], {**hub.repos[REPO].commits[-1][1], "datasets/manifest.json": b'{"version": 3}'})
    with pytest.raises(FormatError, match="not as its schema demands"):
        fetch_golf(variant="sp300", train_shards=1, root=tmp_path / "new", repo_id=REPO)
    assert names(tmp_path / "new") == [], "what is no manifest does not stay as one"


def test_documents_without_a_sidecar_come_alone(published: LocalHub, export: Path, tmp_path: Path) -> None:
    docs = (export / "docs_selected.jsonl").read_bytes()
    published.add(REPO, {"datasets/docs_selected.jsonl": docs})
    fetch_golf(variant="sp300", train_shards=1, with_docs=True, root=tmp_path, repo_id=REPO)
    assert (tmp_path / "docs_selected.jsonl").read_bytes() == docs
    assert not (tmp_path / "docs_selected.source_manifest.json").exists()


@pytest.mark.usefixtures("waits")
def test_the_documents_are_held_to_their_sidecar(published: LocalHub, export: Path, tmp_path: Path) -> None:
    repo = published.repos[REPO]
    docs = (export / "docs_selected.jsonl").read_bytes()
    name = "datasets/docs_selected.source_manifest.json"
    good = {"num_docs": 120, "docs_val": 10, "docs_sha256": hashlib.sha256(docs).hexdigest()}
    published.commit(repo, {**repo.commits[-1][1], name: json.dumps(good).encode()})
    published.fail("datasets/docs_selected.jsonl", Fault(cut=100), Fault(status=500))
    fetch_golf(variant="sp300", train_shards=1, with_docs=True, root=tmp_path / "a", repo_id=REPO)
    assert (tmp_path / "a/docs_selected.jsonl").read_bytes() == docs
    bad = {**good, "docs_sha256": "0" * 64}
    published.commit(repo, {**repo.commits[-1][1], name: json.dumps(bad).encode()})
    with pytest.raises(IntegrityError, match=r"docs_selected\.jsonl: the repository holds a file with sha256"):
        fetch_golf(variant="sp300", train_shards=1, with_docs=True, root=tmp_path / "b", repo_id=REPO)


def test_an_export_takes_its_documents_from_a_repository(published: LocalHub, export: Path, tmp_path: Path) -> None:
    del published
    export_golf(
        tokenizer_config=golf_roots.write_specs(tmp_path / "s.json"),
        output_root=tmp_path / "out",
        source=GolfSource(REPO, "datasets"),
        num_val_docs=10,
        chunk_tokens=1000,
    )
    ours, theirs = (json.loads((r / "manifest.json").read_bytes()) for r in (tmp_path / "out", export))
    assert ours.pop("docs_meta")["remote_repo_id"] == REPO
    theirs.pop("docs_meta")
    assert ours == theirs
    for path in (export / SP).glob("*.bin"):
        assert (tmp_path / "out" / SP / path.name).read_bytes() == path.read_bytes()


def test_a_fetch_to_a_store_is_the_local_one_and_what_speaks_of_the_files_comes_last(
    published: LocalHub, export: Path, tmp_path: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STAGING_VARIABLE, str(tmp_path / "staging"))
    docs = (export / "docs_selected.jsonl").read_bytes()
    sidecar = {"num_docs": 120, "docs_val": 10, "docs_sha256": hashlib.sha256(docs).hexdigest()}
    name = "datasets/docs_selected.source_manifest.json"
    repo = published.repos[REPO]
    published.commit(repo, {**repo.commits[-1][1], name: json.dumps(sidecar).encode()})
    words: dict[str, Any] = {"variant": "sp300", "train_shards": None, "with_docs": True, "repo_id": REPO}
    here = fetch_golf(**words, root=tmp_path / "data")
    there = fetch_golf(**words, root=f"{s3.url}/data")
    assert {key: s3.get(f"data/{key}") for key in names(tmp_path / "data")} == {
        key: (tmp_path / "data" / key).read_bytes() for key in names(tmp_path / "data")
    }
    assert len(s3.names("data")) == len(names(tmp_path / "data"))
    put = [r.path.partition("/data/")[2] for r in s3.server.log if r.method == "PUT" and r.status == 200]
    records = [f"{SP}/fineweb_CORPUS.json", f"{SP}/fineweb_BUILD.json", "docs_selected.source_manifest.json"]
    assert put[-4:] == [*records, "manifest.json"]
    assert (there.fetched, there.n_bytes, there.val_tokens) == (here.fetched, here.n_bytes, here.val_tokens)
    assert verify(there.root).ok
    published.log.clear()
    assert fetch_golf(**words, root=f"{s3.url}/data").fetched == 0
    assert check_golf(repo_id=REPO, root=f"{s3.url}/checked").ok
    assert s3.names("checked") == [], "a manifest without its shards has no place in a store"
    assert list((tmp_path / "staging").iterdir()) == []


def test_an_export_in_a_store_is_published_as_one_in_a_folder(
    hub: LocalHub, export: Path, tmp_path: Path, s3: Bucket, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(STAGING_VARIABLE, str(tmp_path / "staging"))
    s3.put_folder(export, "export")
    publish(export, "me/a")
    publish(f"{s3.url}/export/", "me/b")
    one, other = (hub.repos[name].commits[-1][1] for name in ("me/a", "me/b"))
    assert one.pop("README.md") != other.pop("README.md"), "each names its repository"
    assert one == other
    assert hub.repos["me/b"].messages == hub.repos["me/a"].messages
    assert list((tmp_path / "staging").iterdir()) == []
