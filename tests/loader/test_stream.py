"""Reading tokens: across shards, past 2 GiB, in flat memory, and from files that change under the reader."""

from __future__ import annotations

import errno
import os
import pickle
import subprocess
import sys
from collections.abc import Callable, Sequence
from itertools import islice
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from packing_cases import write_documents
from positions import write_data_set

from tokenriver import IntegrityError, TrainLoader, write_shard
from tokenriver.loader import range_reader
from tokenriver.loader.order import ORDERS
from tokenriver.loader.rows import Rows
from tokenriver.loader.source import resolve
from tokenriver.loader.stream import TokenReader
from tokenriver.shards.header import ShardHeader

DataSet = Callable[..., Path]


def reader_of(root: Path, **options: int) -> TokenReader:
    return TokenReader(resolve(root, split="train").shards, **options)


@pytest.mark.parametrize("variants", [["uint16"], ["uint16", "uint32"]])
def test_any_range_is_read_across_empty_and_tiny_shards(data_set: DataSet, variants: list[str]) -> None:
    reader = reader_of(data_set([5, 0, 1, 1, 0, 30, 2, 0], variants=variants), max_open=2)
    for start in range(40):
        for stop in range(start, 40):
            out = np.empty(stop - start, reader.dtype)
            reader.read(start, out)
            assert out.tolist() == list(range(start, stop))
            spans = reader.spans(start, stop)
            assert sum(span.stop - span.start for span in spans) == stop - start
    rows = Rows(36, 4, reader.dtype)
    reader.read_rows(np.arange(36), rows)
    assert np.array_equal(rows.array, np.arange(36)[:, None] + np.arange(4))
    with pytest.raises(IndexError):
        reader.read(38, np.empty(3, reader.dtype))


def test_no_more_descriptors_are_open_than_allowed(data_set: DataSet) -> None:
    reader = reader_of(data_set([10] * 30), max_open=4)
    rows = Rows(25, 3, reader.dtype)
    reader.read_rows(np.arange(25) * 11, rows)
    assert rows.array[:, 0].tolist() == [11 * k for k in range(25)]
    assert len(reader._open) <= 4
    copy = pickle.loads(pickle.dumps(reader))
    reader.close()
    assert not reader._open
    copy.read_rows(np.arange(3), rows)
    assert rows.array[2].tolist() == [2, 3, 4]


@pytest.mark.parametrize(("variant", "dtype", "at"), [("uint16", "<u2", 2**30 + 10), ("uint32", "<u4", 2**30 + 10)])
def test_offsets_past_two_and_four_gib_are_right(tmp_path: Path, variant: str, dtype: str, at: int) -> None:
    header = ShardHeader(variant, 2**30 + 4096, 0)  # type: ignore[arg-type]
    path = tmp_path / "sparse.bin"
    with path.open("wb") as file:
        file.write(header.to_bytes())
        file.truncate(header.file_bytes)
        file.seek(1024 + at * header.dtype.itemsize)
        file.write(np.array([7, 8, 9], dtype).tobytes())
    reader = reader_of(path)
    out = np.empty(3, dtype)
    reader.read(at, out)
    assert out.tolist() == [7, 8, 9]
    rows = Rows(2, 3, reader.dtype)
    reader.read_rows(np.array([at, 0]), rows)
    assert rows.array.tolist() == [[7, 8, 9], [0, 0, 0]]


def test_memory_stays_flat_over_more_data_than_it_may_take(tmp_path: Path) -> None:
    """Rows all over 2 GiB of (sparse) shard; resident memory, pages of mapped files included, hardly grows."""
    header = ShardHeader("uint16", 2**30, 0)
    path = tmp_path / "sparse.bin"
    with path.open("wb") as file:
        file.write(header.to_bytes())
        file.truncate(header.file_bytes)
    code = f"""
import psutil, sys
from itertools import islice
from tokenriver import TrainLoader
loader = TrainLoader({str(path)!r}, batch_size=64, seq_len=1024)
batches = iter(loader)
next(batches)
before = psutil.Process().memory_info().rss
for batch in islice(batches, 1500):
    pass
print(psutil.Process().memory_info().rss - before)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert int(done.stdout) < 20 << 20


def test_a_shard_cut_short_under_a_running_loader_is_an_error_and_not_a_dead_process(tmp_path: Path) -> None:
    root = write_data_set(tmp_path / "data", [200_000, 200_000])
    code = f"""
import os
from tokenriver import IntegrityError, TrainLoader
loader = TrainLoader({str(root)!r}, batch_size=8, seq_len=128, seed=1)
batches = iter(loader)
for _ in range(20):
    next(batches)
os.truncate({str(root / "train-00001.bin")!r}, 5000)
try:
    for _ in range(1000):
        next(batches)
except IntegrityError as error:
    print(error)
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert done.returncode == 0, done
    assert "train-00001.bin: cut short from 801,024 to 5,000 bytes" in done.stdout


def test_shards_cut_short_while_rows_are_being_read_never_kill_the_process(tmp_path: Path) -> None:
    """The cut falls at any moment of a loader that reads flat out: a memory map would die of SIGBUS here."""
    root = write_data_set(tmp_path / "data", [300_000] * 3)
    code = f"""
import os, threading
from tokenriver import IntegrityError, TrainLoader
path = {str(root / "train-00002.bin")!r}
size = os.path.getsize(path)
for attempt in range(12):
    os.truncate(path, size)
    loader = TrainLoader({str(root)!r}, batch_size=32, seq_len=256, seed=attempt, prefetch=attempt % 3)
    batches = iter(loader)
    next(batches)
    cutter = threading.Timer(attempt * 0.0007, os.truncate, (path, 2000))
    cutter.start()
    try:
        while True:
            next(batches)
    except IntegrityError as error:
        assert "train-00002.bin" in str(error), error
    cutter.join()
print("alive")
"""
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=False,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )
    assert (done.returncode, done.stdout) == (0, "alive\n"), done


def draw_all(loader: TrainLoader) -> None:
    for _ in islice(loader, 2000):
        pass


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_shard_replaced_rewritten_or_grown_meanwhile_is_an_error_that_names_it(tmp_path: Path, prefetch: int) -> None:
    def renamed_over(path: Path) -> None:
        write_shard(path, np.zeros(5000, np.uint16))

    def written_in_place(path: Path) -> None:
        with path.open("r+b") as file:
            file.seek(4000)
            file.write(bytes(100))

    def grown(path: Path) -> None:
        with path.open("ab") as file:
            file.write(bytes(2))

    cases = [(renamed_over, "replaced"), (written_in_place, "written to"), (grown, "grown from"), (Path.unlink, "gone")]
    for change, message in cases:
        root = write_data_set(tmp_path / change.__name__, [5000, 5000])
        loader = TrainLoader(root, batch_size=4, seq_len=16, prefetch=prefetch)
        list(islice(loader, 5))
        change(root / "train-00000.bin")
        with pytest.raises(IntegrityError, match=rf"train-00000\.bin: .*{message}"):
            draw_all(loader)


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="there are no named pipes here")
def test_a_pipe_in_the_place_of_a_shard_is_an_error_and_not_waited_for(tmp_path: Path) -> None:
    loader = TrainLoader(write_data_set(tmp_path / "data", [500, 500]), batch_size=4, seq_len=16, prefetch=0)
    (tmp_path / "data" / "train-00001.bin").unlink()
    os.mkfifo(tmp_path / "data" / "train-00001.bin")
    with pytest.raises(IntegrityError, match=r"train-00001\.bin: cut short from 2,024 to 0 bytes"):
        draw_all(loader)
    assert all(os.get_blocking(shard.descriptor) for shard in loader.reader._open.values())


def test_without_preadv_the_same_tokens_are_read(data_set: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(range_reader, "_preadv", range_reader.seek_and_read)
    monkeypatch.setattr(range_reader, "many_reads", lambda: None)
    loader = TrainLoader(data_set([500, 300], variants=["uint16", "uint32"]), batch_size=2, seq_len=7, epochs=1)
    starts = np.concatenate([batch.inputs[:, 0] for batch in loader])
    assert sorted(starts.tolist()) == [7 * i for i in range(114)]


def test_a_read_that_comes_back_short_is_asked_for_again(data_set: DataSet, monkeypatch: pytest.MonkeyPatch) -> None:
    whole = range_reader._preadv

    def half(descriptor: int, buffers: Sequence[memoryview], offset: int) -> int:
        return whole(descriptor, [buffers[0][: max(1, len(buffers[0]) // 2)]], offset)

    monkeypatch.setattr(range_reader, "_preadv", half)
    monkeypatch.setattr(range_reader, "many_reads", lambda: None)
    for order in ORDERS:
        loader = TrainLoader(data_set([500]), batch_size=8, seq_len=7, epochs=1, order=order, drop_last=False)
        starts = np.concatenate([b.inputs[:, 0] if b.mask is None else b.inputs[b.mask[:, 0], 0] for b in loader])
        assert sorted(starts.tolist()) == [7 * i for i in range(71)]


@pytest.mark.parametrize(
    ("order", "packing"),
    [*((order, "concat") for order in ORDERS), ("sequential", "best-fit"), ("shuffled", "best-fit")],
)
def test_a_disk_that_fails_is_an_error_that_names_the_shard_and_where_it_answers_again_the_loader_goes_on(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, order: str, packing: str
) -> None:
    (_, damaged), _ = write_documents(tmp_path, [50] * 40, shards=2)
    options: dict[str, Any] = {"batch_size": 4, "seq_len": 8, "order": order, "packing": packing, "epochs": 1}
    expected = [batch.inputs.tolist() for batch in TrainLoader(tmp_path, **options)]
    monkeypatch.setattr(range_reader, "many_reads", lambda: None)
    fails, bad = [True], damaged.stat().st_ino

    def failing(call: Callable[..., Any]) -> Callable[..., Any]:
        def read(descriptor: int, *rest: Any) -> Any:
            if fails and os.fstat(descriptor).st_ino == bad:
                raise OSError(errno.EIO, os.strerror(errno.EIO))
            return call(descriptor, *rest)

        return read

    for name in ("_pread", "_preadv"):
        monkeypatch.setattr(range_reader, name, failing(getattr(range_reader, name)))
    batches, got = iter(TrainLoader(tmp_path, **options)), []
    with pytest.raises(OSError, match="Input/output error") as found:
        got.extend(batch.inputs.tolist() for batch in batches)  # keeps those before the error
    assert found.value.errno == errno.EIO
    assert found.value.filename == str(damaged)
    assert len(got) < len(expected)
    fails.clear()
    got += [batch.inputs.tolist() for batch in batches]
    assert got == expected


def test_a_file_that_opens_but_cannot_be_read_is_named(tmp_path: Path) -> None:
    memory = Path("/proc/self/mem")  # nothing is at its beginning
    if not memory.exists():
        pytest.skip("no such file here")
    (tmp_path / "a.bin").symlink_to(memory)
    with pytest.raises(OSError, match="Input/output error") as found:
        TrainLoader(tmp_path / "a.bin", batch_size=1, seq_len=8)
    assert found.value.filename == str(tmp_path / "a.bin")
