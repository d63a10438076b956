"""HellaSwag's 10,042 examples to an evaluation file, and loading it: figures, then the same as JSON.

Run it as `python benchmarks/evals.py`; it needs ../shared (real data) beside the checkout, or the paths as options.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

import tokenriver

if TYPE_CHECKING:
    from collections.abc import Callable

SHARED = Path(__file__).resolve().parents[2] / "shared/data"


def seconds(work: Callable[[], Any], repeats: int) -> float:
    """The best wall time of some runs."""
    best = float("inf")
    for _ in range(repeats):
        start = time.perf_counter()
        work()
        best = min(best, time.perf_counter() - start)
    return best


def load(path: Path, *, batch_size: int, seq_len: int, packed: bool) -> int:
    """Open the file, with all checks, and go through it once; the number of examples."""
    loader = tokenriver.EvalLoader(path, batch_size, seq_len, packed=packed)
    return sum(len(batch.labels) for batch in loader)


def load_llmc(path: Path, *, batch_size: int, seq_len: int) -> None:
    """The same with llm.c's loader."""
    from tokenriver.llmc import EvalLoader

    loader = EvalLoader(path, batch_size, seq_len)
    for _ in range(loader.num_batches):
        loader.next_batch()


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--source", type=Path, default=SHARED / "eval/hellaswag_val.jsonl.gz")
    parser.add_argument("--tokenizer", type=Path, default=SHARED / "gpt2")
    parser.add_argument("--repeats", type=int, default=3)
    options = parser.parse_args()
    figures: dict[str, Any] = {
        "machine": platform.machine(),
        "cores": os.cpu_count(),
        "version": tokenriver.__version__,
    }
    with tempfile.TemporaryDirectory() as folder:
        out = Path(folder) / "hellaswag_val.bin"

        def make() -> None:
            tokenizer = tokenriver.load_tokenizer(options.tokenizer)
            tokenriver.make_eval_file("hellaswag", options.source, tokenizer=tokenizer, out=out)

        figures["make_seconds"] = round(seconds(make, options.repeats), 2)
        n = len(tokenriver.open_eval_file(out))
        figures["examples"] = n
        for batch_size, seq_len in ((32, 1024), (64, 256)):
            key = f"B={batch_size} T={seq_len}"
            runs: dict[str, Callable[[], Any]] = {
                "rows": lambda b=batch_size, t=seq_len: load(out, batch_size=b, seq_len=t, packed=False),
                "packed": lambda b=batch_size, t=seq_len: load(out, batch_size=b, seq_len=b * t, packed=True),
                "llmc": lambda b=batch_size, t=seq_len: load_llmc(out, batch_size=b, seq_len=t),
            }
            for name, run in runs.items():
                figures[f"{name} {key} examples/s"] = round(n / seconds(run, options.repeats))
    for name, value in figures.items():
        print(f"{name:<36}{value:>12,}" if isinstance(value, (int, float)) else f"{name:<36}{value:>12}")
    print(json.dumps(figures))


if __name__ == "__main__":
    main()
