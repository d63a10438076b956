"""A loader over an object store: the same batches as from local files, whatever the order, the packing, the limit."""

from __future__ import annotations

import json
import os
import pickle
import signal
import threading
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import forked
import numpy as np
import pytest
from local_hub import LocalHub
from plain_server import files_over_http
from positions import write_data_set
from s3_server import Fault

from tokenriver import IntegrityError, Mixture, ResumeError, TrainLoader, UsageError, write_shard
from tokenriver.cache import keeper, objects
from tokenriver.cache.fetch import CachedShard, fetch
from tokenriver.cache.folder import CacheFolder
from tokenriver.cache.settings import cache_settings
from tokenriver.loader.many_reads import many_reads
from tokenriver.loader.order import ORDERS
from tokenriver.loader.source import resolve
from tokenriver.loader.trace import trace_step
from tokenriver.shards.index import index_shard

if TYPE_CHECKING:
    from s3_server import Bucket

SIZES = [1500, 2500, 1000, 0, 2000]
SHARD_BYTES = sum(1024 + 2 * n for n in SIZES)
OPTIONS: dict[str, Any] = {"batch_size": 8, "seq_len": 64}


pytestmark = pytest.mark.usefixtures("hurried")


@pytest.fixture
def local(tmp_path: Path) -> Path:
    return write_data_set(tmp_path / "data", SIZES, val=[700])


@pytest.fixture
def url(local: Path, s3: Bucket) -> str:
    return s3.put_folder(local, "sets/positions")


def with_documents(folder: Path, sizes: list[int], *, index: bool) -> Path:
    """A data set of documents of 7 to 90 tokens that begin with id 0."""
    write_data_set(folder, sizes, separator=0)
    rng = np.random.default_rng(1)
    for path in sorted(folder.glob("train-*.bin")):
        n = (path.stat().st_size - 1024) // 2
        ids = rng.integers(1, 60000, n)
        ids[np.unique(np.minimum(np.cumsum(rng.integers(7, 90, n)), n - 1))] = 0
        ids[:1] = 0
        write_shard(path, ids, variant="uint16")
        if index:
            index_shard(path, separator_id=0)
    rewrite_hashes(folder)
    return folder


def rewrite_hashes(folder: Path) -> None:
    from hashlib import sha256

    manifest = json.loads((folder / "_MANIFEST.json").read_text())
    for file in manifest["files"]:
        file["sha256"] = sha256((folder / file["name"]).read_bytes()).hexdigest()
    (folder / "_MANIFEST.json").write_text(json.dumps(manifest, indent=2) + "\n")


def assert_same(one: Any, other: Any) -> None:
    assert (one.epoch, one.step) == (other.epoch, other.step)
    for name in ("inputs", "targets", "mask", "cu_seqlens", "position_ids"):
        mine, theirs = getattr(one, name), getattr(other, name)
        assert (mine is None) == (theirs is None), name
        if mine is not None:
            assert np.array_equal(mine, theirs), name


def copied(batch: Any) -> Any:
    return batch.inputs.copy(), batch.targets.copy()


def bodies(s3: Bucket, pattern: str = r"\.bin$") -> int:
    """Bytes of objects that the store has sent, once for each call: a busy client may ask again by itself."""
    return sum({request.call or i: request.sent for i, request in enumerate(s3.server.requests(pattern))}.values())


def cached(tmp_path: Path, pattern: str = "*.bin") -> list[str]:
    return sorted(path.name for path in (tmp_path / "cache").glob(f"*/{pattern}"))


@pytest.mark.parametrize("limit", [None, "11kB", 0])
@pytest.mark.parametrize("order", ORDERS)
def test_batches_fingerprint_and_state_are_those_of_local_files(local: Path, url: str, order: Any, limit: Any) -> None:
    epochs = 1 if limit == 0 else 2
    here = TrainLoader(local, order=order, epochs=epochs, drop_last=False, **OPTIONS)
    there = TrainLoader(url, order=order, epochs=epochs, drop_last=False, cache_limit=limit, **OPTIONS)
    assert there.fingerprint == here.fingerprint
    for one, other in zip(here, there, strict=True):
        assert_same(one, other)
        assert here.state_dict() == there.state_dict()
    there.close()


@pytest.mark.parametrize("index", [True, False])
@pytest.mark.parametrize(("packing", "order"), [("best-fit", "shuffled"), ("bos-aligned", "sequential")])
def test_packed_batches_are_those_of_local_files(
    tmp_path: Path, s3: Bucket, packing: Any, order: Any, index: bool
) -> None:
    local = with_documents(tmp_path / "docs", [1500, 1000, 1250], index=index)
    url = s3.put_folder(local, "docs")
    for limit in (None, 0):
        options = {**OPTIONS, "packing": packing, "order": order, "epochs": 1, "window": 50, "cache_limit": limit}
        here, there = TrainLoader(local, **options), TrainLoader(url, **options)
        assert here.state_dict() == there.state_dict()
        for one, other in zip(here, there, strict=True):
            assert_same(one, other)
        there.close()


def test_a_run_moves_from_local_files_to_the_store_and_back(local: Path, url: str) -> None:
    expected = list(TrainLoader(local, epochs=1, **OPTIONS))
    loader: Any = TrainLoader(local, epochs=1, **OPTIONS)
    seen = []
    for place, count in ((local, 5), (url, 7), (local, 100)):
        state = loader.state_dict()
        loader = TrainLoader(place, epochs=1, **OPTIONS)
        loader.load_state_dict(state)
        seen += list(islice(loader, count))
    for one, other in zip(expected, seen, strict=True):
        assert_same(one, other)


def test_a_mixture_of_a_store_and_a_disk(tmp_path: Path, local: Path, url: str) -> None:
    other = write_data_set(tmp_path / "other", [2500, 2500])
    for order in ("sequential", "shuffled"):
        here = TrainLoader(Mixture({"a": (local, 0.7), "b": (other, 0.3)}), order=order, **OPTIONS)  # type: ignore[arg-type]
        there = TrainLoader(Mixture({"a": (url, 0.7), "b": (other, 0.3)}), order=order, **OPTIONS)  # type: ignore[arg-type]
        assert here.state_dict() == there.state_dict()
        for one, two in islice(zip(here, there, strict=True), 30):
            assert_same(one, two)
        there.close()


def test_batch_at_and_trace_read_ranges_and_fetch_nothing_whole(local: Path, url: str, tmp_path: Path) -> None:
    here, there = TrainLoader(local, **OPTIONS), TrainLoader(url, **OPTIONS)
    assert_same(here.batch_at(13), there.batch_at(13))
    assert str(trace_step(there, 3, rank=0)).replace(str(url), "") == str(trace_step(there, 3, rank=0)).replace(url, "")
    names = [part.shard.name for row in trace_step(here, 3) for part in row.parts]
    assert names == [part.shard.name for row in trace_step(there, 3) for part in row.parts]
    assert cached(tmp_path) == []


def test_in_order_every_byte_is_fetched_once(url: str, s3: Bucket) -> None:
    loader = TrainLoader(url, order="sequential", epochs=3, **OPTIONS)
    s3.server.mend()
    assert len(list(loader)) == 3 * loader.steps_per_epoch
    assert bodies(s3) == SHARD_BYTES
    s3.server.mend()
    assert len(list(TrainLoader(url, order="sequential", epochs=1, **OPTIONS))) == loader.steps_per_epoch
    assert bodies(s3) == 2 * 1024, "one header, and the empty shard's; the rest was in the cache"


def test_without_a_cache_a_shuffled_order_reads_no_more_than_its_rows(url: str, s3: Bucket, monkeypatch: Any) -> None:
    monkeypatch.setattr("tokenriver.loader.ranges._GAP", 0)
    loader = TrainLoader(url, epochs=1, cache_limit=0, **OPTIONS)
    s3.server.mend()
    n = len(list(loader)) * 8
    assert n * 64 * 2 <= bodies(s3) <= n * 65 * 2, "rows that happen to be neighbours share a token"


def test_the_limit_holds_while_shards_come_and_go(url: str, tmp_path: Path) -> None:
    loader = TrainLoader(url, order="sequential", epochs=2, cache_limit="11kB", **OPTIONS)
    room = CacheFolder(cache_settings())
    for _ in loader:
        with room.lock("room"):  # or one goes and another comes while they are counted
            sizes = [path.stat().st_size for path in (tmp_path / "cache").glob("*/*.bin")]
        assert sum(sizes) <= 11_000
    assert 1 <= len(cached(tmp_path)) < len(SIZES)
    loader.close()


def test_a_removed_file_of_the_cache_does_not_break_a_reader(local: Path, url: str, tmp_path: Path) -> None:
    pairs = zip(
        TrainLoader(local, order="sequential", epochs=2, **OPTIONS),
        TrainLoader(url, order="sequential", epochs=2, **OPTIONS),
        strict=True,
    )
    for k, (one, other) in enumerate(pairs):
        assert_same(one, other)
        if k % 10 == 3:
            for path in (tmp_path / "cache").glob("*/*.bin"):
                path.unlink()


@pytest.mark.skipif(many_reads() is None, reason="io_uring is missing or refused here")
def test_files_that_were_removed_from_the_cache_take_no_room_any_more(url: str, tmp_path: Path) -> None:
    loader = TrainLoader(url, prefetch=0, **OPTIONS)
    while not loader.reader.keeper.here.all():  # type: ignore[attr-defined]
        next(iter(loader))
    next(iter(loader))
    queue = loader.reader.at_once._idle[0]  # type: ignore[union-attr]
    assert queue._files is not None
    del queue
    for path in (tmp_path / "cache").glob("*/*.bin"):
        path.unlink()
    loader.reader._close_gone()  # type: ignore[attr-defined]
    names = [str(path.resolve()) for path in Path("/proc/self/fd").iterdir()]
    assert [name for name in names if "cache" in name and name.endswith(".bin (deleted)")] == []


@pytest.mark.parametrize("damage", ["write", "cut", "grow"])
def test_a_damaged_file_of_the_cache_is_fetched_again(local: Path, url: str, tmp_path: Path, damage: str) -> None:
    list(TrainLoader(url, order="sequential", epochs=1, **OPTIONS))
    for path in (tmp_path / "cache").glob("*/*.bin"):
        with open(path, "r+b") as file:
            if damage == "write":
                file.seek(1500)
                file.write(b"nonsense")
            else:
                file.truncate(path.stat().st_size + (-10 if damage == "cut" else 10))
    for order in ("sequential", "shuffled"):
        pairs = zip(
            TrainLoader(local, order=order, epochs=1, **OPTIONS),  # type: ignore[arg-type]
            TrainLoader(url, order=order, epochs=1, **OPTIONS),  # type: ignore[arg-type]
            strict=True,
        )
        for one, other in pairs:
            assert_same(one, other)


def test_a_file_damaged_while_it_is_read_is_noticed(local: Path, url: str, tmp_path: Path) -> None:
    pairs = zip(
        TrainLoader(local, order="sequential", epochs=1, prefetch=0, **OPTIONS),
        TrainLoader(url, order="sequential", epochs=1, prefetch=0, **OPTIONS),
        strict=True,
    )
    for k, (one, other) in enumerate(pairs):
        assert_same(one, other)
        if k == 0:
            for path in (tmp_path / "cache").glob("*/train-00000.bin"):
                with open(path, "r+b") as file:
                    file.write(bytes(5000))
            threading.Event().wait(0.002)  # a look at most every millisecond


def test_a_damaged_file_is_let_go_though_a_sound_one_has_its_name_by_now(local: Path, url: str, tmp_path: Path) -> None:
    here = iter(TrainLoader(local, order="sequential", epochs=1, prefetch=0, **OPTIONS))
    there = iter(TrainLoader(url, order="sequential", epochs=1, prefetch=0, **OPTIONS))
    assert_same(next(here), next(there))
    (path,) = (tmp_path / "cache").glob("*/train-00000.bin")
    sound, stat = path.read_bytes(), path.stat()
    with open(path, "r+b") as file:
        file.write(bytes(len(sound)))
    path.unlink()  # as another process does that noticed, and fetched it again
    path.write_bytes(sound)
    os.utime(path, ns=(stat.st_atime_ns, stat.st_mtime_ns))
    threading.Event().wait(0.002)  # a look at most every millisecond
    for one, other in zip(here, there, strict=True):
        assert_same(one, other)


@pytest.mark.parametrize(
    "fault",
    [Fault(status=503), Fault(status=500), Fault(cut=900), Fault(reset=900)],
    ids=["503", "500", "cut", "reset"],
)
def test_a_failing_store_is_asked_again_and_nothing_is_skipped(
    local: Path, url: str, impatient: Bucket, fault: Fault, caplog: pytest.LogCaptureFixture
) -> None:
    loader = TrainLoader(url, order="sequential", epochs=1, **OPTIONS)
    impatient.server.fail(r"train-0000[02]\.bin", *[fault] * 4)  # its client does not try again by itself
    for one, other in zip(TrainLoader(local, order="sequential", epochs=1, **OPTIONS), loader, strict=True):
        assert_same(one, other)
    assert "train-0000" in caplog.text
    assert "the next in" in caplog.text


def test_ranges_of_a_failing_store_are_asked_for_again(local: Path, url: str, s3: Bucket) -> None:
    loader = TrainLoader(url, epochs=1, cache_limit=0, **OPTIONS)
    s3.server.fail(r"\.bin", *[Fault(status=503), Fault(cut=10)] * 6)
    for one, other in zip(TrainLoader(local, epochs=1, **OPTIONS), loader, strict=True):
        assert_same(one, other)


def test_who_waits_for_a_slow_store_says_so(
    url: str, s3: Bucket, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(keeper, "_SAY_EVERY", 0.05)
    loader = TrainLoader(url, order="sequential", epochs=1, **OPTIONS)
    gate = threading.Event()
    s3.server.fail(r"train-00000\.bin", Fault(hold=gate))
    batches: list[Any] = []
    taker = threading.Thread(target=lambda: batches.extend(loader))
    taker.start()
    while "waiting for" not in caplog.text:
        gate.wait(0.01)
    gate.set()
    taker.join()
    assert len(batches) == loader.steps_per_epoch
    assert "0 B of 4.0 kB" in caplog.text


def test_what_no_patience_mends_is_raised_at_once(
    url: str, s3: Bucket, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    loader = TrainLoader(url, order="sequential", **OPTIONS)
    s3.server.fail(r"train-00000\.bin", Fault(status=403), always=True)
    with pytest.raises(PermissionError, match=r"train-00000\.bin"):
        next(iter(loader))
    s3.server.mend()
    assert next(iter(loader)).step == 0, "asked again, it tries again"
    loader.close()
    loader = TrainLoader(url, order="sequential", cache_dir=tmp_path / "another", **OPTIONS)
    monkeypatch.setattr(objects, "PATIENCE", 0.0)
    s3.server.fail(r"\.bin", Fault(status=503), always=True)
    with pytest.raises(OSError, match=r"train-0000\d\.bin.*the store failed"):
        next(iter(loader))
    loader.close()


def test_a_byte_that_arrives_wrong_once_is_fetched_again(local: Path, url: str, s3: Bucket) -> None:
    loader = TrainLoader(url, order="sequential", epochs=1, **OPTIONS)
    s3.server.fail(r"train-00001\.bin", Fault(flip=3333))
    for one, other in zip(TrainLoader(local, order="sequential", epochs=1, **OPTIONS), loader, strict=True):
        assert_same(one, other)


def test_a_byte_that_is_wrong_on_the_store_is_an_error_and_never_a_batch(
    local: Path, url: str, s3: Bucket, tmp_path: Path
) -> None:
    raw = bytearray((local / "train-00001.bin").read_bytes())
    raw[3333] ^= 1
    s3.put("sets/positions/train-00001.bin", bytes(raw))
    loader = TrainLoader(url, order="sequential", epochs=1, **OPTIONS)
    seen: list[Any] = []
    with pytest.raises(IntegrityError, match=r"sets/positions/train-00001\.bin: fetched twice, and its SHA-256"):
        seen.extend(map(copied, loader))
    assert len(seen) == (1500 - 1) // (8 * 64)
    assert all(np.array_equal(targets, inputs + 1) for inputs, targets in seen)
    assert "train-00001.bin" not in cached(tmp_path)
    assert cached(tmp_path, "train-00001.bin*") == []


def test_in_a_shuffled_order_the_wrong_byte_is_found_when_the_shard_is_whole(local: Path, url: str, s3: Bucket) -> None:
    raw = bytearray((local / "train-00001.bin").read_bytes())
    raw[3333] ^= 1
    s3.put("sets/positions/train-00001.bin", bytes(raw))
    with pytest.raises(IntegrityError, match=r"train-00001\.bin: fetched twice"):
        list(TrainLoader(url, epochs=20, **OPTIONS))


def test_a_manifest_that_changes_on_the_store_is_named(url: str, s3: Bucket, tmp_path: Path) -> None:
    loader = TrainLoader(url, order="sequential", **OPTIONS)
    other = write_data_set(tmp_path / "other", [n + 8 for n in SIZES], val=[700])
    s3.put_folder(other, "sets/positions")
    with pytest.raises(IntegrityError, match=r"sets/positions/_MANIFEST\.json: changed on the store"):
        next(iter(loader))
    with pytest.raises(ResumeError, match="the data changed"):
        TrainLoader(url, order="sequential", **OPTIONS).load_state_dict(loader.state_dict())


def test_a_manifest_written_again_with_the_same_bytes_changes_nothing(local: Path, url: str, s3: Bucket) -> None:
    loader = TrainLoader(url, order="sequential", epochs=1, **OPTIONS)
    s3.put("sets/positions/_MANIFEST.json", (local / "_MANIFEST.json").read_bytes())
    assert len(list(loader)) == loader.steps_per_epoch


def test_a_fetch_that_was_killed_goes_on_in_place(
    local: Path, url: str, s3: Bucket, tmp_path: Path, monkeypatch: Any
) -> None:
    monkeypatch.setattr("tokenriver.cache.fetch._CHUNK", 1000)
    monkeypatch.setattr("tokenriver.cache.fetch._AT_ONCE", 2)
    gate = threading.Event()
    s3.server.fail(r"train-00001\.bin", Fault(), Fault(), Fault(), Fault(), Fault(hold=gate))
    code = "import tokenriver.cache.fetch as f\nf._CHUNK, f._AT_ONCE = 1000, 2\nfrom tokenriver import TrainLoader\n"
    code += f"list(TrainLoader({url!r}, order='sequential', epochs=1, batch_size=8, seq_len=64))\n"
    first = (local / "train-00001.bin").read_bytes()[:4000]

    def begun() -> bool:
        parts = [path.read_bytes()[:4000] for path in (tmp_path / "cache").glob("*/train-00001.bin.*.part")]
        return parts == [first] and len(s3.server.requests(r"train-00001\.bin")) >= 5

    with forked.start(code) as child:
        while not begun():
            assert child.poll() is None, child.stderr
            gate.wait(0.01)
        child.kill()
        assert child.wait() == -signal.SIGKILL
    gate.set()
    parts = cached(tmp_path, "train-00001.bin.*.part")
    assert parts == ["train-00001.bin.6024.part"]
    s3.server.mend()
    loader = TrainLoader(url, order="sequential", epochs=1, **OPTIONS)
    assert len(list(loader)) == loader.steps_per_epoch
    ranges = sorted(str(request.range) for request in s3.server.requests(r"train-00001\.bin"))
    assert ranges[0] == "bytes=4000-4999"
    assert bodies(s3, r"train-00001\.bin") == 6024 - 4000


FOUR = """
import json
from tokenriver import TrainLoader
loader = TrainLoader({url!r}, order="sequential", epochs=2, batch_size=2, seq_len=64, rank={rank}, world_size=4)
print(json.dumps([[int(batch.inputs[0, 0]) for batch in loader], loader.fingerprint]))
"""


def test_four_processes_share_one_cache_and_fetch_each_shard_once(local: Path, url: str, s3: Bucket) -> None:
    children = [forked.start(FOUR.format(url=url, rank=rank)) for rank in range(4)]
    assert [child.wait() for child in children] == [0] * 4, [child.stderr for child in children]
    found = [tuple(json.loads(child.stdout)) for child in children]
    for child in children:
        child.close()
    for rank in range(4):
        expected = TrainLoader(local, order="sequential", epochs=2, batch_size=2, seq_len=64, rank=rank, world_size=4)
        assert found[rank] == ([int(batch.inputs[0, 0]) for batch in expected], expected.fingerprint)
    assert bodies(s3) == SHARD_BYTES + 4 * 2 * 1024, "and each process has read one header, and the empty shard's"


def test_a_loader_is_pickled_and_forked_with_its_cache(local: Path, url: str) -> None:
    there = TrainLoader(url, order="sequential", epochs=1, **OPTIONS)
    first = next(iter(there))
    again = pickle.loads(pickle.dumps(there))
    assert_same(again.batch_at(0), first)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        batches = [int(batch.inputs[0, 0]) for batch in again]
        os.write(write, repr(batches).encode())
        os._exit(0)
    os.waitpid(child, 0)
    seen = os.read(read, 1 << 16).decode()
    os.close(read)
    os.close(write)
    expected = TrainLoader(local, order="sequential", epochs=1, **OPTIONS)
    next(iter(expected))
    assert seen == repr([int(batch.inputs[0, 0]) for batch in expected])


def test_a_data_set_without_a_manifest_is_known_by_samples(local: Path, s3: Bucket, tmp_path: Path) -> None:
    for k in (0, 1, 4):
        raw = (local / f"train-{k:05d}.bin").read_bytes()
        s3.put(f"golf/fineweb_train_{k:06d}.bin", raw)
        (tmp_path / "golf").mkdir(exist_ok=True)
        (tmp_path / "golf" / f"fineweb_train_{k:06d}.bin").write_bytes(raw)
    with pytest.raises(IntegrityError, match="jump from 000001 to 000004"):
        TrainLoader(f"{s3.url}/golf", **OPTIONS)
    pattern = "golf/fineweb_train_*.bin"
    here = TrainLoader(str(tmp_path / pattern), epochs=1, **OPTIONS)
    for source in (f"{s3.url}/{pattern}", [f"{s3.url}/golf/fineweb_train_{k:06d}.bin" for k in (0, 1, 4)]):
        there = TrainLoader(source, epochs=1, **OPTIONS)
        assert "content=sample:" in there.fingerprint
        assert there.fingerprint == here.fingerprint
        for one, other in zip(here, there, strict=True):
            assert_same(one, other)
        here.epoch = here.step = 0
    assert (
        TrainLoader(source, verify=True, **OPTIONS).fingerprint
        == TrainLoader(here.data.shards[0].path.parent.as_posix() + "/*.bin", verify=True, **OPTIONS).fingerprint
    )


def test_sources_that_cannot_be_are_named(url: str, s3: Bucket, local: Path) -> None:
    for source, message in (
        (f"{s3.url}/nowhere", "nowhere: no such data set"),
        (f"{s3.url}/sets/*.bin", "no object matches"),
        (f"{s3.url}/sets/positions/train-00099.bin", "train-00099.bin: no such"),
        ([url + "/train-00000.bin"] * 2, "is listed twice"),
    ):
        with pytest.raises(UsageError, match=message):
            TrainLoader(source, **OPTIONS)
    with pytest.raises(UsageError, match="cache_limit is a number of bytes"):
        TrainLoader(url, cache_limit="much", **OPTIONS)
    s3.delete("sets/positions/train-00001.bin")
    with pytest.raises(IntegrityError, match=r"train-00001\.bin is missing \(1 of the manifest's 5 train shards\)"):
        TrainLoader(url, **OPTIONS)
    s3.put("sets/positions/train-00001.bin", (local / "train-00000.bin").read_bytes())
    with pytest.raises(IntegrityError, match=r"1,500 ids, but .*_MANIFEST\.json says 2,500"):
        TrainLoader(url, **OPTIONS)


def test_ids_of_two_widths_are_read_as_local_ones(tmp_path: Path, s3: Bucket) -> None:
    local = write_data_set(tmp_path / "wide", [2000, 1500, 1000], variants=("uint16", "uint32"))
    url = s3.put_folder(local, "wide")
    for order in ("sequential", "shuffled"):
        for limit in (None, 0):
            here = TrainLoader(local, order=order, epochs=1, **OPTIONS)  # type: ignore[arg-type]
            there = TrainLoader(url, order=order, epochs=1, cache_limit=limit, **OPTIONS)  # type: ignore[arg-type]
            assert here.fingerprint == there.fingerprint
            for one, other in zip(here, there, strict=True):
                assert_same(one, other)


def test_a_full_disk_is_a_clear_error(url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    loader = TrainLoader(url, order="sequential", cache_limit="1GB", **OPTIONS)
    usage = type("Usage", (), {"total": 10**9, "free": 3000})
    monkeypatch.setattr("tokenriver.cache.folder.shutil.disk_usage", lambda _: usage)
    with pytest.raises(OSError, match=r"the disk has 3\.0 kB left, 4\.0 kB are needed; make room there"):
        next(iter(loader))


def test_hashes_are_checked_again_with_verify(local: Path, url: str, s3: Bucket) -> None:
    list(TrainLoader(url, order="sequential", epochs=1, **OPTIONS))
    s3.server.mend()
    assert TrainLoader(url, verify=True, **OPTIONS).fingerprint == TrainLoader(local, **OPTIONS).fingerprint
    assert bodies(s3) == 2 * 1024, "beside headers: of what is cached the cached bytes are hashed"


def test_a_stranger_in_the_cache_is_not_taken_for_a_shard(url: str, local: Path) -> None:
    data = resolve(url, split="train")
    shard = data.shards[1]
    assert shard.origin is not None
    cached_shard = CachedShard(shard.origin, shard.path.name, shard.header.file_bytes, shard.sha256)
    cached_shard.path.parent.mkdir(parents=True)
    cached_shard.path.write_bytes(bytes(shard.header.file_bytes))
    assert not cached_shard.is_whole()
    assert fetch(cached_shard, stopped=threading.Event())
    assert cached_shard.path.read_bytes() == (local / "train-00001.bin").read_bytes()


def test_other_stores_than_s3_and_file_urls(local: Path, tmp_path: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in local.iterdir():
        memory.pipe_file(f"/{tmp_path.name}/{path.name}", path.read_bytes())
    here = TrainLoader(local, epochs=1, order="sequential", **OPTIONS)
    for url in (f"memory://{tmp_path.name}", f"file://{local}"):
        there = TrainLoader(url, epochs=1, order="sequential", **OPTIONS)
        assert there.fingerprint == here.fingerprint
        for one, other in zip(here, there, strict=True):
            assert_same(one, other)
        here.epoch = here.step = 0


def test_a_web_server_that_lists_nothing_has_single_shards_and_manifests(local: Path) -> None:
    with LocalHub() as server:
        server.add_folder("me/set", local)
        web = f"{server.url}/datasets/me/set/resolve/main"
        for name in ("train-00001.bin", "_MANIFEST.json"):
            here = TrainLoader(local / name, epochs=1, **OPTIONS)
            there = TrainLoader(f"{web}/{name}", epochs=1, **OPTIONS)
            assert there.fingerprint == here.fingerprint
            for one, other in zip(here, there, strict=True):
                assert_same(one, other)
        with pytest.raises(UsageError, match=r"none\.bin: no such data set directory, manifest or shard"):
            TrainLoader(f"{web}/none.bin", **OPTIONS)


@pytest.mark.parametrize("pattern", ["train-0000?.bin", "train-0000[12].bin", "train-00001*"])
def test_every_pattern_of_paths_is_one_of_urls(local: Path, url: str, pattern: str) -> None:
    here, there = (TrainLoader(f"{root}/{pattern}", epochs=1, **OPTIONS) for root in (local, url))
    assert there.fingerprint == here.fingerprint


def test_a_web_server_without_ranges_is_an_error(local: Path) -> None:
    with (
        files_over_http(local) as web,
        pytest.raises(OSError, match=r"the server knows no ranges \(.*\); download the files$"),
    ):
        TrainLoader(web, **OPTIONS)
