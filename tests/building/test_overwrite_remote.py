"""`--overwrite` behind a URL: the data set that is there stays whole until the new one is, and a kill costs nothing."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import forked
import pytest
from made_documents import make_texts, write_jsonl
from s3_server import Fault

import tokenriver
from tokenriver.errors import CorpusError, IntegrityError, StorageError
from tokenriver.resuming import swap

if TYPE_CHECKING:
    from pathlib import Path

    from s3_server import Bucket

LAYOUTS = ["tokens", "llmc", "golf"]


pytestmark = pytest.mark.usefixtures("staging")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "old.jsonl", make_texts(50))


@pytest.fixture
def new(tmp_path: Path) -> Path:
    return write_jsonl(tmp_path / "new.jsonl", make_texts(60, seed=2))


def words_of(layout: str) -> dict[str, Any]:
    words: dict[str, Any] = {"tokenizer": "byte260", "layout": layout, "shard_tokens": 5000, "dataset": "d"}
    if layout == "golf":
        del words["dataset"]
    return words


def build(source: Path, out: Path | str, layout: str = "tokens", **words: Any) -> tokenriver.BuildSummary:
    return tokenriver.build(source, out=out, **words_of(layout), **words)


def there(s3: Bucket) -> dict[str, bytes]:
    """Every object but the build record, by its last name; none is below another prefix than the data set's."""
    keys = [key for key in s3.names("out") if not key.endswith("_BUILD.json")]
    assert not [key for key in keys if "_OVERWRITE" in key]
    return {key.rpartition("/")[2]: s3.get(key) for key in keys}


def files(directory: Path) -> dict[str, bytes]:
    return {p.name: p.read_bytes() for p in directory.iterdir() if not p.name.endswith("_BUILD.json")}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_the_new_data_set_is_what_a_fresh_build_makes_and_the_store_copies_it(
    s3: Bucket, old: Path, new: Path, tmp_path: Path, staging: Path, layout: str
) -> None:
    first = build(old, f"{s3.url}/out", layout, doc_index=True)
    shard = str(first.directory).removeprefix(f"{s3.url}/") + "/" + first.files[0].name
    s3.server.mend()
    s3.put("out/other.txt", b"stays")
    done = build(new, f"{s3.url}/out", layout, doc_index=True, overwrite=True)
    fresh = build(new, tmp_path / "fresh", layout, doc_index=True)
    assert not [r for r in s3.server.requests(f"{shard}$") if r.sent], "no bytes of a shard came here"
    assert there(s3) == {**files(fresh.directory), "other.txt": b"stays"}
    assert tokenriver.verify(f"{s3.url}/out").ok
    assert not done.resumed
    puts = [(r.path.rpartition("/")[2], r.copy_of) for r in s3.server.requests("/out/", "PUT")]
    copied = {name for name, source in puts if source}
    assert copied == {name for name in files(fresh.directory) if ".bin" in name}
    last = puts[-2:] if layout != "tokens" else puts[-3:]
    assert [name.rpartition("_")[2] for name, _ in last][-1] == (
        "BUILD.json" if layout != "tokens" else "MANIFEST.json"
    )
    assert not any(source for _, source in last)
    assert not list(staging.glob("*"))


@pytest.mark.parametrize("layout", ["tokens", "llmc"])
def test_a_bad_record_in_the_new_input_leaves_the_old_data_set(
    s3: Bucket, old: Path, new: Path, staging: Path, layout: str
) -> None:
    build(old, f"{s3.url}/out", layout)
    before = there(s3)
    good = new.read_bytes()
    new.write_bytes(good + b"no json\n")
    with pytest.raises(CorpusError):
        build(new, f"{s3.url}/out", layout, overwrite=True)
    assert (
        before.items() <= {key.rpartition("/")[2]: s3.get(key) for key in s3.names("out") if "_OVER" not in key}.items()
    )
    assert tokenriver.verify(f"{s3.url}/out").ok
    new.write_bytes(good)
    assert not build(new, f"{s3.url}/out", layout, overwrite=True).resumed
    assert there(s3) != before
    assert not list(staging.glob("*"))


def test_a_record_that_the_new_data_set_has_not_goes(old: Path, new: Path, tmp_path: Path, staging: Path) -> None:
    import fsspec

    store = fsspec.filesystem("memory")
    url = "memory://overwrite/out"
    build(old, url)
    assert store.exists("/overwrite/out/tokens/byte260/d/_CORPUS.json")
    tokenriver.write_corpus([new], tmp_path / "corpus")
    build(tmp_path / "corpus", url, overwrite=True)
    fresh = build(tmp_path / "corpus", tmp_path / "fresh")
    names = {path.rpartition("/")[2] for path in store.find("/overwrite/out")}
    assert names == {path.name for path in fresh.directory.iterdir()}
    assert not list(staging.glob("*"))
    store.rm("/overwrite", recursive=True)


STEPS = """
from tokenriver.building import journal, target
from tokenriver.resuming import swap
from tokenriver.storage import directory
"""

BEFORE = "journal.Journal, 'record', 2"
WITHIN = {
    "after a few copies": "swap, 'copy_object', 3",
    "before the new manifest": "directory.RemoteDirectory, 'put', before=True, about='_MANIFEST'",
    "before the journal goes": "target.Target, 'publish_records'",
}


def killed(source: Path, s3: Bucket, kill: str, layout: str = "tokens") -> None:
    """An overwriting build that SIGKILL ends at that step."""
    call = f"tokenriver.build({str(source)!r}, out={f'{s3.url}/out'!r}, overwrite=True, **{words_of(layout)!r})"
    forked.killed(f"{STEPS}kill_at({kill})\n{call}")


def test_killed_before_the_swap_the_old_is_whole_and_the_same_command_goes_on(
    s3: Bucket, old: Path, new: Path, tmp_path: Path, staging: Path
) -> None:
    first = build(old, tmp_path / "old")
    build(old, f"{s3.url}/out")
    killed(new, s3, BEFORE)
    kept = {key.rpartition("/")[2]: s3.get(key) for key in s3.names("out") if "_OVERWRITE" not in key}
    assert files(first.directory).items() <= kept.items()
    assert tokenriver.verify(f"{s3.url}/out").ok
    with pytest.raises(IntegrityError, match="holds a finished data set already"):
        build(new, f"{s3.url}/out")
    s3.server.mend()
    assert build(new, f"{s3.url}/out", overwrite=True).resumed
    assert not s3.server.requests(r"_OVERWRITE/train-00000\.bin$", "PUT"), "what was there is not uploaded again"
    assert there(s3) == files(build(new, tmp_path / "fresh").directory)
    assert not list(staging.glob("*"))


@pytest.mark.parametrize("step", WITHIN)
def test_killed_within_the_swap_it_is_ended_by_the_next_run(
    s3: Bucket, old: Path, new: Path, tmp_path: Path, staging: Path, step: str
) -> None:
    build(old, f"{s3.url}/out")
    killed(new, s3, WITHIN[step])
    s3.server.mend()
    done = build(new, f"{s3.url}/out", overwrite=True)
    assert done.resumed
    fresh = build(new, tmp_path / "fresh")
    assert there(s3) == files(fresh.directory)
    assert done.files == fresh.files
    assert not [r for r in s3.server.requests(r"\.bin$", "PUT") if not r.copy_of], "nothing is made again"
    assert not list(staging.glob("*"))


def stopped_after_copies(source: Path, s3: Bucket, layout: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An overwriting build that is interrupted in its swap, after a few copies."""
    real, copied = swap.copy_object, []

    def copy(*words: Any) -> Any:
        if len(copied) == 2:
            raise KeyboardInterrupt
        copied.append(words)
        return real(*words)

    with monkeypatch.context() as patches:
        patches.setattr(swap, "_AT_ONCE", 1)
        patches.setattr(swap, "copy_object", copy)
        with pytest.raises(KeyboardInterrupt):
            build(source, f"{s3.url}/out", layout, overwrite=True)


@pytest.mark.parametrize("layout", ["llmc", "golf"])
def test_a_swap_of_the_other_layouts_is_ended_by_the_next_run_too(
    s3: Bucket, old: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, layout: str
) -> None:
    build(old, f"{s3.url}/out", layout)
    stopped_after_copies(new, s3, layout, monkeypatch)
    assert not [key for key in s3.names("out") if key.endswith("_BUILD.json")]
    assert build(new, f"{s3.url}/out", layout).resumed, "whether or not --overwrite is given: the old is gone"
    assert there(s3) == files(build(new, tmp_path / "fresh", layout).directory)


def test_other_options_after_a_kill_end_the_swap_and_then_replace_it(
    s3: Bucket, old: Path, new: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    build(old, f"{s3.url}/out")
    stopped_after_copies(new, s3, "tokens", monkeypatch)
    done = build(new, f"{s3.url}/out", split="train", overwrite=True)
    assert not done.resumed
    assert there(s3) == files(build(new, tmp_path / "fresh", split="train").directory)


def test_a_store_that_fails_in_the_middle_of_the_copies_costs_nothing(
    impatient: Bucket, old: Path, new: Path, tmp_path: Path
) -> None:
    build(old, f"{impatient.url}/out")
    impatient.server.fail(r"/d/train-00001\.bin$", Fault(status=500), method="PUT")
    with pytest.raises(StorageError, match="the store failed"):
        build(new, f"{impatient.url}/out", overwrite=True)
    assert build(new, f"{impatient.url}/out").resumed
    assert there(impatient) == files(build(new, tmp_path / "fresh").directory)
