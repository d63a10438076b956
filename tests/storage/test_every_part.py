"""Every part of the library that takes a path takes a URL: the bytes are those of the same thing done here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest
from upath import UPath

import tokenriver
from tokenriver import llmc
from tokenriver.bpb.audit import audit
from tokenriver.cli import main
from tokenriver.corpus.shards import verify_corpus, write_corpus
from tokenriver.errors import CorpusError, IntegrityError, UsageError
from tokenriver.evals.file import open_eval_file
from tokenriver.evals.make import make_eval_file
from tokenriver.files import atomic_write
from tokenriver.golf import TokenStream, export_golf, load_data_shard, select_golf
from tokenriver.shards.manifest import read_manifest
from tokenriver.shards.reader import open_shard, read_header
from tokenriver.shards.writer import write_shard
from tokenriver.storage.directory import STAGING_VARIABLE
from tokenriver.storage.paths import to_path
from tokenriver.tokenizers.load import load_tokenizer
from tokenriver.tokenizers.train import train_tokenizer

if TYPE_CHECKING:
    from collections.abc import Iterator

TEXTS = [f"{i} the river carries every token äöü 河 to the sea " * (1 + i % 5) for i in range(300)]


@pytest.fixture(autouse=True)
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv(STAGING_VARIABLE, str(tmp_path / "staging"))
    monkeypatch.setenv("TOKENRIVER_CACHE_DIR", str(tmp_path / "cache"))
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
    with pytest.raises(IntegrityError, match="holds a finished corpus"):
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


WEB = "http://127.0.0.1:9/x"


@pytest.mark.parametrize(
    "words",
    [
        ["build", "docs.jsonl", "--tokenizer", "byte", "--out", WEB],
        ["corpus", "docs.jsonl", "--out", WEB],
        ["train-tokenizer", "docs.jsonl", "--type", "byte-bpe", "--vocab-size", "300", "--out", WEB],
        ["tokenizer-file", "--tokenizer", "byte", "--out", WEB],
        ["eval", "make", "hellaswag", "docs.jsonl", "--tokenizer", "byte", "--out", WEB],
        ["index", f"{WEB}/train-00000.bin"],
        ["golf", "select", "docs.jsonl", "--docs", "1", "--seed", "1", "--out", WEB],
        ["golf", "export", "--docs", "docs.jsonl", "--tokenizer-config", "s.json", "--output-root", WEB],
        ["golf", "fetch", "--root", WEB],
        ["golf", "fetch", "--root", WEB, "--check"],
        ["download", "a/b", "--out", WEB],
        ["recipe", "tinyshakespeare", "--out", WEB],
    ],
    ids=lambda words: " ".join(words[:2]),
)
def test_what_would_be_written_to_the_web_is_refused_in_one_line_and_nothing_made(
    docs: Path, words: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "cwd").mkdir()
    monkeypatch.chdir(tmp_path / "cwd")
    assert main([str(docs) if word == "docs.jsonl" else word for word in words]) == 2
    error = capsys.readouterr().err
    assert f"{WEB}" in error
    assert "nothing can be written to http://; name an object store or a folder" in error
    assert error.count("\n") == 1
    assert list(Path.cwd().iterdir()) == []
    assert not (tmp_path / "staging").exists()


def test_nothing_is_uploaded_to_the_web_by_another_way_either() -> None:
    with pytest.raises(UsageError, match="nothing can be written to http://"), atomic_write(to_path(WEB)):
        pytest.fail("not even begun")
    with pytest.raises(UsageError, match="nothing can be written to http://"):
        write_shard(WEB, [1, 2], 10)


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["cache", "--cache-dir", "memory://t/x"], "the cache"),
        (["build", "memory://t/docs.jsonl", "--tokenizer", "byte", "--out", "memory://t/out", "--staging",
          "memory://t/x"], "the staging directory"),
    ],
)  # fmt: skip
def test_what_is_of_this_machine_by_its_nature_is_refused_behind_a_url(
    docs: Path, words: list[str], what: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert docs.exists()
    assert main(words) == 2
    assert f"{what} memory://t/x: a URL, but this has to be a path on this machine" in capsys.readouterr().err


def test_a_mixture_its_plan_and_picture_a_state_and_a_trace_lie_behind_urls(
    docs: Path, store: Any, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for out in (tmp_path / "out", "memory://t/out"):
        tokenriver.build(docs, tokenizer="byte", out=out)
    toml = '[sources.a]\npath = "../out/tokens/byte/docs"\nweight = 1\n[sources.b]\npath = "{}"\nweight = 2\n'
    store.pipe_file("/t/mixes/m.toml", toml.format("memory://t/out/tokens/byte/docs").encode())
    (tmp_path / "mixes").mkdir()
    (tmp_path / "mixes/m.toml").write_text(toml.format(f"file://{tmp_path}/out/tokens/byte/docs"))
    plans = []
    for mix in (f"{tmp_path}/mixes/m.toml", "memory://t/mixes/m.toml"):
        words = ["mix", "plan", mix, "--steps", "5", "--batch-size", "4", "--seq-len", "16"]
        assert main([*words, "--plot", mix.replace(".toml", ".svg")]) == 0
        plans.append(capsys.readouterr().out)
    assert plans[0] == plans[1]
    assert store.cat_file("/t/mixes/m.svg").startswith(b"<?xml")
    assert main([*words, "--plot", "memory://t/mixes/m.doc"]) == 2
    assert "a picture's name ends in" in capsys.readouterr().err
    loader = tokenriver.TrainLoader("memory://t/out/tokens/byte/docs", batch_size=2, seq_len=16)
    store.pipe_file("/t/state.json", json.dumps(loader.state_dict()).encode())
    traces = []
    for words in (["--state", "memory://t/state.json"], ["--batch-size", "2", "--seq-len", "16"]):
        assert main(["trace", "memory://t/out/tokens/byte/docs", "--step", "3", "--json", *words]) == 0
        traces.append(capsys.readouterr().out)
    assert traces[0] == traces[1]


def test_golf_scores_shards_and_reuses_models_behind_urls(
    docs: Path, store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    train_tokenizer(TEXTS, kind="sp-bpe", vocab_size=300, out="memory://t/models", name="m.model")
    record = {"name": "sp300", "dataset_suffix": "sp300", "vocab_size": 300}
    store.pipe_file("/t/specs/one.json", json.dumps([{**record, "reuse_model_path": "../models/m.model"}]).encode())
    store.pipe_file("/t/specs/two.json", json.dumps([record]).encode())
    words = ["golf", "export", "--docs", str(docs), "--num-val-docs", "20", "--quiet", "--chunk-tokens", "20000"]
    words += ["--tokenizer-config", "memory://t/specs/{}.json", "--output-root", "memory://t/{}"]
    assert main([word.format("one") for word in words]) == 0
    assert main([word.format("two") for word in words] + ["--reuse-sp-model", "300=memory://t/models/m.model"]) == 0
    name = "tokenizers/fineweb_300_bpe.model"
    assert store.cat_file(f"/t/one/{name}") == store.cat_file(f"/t/two/{name}") == store.cat_file("/t/models/m.model")
    (tmp_path / "fixed.py").write_text("def loss(x, y):\n    return 2.0\n")
    monkeypatch.chdir(tmp_path)
    for val in ("", "/fineweb_val_*.bin"):
        words = ["golf", "score", "--model", "fixed:loss", "--val", f"memory://t/one/datasets/fineweb10B_sp300{val}"]
        words += ["--tokenizer", f"memory://t/one/{name}", "--seq-len", "64", "--val-batch-size", "4096"]
        assert main([*words, "--grad-accum-steps", "1"]) == 0
        assert "val_loss 2.00000000" in capsys.readouterr().out


def test_the_drop_ins_take_urls_of_both_kinds(docs: Path, tmp_path: Path) -> None:
    words: dict[str, Any] = {"tokenizer": "byte260", "layout": "golf", "split": "first-docs:50", "shard_tokens": 5000}
    for root in (f"file://{tmp_path}/drop", "memory://t/drop"):
        tokenriver.build(docs, out=root, **words)
        val = load_data_shard(f"{root}/fineweb_val_000000.bin", device=None)
        assert len(TokenStream(f"{root}/fineweb_val_00000?.bin", device=None).take(len(val))) == len(val)
        assert llmc.DataLoader(f"{root}/fineweb_train_*.bin", 2, 16).next_batch()[0].shape == (2, 16)
        assert main(["tokenizer-file", "--tokenizer", "byte260", "--out", f"{root}/t.bin"]) == 0
        assert llmc.Tokenizer(f"{root}/t.bin").init_ok == 1
    with pytest.warns(UserWarning, match="memory://t/none.bin: no tokenizer file"):
        assert llmc.Tokenizer("memory://t/none.bin").init_ok == 0


def test_a_url_may_be_a_upath(docs: Path, store: Any) -> None:
    assert docs.exists()
    train_tokenizer(TEXTS, kind="byte-bpe", vocab_size=300, out=UPath("memory://t/tok"))
    done = tokenriver.build(
        UPath("memory://t/docs.jsonl"), tokenizer=UPath("memory://t/tok"), out=UPath("memory://t/o")
    )
    assert tokenriver.verify(done.directory).ok
    assert tokenriver.TrainLoader(done.directory, batch_size=2, seq_len=16).batch_at(0).inputs.shape == (2, 16)
    assert store.exists("/t/o/tokens/tok/docs/_MANIFEST.json")
