"""hf:// URLs are read like any store's, and what the Hub says of a file's bytes is held to."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from huggingface_hub import HfFileSystem
from local_hub import Fault

from tokenriver import build
from tokenriver.errors import CorpusError, TokenRiverError
from tokenriver.storage import failures

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from local_hub import LocalHub

DOCS = b"".join(b'{"text": "document %d of a river"}\n' % i for i in range(40_000))


@pytest.fixture(autouse=True)
def fresh_clients(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setattr(failures, "RETRY_SECONDS", ())
    HfFileSystem.clear_instance_cache()
    yield
    HfFileSystem.clear_instance_cache()


@pytest.mark.parametrize("word", ["a", "a/x.jsonl", "a/*.jsonl"])
def test_documents_of_a_repository_give_the_bytes_of_local_ones(hub: LocalHub, tmp_path: Path, word: str) -> None:
    hub.add("own/docs", {"a/x.jsonl": DOCS, "README.md": b"card"})
    (tmp_path / "x.jsonl").write_bytes(DOCS)
    local = build(tmp_path / "x.jsonl", tokenizer="byte", out=tmp_path / "1", dataset="x")
    remote = build(f"hf://datasets/own/docs/{word}", tokenizer="byte", out=tmp_path / "2", dataset="x")
    assert (remote.directory / "_CORPUS.json").read_bytes() == (local.directory / "_CORPUS.json").read_bytes()
    assert remote.files == local.files


@pytest.mark.parametrize("fault", [Fault(flip=100), Fault(ignore_range=True)])
def test_bytes_that_are_not_those_of_the_hub_are_refused(hub: LocalHub, tmp_path: Path, fault: Fault) -> None:
    hub.add("own/docs", {"a/x.jsonl": DOCS})
    hub.fail("a/x.jsonl", Fault(), fault)
    with pytest.raises(TokenRiverError, match=r"x\.jsonl"):
        build("hf://datasets/own/docs/a", tokenizer="byte", out=tmp_path, dataset="x", on_bad_record="skip")
    assert not list(tmp_path.rglob("_MANIFEST.json"))


def test_a_repository_that_is_not_there_is_named(hub: LocalHub, tmp_path: Path) -> None:
    assert hub.url
    with pytest.raises(CorpusError, match="hf://datasets/own/none: no such object"):
        build("hf://datasets/own/none", tokenizer="byte", out=tmp_path)
