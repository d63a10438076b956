"""A selection is a function of the documents and the seed, whatever the blocks, workers and buckets."""

from __future__ import annotations

import gzip
import hashlib
import json
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tokenriver.errors import CorpusError, IntegrityError, ResumeError, UsageError
from tokenriver.golfing.documents import check_documents
from tokenriver.golfing.keys import document_keys, threshold_key
from tokenriver.golfing.select import select_golf

if TYPE_CHECKING:
    from pathlib import Path

TEXTS = [f"document {i} " + "ä word " * (i % 7) + "line\u2028end\\" for i in range(500)]


@pytest.fixture
def inputs(tmp_path: Path) -> list[Path]:
    """The same documents in a plain and a compressed file, with an empty one between."""
    first, second = tmp_path / "a.jsonl", tmp_path / "b.jsonl.gz"
    lines = [json.dumps({"id": i, "text": text}) + "\n" for i, text in enumerate(TEXTS)]
    first.write_text("".join([*lines[:200], '{"text": ""}\n']))
    second.write_bytes(gzip.compress("".join(lines[200:]).encode()))
    return [first, second]


def select(inputs: list[Path], out: Path, **changes: object) -> bytes:
    words: dict[str, object] = {"docs": 120, "seed": 7, **changes}
    return select_golf([str(p) for p in inputs], out=out, **words).docs.read_bytes()  # type: ignore[arg-type]


def test_the_files_do_not_depend_on_how_they_were_made(inputs: list[Path], tmp_path: Path) -> None:
    reference = select(inputs, tmp_path / "0", workers=1)
    sidecar = (tmp_path / "0" / "docs_selected.source_manifest.json").read_bytes()
    for i, words in enumerate(
        [{"workers": 4}, {"block_bytes": 300}, {"bucket_bytes": 500}, {"block_bytes": 1000, "bucket_bytes": 2000}], 1
    ):
        assert select(inputs, tmp_path / str(i), **words) == reference
        assert (tmp_path / str(i) / "docs_selected.source_manifest.json").read_bytes() == sidecar
        assert len(list((tmp_path / str(i)).iterdir())) == 2, "nothing but the two files is left"
    assert select(inputs, tmp_path / "seed", seed=8) != reference


def test_the_choice_is_the_smallest_keys_in_their_order(inputs: list[Path], tmp_path: Path) -> None:
    lines = select(inputs, tmp_path / "out").decode().split("\n")
    keys = document_keys(7, 0, len(TEXTS))
    expected = [TEXTS[i] for i in np.argsort(keys)[:120]]
    assert [json.loads(line)["text"] for line in lines[:-1]] == expected
    assert threshold_key(7, 120, len(TEXTS)) == int(np.sort(keys)[119])
    whole = select(inputs, tmp_path / "all", docs=500).decode().split("\n")
    assert sorted(json.loads(line)["text"] for line in whole[:-1]) == sorted(TEXTS), "each document once"


def test_an_input_is_never_replaced_by_what_is_chosen_of_it(inputs: list[Path], tmp_path: Path) -> None:
    before = select(inputs, tmp_path / "out")
    sidecar = tmp_path / "out/docs_selected.source_manifest.json"
    for words in ({}, {"overwrite": True}):
        with pytest.raises(UsageError, match=r"docs_selected\.jsonl: an input, which the selection would replace"):
            select([tmp_path / "out/docs_selected.jsonl"], tmp_path / "out", docs=3, **words)
        assert (tmp_path / "out/docs_selected.jsonl").read_bytes() == before
        sidecar.unlink(missing_ok=True)


def test_two_selections_into_one_folder_do_not_mix(inputs: list[Path], tmp_path: Path) -> None:
    reference = select(inputs, tmp_path / "alone")
    second: list[str] = []

    def meanwhile(_read: int) -> None:
        if not second:
            with pytest.raises(ResumeError, match="out: another selection is being made here") as refused:
                select(inputs, tmp_path / "out", seed=9, overwrite=True)
            second.append(str(refused.value))

    assert select(inputs, tmp_path / "out", progress=meanwhile) == reference
    assert second
    assert len(list((tmp_path / "out").iterdir())) == 2


def test_keys_are_spread_evenly_and_never_alike() -> None:
    keys = document_keys(1337, 0, 200_000)
    assert len(np.unique(keys)) == len(keys)
    counts = np.bincount((keys >> np.uint64(60)).astype(int), minlength=16)
    assert abs(counts - 12_500).max() < 600
    assert np.array_equal(document_keys(1337, 5_000, 5_010), keys[5_000:5_010])
    assert abs(np.corrcoef(np.argsort(keys), np.arange(len(keys)))[0, 1]) < 0.01


def test_the_sidecar_says_what_an_export_needs(inputs: list[Path], tmp_path: Path) -> None:
    raw = select(inputs, tmp_path / "out", docs_val=30)
    path = tmp_path / "out" / "docs_selected.source_manifest.json"
    sidecar = json.loads(path.read_bytes())
    assert sidecar["docs_sha256"] == hashlib.sha256(raw).hexdigest()
    assert (sidecar["num_docs"], sidecar["docs_val"], sidecar["docs_train"]) == (120, 30, 90)
    assert (sidecar["docs_bytes"], sidecar["shuffle_seed"]) == (len(raw), 7)
    assert [s["name"] for s in sidecar["sources"]] == ["a.jsonl", "b.jsonl.gz"]
    assert [s["documents"] for s in sidecar["sources"]] == [200, 300]
    assert sidecar["sources"][0]["sha256"] == hashlib.sha256(inputs[0].read_bytes()).hexdigest()
    documents = check_documents(tmp_path / "out" / "docs_selected.jsonl", num_val_docs=None)
    assert (documents.n_docs, documents.n_val, documents.sha256) == (120, 30, sidecar["docs_sha256"])


def test_what_cannot_work_is_refused_and_leaves_nothing(inputs: list[Path], tmp_path: Path) -> None:
    for words, error in (
        ({"docs": 501}, "--docs is 501, but the inputs hold 500 documents"),
        ({"docs": 0}, "--docs is 0"),
        ({"docs_val": 121}, "--docs-val is 121"),
        ({"workers": 0}, "--workers is 0"),
    ):
        with pytest.raises(UsageError, match=error):
            select(inputs, tmp_path / "out", **words)
    with pytest.raises(UsageError, match="read twice"):
        select_golf("-", docs=1, seed=1, out=tmp_path / "out")
    bad = tmp_path / "bad.jsonl"
    bad.write_text('{"text": "a"}\n{"txt": "b"}\n')
    with pytest.raises(CorpusError, match=r"bad\.jsonl:2"):
        select([bad], tmp_path / "out", docs=1)
    assert not (tmp_path / "out").exists()
    assert select([bad], tmp_path / "out", docs=1, on_bad_record="skip")
    with pytest.raises(IntegrityError, match="holds a selection already"):
        select([bad], tmp_path / "out", docs=1, on_bad_record="skip")
    assert select([bad], tmp_path / "out", docs=1, on_bad_record="skip", overwrite=True)


def test_what_a_selection_left_out_stands_in_its_sidecar(tmp_path: Path) -> None:
    mixed = tmp_path / "mixed.jsonl"
    mixed.write_text('{"text": "a"}\n{"txt": "b"}\n[1]\n\n{"text": null}\n')
    select([mixed], tmp_path / "out", docs=1, on_bad_record="skip")
    sidecar = json.loads((tmp_path / "out" / "docs_selected.source_manifest.json").read_bytes())
    assert sidecar["skipped"] == {"blank": 1, "missing": 1, "non_object": 1, "null": 1}
    assert check_documents(tmp_path / "out" / "docs_selected.jsonl", num_val_docs=None).n_docs == 1
    good = tmp_path / "good.jsonl"
    good.write_text('{"text": "a"}\n\n{"text": ""}\n')
    select([good], tmp_path / "good", docs=1, on_bad_record="skip")
    assert "skipped" not in json.loads((tmp_path / "good" / "docs_selected.source_manifest.json").read_bytes())
