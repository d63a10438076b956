"""How fast batches are made, beside a bare loop over a memory map and nanoGPT's way: ratios within one run.

    python benchmarks/loader.py [--directory DIR] [--gigabytes 1.2] [--rounds 7] [--json FILE]

The contenders take turns, round after round, so that a slower minute of the machine hits all of them; a figure is
the median over the rounds. The page cache is warm, and as a writer leaves it, in large pieces: the shards are written
anew. What was dropped and then read back at random lies in pages of 4 kB, and a read of 1 kB takes 1.5 times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver import TrainLoader, write_shard
from tokenriver.loader.order import permute

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

B, T = 64, 1024
SHARD_TOKENS = 100_000_000
VOCAB = 50_257


def make_shards(directory: Path, gigabytes: float) -> list[Path]:
    """Shards of random uint16 ids, 200 MB each, written anew."""
    paths = []
    rng = np.random.default_rng(0)
    for k in range(max(1, round(gigabytes * 1e9 / 2 / SHARD_TOKENS))):
        path = directory / f"bench_train_{k:06d}.bin"
        write_shard(path, rng.integers(0, VOCAB, SHARD_TOKENS, dtype=np.uint16), vocab_size=VOCAB)
        paths.append(path)
    return paths


def through_map(path: Path) -> Iterator[tuple[Any, Any]]:
    """Slices of one memory map widened to int32: the bare loop."""
    ids = np.memmap(path, np.uint16, "r", 1024)
    for start in range(0, len(ids) - B * T - 1, B * T):
        x = ids[start : start + B * T].astype(np.int32).reshape(B, T)
        y = ids[start + 1 : start + 1 + B * T].astype(np.int32).reshape(B, T)
        yield x, y


def nanogpt_way(path: Path) -> Iterator[tuple[Any, Any]]:
    """A memory map made for each batch, B random starts, rows widened to int64 and stacked."""
    rng = np.random.default_rng(0)
    while True:
        ids = np.memmap(path, np.uint16, "r", 1024)
        starts = rng.integers(0, len(ids) - T, B)
        x = np.stack([ids[i : i + T].astype(np.int64) for i in starts])
        y = np.stack([ids[i + 1 : i + 1 + T].astype(np.int64) for i in starts])
        yield x, y


def tokens_per_second(batches: Iterator[Any], n: int, *, warm: int = 10) -> float:
    """Wall time of n batches, after some that warm up."""
    for _ in islice(batches, warm):
        pass
    start = time.perf_counter()
    for _ in islice(batches, n):
        pass
    return n * B * T / (time.perf_counter() - start)


def indices_per_second() -> float:
    """Permuted positions of an epoch of 10^8 sequences, a million at a time."""
    start = time.perf_counter()
    for k in range(3):
        permute(np.arange(k * 10**6, (k + 1) * 10**6), n=10**8, seed=1, epoch=k)
    return 3e6 / (time.perf_counter() - start)


def open_seconds(directory: Path) -> float:
    """Opening 10,000 shards."""
    few = directory / "many"
    few.mkdir(exist_ok=True)
    if not (few / "many_train_009999.bin").exists():
        write_shard(few / "many_train_000000.bin", np.arange(2000))
        raw = (few / "many_train_000000.bin").read_bytes()
        for k in range(1, 10_000):
            (few / f"many_train_{k:06d}.bin").write_bytes(raw)
    start = time.perf_counter()
    TrainLoader(few, batch_size=8, seq_len=1024)
    return time.perf_counter() - start


def measure(directory: Path, gigabytes: float, rounds: int) -> dict[str, list[float]]:
    """All figures of all rounds."""
    paths = make_shards(directory, gigabytes)
    for path in paths:
        np.memmap(path, np.uint16, "r").max()

    def ours(order: str, **options: Any) -> Iterator[Any]:
        return iter(TrainLoader(paths, batch_size=B, seq_len=T, order=order, **options))  # type: ignore[arg-type]

    contenders: dict[str, Callable[[], float]] = {
        "bare loop": lambda: tokens_per_second(through_map(paths[0]), 1000),
        "sequential": lambda: tokens_per_second(ours("sequential"), 1000),
        "shuffled": lambda: tokens_per_second(ours("shuffled"), 1000),
        "block-shuffled": lambda: tokens_per_second(ours("block-shuffled"), 4000, warm=1024),
        "sequential, no prefetch": lambda: tokens_per_second(ours("sequential", prefetch=0), 1000),
        "shuffled, no prefetch": lambda: tokens_per_second(ours("shuffled", prefetch=0), 1000),
        "nanoGPT's way": lambda: tokens_per_second(nanogpt_way(paths[0]), 200),
        "shuffled int64": lambda: tokens_per_second(ours("shuffled", dtype="int64"), 600),
        "indices": indices_per_second,
        "open 10,000 shards, s": lambda: open_seconds(directory),
    }
    figures: dict[str, list[float]] = {name: [] for name in contenders}
    for _ in range(rounds):
        for name, run in contenders.items():
            figures[name].append(run())
    return figures


def commit() -> str:
    done = subprocess.run(["git", "rev-parse", "--short", "HEAD"], capture_output=True, text=True, check=False)
    return done.stdout.strip() or "unknown"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="where the shards are made (default: a temporary one)")
    parser.add_argument("--gigabytes", type=float, default=1.2)
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        figures = measure(directory, arguments.gigabytes, arguments.rounds)
    median = {name: statistics.median(values) for name, values in figures.items()}
    rows = [
        ("sequential, no prefetch : bare loop", median["sequential, no prefetch"] / median["bare loop"], 0.8),
        ("sequential, prefetch 2 : bare loop", median["sequential"] / median["bare loop"], 0.8),
        ("shuffled, no prefetch : bare loop in order", median["shuffled, no prefetch"] / median["bare loop"], 0.5),
        ("shuffled, prefetch 2 : bare loop in order", median["shuffled"] / median["bare loop"], 0.5),
        ("shuffled : sequential, both prefetch 2", median["shuffled"] / median["sequential"], 0.0),
        ("block-shuffled, prefetch 2 : bare loop in order", median["block-shuffled"] / median["bare loop"], 0.0),
        ("shuffled int64 : nanoGPT's way", median["shuffled int64"] / median["nanoGPT's way"], 1.5),
        ("permuted indices of 10^8, M/s", median["indices"] / 1e6, 20.0),
    ]
    for name, values in figures.items():
        scale = 1.0 if name.endswith(", s") else 1e6
        unit = "s" if scale == 1 else "M/s"
        low, middle, high = (f(values) / scale for f in (min, statistics.median, max))
        print(f"{name:28} {middle:9.2f} {unit}  ({low:.2f} to {high:.2f})")
    print()
    for name, value, least in rows:
        print(f"{name:44} {value:7.2f}  {'(at least ' + str(least) + ')' if least else ''}")
    if arguments.json:
        record = {
            "what": "benchmarks/loader.py",
            "commit": commit(),
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
            "python": platform.python_version(),
            "numpy": np.__version__,
            "shape": {"B": B, "T": T, "gigabytes": arguments.gigabytes, "rounds": arguments.rounds},
            "load_average": list(os.getloadavg()),
            "median": median,
            "rounds": figures,
            "ratios": {name: value for name, value, _ in rows},
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
