"""llm.c's DataLoader and its generator against recorded values of the original."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from positions import read_vectors, sha, write_vector_sets

from tokenriver import FormatError, TokenRiverError, write_shard
from tokenriver.llmc import MT19937, DataLoader

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="module")
def sets(shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("sets")
    write_vector_sets(root, read_vectors(shared, "dataloader.json")["sets"])
    return root


def loader_for(case: dict[str, Any], sets: Path, globs: dict[str, Any]) -> DataLoader:
    pattern = str(sets / case["set"] / globs[case["set"]]["glob"])
    return DataLoader(pattern, case["B"], case["T"], case["rank"], case["num_processes"], bool(case["shuffle"]))


def run(loader: DataLoader, case: dict[str, Any]) -> None:
    """Draw the case's batches and compare position and hashes of each, and of all."""
    rows = {row[0]: row for row in case["batches"]}
    digest = hashlib.sha256()
    for batch in range(case["n_batches"]):
        inputs, targets = loader.next_batch()
        assert inputs.dtype == targets.dtype == np.int32
        assert inputs.shape == (case["B"], case["T"])
        digest.update(inputs.tobytes() + targets.tobytes())
        if batch in rows:
            _, shard, file, sample, inside, in_hash, target_hash = rows[batch]
            assert loader.current_shard_idx == shard, (case["id"], batch)
            assert loader.shard_indices[shard] == file
            assert loader.current_sample_idx - 1 == sample
            assert (loader.intra_shard_indices[sample] if case["shuffle"] else sample) == inside
            assert (sha(inputs), sha(targets)) == (in_hash, target_hash)
    assert digest.hexdigest() == case["all_sha256"]


def test_the_generator_draws_and_permutes_as_the_original(shared: Path) -> None:
    for case in read_vectors(shared, "mt19937.json")["cases"]:
        draws = MT19937(case["seed"]).draws(10_000)
        assert draws[:10].tolist() == case["first_10"]
        assert {k: int(draws[int(k)]) for k in case["draw_at"]} == case["draw_at"]
        assert sha(draws[:5000], "<u4") == case["sha256_first_5000_u32le"]
        for n, expected in case["permutations"].items():
            generator, data = MT19937(case["seed"]), list(range(int(n)))
            generator.permute(data)
            assert sha(data) == expected["sha256_i32le"]
            assert int(generator.draws(1)[0]) == expected["next_draw"]
        generator = MT19937(case["seed"])
        for size, expected_values in zip(case["sequence"]["sizes"], case["sequence"]["values"], strict=True):
            data = list(range(size))
            generator.permute(data)
            assert data == expected_values
        assert int(generator.draws(1)[0]) == case["sequence"]["next_draw"]
        generator, data = MT19937(case["seed"]), list(range(case["in_place"]["size"]))
        for expected_values in case["in_place"]["values"]:
            generator.permute(data)
            assert data == expected_values
        assert int(generator.draws(1)[0]) == case["in_place"]["next_draw"]


def test_every_batch_of_two_and_a_half_epochs_is_the_original_s(shared: Path, sets: Path) -> None:
    vectors = read_vectors(shared, "dataloader.json")
    for case in vectors["cases"]:
        loader = loader_for(case, sets, vectors["sets"])
        assert loader.num_tokens == case["num_tokens"]
        run(loader, case)
        end = case["end_state"]
        for name in ("current_shard_idx", "current_sample_idx", "shard_num_samples"):
            assert getattr(loader, name) == end[name]
        if case["shuffle"]:
            state = loader.state_dict()
            assert state["shard_indices"] == end["shard_indices"]
            assert (state["generator"]["left"], state["generator"]["next"]) == (end["rng_left"], end["rng_next"])
            assert sha(state["generator"]["words"], "<u4") == end["rng_state_sha256_u32le"]
            assert sha(state["intra_shard_indices"]) == end["intra_shard_indices_sha256_i32le"]


def test_resume_reset_and_a_restored_state_go_on_as_the_original(shared: Path, sets: Path) -> None:
    vectors = read_vectors(shared, "dataloader_resume.json")
    for case in vectors["cases"]:
        loader = loader_for(case, sets, vectors["sets"])
        if case["kind"].startswith("resume_fresh"):
            loader.resume(case["resume_shard"], case["resume_sample"])
        else:
            for _ in range(case["after_batches"]):
                loader.next_batch()
            if case["kind"] == "reset_after":
                loader.reset()
            else:
                state = json.loads(json.dumps(loader.state_dict()))
                for name in ("current_shard_idx", "current_sample_idx", "shard_num_samples"):
                    assert state[name] == case["state"][name]
                loader = loader_for(case, sets, vectors["sets"])
                loader.load_state_dict(state)
        run(loader, case)


def test_what_the_original_refuses_is_a_clear_error_and_what_it_accepts_loads(shared: Path, tmp_path: Path) -> None:
    ours_alone = {"bad_magic_llama3", "version2_uint32_payload"}  # read here, or refused for their size
    for case in read_vectors(shared, "shard_refusals.json")["cases"]:
        path = tmp_path / f"{case['name']}.bin"
        path.write_bytes(refusal_bytes(case))
        accepted = case["llmc_dataloader"]["status"] == "ok"
        if accepted or case["name"] == "version2_uint32_payload":
            assert DataLoader(str(path), 2, 32).next_batch()[0].shape == (2, 32)
        else:
            assert case["name"] in ours_alone or case["llmc_dataloader"]["status"] == "refused"
            with pytest.raises((FormatError, TokenRiverError), match=case["name"]):
                DataLoader(str(path), 2, 32)


def refusal_bytes(case: dict[str, Any]) -> bytes:
    """The file of a case in shard_refusals.json, checked against its recorded hash."""
    header = np.zeros(256, "<i4")
    for k, v in (case["header"] or {}).items():
        header[int(k)] = v
    layout = case["layout"]
    n, dtype = (layout["pay32"], "<u4") if "pay32" in layout else (layout.get("pay", 200), "<u2")
    i = np.arange(n, dtype=np.int64)
    raw = (
        b""
        if case["header"] is None
        else header.tobytes() + ((7919 * i + (i * i) % 65521) % 50257).astype(dtype).tobytes()
    )
    raw += bytes(layout.get("extra_bytes", 0))
    raw = raw[: len(raw) - layout.get("cut", 0)][: layout.get("hcut", len(raw))]
    assert hashlib.sha256(raw).hexdigest() == case["sha256"], case["name"]
    return raw


def test_uint32_shards_are_read_and_uneven_resumes_are_refused(tmp_path: Path) -> None:
    write_shard(tmp_path / "a_0.bin", np.arange(70_000, 70_100), vocab_size=128_000)
    write_shard(tmp_path / "a_1.bin", np.arange(50), vocab_size=50_257)
    loader = DataLoader(str(tmp_path / "a_*.bin"), 2, 8, 0, 1, False)
    assert loader.next_batch()[0][0, 0] == 70_000
    shuffled = DataLoader(str(tmp_path / "a_*.bin"), 2, 8, 0, 1, True)
    other = next(k for k in range(2) if shuffled._samples(k) != shuffled.shard_num_samples)
    with pytest.raises(TokenRiverError, match="load_state_dict restores"):
        shuffled.resume(other, 0)
    with pytest.raises(TokenRiverError, match=r"100 tokens, but each shard needs 129"):
        DataLoader(str(tmp_path / "a_*.bin"), 8, 16)
