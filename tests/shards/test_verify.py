"""Verification: a sound data set passes, each kind of damage gives its own finding, and none hides another."""

from __future__ import annotations

import hashlib
import json
import os
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from shard_sets import SEPARATOR, VOCAB, make_cut_set, make_tokens_set

from tokenriver import UsageError, build, open_shard, write_corpus, write_shard
from tokenriver.shards import scan as scan_module
from tokenriver.shards.scan import Crew, scan_shard
from tokenriver.shards.verify import VerifyReport, verify

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.shards.layouts import Layout


def problems(report: VerifyReport) -> list[str]:
    """Findings as 'file name: problem'."""
    return [f"{f.path.name}: {f.problem}" for f in report.findings]


def only_problem(report: VerifyReport) -> str:
    found = problems(report)
    assert len(found) == 1, found
    return found[0]


def edit_json(path: Path, **changes: Any) -> None:
    raw = json.loads(path.read_bytes())
    raw.update(changes)
    path.write_text(json.dumps(raw, indent=2) + "\n")


def edit_file_entry(path: Path, index: int, **changes: Any) -> None:
    raw = json.loads(path.read_bytes())
    raw["files"][index].update(changes)
    path.write_text(json.dumps(raw, indent=2) + "\n")


def rewrite(directory: Path, index: int, ids: list[int], *, record: str = "_MANIFEST.json", **options: Any) -> None:
    """Write other ids under a listed name and let the list agree in hash and count: only deeper checks see it."""
    name = json.loads((directory / record).read_bytes())["files"][index]["name"]
    facts = write_shard(directory / name, ids, **{"vocab_size": VOCAB, **options})
    edit_file_entry(directory / record, index, n_tokens=facts.n_tokens, sha256=facts.sha256)


@pytest.fixture
def tokens_set(tmp_path: Path) -> Path:
    return make_tokens_set(tmp_path)


def test_a_sound_data_set_gives_no_finding_and_counts_everything(tokens_set: Path) -> None:
    report = verify(tokens_set)
    assert problems(report) == []
    shards = sorted(tokens_set.glob("*.bin"))
    assert report.ok
    assert report.files_checked == len(shards) == 3
    assert report.tokens == sum(open_shard(s).n_tokens for s in shards)
    assert report.bytes == sum(s.stat().st_size for s in shards)


@pytest.mark.parametrize("layout", ["llmc", "golf"])
def test_sound_data_sets_in_the_other_layouts_give_no_finding(tmp_path: Path, layout: Layout) -> None:
    directory = make_cut_set(tmp_path / "d", layout)
    report = verify(directory, inputs=True)
    assert problems(report) == []
    assert report.files_checked == len(list(directory.glob("*.bin"))) > 3


def test_a_data_set_without_a_separator_passes(tmp_path: Path) -> None:
    assert problems(verify(make_tokens_set(tmp_path, separator=None))) == []


def test_a_root_above_several_data_sets_is_searched(tmp_path: Path) -> None:
    make_tokens_set(tmp_path)
    make_tokens_set(tmp_path, dataset="more")
    make_cut_set(tmp_path / "c", "golf")
    make_cut_set(tmp_path / "c", "llmc", dataset="edu")
    corpus = tmp_path / "corpus" / "tales"
    corpus.mkdir(parents=True)
    (corpus / "_MANIFEST.json").write_text('{"name": "tales", "version": "v1", "files": []}')
    report = verify(tmp_path)
    assert problems(report) == []
    assert report.files_checked == len(list(tmp_path.rglob("*.bin")))
    assert problems(verify(tmp_path / "tokens")) == []


def test_a_shard_a_manifest_and_a_record_may_be_named_and_nothing_is_checked_twice(tmp_path: Path) -> None:
    directory = make_tokens_set(tmp_path)
    assert verify(directory / "train-00001.bin").files_checked == 1
    assert verify(str(directory / "_MANIFEST.json")).files_checked == 3
    assert verify([directory / "val-00000.bin", directory, directory / "train-00000.bin"]).files_checked == 3
    cut = make_cut_set(tmp_path / "d", "llmc")
    count = len(list(cut.glob("*.bin")))
    assert verify(cut / "tales_BUILD.json").files_checked == count
    report = verify(sorted([*directory.iterdir(), *cut.iterdir()]))
    assert problems(report) == []
    assert report.files_checked == 3 + count


def test_a_shard_alone_is_still_held_against_the_manifest_beside_it(tokens_set: Path) -> None:
    flip_bit(tokens_set / "val-00000.bin", at=1024 + 2)
    assert only_problem(verify(tokens_set / "val-00000.bin")).startswith("val-00000.bin: sha256 is ")
    assert verify(tokens_set / "train-00000.bin").ok


def flip_bit(path: Path, *, at: int) -> None:
    raw = bytearray(path.read_bytes())
    raw[at] ^= 1
    path.write_bytes(raw)


@pytest.mark.parametrize("layout", ["tokens", "llmc", "golf"])
def test_one_flipped_bit_is_a_checksum_finding_that_names_the_file(tmp_path: Path, layout: Layout) -> None:
    directory = make_tokens_set(tmp_path) if layout == "tokens" else make_cut_set(tmp_path / "d", layout)
    victim = sorted(directory.glob("*train*.bin"))[-1]
    flip_bit(victim, at=1024 + 4)
    assert f"{victim.name}: sha256 is " in "\n".join(problems(verify(directory)))


def test_a_truncated_shard_is_named_by_its_size(tokens_set: Path) -> None:
    victim = tokens_set / "train-00000.bin"
    victim.write_bytes(victim.read_bytes()[:-1])
    assert "the file is cut short" in only_problem(verify(tokens_set))


def test_a_damaged_magic_is_named(tokens_set: Path) -> None:
    flip_bit(tokens_set / "train-00000.bin", at=0)
    assert "a damaged header" in only_problem(verify(tokens_set))


def test_an_id_outside_the_vocabulary_is_named_with_its_place(tokens_set: Path) -> None:
    ids = open_shard(tokens_set / "val-00000.bin").tolist()
    ids[7] = VOCAB
    rewrite(tokens_set, 2, ids, vocab_size=0)
    found = problems(verify(tokens_set))
    assert "val-00000.bin: id 1000 at token 7 is not below the vocabulary of 1,000 ids" in found
    assert "val-00000.bin: the header's vocabulary is 0, _MANIFEST.json says vocab_size 1,000" in found
    assert len(found) == 2


def test_a_header_that_names_another_vocabulary_is_a_finding(tokens_set: Path) -> None:
    rewrite(tokens_set, 2, open_shard(tokens_set / "val-00000.bin").tolist(), vocab_size=VOCAB + 1)
    assert only_problem(verify(tokens_set)).endswith("vocabulary is 1,001, _MANIFEST.json says vocab_size 1,000")


def test_a_wider_variant_than_the_vocabulary_needs_is_a_finding(tokens_set: Path) -> None:
    rewrite(tokens_set, 2, open_shard(tokens_set / "val-00000.bin").tolist(), variant="uint32")
    assert only_problem(verify(tokens_set)).endswith("ids are uint32, but with a vocabulary of 1,000 they are uint16")


def test_documents_that_disagree_with_the_separators_are_a_finding(tokens_set: Path) -> None:
    edit_file_entry(tokens_set / "_MANIFEST.json", 0, n_docs=21)
    found = problems(verify(tokens_set))
    assert "train-00000.bin: separator 0 occurs 20 times, _MANIFEST.json says n_docs 21" in found
    assert "_MANIFEST.json: train: 33 documents in the shards, _BUILD.json says 32 were produced" in found


def test_a_shard_that_begins_inside_a_document_is_a_finding(tokens_set: Path) -> None:
    ids = open_shard(tokens_set / "val-00000.bin").tolist()
    rewrite(tokens_set, 2, [*ids[1:], SEPARATOR])
    assert only_problem(verify(tokens_set)).endswith(
        "begins with id 100, not with separator 0: documents are not whole"
    )


def test_a_separator_behind_each_document_is_checked_there(tokens_set: Path) -> None:
    for i, name in enumerate(["train-00000.bin", "train-00001.bin", "val-00000.bin"]):
        ids = open_shard(tokens_set / name).tolist()
        rewrite(tokens_set, i, [*ids[1:], SEPARATOR])
    record = json.loads((tokens_set / "_BUILD.json").read_bytes())
    edit_json(tokens_set / "_BUILD.json", tokenizer={**record["tokenizer"], "separator_position": "after"})
    assert problems(verify(tokens_set)) == []
    rewrite(tokens_set, 2, [SEPARATOR, *open_shard(tokens_set / "val-00000.bin").tolist()[:-1]])
    assert "val-00000.bin: ends with id" in only_problem(verify(tokens_set))


def test_exact_cuts_with_the_separator_behind_are_counted_over_all_shards(tmp_path: Path) -> None:
    directory = make_cut_set(tmp_path / "d", "golf")
    path = directory / "fineweb_BUILD.json"
    record = json.loads(path.read_bytes())
    edit_json(path, tokenizer={**record["tokenizer"], "separator_position": "after"})
    edit_file_entry(path, 0, n_docs=record["files"][0]["n_docs"] - 1)
    edit_file_entry(path, 1, n_docs=record["files"][1]["n_docs"] + 1)
    assert problems(verify(directory)) == []
    edit_file_entry(path, 1, n_docs=record["files"][1]["n_docs"])
    assert "fineweb_BUILD.json: separator 0 occurs 24 times in 23 documents" in problems(verify(directory))


def test_tokens_that_got_lost_between_encoder_and_shards_are_a_finding(tokens_set: Path) -> None:
    splits = json.loads((tokens_set / "_BUILD.json").read_bytes())["splits"]
    splits["val"]["tokens"] += 1
    edit_json(tokens_set / "_BUILD.json", splits=splits)
    assert only_problem(verify(tokens_set)) == (
        "_MANIFEST.json: val: 20 tokens in the shards, _BUILD.json says 21 were produced"
    )


def test_a_missing_shard_is_named(tokens_set: Path) -> None:
    (tokens_set / "train-00001.bin").unlink()
    assert only_problem(verify(tokens_set)) == "train-00001.bin: missing: _MANIFEST.json lists it"


@pytest.mark.parametrize("layout", ["tokens", "llmc", "golf"])
def test_an_additional_shard_is_named(tmp_path: Path, layout: Layout) -> None:
    directory = make_tokens_set(tmp_path) if layout == "tokens" else make_cut_set(tmp_path / "d", layout)
    name = {"tokens": "train-00002.bin", "llmc": "tales_train_000099.bin", "golf": "fineweb_train_000099.bin"}[layout]
    write_shard(directory / name, [1, 2, 3])
    source = {"tokens": "_MANIFEST.json", "llmc": "tales_BUILD.json", "golf": "fineweb_BUILD.json"}[layout]
    assert only_problem(verify(directory)) == f"{name}: additional: {source} does not list it"
    assert f"{name}: additional" in only_problem(verify(directory / name))


def test_parts_and_journals_are_called_unfinished(tmp_path: Path) -> None:
    tokens, cut = make_tokens_set(tmp_path), make_cut_set(tmp_path / "d", "llmc")
    (tokens / "train-00002.bin.part").write_bytes(b"")
    (tokens / "_JOURNAL").write_bytes(b"{}")
    (cut / "tales_JOURNAL").write_bytes(b"{}")
    found = problems(verify(tmp_path))
    assert [p.split(":")[0] for p in found if "unfinished" in p] == [
        "tales_JOURNAL",
        "train-00002.bin.part",
        "_JOURNAL",
    ]
    assert len(found) == 3
    assert "unfinished" in only_problem(verify(tokens / "train-00002.bin.part"))


def test_a_directory_without_a_manifest_is_unfinished_and_its_shards_are_checked_all_the_same(tokens_set: Path) -> None:
    (tokens_set / "_MANIFEST.json").unlink()
    flip_bit(tokens_set / "val-00000.bin", at=0)
    report = verify(tokens_set)
    found = problems(report)
    assert found[0].startswith("tales: unfinished: no _MANIFEST.json")
    assert found[1].startswith("val-00000.bin: a damaged header")
    assert (len(found), report.files_checked) == (2, 2)


def test_a_broken_manifest_is_one_finding_and_its_shards_are_checked_all_the_same(tokens_set: Path) -> None:
    edit_json(tokens_set / "_MANIFEST.json", vocab_size="many")
    flip_bit(tokens_set / "val-00000.bin", at=0)
    report = verify(tokens_set)
    assert [p.split(":")[0] for p in problems(report)] == ["_MANIFEST.json", "val-00000.bin"]
    assert "vocab_size" in problems(report)[0]
    assert report.files_checked == 2


def test_a_broken_record_is_a_finding_beside_the_others(tmp_path: Path) -> None:
    tokens, cut = make_tokens_set(tmp_path), make_cut_set(tmp_path / "d", "golf")
    (tokens / "_BUILD.json").write_text("{")
    (cut / "fineweb_BUILD.json").write_text('{"layout": "odd", "dataset": "x"}')
    found = problems(verify(tmp_path))
    assert sorted(p.split(":")[0] for p in found) == ["_BUILD.json", "fineweb_BUILD.json"]


def test_keys_out_of_order_or_doubled_are_a_finding(tokens_set: Path) -> None:
    path = tokens_set / "_MANIFEST.json"
    raw = json.loads(path.read_bytes())
    path.write_text(json.dumps(dict(reversed(raw.items()))))
    assert "keys are not in the order" in only_problem(verify(tokens_set))
    path.write_text(json.dumps(raw).replace('"version"', '"version": "v0", "version"'))
    assert "keys are not in the order" in only_problem(verify(tokens_set))


def test_a_gap_in_the_numbers_is_a_finding(tokens_set: Path) -> None:
    (tokens_set / "train-00001.bin").rename(tokens_set / "train-00002.bin")
    edit_file_entry(tokens_set / "_MANIFEST.json", 1, name="train-00002.bin")
    assert only_problem(verify(tokens_set)).endswith("shard numbers of train do not run from 0 to 1: 0, 2")


def test_a_shard_over_its_size_holds_one_document_alone(tokens_set: Path) -> None:
    edit_json(tokens_set / "_BUILD.json", options={"shard_tokens": 100})
    assert "train-00000.bin holds 230 tokens in 20 documents, over 100 a shard" in only_problem(verify(tokens_set))


def test_exact_cuts_are_checked_for_all_shards_but_the_last(tmp_path: Path) -> None:
    directory = make_cut_set(tmp_path / "d", "golf")
    path = directory / "fineweb_BUILD.json"
    edit_json(path, options={"shard_tokens": 60})
    found = problems(verify(directory))
    assert "fineweb_BUILD.json: fineweb_train_000000.bin holds 50 tokens; every shard but the last holds 60" in found


def test_a_manifest_that_disagrees_with_its_place_or_record_is_a_finding(tokens_set: Path) -> None:
    edit_json(tokens_set / "_MANIFEST.json", dataset="other", tokenizer_sha256="f" * 64)
    found = problems(verify(tokens_set))
    assert "_MANIFEST.json: names toy/other, but lies in tokens/toy/tales" in found
    assert "_MANIFEST.json: dataset is 'other', _BUILD.json says 'tales'" in found
    assert any("tokenizer_sha256 is 'fff" in p for p in found)
    assert len(found) == 3


def test_changed_corpus_facts_are_a_finding(tokens_set: Path) -> None:
    (tokens_set / "_CORPUS.json").write_text("{}")
    assert only_problem(verify(tokens_set)).startswith("_CORPUS.json: sha256 is ")


@pytest.mark.parametrize("layout", ["llmc", "golf"])
def test_changed_corpus_facts_are_a_finding_in_the_layouts_without_a_manifest_too(
    tmp_path: Path, layout: Layout
) -> None:
    (tmp_path / "d.jsonl").write_text('{"text": "a"}\n{"text": "b"}\n')
    built = build(tmp_path / "d.jsonl", tokenizer="byte", out=tmp_path / "out", layout=layout, workers=1)
    assert problems(verify(built.directory, inputs=True)) == []
    facts = next(built.directory.glob("*_CORPUS.json"))
    flip_bit(facts, at=20)
    assert only_problem(verify(built.directory)).startswith(f"{facts.name}: sha256 is ")


def test_inputs_are_hashed_again_only_when_asked_and_the_changed_one_is_named(tmp_path: Path) -> None:
    directory = make_tokens_set(tmp_path)
    assert problems(verify(directory, inputs=True)) == []
    flip_bit(tmp_path / "in" / "b.jsonl", at=9)
    assert verify(directory).ok
    assert only_problem(verify(directory, inputs=True)).startswith("b.jsonl: input changed: sha256 is ")
    with open(tmp_path / "in" / "b.jsonl", "ab") as file:
        file.write(b"\n")
    (tmp_path / "in" / "a.jsonl").unlink()
    assert problems(verify(directory, inputs=True)) == [
        "a.jsonl: input: No such file or directory",
        "b.jsonl: input changed: 20 bytes, 19 when the shards were built",
    ]


def test_inputs_that_nobody_recorded_cannot_be_checked(tokens_set: Path) -> None:
    edit_json(tokens_set / "_BUILD.json", inputs=[])
    assert only_problem(verify(tokens_set, inputs=True)) == "_BUILD.json: records no inputs"
    (tokens_set / "_BUILD.json").unlink()
    assert "inputs are not known" in only_problem(verify(tokens_set, inputs=True))
    assert verify(tokens_set).ok


def test_standard_input_cannot_be_read_again_and_that_is_said(tokens_set: Path) -> None:
    given = {"path": "-", "name": "-", "n_bytes": 3, "sha256": "a" * 64}
    edit_json(tokens_set / "_BUILD.json", inputs=[given])
    assert "cannot be read again" in only_problem(verify(tokens_set, inputs=True))


def test_the_manifest_of_a_corpus_is_an_input_too(tmp_path: Path) -> None:
    directory = make_tokens_set(tmp_path)
    manifest = tmp_path / "in" / "_MANIFEST.json"
    (directory / "_CORPUS.json").rename(manifest)  # the shards were built from a corpus in that folder
    assert problems(verify(directory, inputs=True)) == []
    manifest.write_text("{}")
    assert only_problem(verify(directory, inputs=True)).startswith("_MANIFEST.json: sha256 is ")
    manifest.unlink()
    assert only_problem(verify(directory, inputs=True)) == (
        "_MANIFEST.json: the corpus's manifest: No such file or directory"
    )


def test_shards_of_other_programs_are_checked_without_a_record(tmp_path: Path) -> None:
    for index in (0, 1, 3):
        write_shard(tmp_path / f"edu_fineweb_{'val' if index == 0 else 'train'}_{index:06d}.bin", [1, 2, 3])
    assert only_problem(verify(tmp_path)).endswith("missing: edu_fineweb has no shard number 2")
    write_shard(tmp_path / "edu_fineweb_train_000002.bin", [1, 2, 3])
    report = verify(tmp_path)
    assert (report.ok, report.files_checked, report.tokens) == (True, 4, 12)


def test_paths_with_nothing_to_verify_are_findings(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("nothing")
    report = verify([tmp_path / "absent", tmp_path])
    assert problems(report) == [
        "absent: no such file or directory",
        f"{tmp_path.name}: no token shards, manifests or build records here or below",
    ]


def test_a_nanogpt_file_is_named_as_such(tmp_path: Path) -> None:
    (tmp_path / "train.bin").write_bytes(np.arange(9000, dtype="<u2").tobytes())
    assert "nanoGPT" in only_problem(verify(tmp_path))


@pytest.mark.skipif(os.name == "nt" or os.geteuid() == 0, reason="permissions do not stop this user")
def test_an_unreadable_shard_is_a_finding(tokens_set: Path) -> None:
    (tokens_set / "val-00000.bin").chmod(0)
    assert only_problem(verify(tokens_set)) == "val-00000.bin: Permission denied"


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no named pipes here")
def test_a_pipe_is_not_waited_for(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "train-00000.bin")
    assert "not a regular file" in only_problem(verify(tmp_path / "train-00000.bin"))
    assert "no token shards" in only_problem(verify(tmp_path))


def test_a_read_error_is_a_finding_and_the_others_are_still_checked(
    tokens_set: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class FailingIds(scan_module._Ids):
        def read(self, into: memoryview) -> int:
            if "val" in str(self._file.name):
                raise OSError(5, "Input/output error")
            return super().read(into)

    monkeypatch.setattr(scan_module, "_Ids", FailingIds)
    report = verify(tokens_set)
    assert only_problem(report) == "val-00000.bin: Input/output error"
    assert report.files_checked == 2


@pytest.mark.parametrize("workers", [None, 1, 2, 5])
@pytest.mark.parametrize("variant", ["uint16", "uint32"])
def test_a_scan_sees_the_same_with_any_number_of_threads(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, workers: int | None, variant: Any
) -> None:
    monkeypatch.setattr(scan_module, "_PIECE_BYTES", 4096)
    monkeypatch.setattr(scan_module, "_CACHE_BYTES", 1024)
    rng = np.random.default_rng(5)
    ids = rng.integers(0, 900, 10_001)
    ids[7_777], ids[8_888] = 950, 960
    facts = write_shard(tmp_path / "x.bin", ids, variant=variant)
    with Crew(workers) as crew:
        scan = scan_shard(tmp_path / "x.bin", crew=crew, vocab_size=950, separator_id=17)
    raw = (tmp_path / "x.bin").read_bytes()
    assert scan.sha256 == facts.sha256 == hashlib.sha256(raw).hexdigest()
    assert (scan.first_id, scan.last_id) == (int(ids[0]), int(ids[-1]))
    assert scan.too_large == (7_777, 950)
    assert scan.separators == int((ids == 17).sum()) > 0


def test_a_separator_or_vocabulary_wider_than_the_ids_is_simply_never_met(tmp_path: Path) -> None:
    write_shard(tmp_path / "x.bin", [1, 65_535], variant="uint16")
    with Crew(1) as crew:
        scan = scan_shard(tmp_path / "x.bin", crew=crew, vocab_size=128_256, separator_id=128_000)
    assert (scan.too_large, scan.separators) == (None, 0)


def test_no_workers_is_a_usage_error(tokens_set: Path) -> None:
    with pytest.raises(UsageError, match="--workers is 0"):
        verify(tokens_set, workers=0)


def test_a_corpus_is_named_as_what_it_is(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text":"a"}\n')
    write_corpus([tmp_path / "a.jsonl"], tmp_path / "corpus")
    assert [f.problem for f in verify(tmp_path / "corpus").findings] == [
        "a corpus (documents), not token shards; build checks it when it reads it"
    ]


def test_the_facts_of_a_build_without_its_record_are_unfinished(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_bytes(b'{"text":"a"}\n')
    build(tmp_path / "a.jsonl", tokenizer="byte", out=tmp_path / "out", layout="llmc", dataset="web")
    assert verify(tmp_path / "out").ok
    (tmp_path / "out" / "web_BUILD.json").unlink()
    assert [f.problem for f in verify(tmp_path / "out").findings] == [
        "unfinished: no web_BUILD.json, which a build writes last; run the build again"
    ]
