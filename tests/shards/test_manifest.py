"""The manifest: its exact keys and bytes, one meaning in two checks (ours and JSON Schema), hostile content refused."""

from __future__ import annotations

import copy
import json
from typing import TYPE_CHECKING, Any

import jsonschema
import pytest
from shard_sets import make_cut_set, make_tokens_set

from tokenriver import FormatError
from tokenriver.shards import manifest as manifest_module
from tokenriver.shards.manifest import manifest_schema, read_manifest, write_manifest
from tokenriver.shards.record import read_record

if TYPE_CHECKING:
    from pathlib import Path

SOUND: dict[str, Any] = {
    "tokenizer_id": "smollm2",
    "tokenizer_sha256": "a" * 64,
    "vocab_size": 49152,
    "doc_sep_id": 0,
    "dataset": "tinystories",
    "version": "v1",
    "corpus_manifest_sha256": "b" * 64,
    "files": [
        {"name": "train-00000.bin", "split": "train", "n_tokens": 1234567, "n_docs": 2100, "sha256": "c" * 64},
        {"name": "val-00000.bin", "split": "val", "n_tokens": 0, "n_docs": 0, "sha256": "d" * 64},
    ],
}


def changed(*path: str | int, to: object) -> dict[str, Any]:
    """The sound manifest with one value replaced."""
    manifest = copy.deepcopy(SOUND)
    at: Any = manifest
    for key in path[:-1]:
        at = at[key]
    at[path[-1]] = to
    return manifest


def without(*path: str | int) -> dict[str, Any]:
    """The sound manifest without one key."""
    manifest = copy.deepcopy(SOUND)
    at: Any = manifest
    for key in path[:-1]:
        at = at[key]
    del at[path[-1]]
    return manifest


def test_the_schema_is_itself_valid_and_names_the_keys_in_their_order() -> None:
    schema = manifest_schema()
    jsonschema.Draft202012Validator.check_schema(schema)
    assert list(schema["properties"]) == schema["required"] == list(SOUND)
    file = schema["$defs"]["file"]
    assert list(file["properties"]) == file["required"] == list(SOUND["files"][0])
    assert schema["additionalProperties"] is False
    assert file["additionalProperties"] is False


def test_a_sound_manifest_is_read_and_written_back_as_the_same_bytes(tmp_path: Path) -> None:
    path = tmp_path / "_MANIFEST.json"
    path.write_text(json.dumps(SOUND, indent=2) + "\n")
    manifest = read_manifest(path)
    assert read_manifest(tmp_path) == manifest
    assert manifest.tokens("train") == 1234567
    jsonschema.validate(SOUND, manifest_schema())
    write_manifest(tmp_path / "again.json", manifest)
    assert (tmp_path / "again.json").read_bytes() == path.read_bytes()


def test_a_manifest_that_a_data_set_got_validates_against_the_schema(tmp_path: Path) -> None:
    directory = make_tokens_set(tmp_path)
    raw = json.loads((directory / "_MANIFEST.json").read_bytes())
    jsonschema.validate(raw, manifest_schema())
    assert list(raw) == list(SOUND)
    assert list(raw["files"][0]) == list(SOUND["files"][0])


def test_no_separator_is_written_as_null(tmp_path: Path) -> None:
    directory = make_tokens_set(tmp_path, separator=None)
    assert json.loads((directory / "_MANIFEST.json").read_bytes())["doc_sep_id"] is None
    assert read_manifest(directory).doc_sep_id is None


WRONG = [
    (without("doc_sep_id"), "doc_sep_id"),
    (without("files", 0, "sha256"), "sha256"),
    (changed("separator", to=0), "separator"),
    (changed("files", 0, "n_bytes", to=7), "n_bytes"),
    (changed("tokenizer_sha256", to="A" * 64), "tokenizer_sha256"),
    (changed("corpus_manifest_sha256", to="b" * 63), "corpus_manifest_sha256"),
    (changed("corpus_manifest_sha256", to="b" * 64 + "\n"), "corpus_manifest_sha256"),
    (changed("vocab_size", to=0), "vocab_size"),
    (changed("vocab_size", to="49152"), "vocab_size"),
    (changed("vocab_size", to=2**31), "vocab_size"),
    (changed("doc_sep_id", to=-1), "doc_sep_id"),
    (changed("doc_sep_id", to=1.5), "doc_sep_id"),
    (changed("dataset", to=""), "dataset"),
    (changed("version", to=1), "version"),
    (changed("files", to={}), "files"),
    (changed("files", 0, "split", to="test"), "split"),
    (changed("files", 0, "n_tokens", to=-1), "n_tokens"),
    (changed("files", 0, "n_tokens", to=2**31), "n_tokens"),
    (changed("files", 0, "n_docs", to=None), "n_docs"),
    (changed("files", 0, "name", to="../train-00000.bin"), "name"),
    (changed("files", 0, "name", to="/etc/train-00000.bin"), "name"),
    (changed("files", 0, "name", to="sub/train-00000.bin"), "name"),
    (changed("files", 0, "name", to="..\\train-00000.bin"), "name"),
    (changed("files", 0, "name", to="train-00000.bin\n"), "line end"),
    (changed("files", 0, "name", to="_MANIFEST.json"), "name"),
    ([SOUND], "array"),
    (None, "null"),
]


@pytest.mark.parametrize(("value", "key"), WRONG, ids=lambda v: v if isinstance(v, str) else "")
def test_what_the_schema_forbids_is_refused_naming_the_key(tmp_path: Path, value: object, key: str) -> None:
    path = tmp_path / "_MANIFEST.json"
    path.write_text(json.dumps(value))
    with pytest.raises(FormatError, match="name" if key == "line end" else key) as error:
        read_manifest(path)
    assert str(error.value).startswith(f"{path}: ")
    if key != "line end":  # Python's "$" matches before it, so only our own check sees it here
        with pytest.raises(jsonschema.ValidationError):
            jsonschema.validate(value, manifest_schema())


@pytest.mark.parametrize(
    ("value", "words"),
    [
        (changed("doc_sep_id", to=49152), "doc_sep_id 49152 is not below vocab_size 49152"),
        (changed("files", 0, "split", to="val"), r"files\[0\]\.split is 'val', but its name is train-00000\.bin"),
        (changed("files", 1, to=SOUND["files"][0]), r"files\[1\]\.name: train-00000\.bin is listed twice"),
    ],
)
def test_what_a_schema_cannot_say_is_refused_too(tmp_path: Path, value: object, words: str) -> None:
    path = tmp_path / "_MANIFEST.json"
    path.write_text(json.dumps(value))
    with pytest.raises(FormatError, match=words):
        read_manifest(path)


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff\xfe", b'{"a":1}{}', b"[" * 100_000, b'{"tokenizer_id": NaN}'])
def test_what_is_not_json_is_refused(tmp_path: Path, raw: bytes) -> None:
    path = tmp_path / "_MANIFEST.json"
    path.write_bytes(raw)
    with pytest.raises(FormatError, match="_MANIFEST"):
        read_manifest(path)


def test_a_manifest_of_absurd_size_is_refused_without_being_read_whole(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(manifest_module, "MAX_JSON_BYTES", 100)
    path = tmp_path / "_MANIFEST.json"
    path.write_text(json.dumps(SOUND))
    with pytest.raises(FormatError, match="over 100 B"):
        read_manifest(path)


def test_a_manifest_that_would_not_be_read_is_not_written(tmp_path: Path) -> None:
    good = read_manifest(make_tokens_set(tmp_path))
    bad = type(good)(**{**{f: getattr(good, f) for f in good.__struct_fields__}, "doc_sep_id": 1000})
    with pytest.raises(FormatError, match="doc_sep_id 1000"):
        write_manifest(tmp_path / "m.json", bad)
    assert not (tmp_path / "m.json").exists()


def test_a_build_record_keeps_its_known_keys_and_ignores_others(tmp_path: Path) -> None:
    path = make_cut_set(tmp_path / "d", "llmc") / "tales_BUILD.json"
    raw = json.loads(path.read_bytes())
    raw["speed"] = {"mb_per_s": 1.5}
    raw["files"][0]["name"] = "tales_val_000000.bin"
    path.write_text(json.dumps(raw))
    record = read_record(path)
    assert (record.layout, record.dataset, record.tokenizer.separator_id) == ("llmc", "tales", 0)
    assert record.files[0].split == "val"
    assert record.splits["val"].tokens == 50


@pytest.mark.parametrize("name", ["../x_val_000000.bin", "/x_val_000000.bin", "a\\x_val_000000.bin", "notes.txt"])
def test_a_build_record_cannot_lead_out_of_its_directory(tmp_path: Path, name: str) -> None:
    path = make_cut_set(tmp_path / "d", "llmc") / "tales_BUILD.json"
    raw = json.loads(path.read_bytes())
    raw["files"][0]["name"] = name
    path.write_text(json.dumps(raw))
    with pytest.raises(FormatError, match=r"files\[0\]\.name"):
        read_record(path)
