"""Exports: trained and reused models, going on after a stop, and what is refused before anything is made."""

from __future__ import annotations

import hashlib
import json
import shutil
import signal
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import forked
import golf_roots
import numpy as np
import pytest
import sentencepiece

import tokenriver
from tokenriver.cli import main
from tokenriver.cli.stopping import at_once
from tokenriver.errors import CorpusError, FormatError, IntegrityError, TokenizerError, UsageError
from tokenriver.golfing import export
from tokenriver.golfing.documents import check_documents
from tokenriver.golfing.export import environment_notes
from tokenriver.golfing.specs import read_specs
from tokenriver.golfing.vocabularies import vocab_lines
from tokenriver.shards.verify import verify
from tokenriver.tokenizers.sentencepiece_model import ModelFile

if TYPE_CHECKING:
    from pathlib import Path


def hashes(root: Path) -> dict[str, str]:
    return {
        p.relative_to(root).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(root.rglob("*"))
        if p.is_file() and not p.name.endswith("_BUILD.json")
    }


def ids_of(root: Path, name: str, split: str) -> list[int]:
    files = sorted((root / "datasets" / name).glob(f"fineweb_{split}_*.bin"))
    return np.concatenate([tokenriver.open_shard(f).ids for f in files]).tolist()


def test_an_export_trains_its_model_and_every_document_decodes_back(tmp_path: Path) -> None:
    done = golf_roots.make_root(tmp_path)
    root = tmp_path / "export"
    manifest = json.loads(done.manifest.read_bytes())
    assert [d["name"] for d in manifest["datasets"]] == ["fineweb10B_byte260", "fineweb10B_sp300"]
    assert manifest["docs_meta"] == {
        "remote_repo_id": None, "remote_root": None, "num_docs": 120, "docs_sha256": None, "source_manifest": None,
    }  # fmt: skip
    assert manifest["tokenizers"][1]["recommended_bigram_vocab_size"] == 384 * 5
    texts = [json.loads(line)["text"] for line in (tmp_path / "docs/docs_selected.jsonl").read_text().splitlines()]
    model = sentencepiece.SentencePieceProcessor(model_file=str(root / "tokenizers/fineweb_300_bpe.model"))
    expected = [i for text in texts[:10] for i in [1, *model.encode(text)]]
    assert ids_of(root, "fineweb10B_sp300", "val") == expected
    raw = [i for text in texts[10:] for i in [1, *(b + 4 for b in text.encode())]]
    assert ids_of(root, "fineweb10B_byte260", "train") == raw
    assert verify(root).ok
    assert (root / "docs_selected.jsonl").samefile(tmp_path / "docs/docs_selected.jsonl"), "linked, not copied"
    assert not list((root / "tokenizers").glob("_*")), "no notes are left"


def test_documents_that_are_there_in_a_file_of_their_own_stay_it(tmp_path: Path) -> None:
    root, docs = tmp_path / "export", golf_roots.write_documents(tmp_path / "docs" / "docs_selected.jsonl")
    root.mkdir()
    shutil.copy(docs, root)
    (root / "docs_selected.jsonl.part").hardlink_to(docs)  # of a process that was killed, or is at it
    before = (root / "docs_selected.jsonl").stat().st_ino
    golf_roots.make_root(tmp_path)
    assert (root / "docs_selected.jsonl").stat().st_ino == before
    assert docs.read_bytes() == (root / "docs_selected.jsonl").read_bytes()


def test_the_vocab_file_is_sentencepieces_own(tmp_path: Path) -> None:
    texts = golf_roots.WORDS * 40
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter(texts), model_prefix=str(tmp_path / "m"), vocab_size=300, model_type="bpe",
        byte_fallback=True, hard_vocab_limit=False, minloglevel=2,
    )  # fmt: skip
    model = ModelFile.parse((tmp_path / "m.model").read_bytes(), where="m.model")
    assert vocab_lines(model) == (tmp_path / "m.vocab").read_bytes()


def test_an_export_that_stopped_goes_on_and_gives_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    golf_roots.make_root(tmp_path)
    root = tmp_path / "export"
    expected = hashes(root)
    shutil.rmtree(root)
    real = export.build
    trainings: list[str] = []
    train = export.make_vocabulary.__globals__["train_tokenizer"]

    def counted(*args: Any, **words: Any) -> Any:
        trainings.append(words["name"])
        return train(*args, **words)

    monkeypatch.setitem(export.make_vocabulary.__globals__, "train_tokenizer", counted)

    def stopping(*args: Any, **words: Any) -> Any:
        if words["tokenizer_id"] == "sp_bpe_300":
            raise KeyboardInterrupt
        return real(*args, **words)

    monkeypatch.setattr(export, "build", stopping)
    with pytest.raises(KeyboardInterrupt):
        golf_roots.make_root(tmp_path)
    assert not (root / "manifest.json").exists()
    first = (root / "datasets/fineweb10B_byte260/fineweb_train_000000.bin").stat().st_mtime_ns
    monkeypatch.setattr(export, "build", real)
    done = golf_roots.make_root(tmp_path)
    assert done.kept == ["fineweb10B_byte260"]
    assert trainings == [".fineweb_300_bpe.model"], "no model is trained twice"
    assert hashes(root) == expected
    assert (root / "datasets/fineweb10B_byte260/fineweb_train_000000.bin").stat().st_mtime_ns == first
    again = golf_roots.make_root(tmp_path)
    assert again.kept == ["fineweb10B_byte260", "fineweb10B_sp300"]
    assert hashes(root) == expected


@pytest.mark.parametrize(
    ("changes", "what"),
    [({"chunk_tokens": 500}, "shard size"), ({"num_val_docs": 11}, "split"), ({"append_eos": True}, "end id")],
)
def test_another_export_does_not_mix_with_a_finished_one(tmp_path: Path, changes: dict[str, Any], what: str) -> None:
    golf_roots.make_root(tmp_path)
    with pytest.raises(IntegrityError, match=f"made otherwise \\({what}"):
        golf_roots.make_root(tmp_path, **changes)


def test_an_export_that_was_killed_at_the_end_of_a_data_set_ends_it(tmp_path: Path) -> None:
    specs = [{"name": "pure_byte_260", "dataset_suffix": "byte260"}]
    config = golf_roots.write_specs(tmp_path / "docs" / "tokenizer_specs.json", specs)
    docs = golf_roots.write_documents(tmp_path / "docs" / "docs_selected.jsonl")
    words = {"docs": str(docs), "tokenizer_config": str(config), "num_val_docs": 10, "chunk_tokens": 1000}
    forked.killed(
        "from tokenriver.building import job\nfrom tokenriver.golfing.export import export_golf\n"
        f"kill_at(job, 'write_records')\nexport_golf(output_root={str(tmp_path / 'export')!r}, **{words!r})"
    )
    left = tmp_path / "export" / "datasets" / "fineweb10B_byte260"
    assert (left / "fineweb_BUILD.json").exists()
    assert (left / "fineweb_JOURNAL").exists()
    for out in ("export", "whole"):
        export.export_golf(
            docs=docs, tokenizer_config=config, num_val_docs=10, chunk_tokens=1000, output_root=tmp_path / out
        )
    assert hashes(tmp_path / "export") == hashes(tmp_path / "whole")
    assert verify(tmp_path / "export").ok


def test_an_export_that_is_stopped_says_that_it_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def stopped(*_: object, **words: Any) -> None:
        assert words["training"] is at_once, "the trainer lets no Python run"
        raise KeyboardInterrupt

    monkeypatch.setitem(export.make_vocabulary.__globals__, "train_tokenizer", stopped)
    docs, specs = golf_roots.write_documents(tmp_path / "d.jsonl"), golf_roots.write_specs(tmp_path / "s.json")
    words = ["--docs", docs, "--tokenizer-config", specs, "--output-root", tmp_path / "x", "--num-val-docs", 10, "-q"]
    assert main(["golf", "export", *map(str, words)]) == 130
    assert capsys.readouterr().err == (
        "tokenriver: interrupted; the same command goes on from the last finished shard\n"
    )


def test_ctrl_c_ends_the_training_of_an_export_that_says_so_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    handlers = []

    def stopped(*_: object, **words: Any) -> None:
        with words["training"]():
            handlers.append(signal.getsignal(signal.SIGINT))
        raise KeyboardInterrupt

    monkeypatch.setitem(export.make_vocabulary.__globals__, "train_tokenizer", stopped)
    docs, specs = golf_roots.write_documents(tmp_path / "d.jsonl"), golf_roots.write_specs(tmp_path / "s.json")
    words = ["--docs", docs, "--tokenizer-config", specs, "--output-root", tmp_path / "x", "--num-val-docs", 10]
    assert main(["golf", "export", *map(str, words)]) == 130
    assert handlers == [signal.SIG_DFL], "the trainer lets no Python run"
    assert "training a vocabulary …\n" in capsys.readouterr().err


def test_a_refused_export_leaves_a_finished_one_as_it_was(tmp_path: Path) -> None:
    golf_roots.make_root(tmp_path)
    before = hashes(tmp_path / "export")
    other = golf_roots.write_documents(tmp_path / "other/docs_selected.jsonl", seed=4)
    model = tmp_path / "other.model"
    config = golf_roots.write_specs(tmp_path / "other/s.json")
    golf_roots.make_root(tmp_path, docs=other, tokenizer_config=config, output_root=tmp_path / "second")
    shutil.copy(tmp_path / "second/tokenizers/fineweb_300_bpe.model", model)
    (tmp_path / "none.model").write_bytes(b"no model")
    spec = {"name": "sp_bpe_300", "dataset_suffix": "sp300", "vocab_size": 300, "tokenizer_train_docs": 5}
    fewer = golf_roots.write_specs(tmp_path / "fewer.json", [spec])
    as_bytes = golf_roots.write_specs(
        tmp_path / "as_bytes.json", [{"name": "b", "dataset_suffix": "sp300", "kind": "byte"}]
    )
    for changes, error, words in (
        ({"docs": other}, IntegrityError, "other documents than"),
        ({"reuse_sp_models": {300: model}}, IntegrityError, "made otherwise .tokenizer"),
        ({"reuse_sp_models": {300: tmp_path / "none.model"}}, TokenizerError, r"none\.model: not a SentencePiece"),
        ({"tokenizer_config": fewer}, IntegrityError, "made otherwise .tokenizer"),
        ({"tokenizer_config": as_bytes}, IntegrityError, "made otherwise .tokenizer"),
    ):
        with pytest.raises(error, match=words):
            golf_roots.make_root(tmp_path, **changes)
        after = hashes(tmp_path / "export")
        after.pop("tokenizers/_TRAINED.json", None)
        assert after == before, changes
    copied = tmp_path / "copy/docs_selected.jsonl"
    copied.parent.mkdir()
    shutil.copy(tmp_path / "docs/docs_selected.jsonl", copied)
    assert golf_roots.make_root(tmp_path, docs=copied).kept == ["fineweb10B_byte260", "fineweb10B_sp300"]


def test_the_end_of_text_stands_after_each_document_when_asked_for(tmp_path: Path) -> None:
    golf_roots.make_root(tmp_path, append_eos=True, skip_byte=True)
    root = tmp_path / "export"
    assert json.loads((root / "manifest.json").read_bytes())["append_eos"] is True
    ids = ids_of(root, "fineweb10B_sp300", "val")
    assert ids.count(1) == ids.count(2) == 10
    assert (ids[0], ids[-1]) == (1, 2)
    assert all(b == 1 for a, b in pairwise(ids) if a == 2)
    assert verify(root).ok


def test_models_are_reused_by_option_and_by_record(tmp_path: Path) -> None:
    golf_roots.make_root(tmp_path)
    model = tmp_path / "mine.model"
    shutil.copy(tmp_path / "export/tokenizers/fineweb_300_bpe.model", model)
    spec = {"name": "sp_bpe_300", "dataset_suffix": "sp300", "vocab_size": 300, "reuse_model_path": "../mine.model"}
    for i, changes in enumerate(
        (
            {"reuse_sp_models": {300: model}},
            {"tokenizer_config": golf_roots.write_specs(tmp_path / "in/s.json", {"tokenizer_specs": [spec]})},
        )
    ):
        out = tmp_path / str(i)
        golf_roots.make_root(tmp_path, output_root=out, **changes)
        assert (out / "tokenizers/fineweb_300_bpe.model").read_bytes() == model.read_bytes()
        spec = json.loads((out / "manifest.json").read_bytes())["tokenizer_specs"][-1]
        assert spec["reuse_model_path"] == "mine.model", "no folder of this machine"
        a, b = (ids_of(r, "fineweb10B_sp300", "train") for r in (out, tmp_path / "export"))
        assert a == b


def test_training_takes_the_first_documents_and_the_trainers_other_words(tmp_path: Path) -> None:
    spec = {"name": "sp_bpe_300", "dataset_suffix": "sp300", "vocab_size": 300}
    models = set()
    for i, more in enumerate(({}, {"tokenizer_train_docs": 5}, {"trainer_overrides": {"split_digits": False}})):
        config = golf_roots.write_specs(tmp_path / f"s{i}.json", [{**spec, **more}])
        golf_roots.make_root(tmp_path, output_root=tmp_path / str(i), tokenizer_config=config)
        models.add((tmp_path / str(i) / "tokenizers/fineweb_300_bpe.model").read_bytes())
    assert len(models) == 3
    for overrides, error in (({"input": "x"}, UsageError), ({"no_such_word": 1}, TokenizerError)):
        config = golf_roots.write_specs(tmp_path / "bad.json", [{**spec, "trainer_overrides": overrides}])
        with pytest.raises(error):
            golf_roots.make_root(tmp_path, output_root=tmp_path / "bad", tokenizer_config=config)


@pytest.mark.parametrize("specs", ["tokenizers", "tokenizer_specs", None])
def test_specs_are_read_in_all_three_shapes(tmp_path: Path, specs: str | None) -> None:
    records = [{"name": "a", "dataset_suffix": "byte260"}, {"name": "b", "dataset_suffix": "sp512", "vocab_size": 512}]
    path = golf_roots.write_specs(tmp_path / "s.json", {specs: records} if specs else records)
    assert [s.dataset for s in read_specs(path, root=tmp_path)] == ["fineweb10B_byte260", "fineweb10B_sp512"]
    assert [s.kind for s in read_specs(path, root=tmp_path, skip_byte=True)] == ["sentencepiece_bpe"]


@pytest.mark.parametrize(
    ("records", "words"),
    [
        ({}, "expected"),
        ([], "expected"),
        ([3], "record 0 is int"),
        ([{"name": "a"}], "dataset_suffix is None"),
        ([{"name": "a", "dataset_suffix": "../x", "vocab_size": 300}], "holds '/'"),
        ([{"name": "a", "dataset_suffix": "s"}], "vocab_size is None"),
        ([{"name": "a", "dataset_suffix": "s", "vocab_size": 65537}], "65,536"),
        ([{"name": "a", "dataset_suffix": "s", "vocab_size": 300, "kind": "wordpiece"}], "kind is 'wordpiece'"),
        ([{"name": "a", "dataset_suffix": "s", "vocab_size": 300, "tokenizer_train_docs": 0}], "tokenizer_train_docs"),
        ([{"name": "a", "dataset_suffix": "s", "vocab_size": 300, "reuse_model_path": 5}], "reuse_model_path is 5"),
        ([{"name": "a", "dataset_suffix": "byte260", "recommended_bigram_vocab_size": "x"}], "recommended_bigram"),
        ([{"name": n, "dataset_suffix": n, "vocab_size": 300} for n in "ab"], "two records have the artifact"),
    ],
)
def test_specs_that_are_wrong_are_named(tmp_path: Path, records: Any, words: str) -> None:
    with pytest.raises(FormatError, match=words):
        read_specs(golf_roots.write_specs(tmp_path / "s.json", records), root=tmp_path)


def test_a_model_nobody_wants_or_of_another_size_is_refused(tmp_path: Path) -> None:
    golf_roots.make_root(tmp_path)
    model = tmp_path / "export/tokenizers/fineweb_300_bpe.model"
    with pytest.raises(UsageError, match=r"no SentencePiece record with vocab_size 301 \(there are 300\)"):
        golf_roots.make_root(tmp_path, output_root=tmp_path / "x", reuse_sp_models={301: model})
    with pytest.raises(UsageError, match="no such model"):
        golf_roots.make_root(tmp_path, output_root=tmp_path / "x", reuse_sp_models={300: tmp_path / "none.model"})
    spec = [{"name": "a", "dataset_suffix": "sp301", "vocab_size": 301}]
    config = golf_roots.write_specs(tmp_path / "s.json", spec)
    with pytest.raises(TokenizerError, match="300 pieces, but a has vocab_size 301"):
        golf_roots.make_root(
            tmp_path, output_root=tmp_path / "x", tokenizer_config=config, reuse_sp_models={301: model}
        )


def test_documents_that_are_not_the_frozen_ones_are_refused(tmp_path: Path) -> None:
    docs = golf_roots.write_documents(tmp_path / "docs/docs_selected.jsonl")
    sidecar = docs.with_name("docs_selected.source_manifest.json")
    sha256 = hashlib.sha256(docs.read_bytes()).hexdigest()
    sidecar.write_text(json.dumps({"num_docs": 120, "docs_val": 12, "docs_sha256": sha256, "anything": [1]}))
    assert check_documents(docs, num_val_docs=None).n_val == 12
    assert check_documents(docs, num_val_docs=0).n_val == 0
    sidecar.write_text(json.dumps({"docs_sha256": "0" * 64}))
    with pytest.raises(IntegrityError, match=f"sha256 is {sha256}, but .* says docs_sha256 000"):
        golf_roots.make_root(tmp_path)
    assert not (tmp_path / "export/datasets").exists()
    sidecar.write_text("[]")
    with pytest.raises(FormatError, match="not as its schema demands"):
        check_documents(docs, num_val_docs=1)
    sidecar.unlink()
    with pytest.raises(UsageError, match=r"num_val_docs must be in \[0, 120\], got 50000"):
        check_documents(docs, num_val_docs=None)
    with pytest.raises(CorpusError, match="no such file"):
        golf_roots.make_root(tmp_path, docs=tmp_path / "none.jsonl")


def test_the_exporters_variables_are_read_or_said_to_have_no_effect(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    names = ["SP_BATCH_SIZE", "TOKENIZER_THREADS", "TIKTOKEN_THREADS", "GPT2_DECODE_BATCH_SIZE"]
    notes = environment_notes({f"MATCHED_FINEWEB_{name}": "3" for name in names})
    assert [note.split(" ")[0] for note in notes] == [f"MATCHED_FINEWEB_{n}" for n in names if n != "TOKENIZER_THREADS"]
    assert all("has no effect" in note for note in notes)
    monkeypatch.setenv("MATCHED_FINEWEB_TOKENIZER_THREADS", "many")
    with pytest.raises(UsageError, match="MATCHED_FINEWEB_TOKENIZER_THREADS is 'many'"):
        golf_roots.make_root(tmp_path)
    monkeypatch.setenv("MATCHED_FINEWEB_TOKENIZER_THREADS", "2")
    seen = []
    real = export.build
    monkeypatch.setattr(export, "build", lambda *a, **w: (seen.append(w["workers"]), real(*a, **w))[1])
    golf_roots.make_root(tmp_path)
    assert seen == [2, 2]


def test_an_export_prints_json_alone_with_json_and_says_that_it_trains(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    docs, specs = golf_roots.write_documents(tmp_path / "docs.jsonl"), golf_roots.write_specs(tmp_path / "specs.json")
    words = ["--docs", str(docs), "--tokenizer-config", str(specs), "--num-val-docs", "10"]
    assert main(["golf", "export", *words, "--output-root", str(tmp_path / "root"), "--json"]) == 0
    shown = capsys.readouterr()
    assert json.loads(shown.out)["manifest"] == str(tmp_path / "root" / "manifest.json")
    assert f"docs_sha256 {hashlib.sha256(docs.read_bytes()).hexdigest()}\n" in shown.err
    assert "training a vocabulary …\n" in shown.err
