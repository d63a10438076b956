"""Parameter Golf's TokenStream, DistributedTokenLoader and readers against recorded values of the original."""

from __future__ import annotations

import gzip
import hashlib
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sentencepiece
import torch
from positions import read_vectors, sha, write_vector_sets
from test_llmc_loader import refusal_bytes

from tokenriver import golf, write_shard


def export(shared: Path, case: dict[str, Any], suffix: str, root: Path) -> None:
    """The shards of an export case by its rule, each checked against its recorded hash."""
    raw = (shared.parent / case["docs"]).read_bytes() if case["docs"].startswith("shared/") else b""
    lines = (gzip.decompress(raw) if case["docs"].endswith(".gz") else raw).decode().split("\n")
    texts = [json.loads(line)["text"] for line in lines if line]
    if suffix == "byte260":
        documents = [[1, *(byte + 4 for byte in text.encode())] for text in texts]
    else:
        model = sentencepiece.SentencePieceProcessor(model_file=str(shared.parent / case["models"][suffix[2:]]))
        documents = [[1, *ids] for ids in model.encode(texts)]
    root.mkdir()
    val = case["num_val_docs"]
    recorded = {name: digest for name, _, _, digest in case["datasets"][f"fineweb10B_{suffix}"]}
    for split, part in (("val", documents[:val]), ("train", documents[val:])):
        ids = np.concatenate([np.array(document) for document in part])
        for k in range(-(-len(ids) // case["chunk_tokens"])):
            name = f"fineweb_{split}_{k:06d}.bin"
            cut = ids[k * case["chunk_tokens"] : (k + 1) * case["chunk_tokens"]]
            assert write_shard(root / name, cut, variant="uint16").sha256 == recorded[name]


@pytest.fixture(scope="module")
def patterns(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """Source name → glob of its shards."""
    root = tmp_path_factory.mktemp("golf")
    sets = read_vectors(shared, "dataloader.json")["sets"]
    write_vector_sets(root, sets)
    found = {f"set_{name}": str(root / name / described["glob"]) for name, described in sets.items()}
    cases = {case["id"]: case for case in read_vectors(shared, "golf_export.json")["cases"]}
    for source, (text,) in read_vectors(shared, "golf_stream.json")["sources"].items():
        if text.startswith("golf_export"):
            case, path = text.removeprefix("golf_export case ").split(", fineweb10B_")
            suffix, pattern = path.split("/")
            folder = root / f"{case}_{suffix}"
            if not folder.exists():
                export(shared, cases[case], suffix, folder)
            found[source] = str(folder / pattern)
    return found


def test_takes_cross_files_and_wrap_as_the_original(shared: Path, patterns: dict[str, str]) -> None:
    for case in read_vectors(shared, "golf_stream.json")["take"]:
        stream = golf.TokenStream(patterns[case["source"]], device=None)
        for n, digest, file_idx, pos in case["takes"]:
            ids = stream.take(n)
            assert ids.shape == (n,)
            assert (sha(ids), stream.file_idx, stream.pos) == (digest, file_idx, pos)


def test_every_rank_s_batches_are_the_original_s(shared: Path, patterns: dict[str, str]) -> None:
    for case in read_vectors(shared, "golf_stream.json")["cases"]:
        loader = golf.DistributedTokenLoader(patterns[case["source"]], case["rank"], case["world_size"], None)
        options = case["global_tokens"], case["seq_len"], case["grad_accum_steps"]
        if case["status"] == "refused":
            with pytest.raises(ValueError, match="not a multiple of seq_len"):
                loader.next_batch(*options)
            continue
        rows = {row[0]: row[1:] for row in case["batches"]}
        texts = hashlib.sha256()
        n_batches = case.get("n_batches", len(rows))
        for batch in range(n_batches):
            x, y = loader.next_batch(*options)
            assert x.dtype == y.dtype == np.int64
            texts.update((sha(x) + sha(y)).encode())
            if batch in rows:
                state = [list(x.shape), sha(x), sha(y), loader.stream.file_idx, loader.stream.pos]
                assert state == rows[batch]
        if "all_sha256" in case:
            assert texts.hexdigest() == case["all_sha256"]


def test_tensors_come_where_torch_is_and_arrays_where_device_is_none(patterns: dict[str, str]) -> None:
    pattern = patterns["set_A"]
    x, y = golf.DistributedTokenLoader(pattern, 0, 1, torch.device("cpu")).next_batch(64, 16, 1)
    assert x.dtype == y.dtype == torch.int64
    assert golf.TokenStream(pattern).take(5).dtype == torch.uint16
    assert golf.load_validation_tokens(pattern, 16).dtype == torch.uint16
    first = golf.load_data_shard(sorted(Path(pattern).parent.iterdir())[0], device=None)
    assert isinstance(first, np.ndarray)
    assert first.tolist() == golf.TokenStream(pattern, device=None).take(len(first)).tolist()


def test_validation_tokens_are_all_files_cut_to_whole_rows(patterns: dict[str, str]) -> None:
    whole = np.concatenate(
        [golf.load_data_shard(file, device=None) for file in golf.TokenStream(patterns["fw_byte_val"]).files]
    )
    for seq_len in (1, 7, 1024, len(whole) - 1):
        ids = golf.load_validation_tokens(patterns["fw_byte_val"], seq_len, device=None)
        assert ids.tolist() == whole[: (len(whole) - 1) // seq_len * seq_len + 1].tolist()
    with pytest.raises(ValueError, match="too few for one row"):
        golf.load_validation_tokens(patterns["fw_byte_val"], len(whole), device=None)
    with pytest.raises(ValueError, match="no file matches"):
        golf.load_validation_tokens("nowhere_*.bin", 8, device=None)


def test_validation_ids_are_the_recorded_ones(shared: Path, patterns: dict[str, str]) -> None:
    checked = 0
    for case in read_vectors(shared, "golf_bpb.json")["validation"]:
        if case["source"] in patterns and "usable_sha256_i32le" in case:
            ids = golf.load_validation_tokens(patterns[case["source"]], case["seq_len"], device=None)
            assert (len(ids), sha(ids)) == (case["usable_ids"], case["usable_sha256_i32le"])
            checked += 1
    assert checked >= 5


def test_the_reader_refuses_what_the_original_refuses(shared: Path, tmp_path: Path) -> None:
    for case in read_vectors(shared, "shard_refusals.json")["cases"]:
        path = tmp_path / f"{case['name']}.bin"
        path.write_bytes(refusal_bytes(case))
        if case["golf_load_data_shard"]["status"] == "ok":
            assert len(golf.load_data_shard(path, device=None)) == case["golf_load_data_shard"]["n_tokens"]
        elif case["name"] != "version2_uint32_payload":  # a uint32 shard, which is read here
            with pytest.raises(ValueError, match=case["name"]):
                golf.load_data_shard(path, device=None)
    with pytest.raises(ValueError, match="0 tokens"):
        golf.TokenStream(str(tmp_path / "zero_tokens.bin"))
