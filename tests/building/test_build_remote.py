"""Builds from and to an object store: the bytes of a local build, whatever happens on the way."""

from __future__ import annotations

import gzip
import signal
import threading
from typing import TYPE_CHECKING, Any

import forked
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from build_helpers import hashes
from made_documents import make_texts, write_jsonl
from plain_server import files_over_http
from s3_server import Fault

from tokenriver import build, verify
from tokenriver.errors import CorpusError, IntegrityError, ResumeError, StorageError, UsageError
from tokenriver.resuming import uploads
from tokenriver.storage import failures, reading
from tokenriver.storage.directory import STAGING_VARIABLE
from tokenriver.storage.paths import to_path

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from s3_server import Bucket

LAYOUTS: dict[str, dict[str, Any]] = {
    "tokens": {"tokenizer": "byte", "shard_tokens": 10_000},
    "llmc": {"tokenizer": "byte", "shard_tokens": 10_000, "layout": "llmc", "doc_index": True},
    "golf": {"tokenizer": "byte260", "shard_tokens": 10_000, "layout": "golf", "split": "first-docs:50"},
}
TOKENS = LAYOUTS["tokens"]


pytestmark = pytest.mark.usefixtures("staging")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """Documents of every kind, in files whose names sort among each other."""
    folder = tmp_path / "docs"
    folder.mkdir()
    texts = make_texts(450, words=20)
    write_jsonl(folder / "a.jsonl", texts[:150])
    plain = write_jsonl(tmp_path / "plain", texts[150:250])
    (folder / "b #1.jsonl.gz").write_bytes(gzip.compress(plain.read_bytes(), mtime=0))
    pq.write_table(pa.table({"text": texts[250:400]}), folder / "c.parquet", row_group_size=50)
    (folder / "d").mkdir()
    write_jsonl(folder / "d" / "ü.jsonl", texts[400:])
    (folder / "_BUILD.json").write_text("{}")
    return folder


def built(s3: Bucket, prefix: str) -> dict[str, str]:
    """SHA-256 by name of the objects directly below a prefix, the build record left out."""
    import hashlib

    names = [key for key in s3.names(prefix + "/") if not key.endswith("_BUILD.json")]
    return {key.removeprefix(prefix + "/"): hashlib.sha256(s3.get(key)).hexdigest() for key in names}


def prefix_of(layout: str) -> str:
    """Where the data set "docs" lies below out/."""
    return "out/tokens/byte/docs" if layout == "tokens" else "out"


@pytest.mark.parametrize("layout", LAYOUTS)
def test_a_build_from_store_to_store_gives_the_bytes_of_a_local_one(
    s3: Bucket, folder: Path, tmp_path: Path, staging: Path, layout: str
) -> None:
    local = build(folder, out=tmp_path / "out", **LAYOUTS[layout])
    done = build(to_path(s3.put_folder(folder, "docs")), out=to_path(f"{s3.url}/out"), **LAYOUTS[layout])
    assert built(s3, prefix_of(layout)) == hashes(local.directory)
    assert str(done.directory) == f"{s3.url}/{prefix_of(layout)}"
    assert str(done.record) == f"{s3.url}/{prefix_of(layout)}/{local.record.name}"
    assert done.files == local.files
    assert not list(staging.glob("*"))
    assert verify(to_path(f"{s3.url}/out"), inputs=True).ok


def test_the_manifest_is_uploaded_last_and_each_shard_once(s3: Bucket, folder: Path) -> None:
    left = f"{prefix_of('tokens')}/train-00000.bin"  # what a killed build left under way
    s3.server.client.create_multipart_upload(Bucket=s3.name, Key=left)
    build(folder, out=f"{s3.url}/out", **TOKENS)
    puts = [r.path.rpartition("/")[2] for r in s3.server.requests("/out/", "PUT")]
    assert puts[-3:] == ["_CORPUS.json", "_BUILD.json", "_MANIFEST.json"]
    assert len(puts) == len(set(puts)) == len(s3.names())
    assert not s3.server.uploads_under_way(s3.name)


def test_a_build_in_memory_gives_the_bytes_of_a_local_one(folder: Path, tmp_path: Path) -> None:
    import fsspec

    store = fsspec.filesystem("memory")
    store.put(str(folder), "/build-test/docs", recursive=True)
    local = build(folder, out=tmp_path / "out", **TOKENS)
    build("memory://build-test/docs", out="memory://build-test/out", **TOKENS)
    got = {p.rpartition("/")[2]: store.cat_file(p) for p in store.find("/build-test/out")}
    want = {p.name: p.read_bytes() for p in local.directory.iterdir()}
    assert {k: v for k, v in got.items() if k != "_BUILD.json"} == {k: v for k, v in want.items() if k != "_BUILD.json"}


def test_a_build_killed_while_it_uploads_goes_on(s3: Bucket, folder: Path, tmp_path: Path, staging: Path) -> None:
    local = build(folder, out=tmp_path / "out", **TOKENS)
    url, never, reached = s3.put_folder(folder, "docs"), threading.Event(), threading.Event()
    s3.server.fail(r"train-00003\.bin$", Fault(hold=never, reached=reached), method="PUT")
    words = ["build", url, "--tokenizer", "byte", "--shard-tokens", "10000", "--out", f"{s3.url}/out", "--quiet"]
    with forked.start(forked.command(*words)) as child:
        assert reached.wait(300)
        child.kill()
        assert child.wait() == -signal.SIGKILL
    never.set()
    assert not any(key.endswith("_MANIFEST.json") for key in s3.names("out"))
    assert list(staging.glob("*/_JOURNAL"))
    s3.server.mend()
    done = build(url, out=f"{s3.url}/out", **TOKENS)
    assert done.resumed
    assert built(s3, prefix_of("tokens")) == hashes(local.directory)
    assert not s3.server.requests(r"train-00000\.bin$", "PUT"), "what was there is not uploaded again"
    assert not s3.server.uploads_under_way(s3.name)
    assert not list(staging.glob("*"))


@pytest.mark.parametrize("name", [r"train-00002\.bin$", "_MANIFEST.json$"])
def test_a_build_whose_upload_fails_goes_on_to_the_same_bytes(
    impatient: Bucket, folder: Path, tmp_path: Path, name: str
) -> None:
    local = build(folder, out=tmp_path / "out", **TOKENS)
    impatient.server.fail(name, Fault(status=500), method="PUT")
    with pytest.raises(StorageError, match="the store failed"):
        build(folder, out=f"{impatient.url}/out", **TOKENS)
    assert not any(key.endswith("_MANIFEST.json") for key in impatient.names())
    assert build(folder, out=f"{impatient.url}/out", **TOKENS).resumed
    assert built(impatient, prefix_of("tokens")) == hashes(local.directory)


def test_a_build_whose_first_upload_fails_leaves_nothing(impatient: Bucket, folder: Path, staging: Path) -> None:
    impatient.server.fail(r"\.bin$", Fault(status=403), method="PUT", always=True)
    with pytest.raises(PermissionError, match="the store refuses access"):
        build(folder, out=f"{impatient.url}/out", **TOKENS)
    assert impatient.names() == []
    assert not list(staging.glob("*"))


def test_a_finished_data_set_is_refused_and_replaced_on_demand(s3: Bucket, folder: Path) -> None:
    build(folder, out=f"{s3.url}/out", **TOKENS)
    before = built(s3, prefix_of("tokens"))
    with pytest.raises(IntegrityError, match=r"s3://.*/docs: holds a finished data set already"):
        build(folder, out=f"{s3.url}/out", **TOKENS)
    s3.put("out/tokens/byte/docs/train-00077.bin", b"left over")
    build(folder, out=f"{s3.url}/out", overwrite=True, **TOKENS)
    assert built(s3, prefix_of("tokens")) == before


def interrupted(s3: Bucket, inputs: str | Path) -> None:
    """Leave a build behind whose third shard did not get there."""
    s3.server.fail(r"train-00002\.bin$", Fault(status=500), method="PUT")
    with pytest.raises(StorageError):
        build(inputs, out=f"{s3.url}/out", **TOKENS)


def test_shards_whose_staging_is_lost_are_refused_with_what_to_do(
    impatient: Bucket, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    interrupted(impatient, folder)
    monkeypatch.setenv(STAGING_VARIABLE, str(tmp_path / "another"))
    with pytest.raises(IntegrityError, match=r"holds \d+ shards .* no journal in .* on this machine"):
        build(folder, out=f"{impatient.url}/out", **TOKENS)
    assert build(folder, out=f"{impatient.url}/out", overwrite=True, **TOKENS).resumed is False


def test_a_build_finished_elsewhere_meanwhile_is_not_written_over(
    impatient: Bucket, folder: Path, tmp_path: Path
) -> None:
    interrupted(impatient, folder)
    build(folder, out=f"{impatient.url}/out", staging=tmp_path / "another", overwrite=True, **TOKENS)
    with pytest.raises(IntegrityError, match="holds a finished data set already"):
        build(folder, out=f"{impatient.url}/out", **TOKENS)


def test_an_uploaded_shard_that_someone_removed_is_missed(impatient: Bucket, folder: Path) -> None:
    interrupted(impatient, folder)
    impatient.delete("out/tokens/byte/docs/train-00001.bin")
    with pytest.raises(ResumeError, match=r"train-00001\.bin: the journal names it, but it is not there"):
        build(folder, out=f"{impatient.url}/out", **TOKENS)
    build(folder, out=f"{impatient.url}/out", restart=True, **TOKENS)


def test_an_input_object_that_changed_is_refused_by_its_name(impatient: Bucket, folder: Path) -> None:
    url = impatient.put_folder(folder, "docs")
    interrupted(impatient, url)
    raw = impatient.get("docs/d/ü.jsonl")
    impatient.put("docs/d/ü.jsonl", raw.replace(b"river", b"RIVER"))
    with pytest.raises(ResumeError, match=r"made otherwise: input d/ü\.jsonl was"):
        build(url, out=f"{impatient.url}/out", **TOKENS)


def test_a_resumed_build_does_not_read_a_plain_object_from_its_start(impatient: Bucket, tmp_path: Path) -> None:
    path = write_jsonl(tmp_path / "docs.jsonl", make_texts(20_000, words=20))
    url = impatient.put("docs.jsonl", path.read_bytes())
    words: dict[str, Any] = {"tokenizer": "byte", "shard_tokens": 700_000, "block_bytes": 100_000, "split": "train"}
    impatient.server.fail(r"train-00002\.bin$", Fault(status=500), method="PUT")
    with pytest.raises(StorageError):
        build(url, out=f"{impatient.url}/out", **words)
    impatient.server.mend()
    assert build(url, out=f"{impatient.url}/out", **words).resumed
    asked = [r.range for r in impatient.server.requests(r"docs\.jsonl$") if r.range]
    starts = [int(r.removeprefix("bytes=").split("-")[0]) for r in asked]
    assert max(starts) > 1_000_000, "reading went on in the middle; only hashing begins at the start"


@pytest.fixture
def web(tmp_path: Path) -> Iterator[tuple[Path, str]]:
    """A folder and the URL that a plain web server, which knows no ranges, gives it."""
    folder = tmp_path / "web"
    folder.mkdir()
    with files_over_http(folder) as url:
        yield folder, url


def test_documents_behind_http_are_read(web: tuple[Path, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder, url = web
    write_jsonl(folder / "a b.jsonl", make_texts(3000))
    (folder / "c.jsonl.gz").write_bytes(gzip.compress((folder / "a b.jsonl").read_bytes()))
    monkeypatch.setattr(reading, "PIECE_BYTES", 200_000)  # so that ranges are asked for
    files = [folder / "a b.jsonl", folder / "c.jsonl.gz"]
    local = build(files, tokenizer="byte", out=tmp_path / "1", dataset="x")
    remote = build([f"{url}/a b.jsonl", f"{url}/c.jsonl.gz"], tokenizer="byte", out=tmp_path / "2", dataset="x")
    assert remote.files == local.files
    with pytest.raises(CorpusError, match="no such file on the server"):
        build(f"{url}/none.jsonl", tokenizer="byte", out=tmp_path / "3")


def test_a_web_server_that_is_not_there_is_no_missing_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(failures, "RETRY_SECONDS", ())
    with pytest.raises(StorageError, match=r"^http://…@127\.0\.0\.1:1/a\.jsonl\?sig=…: the store failed \("):
        build("http://me:word@127.0.0.1:1/a.jsonl?sig=abc", tokenizer="byte", out=tmp_path)


def test_nothing_is_built_to_http(folder: Path) -> None:
    with pytest.raises(UsageError, match="nothing can be written to https://"):
        build(folder, out="https://example.org/out", **TOKENS)


KILLS = {
    "after the journal, before the part goes": "journal.Journal, 'record', 2",
    "after the manifest, before the journal goes": "target.Target, 'publish_records'",
}


@pytest.mark.parametrize("phase", KILLS)
def test_a_build_killed_between_two_steps_goes_on(
    s3: Bucket, folder: Path, tmp_path: Path, staging: Path, phase: str
) -> None:
    local = build(folder, out=tmp_path / "out", **TOKENS)
    call = f"tokenriver.build({str(folder)!r}, out={s3.url + '/out'!r}, **{TOKENS!r})"
    forked.killed(f"from tokenriver.building import journal, target\nkill_at({KILLS[phase]})\n{call}")
    assert build(folder, out=f"{s3.url}/out", **TOKENS).resumed
    assert built(s3, prefix_of("tokens")) == hashes(local.directory)
    assert not list(staging.glob("*"))


def test_a_stopped_build_waits_no_longer_than_a_moment_for_an_upload(
    s3: Bucket, folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(uploads, "PATIENCE_SECONDS", 0.1)
    held, reached = threading.Event(), threading.Event()
    s3.server.fail(r"train-00000\.bin$", Fault(hold=held, reached=reached), method="PUT")

    class Stopped(BaseException):
        pass

    class Progress:
        def update(self, *_: int) -> None:
            assert reached.wait(300)
            raise Stopped

    with pytest.raises(Stopped):
        build(folder, out=f"{s3.url}/out", progress=Progress(), block_bytes=20_000, **TOKENS)
    held.set()
    for thread in threading.enumerate():
        if thread.name == "tokenriver-upload":
            thread.join()
    assert any(key.endswith("train-00000.bin") for key in s3.names()), "it got there after all, and is not in the way"
    local = build(folder, out=tmp_path / "out", **TOKENS)
    build(folder, out=f"{s3.url}/out", **TOKENS)
    assert built(s3, prefix_of("tokens")) == hashes(local.directory)
