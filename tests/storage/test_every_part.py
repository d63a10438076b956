"""Every part of the library that takes a path takes a URL: the bytes are those of the same thing done here."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest

import tokenriver
from tokenriver.bpb.audit import audit
from tokenriver.cli import main
from tokenriver.corpus.shards import verify_corpus, write_corpus
from tokenriver.errors import CorpusError, UsageError
from tokenriver.evals.file import open_eval_file
from tokenriver.evals.make import make_eval_file
from tokenriver.golf import export_golf, select_golf
from tokenriver.shards.manifest import read_manifest
from tokenriver.shards.reader import open_shard, read_header
from tokenriver.shards.writer import write_shard
from tokenriver.storage.directory import STAGING_VARIABLE
from tokenriver.tokenizers.load import load_tokenizer
from tokenriver.tokenizers.train import train_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

TEXTS = [f"{i} the river carries every token äöü 河 to the sea " * (1 + i % 5) for i in range(300)]


@pytest.fixture(autouse=True)
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STAGING_VARIABLE, str(tmp_path / "staging"))
    return tmp_path / "staging"


@pytest.fixture
def store() -> Iterator[Any]:
    """fsspec's store in memory, empty below /t; its URL is memory://t."""
    memory = fsspec.filesystem("memory")
    yield memory
    if memory.exists("/t"):
        memory.rm("/t", recursive=True)


@pytest.fixture
def docs(tmp_path: Path, store: Any) -> Path:
    """A file of documents here, and the same at memory://t/docs.jsonl."""
    path = tmp_path / "docs.jsonl"
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    store.pipe_file("/t/docs.jsonl", path.read_bytes())
    return path


def objects(store: Any, root: str) -> dict[str, bytes]:
    return {name.removeprefix(root + "/"): store.cat_file(name) for name in store.find(root)}


def files(root: Path) -> dict[str, bytes]:
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in root.rglob("*") if path.is_file()}


@pytest.mark.parametrize("shard_format", ["jsonl.zst", "parquet"])
def test_a_corpus_is_written_and_read_behind_a_url(docs: Path, store: Any, tmp_path: Path, shard_format: Any) -> None:
    words: dict[str, Any] = {"format": shard_format, "shard_bytes": 10_000}
    write_corpus([docs], tmp_path / "corpus", **words)
    done = write_corpus(["memory://t/docs.jsonl"], "memory://t/corpus", **words)
    assert objects(store, "/t/corpus") == files(tmp_path / "corpus")
    assert str(done.path) == "memory://t/corpus"
    assert verify_corpus("memory://t/corpus") == []
    local = tokenriver.build(tmp_path / "corpus", tokenizer="byte", out=tmp_path / "out")
    remote = tokenriver.build("memory://t/corpus", tokenizer="byte", out=tmp_path / "out2")
    assert (local.directory / "_MANIFEST.json").read_bytes() == (remote.directory / "_MANIFEST.json").read_bytes()
    with pytest.raises(UsageError, match="holds a finished corpus"):
        write_corpus([docs], "memory://t/corpus", **words)
    write_corpus([docs], "memory://t/corpus", overwrite=True, **{**words, "shard_bytes": 20_000})
    assert verify_corpus("memory://t/corpus") == []
    assert not list((tmp_path / "staging").glob("*"))


def test_a_corpus_that_fails_leaves_nothing_behind_its_url(docs: Path, store: Any, tmp_path: Path) -> None:
    with open(docs, "a") as file:
        file.write("no record\n")
    with pytest.raises(CorpusError, match=r"docs\.jsonl:301"):
        write_corpus([docs], "memory://t/corpus", shard_bytes=5_000, block_bytes=2_000)
    assert objects(store, "/t/corpus") == {}
    assert not list((tmp_path / "staging").glob("*"))


def test_a_corpus_that_lost_a_shard_is_refused(docs: Path, store: Any) -> None:
    write_corpus([docs], "memory://t/corpus", shard_bytes=10_000)
    store.rm_file("/t/corpus/corpus-00001.jsonl.zst")
    assert verify_corpus("memory://t/corpus") == ["memory://t/corpus/corpus-00001.jsonl.zst: missing"]
    with pytest.raises(tokenriver.IntegrityError, match=r"corpus-00001\.jsonl\.zst: missing"):
        tokenriver.build("memory://t/corpus", tokenizer="byte", out="memory://t/out")


def test_shards_and_manifests_are_read_and_written_behind_a_url(docs: Path, store: Any) -> None:
    assert docs.exists()
    done = tokenriver.build("memory://t/docs.jsonl", tokenizer="byte", out="memory://t/out", split="train")
    url = "memory://t/out/tokens/byte/docs"
    assert read_manifest(url) == read_manifest(url + "/_MANIFEST.json")
    assert read_manifest(url).files == done.files
    assert (
        open_shard(url + "/train-00000.bin").n_tokens == read_header(url + "/train-00000.bin").n_tokens == done.tokens
    )
    write_shard("memory://t/one.bin", np.arange(1000), 2000)
    assert open_shard("memory://t/one.bin").tolist() == list(range(1000))
    assert not open_shard("memory://t/one.bin").flags.writeable
    with pytest.raises(FileNotFoundError):
        open_shard("memory://t/none.bin")
    assert store.exists("/t/one.bin")


def test_a_tokenizer_is_trained_to_and_loaded_from_a_url(docs: Path, store: Any, tmp_path: Path) -> None:
    assert docs.exists()
    local = train_tokenizer(TEXTS, kind="byte-bpe", vocab_size=300, out=tmp_path / "tok")
    remote = train_tokenizer(TEXTS, kind="byte-bpe", vocab_size=300, out="memory://t/tok")
    assert store.cat_file("/t/tok/tokenizer.json") == local.path.read_bytes()
    assert str(remote.path) == "memory://t/tok/tokenizer.json"
    for url in ("memory://t/tok", "memory://t/tok/tokenizer.json"):
        tokenizer = load_tokenizer(url)
        assert tokenizer.tokenizer_id == "tok"
        assert tokenizer.sha256 == load_tokenizer(tmp_path / "tok").sha256
    with pytest.raises(tokenriver.TokenizerError, match="no tokenizer at memory://t/none"):
        load_tokenizer("memory://t/none")


def test_an_evaluation_file_is_made_from_and_to_a_url(store: Any, tmp_path: Path) -> None:
    record = {"ctx": "A river", "label": 1, "endings": ["runs", "flows", "sits", "sings"]}
    lines = "".join(json.dumps({**record, "ind": i}) + "\n" for i in range(5)).encode()
    store.pipe_file("/t/hellaswag.jsonl", lines)
    (tmp_path / "hellaswag.jsonl").write_bytes(lines)
    coder = load_tokenizer("byte")
    make_eval_file("hellaswag", tmp_path / "hellaswag.jsonl", tokenizer=coder, out=tmp_path / "e.bin")
    make_eval_file("hellaswag", "memory://t/hellaswag.jsonl", tokenizer=coder, out="memory://t/e.bin")
    assert store.cat_file("/t/e.bin") == (tmp_path / "e.bin").read_bytes()
    assert store.cat_file("/t/e.bin.json") == (tmp_path / "e.bin.json").read_bytes()
    assert len(open_eval_file("memory://t/e.bin")) == 5


def test_parameter_golf_selects_and_exports_behind_a_url(docs: Path, store: Any, tmp_path: Path) -> None:
    specs = {"tokenizers": [{"name": "pure_byte_260", "dataset_suffix": "byte260"}]}
    (tmp_path / "specs.json").write_text(json.dumps(specs))
    store.pipe_file("/t/specs.json", json.dumps(specs).encode())
    select_golf([docs], docs=100, seed=1, out=tmp_path / "sel", docs_val=10)
    select_golf(["memory://t/docs.jsonl"], docs=100, seed=1, out="memory://t/sel", docs_val=10)
    assert objects(store, "/t/sel") == files(tmp_path / "sel")
    roots = {tmp_path / "root": tmp_path, "memory://t/root": "memory://t"}
    for root, base in roots.items():
        done = export_golf(
            tokenizer_config=f"{base}/specs.json",
            output_root=root,
            docs=f"{base}/sel/docs_selected.jsonl",
            chunk_tokens=3000,
        )
    got, want = objects(store, "/t/root"), files(tmp_path / "root")
    assert set(got) == set(want)
    assert [name for name in want if got[name] != want[name] and not name.endswith("_BUILD.json")] == []
    assert str(done.manifest) == "memory://t/root/manifest.json"
    assert not list((tmp_path / "staging").glob("*"))


def test_an_audit_reads_a_data_set_behind_a_url(docs: Path) -> None:
    assert docs.exists()
    tokenriver.build("memory://t/docs.jsonl", tokenizer="byte", out="memory://t/out")
    result = audit("memory://t/out/tokens/byte/docs", tokenizer=load_tokenizer("byte"), docs=["memory://t/docs.jsonl"])
    assert result.ok
    assert any("give exactly the ids" in proof for proof in result.proofs)


def test_an_index_is_made_beside_a_shard_behind_a_url(store: Any, capsys: pytest.CaptureFixture[str]) -> None:
    write_shard("memory://t/x.bin", [0, 5, 6, 0, 7], 10)
    assert main(["index", "memory://t/x.bin", "--separator", "0"]) == 0
    assert np.frombuffer(store.cat_file("/t/x.bin.index"), "<u8").tolist() == [3, 5]
    assert main(["inspect", "memory://t/x.bin"]) == 0
    assert "memory://t/x.bin" in capsys.readouterr().out


@pytest.mark.parametrize(
    "words",
    [
        ["recipe", "tinyshakespeare", "--out", "s3://bucket/x"],
        ["golf", "fetch", "--root", "s3://bucket/x"],
        ["download", "a/b", "--out", "s3://bucket/x"],
        ["publish", "s3://bucket/x", "a/b"],
    ],
)
def test_where_a_url_will_not_do_it_is_refused_and_no_folder_made(
    words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert "s3://bucket/x: a URL, but this has to be a path on this machine" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []
