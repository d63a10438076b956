"""Documents behind URLs: which objects an input names, and that many small ones come at once."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from tokenriver.corpus import remote
from tokenriver.corpus.documents import SourceOptions, find_sources, parse_block, read_blocks
from tokenriver.errors import CorpusError, UsageError
from tokenriver.storage.reading import read_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tokenriver.storage.objects import RemoteFile

LINE = b'{"text": "a river"}\n'


@pytest.fixture
def store() -> Iterator[Any]:
    """fsspec's store in memory, with objects below memory://r."""
    memory = fsspec.filesystem("memory")
    for name in (
        "b.jsonl",
        "a.jsonl",
        "d/c.jsonl",
        "d/e.txt",
        "d/_hidden.jsonl",
        ".x/y.jsonl",
        "f.png",
        "x_BUILD.json",
    ):
        memory.pipe_file(f"/r/{name}", LINE)
    yield memory
    memory.rm("/r", recursive=True)


def names(word: str) -> list[str]:
    return [source.name for source in find_sources([word])]


@pytest.mark.usefixtures("store")
def test_a_url_names_what_a_path_of_that_kind_names() -> None:
    assert names("memory://r") == ["a.jsonl", "b.jsonl", "d/c.jsonl", "d/e.txt"]
    assert names("memory://r/") == ["a.jsonl", "b.jsonl", "d/c.jsonl", "d/e.txt"]
    assert names("memory://r/d") == ["c.jsonl", "e.txt"]
    assert names("memory://r/b.jsonl") == ["b.jsonl"]
    assert names("memory://r/*.jsonl") == ["a.jsonl", "b.jsonl"]
    assert names("memory://r/*/*.jsonl") == ["d/_hidden.jsonl", "d/c.jsonl"]
    assert names("memory://r/d/[ce].*") == ["c.jsonl", "e.txt"]


@pytest.mark.usefixtures("store")
@pytest.mark.parametrize(
    ("word", "message"),
    [
        ("memory://r/none", "no such object, and none below it as a prefix"),
        ("memory://r/*.parquet", "the pattern matches nothing"),
        ("memory://r/*.png", "1 objects, none of a known kind"),
        ("memory://r/f.png", "unknown kind of file"),
    ],
)
def test_a_url_that_names_no_documents_says_what_is_wrong(word: str, message: str) -> None:
    with pytest.raises(CorpusError, match=message):
        find_sources([word])


def test_a_url_without_a_bucket_is_a_usage_error() -> None:
    with pytest.raises(UsageError, match="names no bucket"):
        find_sources(["s3://"])


def test_many_small_objects_are_fetched_at_once_and_read_in_order(store: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for i in range(100):
        store.pipe_file(f"/r/many/{i:03d}.jsonl", b'{"text": "%d"}\n' % i)
    begun: list[str] = []
    ten = threading.Event()

    def fetch(file: RemoteFile) -> bytes:
        begun.append(file.url)
        if len(begun) >= 10:
            ten.set()
        assert ten.wait(300), "ten are never under way at the same time"
        return read_whole(file)

    monkeypatch.setattr(remote, "read_whole", fetch)
    sources = find_sources(["memory://r/many"])
    told: list[tuple[int, bytes]] = []
    blocks = read_blocks(sources, SourceOptions(), on_raw=lambda index, chunk: told.append((index, chunk)))
    texts = [text for raw in blocks for text in parse_block(raw, SourceOptions()).texts.texts()]
    assert texts == [str(i) for i in range(100)]
    assert told == [pair for i in range(100) for pair in ((i, b'{"text": "%d"}\n' % i), (i, b""))]


def test_whoever_stops_early_leaves_no_thread_behind(store: Any) -> None:
    for i in range(100):
        store.pipe_file(f"/r/many/{i:03d}.jsonl", b'{"text": "%d"}\n' % i)
    blocks = read_blocks(find_sources(["memory://r/many"]), SourceOptions(), block_bytes=10)
    next(iter(blocks))
    blocks.close()  # type: ignore[attr-defined]
    assert not [t for t in threading.enumerate() if t.name.startswith("tokenriver-small")]
