"""The recorded answers of the original programs about shards: what they refuse, and the bytes they write."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tokenriver import FormatError, open_shard, write_shard

if TYPE_CHECKING:
    from pathlib import Path

# What both originals answer differently from us, and why that is meant: they know one variant, this format has three.
OURS_ONLY = {
    "version2_uint32_payload": "version 2 is the uint32 variant",
}
# Refused by llm.c's loader alone: it asserts that there are enough ids for a batch, which a reader of shards does not.
NOT_FOR_LLMC = {"zero_tokens"}


def rule(n: int) -> np.ndarray[Any, np.dtype[np.int64]]:
    """Token i = (7919·i + (i·i) mod 65521) mod 50257, the vectors' rule."""
    i = np.arange(n, dtype=np.int64)
    return (7919 * i + (i * i) % 65521) % 50257


def make_file(case: dict[str, Any]) -> bytes:
    """The file of a refusal case, by the rule in the vectors' `fields`."""
    if case["header"] is None:
        return b""
    header = np.zeros(256, "<i4")
    for index, value in case["header"].items():
        header[int(index)] = value
    layout = case["layout"]
    payload = rule(layout["pay32"]).astype("<u4") if "pay32" in layout else rule(layout.get("pay", 200)).astype("<u2")
    raw = header.tobytes() + payload.tobytes() + bytes(layout.get("extra_bytes", 0))
    raw = raw[: len(raw) - layout.get("cut", 0)]
    return raw[: layout.get("hcut", len(raw))]


def test_the_same_malformed_files_are_refused_as_by_the_originals(shared: Path, tmp_path: Path) -> None:
    cases = json.loads((shared / "vectors" / "shard_refusals.json").read_bytes())["cases"]
    assert len(cases) >= 15
    for case in cases:
        raw = make_file(case)
        assert (len(raw), hashlib.sha256(raw).hexdigest()) == (case["size"], case["sha256"]), case["name"]
        path = tmp_path / f"{case['name']}.bin"
        path.write_bytes(raw)
        originals = {case["llmc_dataloader"]["status"], case["golf_load_data_shard"]["status"]}
        if case["name"] in OURS_ONLY:
            assert originals == {"refused"}
            assert open_shard(path).ids.tolist() == rule(200).tolist()
        elif case["golf_load_data_shard"]["status"] == "ok":
            assert originals == {"ok"} or case["name"] in NOT_FOR_LLMC
            shard = open_shard(path)
            assert shard.n_tokens == case["golf_load_data_shard"]["n_tokens"], case["name"]
            assert shard.ids.tolist() == rule(shard.n_tokens).tolist()
        else:
            assert originals == {"refused"}
            with pytest.raises(FormatError, match=path.name):
                open_shard(path)


def ids_of(case: dict[str, Any]) -> list[int]:
    return rule(1000).tolist() if isinstance(case["tokens"], str) else case["tokens"]


@pytest.mark.parametrize(
    ("writer", "variant"), [("llmc_gpt2", "uint16"), ("golf", "uint16"), ("llmc_llama3", "llama-3")]
)
def test_the_same_bytes_are_written_as_by_the_originals(
    shared: Path, tmp_path: Path, writer: str, variant: Any
) -> None:
    cases = json.loads((shared / "vectors" / "file_writing.json").read_bytes())["datafile"]
    assert len(cases) >= 5
    for case in cases:
        path = tmp_path / f"{case['name']}.bin"
        expected = case[writer]
        if expected["status"] == "refused":
            with pytest.raises(FormatError, match=f"id {max(case['tokens'])} does not fit"):
                write_shard(path, ids_of(case), variant=variant)
            assert not path.exists()
            continue
        facts = write_shard(path, ids_of(case), variant=variant)
        raw = path.read_bytes()
        assert (len(raw), facts.sha256) == (expected["size"], expected["sha256"]), case["name"]
        assert raw[:16].hex() == expected["head_hex"]
        assert raw[1024:1056].hex() == expected["tail_hex"]
        assert open_shard(path).ids.tolist() == ids_of(case)


def test_the_contract_example_is_written_with_its_vocabulary(shared: Path, tmp_path: Path) -> None:
    example = json.loads((shared / "vectors" / "file_writing.json").read_bytes())["contract_example"]
    facts = write_shard(tmp_path / "x.bin", [1, 2, 3], vocab_size=256)
    raw = (tmp_path / "x.bin").read_bytes()
    assert (len(raw), facts.sha256, raw[:16].hex()) == (example["size"], example["sha256"], example["head_hex"])
