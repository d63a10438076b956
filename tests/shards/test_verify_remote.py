"""Verification behind URLs streams, and names exactly what it names of files."""

from __future__ import annotations

import tracemalloc
from typing import TYPE_CHECKING, Any

import fsspec
import numpy as np
import pytest
from local_hub import LocalHub
from s3_server import Fault
from shard_sets import make_cut_set, make_tokens_set

from tokenriver.cli import main
from tokenriver.shards.verify import verify
from tokenriver.shards.writer import write_shard
from tokenriver.storage import reading

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from s3_server import Bucket


def flip(path: Path) -> None:
    raw = bytearray(path.read_bytes())
    raw[1030] ^= 1
    path.write_bytes(raw)


def cut(path: Path) -> None:
    path.write_bytes(path.read_bytes()[:-2])


DAMAGES: dict[str, Callable[[Path], object]] = {
    "nothing": lambda _: None,
    "a flipped byte": lambda d: flip(d / "train-00001.bin"),
    "a truncated shard": lambda d: cut(d / "train-00001.bin"),
    "a missing shard": lambda d: (d / "train-00000.bin").unlink(),
    "an additional shard": lambda d: (d / "train-00002.bin").write_bytes((d / "train-00001.bin").read_bytes()),
    "no manifest": lambda d: (d / "_MANIFEST.json").unlink(),
    "a manifest that is none": lambda d: (d / "_MANIFEST.json").write_text("{"),
    "other corpus facts": lambda d: (d / "_CORPUS.json").write_text("{}"),
    "a journal": lambda d: (d / "_JOURNAL").write_text("{}"),
    "an index without its shard": lambda d: (d / "val-00007.bin.index").write_bytes(bytes(8)),
    "a wrong index": lambda d: (d / "val-00000.bin.index").write_bytes(bytes(8)),
    "an empty shard": lambda d: (d / "val-00000.bin").write_bytes(b""),
}


@pytest.fixture
def copied() -> Iterator[Callable[[Path], str]]:
    """Copies a folder into the store in memory and gives the URL."""
    memory: Any = fsspec.filesystem("memory")

    def copy(folder: Path) -> str:
        for path in folder.rglob("*"):
            if path.is_file():
                memory.pipe_file(f"/v/{path.relative_to(folder).as_posix()}", path.read_bytes())
        return "memory://v"

    yield copy
    memory.rm("/v", recursive=True)


def findings(root: Path | str, *more: str) -> list[str]:
    """What is found, with the root taken off."""
    where = [f"{root}/{name}" for name in more] or [root]
    return sorted(f"{f.path}: {f.problem}".replace(str(root), "") for f in verify(where).findings)


@pytest.mark.parametrize("damage", DAMAGES)
def test_the_same_is_found_behind_a_url_as_in_a_folder(
    tmp_path: Path, copied: Callable[[Path], str], damage: str
) -> None:
    directory = make_tokens_set(tmp_path / "root")
    make_cut_set(tmp_path / "root" / "cut", "llmc")
    DAMAGES[damage](directory)
    url = copied(tmp_path / "root")
    assert findings(url) == findings(tmp_path / "root")
    assert bool(findings(url)) == (damage != "nothing")
    assert verify(url).bytes == verify(tmp_path / "root").bytes
    folder = directory.relative_to(tmp_path / "root").as_posix()
    for name in ("_MANIFEST.json", "train-00001.bin", "val-00000.bin.index", "none.bin"):
        there, here = (findings(root, f"{folder}/{name}") for root in (url, tmp_path / "root"))
        assert [one.replace("object or prefix", "file or directory") for one in there] == here


def test_on_a_web_server_that_lists_nothing_a_manifest_is_enough(tmp_path: Path) -> None:
    with LocalHub() as web:
        web.add_folder("me/set", make_tokens_set(tmp_path / "root"))
        url = f"{web.url}/datasets/me/set/resolve/main"
        report = verify(f"{url}/_MANIFEST.json")
        assert (report.ok, report.files_checked) == (True, 3)
        web.vanished.add("val-00000.bin")
        (found,) = verify(f"{url}/_MANIFEST.json").findings
        assert str(found.path) == f"{url}/val-00000.bin"
        assert verify(f"{url}/train-00000.bin").files_checked == 1


def test_recorded_inputs_are_hashed_again_behind_their_urls(tmp_path: Path) -> None:
    import tokenriver

    memory: Any = fsspec.filesystem("memory")
    memory.pipe_file("/inputs/a.jsonl", b'{"text": "a river"}\n')
    done = tokenriver.build("memory://inputs", tokenizer="byte", out=tmp_path, dataset="x", split="train")
    assert verify(done.directory, inputs=True).ok
    memory.pipe_file("/inputs/a.jsonl", b'{"text": "b river"}\n')
    (found,) = verify(done.directory, inputs=True).findings
    assert str(found.path) == "memory://inputs/a.jsonl"
    assert "input changed: sha256 is" in found.problem
    memory.rm("/inputs", recursive=True)
    (found,) = verify(done.directory, inputs=True).findings
    assert found.problem == "input: no such object"


def test_a_large_shard_is_verified_in_the_memory_of_a_few_pieces(
    tmp_path: Path, copied: Callable[[Path], str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reading, "PIECE_BYTES", 100_000)
    write_shard(tmp_path / "x.bin", np.arange(10_000_000) % 65_536)
    url = copied(tmp_path) + "/x.bin"
    verify(url)
    tracemalloc.start()
    assert verify(url).bytes == 20_001_024
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 10_000_000


def test_verify_on_s3_exits_with_1_for_findings_and_names_them(
    s3: Bucket, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    url = s3.put_folder(make_tokens_set(tmp_path / "root"), "set")
    s3.server.fail(r"train-00000\.bin$", Fault(status=503), Fault(cut=100))
    assert main(["verify", url]) == 0
    assert capsys.readouterr().out.startswith("all good: 3 shards")
    raw = bytearray(s3.get("set/train-00001.bin"))
    raw[1030] ^= 1
    s3.put("set/train-00001.bin", bytes(raw))
    s3.delete("set/val-00000.bin")
    s3.put("set/train-00000.bin", s3.get("set/train-00000.bin")[:-2])
    assert main(["verify", url]) == 1
    said = capsys.readouterr().out
    assert f"{url}/train-00001.bin: sha256 is " in said
    assert f"{url}/val-00000.bin: missing: _MANIFEST.json lists it" in said
    assert "the file is cut short" in said


def test_a_shard_that_cannot_be_read_is_a_finding_among_others(impatient: Bucket, tmp_path: Path) -> None:
    url = impatient.put_folder(make_tokens_set(tmp_path / "root"), "set")
    impatient.server.fail(r"train-00001\.bin$", Fault(status=500), always=True)
    impatient.server.fail(r"val-00000\.bin$", Fault(status=403), always=True)
    assert [f"{f.path.name}: {f.problem.partition(' (')[0]}" for f in verify(url).findings] == [
        "train-00001.bin: the store failed at byte 0",
        "val-00000.bin: the store refuses access",
    ]
