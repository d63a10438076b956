"""How fast packed and mixed batches are made beside the plain ones, and the index of a shard: ratios within one run.

    python benchmarks/packing.py [--directory DIR] [--millions 100] [--rounds 7] [--json FILE]

The contenders take turns, round after round; a figure is the median over the rounds. The page cache is warm,
and as a writer leaves it: the shard is written anew (loader.py says why that matters).
Document lengths are those of web text (log-normal, mean 900 tokens).
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import tempfile
import time
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver import Mixture, TrainLoader, write_shard
from tokenriver.loader.aligned import bos_aligned_rows
from tokenriver.loader.packing import best_fit_rows, count_best_fit_rows
from tokenriver.shards.index import index_shard

if TYPE_CHECKING:
    from collections.abc import Callable

B, T, SEPARATOR, WINDOW = 32, 2048, 50_256, 1 << 17


def make_shard(path: Path, n_tokens: int) -> None:
    """Random ids cut into documents of web text's lengths."""
    rng = np.random.default_rng(0)
    ids = rng.integers(0, SEPARATOR, n_tokens, dtype=np.uint16)
    starts = np.cumsum(document_lengths(n_tokens // 500))
    ids[starts[starts < n_tokens]] = SEPARATOR
    ids[0] = SEPARATOR
    write_shard(path, ids, vocab_size=SEPARATOR + 1)


def document_lengths(n: int) -> np.ndarray:
    """Lengths like those of web text."""
    return np.maximum(1, np.random.default_rng(1).lognormal(6.3, 1.0, n)).astype(np.int64)


def tokens_per_second(source: Any, n: int, **words: Any) -> float:
    """Target slots a second over n batches, after ten that warm up (and plan)."""
    batches = iter(TrainLoader(source, batch_size=B, seq_len=T, separator=SEPARATOR, **words))
    for _ in islice(batches, 10):
        pass
    start = time.perf_counter()
    for _ in islice(batches, n):
        pass
    return n * B * T / (time.perf_counter() - start)


def index_rate(path: Path, n_tokens: int) -> float:
    """Tokens a second of `tokenriver index`."""
    start = time.perf_counter()
    index_shard(path, separator_id=SEPARATOR)
    return n_tokens / (time.perf_counter() - start)


def per_second(pack: Callable[..., object], **words: Any) -> float:
    """Documents a second of an epoch's plan: eight windows one after the other, a million documents."""
    lengths = document_lengths(8 * WINDOW).reshape(8, WINDOW)
    start = time.perf_counter()
    for window in lengths:
        pack(window, seq_len=T, **words)
    return lengths.size / (time.perf_counter() - start)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--directory", type=Path, help="where the shard is made (default: a temporary one)")
    parser.add_argument("--millions", type=int, default=100, help="tokens in the shard, millions")
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--json", type=Path)
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as temporary:
        directory = arguments.directory or Path(temporary)
        directory.mkdir(parents=True, exist_ok=True)
        path, n_tokens = directory / "packing_train_000000.bin", arguments.millions * 10**6
        make_shard(path, n_tokens)
        index_shard(path, separator_id=SEPARATOR)
        steps = min(300, n_tokens // (B * T) // 2)
        contenders: dict[str, Callable[[], float]] = {
            "plain": lambda: tokens_per_second(path, steps),
            "concat, cu_seqlens": lambda: tokens_per_second(path, steps, cu_seqlens=True),
            "bos-aligned": lambda: tokens_per_second(path, steps, packing="bos-aligned"),
            "best-fit": lambda: tokens_per_second(path, steps, packing="best-fit"),
            "mixture of two": lambda: tokens_per_second(Mixture({"a": (path, 0.7), "b": (path, 0.3)}), steps),
            "plain, in order": lambda: tokens_per_second(path, steps, order="sequential"),
            "bos-aligned, in order": lambda: tokens_per_second(path, steps, packing="bos-aligned", order="sequential"),
            "best-fit, in order": lambda: tokens_per_second(path, steps, packing="best-fit", order="sequential"),
            "index": lambda: index_rate(path, n_tokens),
            "rows of an epoch counted, documents": lambda: per_second(count_best_fit_rows),
            "best-fit planned, documents": lambda: per_second(best_fit_rows),
            "bos-aligned planned, documents": lambda: per_second(bos_aligned_rows, max_doc_len=None),
        }
        figures: dict[str, list[float]] = {name: [] for name in contenders}
        for _ in range(arguments.rounds):
            for name, run in contenders.items():
                figures[name].append(run())
        ledger = TrainLoader([path], batch_size=1, seq_len=T, separator=SEPARATOR, packing="best-fit").ledger()
    median = {name: statistics.median(values) for name, values in figures.items()}
    ratios = {
        "bos-aligned : plain": median["bos-aligned"] / median["plain"],
        "mixture of two : plain": median["mixture of two"] / median["plain"],
        "best-fit : plain": median["best-fit"] / median["plain"],
        "bos-aligned : plain, both in order": median["bos-aligned, in order"] / median["plain, in order"],
        "best-fit : plain, both in order": median["best-fit, in order"] / median["plain, in order"],
        "seconds for the index of 100 M tokens": 1e8 / median["index"],
        "utilisation of best-fit": ledger["utilisation"],
    }
    for name, values in figures.items():
        low, middle, high = (f(values) / 1e6 for f in (min, statistics.median, max))
        print(f"{name:38} {middle:9.2f} M/s  ({low:.2f} to {high:.2f})")
    print()
    for name, value in ratios.items():
        print(f"{name:44} {value:8.4f}")
    if arguments.json:
        record = {
            "what": "benchmarks/packing.py",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
            "python": platform.python_version(),
            "numpy": np.__version__,
            "shape": {"B": B, "T": T, "tokens": n_tokens, "rounds": arguments.rounds},
            "load_average": list(os.getloadavg()),
            "median": median,
            "rounds": figures,
            "ratios": ratios,
        }
        arguments.json.parent.mkdir(parents=True, exist_ok=True)
        arguments.json.write_text(json.dumps(record, indent=2) + "\n")


if __name__ == "__main__":
    main()
