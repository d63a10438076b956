"""`make bench`: how fast tokenriver is beside its peers, in one run on one machine, as ratios of medians.

Every measurement is a process of its own with everything imported and the tokenizer loaded before the clock starts;
the contestants of a row take turns. Peers that are much slower get a part of the same text. Results, with the
machine and the commit, go to benchmarks/results/.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from jobs import JOBS, MEMORY, Inputs
from text import make_jsonl

HERE = Path(__file__).resolve().parent
ROOT = HERE.parent

ROWS: list[tuple[str, str, str, float]] = [
    ("build JSONL, GPT-2 / gigatoken alone", "build_gpt2", "gigatoken_gpt2", 0.6),
    ("build JSONL, GPT-2 / process pool of tiktoken calls", "build_gpt2", "tiktoken_pool", 20),
    ("build JSONL, GPT-2 / Hugging Face encode_batch", "build_gpt2", "huggingface_gpt2", 20),
    ("build Parquet, GPT-2 / gigatoken's Parquet reading", "build_parquet", "gigatoken_parquet", 0.6),
    ("build JSONL, sp1024 / sentencepiece, 2 threads", "build_sp1024", "sentencepiece_sp1024", 8),
    ("build JSONL, SmolLM2 / Hugging Face encode_batch", "build_smollm2", "huggingface_smollm2", 10),
    ("build JSONL, bytes / msgspec parsing alone", "build_byte", "msgspec_parse", 0.5),
    ("build JSONL, bytes, into memory / msgspec parsing alone", "build_byte_in_memory", "msgspec_parse", 0.5),
    ("verify / hashlib.sha256 on one core", "verify", "sha256", 1.3),
]
"""What is compared: words, ours, the peer's, and the least ratio of MB/s that is asked for."""


def main() -> int:
    """Measure all rows (or those that --only names) and print and store the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--megabytes", type=int, default=300, help="size of the text")
    parser.add_argument("--runs", type=int, default=5)
    parser.add_argument("--only", default="", help="part of a row's words")
    parser.add_argument("--scratch", type=Path, default=ROOT / "scratch")
    parser.add_argument("--job", help=argparse.SUPPRESS)
    options = parser.parse_args()
    inputs = Inputs(options.scratch, options.megabytes)
    if options.job:
        print(json.dumps(JOBS[options.job](inputs)))
        return 0
    make_jsonl(inputs.jsonl, options.megabytes * 1_000_000)
    rows = [row for row in ROWS if options.only in row[0] and (MEMORY.is_dir() or "into memory" not in row[0])]
    speeds = measure(rows, options)
    table = [summarise(row, speeds) for row in rows]
    for line in table:
        print(line["words"].ljust(60), line["text"])
    store(table, speeds, options)
    return 0


def measure(rows: list[tuple[str, str, str, float]], options: argparse.Namespace) -> dict[str, list[float]]:
    """MB/s of every job of the rows, `runs` times, taking turns."""
    names = list(dict.fromkeys(name for row in rows for name in row[1:3]))
    speeds: dict[str, list[float]] = {name: [] for name in names}
    for run in range(options.runs):
        for name in names:
            command = [sys.executable, str(HERE / "run.py"), "--job", name, "--scratch", str(options.scratch)]
            command += ["--megabytes", str(options.megabytes)]
            result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            megabytes, seconds = json.loads(result.stdout.splitlines()[-1])
            speeds[name].append(megabytes / seconds)
            print(f"run {run + 1}: {name} {speeds[name][-1]:.1f} MB/s", file=sys.stderr, flush=True)
    return speeds


def summarise(row: tuple[str, str, str, float], speeds: dict[str, list[float]]) -> dict[str, Any]:
    """One line of the table."""
    words, ours, peer, least = row
    mine, theirs = statistics.median(speeds[ours]), statistics.median(speeds[peer])
    ratio = mine / theirs
    text = (
        f"{mine:8.1f} / {theirs:7.1f} MB/s = {ratio:6.2f}   (at least {least:g}: {'yes' if ratio >= least else 'NO'})"
    )
    return {"words": words, "ours": mine, "peer": theirs, "ratio": ratio, "least": least, "text": text}


def store(table: list[dict[str, Any]], speeds: dict[str, list[float]], options: argparse.Namespace) -> None:
    """Write the results with what they depend on."""
    commit = subprocess.run(
        ["git", "rev-parse", "--short", "HEAD"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    facts = {
        "commit": commit.stdout.strip(),
        "machine": {
            "cpu": cpu_name(),
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "python": platform.python_version(),
        },
        "megabytes": options.megabytes,
        "runs": options.runs,
        "table": [{k: v for k, v in line.items() if k != "text"} for line in table],
        "speeds": speeds,
    }
    results = HERE / "results"
    results.mkdir(exist_ok=True)
    path = results / f"build-{time.strftime('%Y%m%d-%H%M%S')}.json"
    path.write_text(json.dumps(facts, indent=1) + "\n")
    print(f"stored {path.relative_to(ROOT)}")


def cpu_name() -> str:
    """The processor's own name where the system tells it."""
    info = Path("/proc/cpuinfo")
    lines = info.read_text().splitlines() if info.exists() else []
    return next(
        (line.split(":", 1)[1].strip() for line in lines if line.startswith("model name")), platform.processor()
    )


if __name__ == "__main__":
    sys.exit(main())
