"""Corpus shards: the same bytes on every run, whole or absent, and read back as they were."""

from __future__ import annotations

import io
import json
from typing import TYPE_CHECKING, Any

import pyarrow.parquet as pq
import pytest
import zstandard
from corpus.corpus_cases import read_all, read_texts

from tokenriver.corpus.documents import SourceOptions, find_sources
from tokenriver.corpus.inputs import InputFacts
from tokenriver.corpus.manifest import CORPUS_MANIFEST, read_corpus_manifest
from tokenriver.corpus.shards import corpus_directory, corpus_facts, verify_corpus, write_corpus
from tokenriver.errors import CorpusError, FormatError, IntegrityError, UsageError
from tokenriver.files import sha256_file

if TYPE_CHECKING:
    from pathlib import Path

RECORDS: list[dict[str, Any]] = [
    *({"text": f"document {i} " + "é\n" * (i % 50), "id": i} for i in range(200)),
    {"text": "own id", "id": "own"},
    {"text": "no id"},
    {"text": "null id", "id": None},
    {"text": "float id", "id": 1.5},
    {"text": "", "id": 9},
    {"text": "\ufeff\u2028\x00\x7f", "id": "odd"},
]


def write_lines(path: Path, records: list[dict[str, Any]]) -> Path:
    path.write_text("".join(json.dumps(record) + "\n" for record in records))
    return path


@pytest.fixture
def raw(tmp_path: Path) -> Path:
    return write_lines(tmp_path / "raw.jsonl", RECORDS)


def contents(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(folder.iterdir())}


def rows_of(folder: Path) -> list[dict[str, str]]:
    rows: list[dict[str, str]] = []
    for file in read_corpus_manifest(folder).files:
        path = folder / file.name
        if path.suffix == ".parquet":
            rows += pq.read_table(path).to_pylist()
        else:
            text = zstandard.ZstdDecompressor().stream_reader(io.BytesIO(path.read_bytes())).read()  # one frame
            rows += [json.loads(line) for line in text.split(b"\n") if line]
    return rows


@pytest.mark.parametrize("kind", ["jsonl.zst", "parquet"])
def test_the_bytes_do_not_depend_on_workers_block_size_or_run(tmp_path: Path, raw: Path, kind: Any) -> None:
    made = []
    for k, (workers, block_bytes) in enumerate([(1, 8 << 20), (3, 100), (2, 1), (8, 5000)]):
        out = tmp_path / f"run{k}"
        write_corpus([raw], out, format=kind, name="c", workers=workers, block_bytes=block_bytes, shard_bytes=4000)
        made.append(contents(out))
    assert len(made[0]) > 4
    assert all(one == made[0] for one in made)


@pytest.mark.parametrize("kind", ["jsonl.zst", "parquet"])
def test_documents_come_back_with_ids_and_sides(tmp_path: Path, raw: Path, kind: Any) -> None:
    out = tmp_path / "corpus"
    summary = write_corpus([raw], out, format=kind, split="first-docs:3", shard_bytes=4000)
    kept = [record["text"] for record in RECORDS if record["text"]]
    rows = rows_of(out)
    assert [list(row) for row in rows] == [["id", "text", "split"]] * len(kept)
    assert [row["text"] for row in rows] == kept
    assert [row["split"] for row in rows] == ["val"] * 3 + ["train"] * (len(kept) - 3)
    ids = [row["id"] for row in rows]
    assert ids[:200] == [str(i) for i in range(200)]
    assert ids[200:] == ["own", "raw.jsonl:201", "raw.jsonl:202", "raw.jsonl:203", "odd"]
    assert read_texts(out) == [text.encode() for text in kept]
    assert [side for block in read_all(out, split_field="split") for side in block.splits.tolist()][:4] == [1, 1, 1, 0]
    assert summary.skipped == {"empty": 1}
    assert summary.text_bytes == sum(len(text.encode()) for text in kept)


@pytest.mark.parametrize("kind", ["jsonl.zst", "parquet"])
def test_what_a_corpus_left_out_stands_in_its_manifest(tmp_path: Path, kind: Any) -> None:
    lines = ['{"text":"a"}', '{"txt":"b"}', '{"text":null}', '{"text":5}', '"context"', "[1]", "{bad", ""]
    (tmp_path / "mixed.jsonl").write_text("\n".join(lines) + "\n")
    made = []
    for k, (workers, block_bytes) in enumerate([(1, 8 << 20), (3, 5)]):
        skip = SourceOptions(on_bad_record="skip")
        words: dict[str, Any] = {"format": kind, "name": "c", "workers": workers, "block_bytes": block_bytes}
        write_corpus([tmp_path / "mixed.jsonl"], tmp_path / f"run{k}", options=skip, **words)
        made.append(contents(tmp_path / f"run{k}"))
    assert made[0] == made[1]
    expected = {"blank": 1, "malformed": 1, "missing": 1, "non_object": 2, "non_string": 1, "null": 1}
    assert json.loads(made[0][CORPUS_MANIFEST])["skipped"] == expected
    assert read_corpus_manifest(tmp_path / "run0").skipped == expected
    assert verify_corpus(tmp_path / "run0") == []
    assert read_texts(tmp_path / "run0") == [b"a"]


def test_the_manifest_says_what_there_is(tmp_path: Path, raw: Path) -> None:
    out = tmp_path / "stories"
    summary = write_corpus([raw], out, version="v2", shard_bytes=4000)
    written = json.loads((out / CORPUS_MANIFEST).read_bytes())
    assert list(written) == ["name", "version", "files", "documents"]
    assert (written["name"], written["version"]) == ("stories", "v2")
    assert [list(file) for file in written["files"]] == [["name", "n_docs", "n_bytes", "sha256"]] * len(
        written["files"]
    )
    for k, file in enumerate(written["files"]):
        assert file["name"] == f"corpus-{k:05d}.jsonl.zst"
        assert file["sha256"] == sha256_file(out / file["name"])
        assert file["n_bytes"] == (out / file["name"]).stat().st_size
    assert sum(file["n_docs"] for file in written["files"]) == 205 == sum(written["documents"].values())
    assert (out / CORPUS_MANIFEST).read_bytes().endswith(b"}\n")
    assert verify_corpus(out) == []
    assert summary.manifest == read_corpus_manifest(out)


def test_shards_hold_whole_documents_up_to_their_size(tmp_path: Path) -> None:
    texts = ["a" * 4, "b" * 4, "c" * 3, "d" * 30, "e" * 10, "f"]
    raw = write_lines(tmp_path / "r.jsonl", [{"text": text} for text in texts])
    out = tmp_path / "c"
    write_corpus([raw], out, split="train", shard_bytes=10, block_bytes=20)
    assert [file.n_docs for file in read_corpus_manifest(out).files] == [2, 1, 1, 1, 1]
    assert [row["text"] for row in rows_of(out)] == texts


def test_the_split_column_decides_where_records_have_one_else_the_hash(tmp_path: Path) -> None:
    raw = write_lines(tmp_path / "r.jsonl", [{"text": "a", "split": "val"}, {"text": "b", "split": "train"}])
    assert write_corpus([raw], tmp_path / "c").manifest.documents == {"train": 1, "val": 1}
    write_corpus([raw], tmp_path / "d", split="train")
    assert [row["split"] for row in rows_of(tmp_path / "d")] == ["train", "train"]
    again = write_corpus([tmp_path / "c"], tmp_path / "e", format="parquet")
    assert [row["split"] for row in rows_of(again.path)] == ["val", "train"]
    plain = write_lines(tmp_path / "p.jsonl", [{"text": f"document {i}"} for i in range(5000)])
    assert 20 < write_corpus([plain], tmp_path / "f").manifest.documents["val"] < 90


@pytest.mark.parametrize("split", ["first-tokens:5", "first-shard", "nonsense"])
def test_splits_that_count_tokens_are_refused_before_anything_is_written(tmp_path: Path, raw: Path, split: str) -> None:
    with pytest.raises(UsageError):
        write_corpus([raw], tmp_path / "c", split=split)
    assert not (tmp_path / "c").exists()


def test_a_finished_corpus_is_replaced_only_on_request(tmp_path: Path, raw: Path) -> None:
    out = tmp_path / "c"
    write_corpus([raw], out, shard_bytes=1000)
    before = contents(out)
    with pytest.raises(IntegrityError, match="--overwrite"):
        write_corpus([raw], out)
    assert contents(out) == before
    write_corpus([raw], out, format="parquet", overwrite=True)
    assert sorted(contents(out)) == [CORPUS_MANIFEST, "corpus-00000.parquet"]
    with pytest.raises(UsageError, match="inside --out"):
        write_corpus([out], out, overwrite=True)


def test_an_error_leaves_what_was_there_before(tmp_path: Path, raw: Path) -> None:
    bad = tmp_path / "bad.jsonl"
    bad.write_bytes(raw.read_bytes() + b"broken\n")
    out = tmp_path / "c"
    with pytest.raises(CorpusError, match=r"bad\.jsonl:207"):
        write_corpus([bad], out, block_bytes=500, shard_bytes=1000)
    assert not out.exists()
    write_corpus([raw], out)
    before = contents(out)
    with pytest.raises(CorpusError, match=r"bad\.jsonl:207"):
        write_corpus([bad], out, block_bytes=500, shard_bytes=1000, overwrite=True)
    assert contents(out) == before


def test_inputs_without_a_document_are_an_error_and_leave_nothing(tmp_path: Path) -> None:
    empty = tmp_path / "e.jsonl"
    empty.write_bytes(b'{"text":""}\n\n')
    with pytest.raises(CorpusError, match=r"no document \(blank 1, empty 1\)"):
        write_corpus([empty], tmp_path / "c")
    assert not (tmp_path / "c").exists()


def test_an_unfinished_corpus_is_written_anew(tmp_path: Path, raw: Path) -> None:
    out = tmp_path / "c"
    write_corpus([raw], out, shard_bytes=1000)
    whole = contents(out)
    (out / CORPUS_MANIFEST).unlink()
    (out / "corpus-00099.jsonl.zst").write_bytes(b"left over")
    (out / "corpus-00000.jsonl.zst.part").write_bytes(b"left over")
    write_corpus([raw], out, shard_bytes=1000)
    assert contents(out) == whole


def test_another_data_set_is_never_replaced(tmp_path: Path, raw: Path) -> None:
    out = tmp_path / "tokens"
    out.mkdir()
    (out / CORPUS_MANIFEST).write_text('{"tokenizer_id": "gpt2"}')
    with pytest.raises(IntegrityError, match="another data set"):
        write_corpus([raw], out, overwrite=True)


def test_damage_to_a_corpus_is_found(tmp_path: Path, raw: Path) -> None:
    out = tmp_path / "c"
    write_corpus([raw], out, shard_bytes=1000)
    names = [file.name for file in read_corpus_manifest(out).files]
    flipped = bytearray((out / names[0]).read_bytes())
    flipped[20] ^= 1
    (out / names[0]).write_bytes(flipped)
    (out / names[2]).write_bytes(b"short")
    (out / names[1]).unlink()
    (out / "corpus-00099.parquet").write_bytes(b"")
    (out / "corpus-00098.parquet.part").write_bytes(b"")
    found = verify_corpus(out)
    assert len(found) == 5
    for name, word in [
        (names[0], "SHA-256"),
        (names[1], "missing"),
        (names[2], "bytes"),
        ("98.parquet.part", "unfinished"),
        ("99.parquet", "not in"),
    ]:
        assert any(name in line and word in line for line in found)
    with pytest.raises(IntegrityError, match="missing"):
        find_sources([out])


def test_a_manifest_that_is_none_is_a_format_error(tmp_path: Path) -> None:
    for text in (
        "[",
        "{}",
        '{"name":"a","version":"v1","files":[{"name":"../x","n_docs":1,"n_bytes":1,"sha256":""}],"documents":{}}',
    ):
        (tmp_path / CORPUS_MANIFEST).write_text(text)
        with pytest.raises(FormatError, match=CORPUS_MANIFEST):
            read_corpus_manifest(tmp_path)


def test_a_corpus_directory_is_told_from_others(tmp_path: Path, raw: Path) -> None:
    write_corpus([raw], tmp_path / "c")
    assert corpus_directory([tmp_path / "c"]) == tmp_path / "c"
    assert corpus_directory([tmp_path]) is None
    assert corpus_directory([raw]) is None
    assert corpus_directory(["-"]) is None
    assert corpus_directory([tmp_path / "c", raw]) is None


def test_the_facts_of_raw_files_have_the_same_keys_and_no_absolute_paths(raw: Path) -> None:
    sources = find_sources([raw.parent], SourceOptions())
    manifest = corpus_facts("d", "v1", sources, [InputFacts(5, "abc")], [3], {"train": 2, "val": 1})
    assert [(file.name, file.n_docs, file.n_bytes, file.sha256) for file in manifest.files] == [
        ("raw.jsonl", 3, 5, "abc")
    ]


@pytest.mark.parametrize("word", ["name", "version"])
def test_a_name_or_version_that_no_record_can_hold_is_refused(tmp_path: Path, raw: Path, word: str) -> None:
    with pytest.raises(UsageError, match=f"so it cannot be the corpus's {word}; give one with --{word}"):
        write_corpus([raw], tmp_path / "out", **{word: "b\udcff"})
