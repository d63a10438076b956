"""One data set in the place of another in a store: the old one until the new one is whole, whatever happens."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import fsspec
import pytest

from tokenriver.errors import IntegrityError
from tokenriver.resuming import swap as swap_module
from tokenriver.resuming.swap import Swap
from tokenriver.storage.directory import RemoteDirectory

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from s3_server import Bucket

OLD = {"a.bin": b"old a", "b.bin": b"old b, longer", "c.bin": b"old c", "_FACTS": b"old", "_MANIFEST": b"old abc"}
NEW = {"a.bin": b"new a", "b.bin": b"new b", "_FACTS": b"new", "_MANIFEST": b"new ab"}


@pytest.fixture
def store() -> Iterator[Any]:
    """A store in memory with the old data set, and something else beside it."""
    memory = fsspec.filesystem("memory")
    for name, body in {**OLD, "other": b"stays"}.items():
        memory.pipe_file(f"/swap/set/{name}", body)
    yield memory
    memory.rm("/swap", recursive=True)


def objects(store: Any) -> dict[str, bytes]:
    return {path.removeprefix("/swap/set/"): store.cat_file(path) for path in store.find("/swap/set")}


def ours(name: str) -> bool:
    return name.endswith(".bin")


def new_set(tmp_path: Path) -> tuple[Swap, list[Path]]:
    """A swap whose objects are all below the prefix, and the records that are still here."""
    (tmp_path / "staging").mkdir()
    swap = Swap(RemoteDirectory("memory://swap/set"), tmp_path / "staging" / "_OVERWRITE")
    swap.prepare()
    for name in ("a.bin", "b.bin"):
        (tmp_path / name).write_bytes(NEW[name])
        swap.anew.put(tmp_path / name)
    records = []
    for name in ("_FACTS", "_MANIFEST"):
        records.append(tmp_path / name)
        records[-1].write_bytes(NEW[name])
    return swap, records


def test_the_old_stays_until_the_new_is_all_there(store: Any, tmp_path: Path) -> None:
    swap, records = new_set(tmp_path)
    assert {**OLD, "other": b"stays"}.items() <= objects(store).items()
    assert swap.under_way
    assert not swap.begun
    swap.begin(["a.bin", "b.bin"])
    assert swap.begun
    swap.end(records, ours=ours)
    assert objects(store) == {**NEW, "other": b"stays"}
    assert not swap.under_way


def test_what_is_dropped_leaves_the_old_as_it_was(store: Any, tmp_path: Path) -> None:
    swap, _ = new_set(tmp_path)
    swap.drop()
    assert objects(store) == {**OLD, "other": b"stays"}
    assert not swap.under_way


def test_an_object_that_is_missing_stops_it_before_the_old_is_touched(store: Any, tmp_path: Path) -> None:
    swap, _ = new_set(tmp_path)
    with pytest.raises(IntegrityError, match=r"_OVERWRITE/c\.bin: it was uploaded and is not there"):
        swap.begin(["a.bin", "c.bin"])
    assert OLD.items() <= objects(store).items()


@pytest.mark.parametrize("done", [False, True])
@pytest.mark.parametrize("at", range(1, 12))
def test_cut_at_any_step_it_is_ended_by_the_next_call(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, at: int, done: bool
) -> None:
    swap, records = new_set(tmp_path)
    swap.begin(["a.bin", "b.bin"])
    steps = [0]

    def cut(owner: Any, name: str, patches: pytest.MonkeyPatch) -> None:
        real = getattr(owner, name)

        def step(*words: Any, **more: Any) -> Any:
            steps[0] += 1
            result = real(*words, **more) if steps[0] != at or done else None
            if steps[0] == at:
                raise KeyboardInterrupt
            return result

        patches.setattr(owner, name, step)

    with monkeypatch.context() as patches:
        patches.setattr(swap_module, "_AT_ONCE", 1)
        cut(RemoteDirectory, "put", patches)
        cut(RemoteDirectory, "remove", patches)
        cut(RemoteDirectory, "list", patches)
        cut(swap_module, "copy_object", patches)
        with pytest.raises(KeyboardInterrupt):
            swap.end(records, ours=ours)
    there = objects(store)
    assert (there.get("_MANIFEST") == OLD["_MANIFEST"]) == (at == 1 and not done), "the old manifest goes first"
    if "_MANIFEST" in there and at > 1:
        assert there == {**NEW, "other": b"stays"}, "the new one comes last"
    assert swap.begun
    swap.end(records, ours=ours)
    assert objects(store) == {**NEW, "other": b"stays"}
    assert not swap.under_way


def test_a_client_that_knows_no_copying_sends_the_bytes_through_here(
    store: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cp_file(*_: Any) -> None:
        raise NotImplementedError

    monkeypatch.setattr(type(store), "cp_file", cp_file)
    swap, records = new_set(tmp_path)
    swap.begin(["a.bin", "b.bin"])
    swap.end(records, ours=ours)
    assert objects(store) == {**NEW, "other": b"stays"}


def test_large_objects_are_copied_in_parts_by_the_server(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    import s3fs.core

    from tokenriver.storage.objects import find_object
    from tokenriver.storage.uploading import copy_object

    monkeypatch.setattr(s3fs.core, "MANAGED_COPY_THRESHOLD", 1 << 20)  # it is 5 GB
    body = bytes(range(256)) * 8192
    source = find_object(s3.put("a/x.bin", body))
    assert source is not None
    s3.server.mend()
    assert copy_object(source, f"{s3.url}/b/x.bin").n_bytes == len(body)
    assert s3.get("b/x.bin") == body
    assert [r.copy_of for r in s3.server.requests("b/x.bin", "PUT")] == [f"{s3.name}/a/x.bin"]
    assert not any(r.sent > 1000 for r in s3.server.requests("a/x.bin"))
    assert not s3.server.uploads_under_way(s3.name)
