"""The whole circle by the commands that users type: select, export, publish, fetch, verify, load, audit."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING

import golf_roots
import numpy as np
import pytest

import tokenriver
from tokenriver.cli import main
from tokenriver.golf import DistributedTokenLoader, TokenStream

if TYPE_CHECKING:
    from pathlib import Path

    from local_hub import LocalHub


def hashes(folder: Path) -> dict[str, str]:
    """Every file but the build records: those are published without this machine's paths."""
    return {
        p.relative_to(folder).as_posix(): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(folder.rglob("*"))
        if p.is_file() and not p.name.endswith("_BUILD.json")
    }


@pytest.mark.parametrize("variant", ["sp300", "byte260"])
def test_select_export_publish_fetch_verify_load_audit(
    hub: LocalHub, tmp_path: Path, capsys: pytest.CaptureFixture[str], variant: str
) -> None:
    source = golf_roots.write_documents(tmp_path / "web.jsonl", 400)
    specs = golf_roots.write_specs(tmp_path / "tokenizer_specs.json")
    chosen, export, fetched = tmp_path / "chosen", tmp_path / "export", tmp_path / "fetched"
    run = ["golf", "select", str(source), "--docs", "150", "--seed", "1337", "--docs-val", "20", "--out", str(chosen)]
    assert main([*run, "--quiet"]) == 0
    run = ["golf", "export", "--docs", str(chosen / "docs_selected.jsonl"), "--tokenizer-config", str(specs)]
    assert main([*run, "--output-root", str(export), "--chunk-tokens", "900"]) == 0
    sha256 = hashlib.sha256((chosen / "docs_selected.jsonl").read_bytes()).hexdigest()
    assert f"docs_sha256 {sha256} (as the sidecar says)" in capsys.readouterr().out
    assert main(["publish", str(export), "me/golf", "--dry-run"]) == 0
    assert not hub.log
    assert main(["publish", str(export), "me/golf"]) == 0
    assert hub.repos["me/golf"].messages[-1][-1] == "datasets/manifest.json", "the manifest last"
    stats = {d["name"]: d["stats"] for d in json.loads((export / "manifest.json").read_bytes())["datasets"]}
    n_train = stats[f"fineweb10B_{variant}"]["files_train"]
    run = ["golf", "fetch", "--repo-id", "me/golf", "--variant", variant, "--root", str(fetched), "--with-docs"]
    assert main([*run, "--train-shards", str(n_train)]) == 0
    assert main(["golf", "fetch", "--repo-id", "me/golf", "--root", str(tmp_path / "check"), "--check"]) == 0
    got, made = hashes(fetched), hashes(export)
    assert got == {name: sha256 for name, sha256 in made.items() if name in got}
    assert {n for n in made if n.startswith((f"datasets/fineweb10B_{variant}", "docs_", "manifest"))} <= set(got)
    folder = fetched / "datasets" / f"fineweb10B_{variant}"
    assert main(["verify", str(fetched)]) == 0

    ids = np.concatenate([tokenriver.open_shard(p).ids for p in sorted(folder.glob("fineweb_train_*.bin"))])
    assert np.array_equal(TokenStream(f"{folder}/fineweb_train_*.bin", device=None).take(len(ids)), ids)
    x, y = DistributedTokenLoader(f"{folder}/fineweb_train_*.bin", 1, 2, None).next_batch(256, 32, 1)
    assert np.array_equal(x.ravel(), ids[129:257])
    assert np.array_equal(y.ravel(), ids[130:258])

    model = "byte260" if variant == "byte260" else str(fetched / "tokenizers/fineweb_300_bpe.model")
    capsys.readouterr()
    code = main(["bpb-audit", str(folder), "--tokenizer", model, "--docs", str(fetched / "docs_selected.jsonl")])
    assert code == 0, capsys.readouterr().out
