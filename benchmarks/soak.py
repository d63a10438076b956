"""`make soak`: for 30 minutes, builds of random documents with random options are killed, gone on with and compared.

Each round writes documents of random sizes in a random format, builds them once in peace, then again with SIGKILLs
at random moments and another number of workers and block size after each, and compares every file. A difference, a
failing build or a half file under a final name ends the soak with the seed that shows it again.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import json
import os
import random
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import zstandard
from text import source_texts

import tokenriver

ROOT = Path(__file__).resolve().parents[1]
TOKENIZERS = ["byte", "byte260", "gpt2", "sentencepiece/fineweb_1024_bpe.model", "hf/smollm2.tokenizer.json.gz"]


def main() -> int:
    """Run rounds until the time is up; prints one line a round and a summary."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--minutes", type=float, default=30)
    parser.add_argument("--seed", type=int, default=int(time.time()))
    options = parser.parse_args()
    end = time.monotonic() + options.minutes * 60
    rounds = kills = 0
    documents = 0
    seed = options.seed
    while time.monotonic() < end:
        with tempfile.TemporaryDirectory() as folder:
            facts = soak_round(Path(folder), random.Random(seed))
        rounds, kills, documents = rounds + 1, kills + facts["kills"], documents + facts["documents"]
        print(f"round {rounds} seed {seed}: {json.dumps(facts)}", flush=True)
        seed += 1
    print(f"soak done: {rounds} rounds, {kills} kills, {documents:,} documents, no difference")
    return 0


def soak_round(folder: Path, rng: random.Random) -> dict[str, Any]:
    """One corpus, built in peace and under kills; raises SystemExit on a difference."""
    texts = random_texts(rng)
    inputs = write_inputs(folder, texts, rng)
    words = random_options(rng)
    began = time.monotonic()
    finish(inputs, folder / "peace", words)
    seconds = time.monotonic() - began
    expected = hashes(folder / "peace")
    kills = 0
    for _ in range(rng.randint(1, 8)):
        if finished(folder / "kills"):
            break
        moved = {**words, "workers": rng.choice([1, 2, 3]), "block_bytes": rng.choice([1000, 60_000, 1 << 20])}
        process = start(inputs, folder / "kills", moved)
        try:
            process.wait(timeout=seconds * rng.uniform(0.3, 1.1))  # begins to write at a third or later
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait()
            kills += 1
            check_final_names(folder / "kills", expected)
            continue
        break
    if not finished(folder / "kills"):
        finish(inputs, folder / "kills", words)
    found = hashes(folder / "kills")
    if found != expected:
        different = sorted(n for n in {*found, *expected} if found.get(n) != expected.get(n))
        raise SystemExit(f"soak: {words} differs in {different[:5]}")
    report = tokenriver.verify([folder / "kills"])
    if report.findings:
        raise SystemExit(f"soak: {words}: {report.findings[0]}")
    return {"documents": len(texts), "kills": kills, "files": len(expected), **words}


def random_texts(rng: random.Random) -> list[str]:
    """Real texts, cut and joined to random lengths, some of one character, some long, some odd."""
    base = source_texts()
    texts = []
    for _ in range(rng.choice([3, 40, 600, 3000])):
        text = rng.choice(base)
        kind = rng.random()
        if kind < 0.05:
            text = rng.choice(["a", "\u0301", "<|endoftext|>", "\r\n\x00", "ö" * 5000, "🌊", " "])
        elif kind < 0.9:
            start = rng.randrange(len(text))
            text = text[start : start + rng.choice([20, 500, 4000])] or "x"
        texts.append(text)
    return texts


def write_inputs(folder: Path, texts: list[str], rng: random.Random) -> list[str]:
    """The texts as JSONL, gzip, zstd or Parquet files, a few of them."""
    parts = rng.choice([1, 1, 3, 20])
    size = -(-len(texts) // parts)
    inputs = []
    for i in range(parts):
        part = texts[i * size : (i + 1) * size]
        if not part:
            continue
        ending = rng.choice(["jsonl", "jsonl.gz", "jsonl.zst", "parquet"])
        path = folder / f"part{i:02d}.{ending}"
        raw = "".join(json.dumps({"text": t}, ensure_ascii=rng.random() < 0.5) + "\n" for t in part).encode()
        if ending == "parquet":
            import pyarrow
            import pyarrow.parquet

            pyarrow.parquet.write_table(pyarrow.table({"text": part}), path, row_group_size=rng.choice([7, 1000]))
        else:
            packed = {"jsonl": bytes, "jsonl.gz": gzip.compress, "jsonl.zst": zstandard.ZstdCompressor().compress}
            path.write_bytes(packed[ending](raw))
        inputs.append(str(path))
    return inputs


def random_options(rng: random.Random) -> dict[str, Any]:
    """Options of a build."""
    name = rng.choice(TOKENIZERS if (ROOT.parent / "shared").is_dir() else TOKENIZERS[:2])
    layout = rng.choice(["tokens", "llmc", "golf"])
    splits = ["hash:0.2", "first-docs:10", "first-tokens:5000", "first-shard", "train"]
    return {
        "tokenizer": name if name.startswith("byte") else str(ROOT.parent / "shared/data" / name),
        "layout": layout,
        "dataset": None if layout == "golf" else "soak",
        "split": rng.choice(splits),
        "shard_tokens": rng.choice([1000, 20_000, 300_000]),
    }


def start(inputs: list[str], out: Path, words: dict[str, Any]) -> subprocess.Popen[bytes]:
    """A build in a process of its own."""
    code = f"import tokenriver; tokenriver.build({inputs!r}, out={str(out)!r}, **{words!r})"
    environment = {**os.environ, "PYTHONPATH": str(ROOT / "src")}
    return subprocess.Popen([sys.executable, "-W", "ignore", "-c", code], env=environment)


def finish(inputs: list[str], out: Path, words: dict[str, Any]) -> None:
    """Build to the end."""
    if start(inputs, out, words).wait():
        raise SystemExit(f"soak: a build failed: {words}")


def finished(out: Path) -> bool:
    """Whether the record that comes last is there, and the journal gone."""
    if any(out.rglob("*_JOURNAL")):
        return False
    return any(out.rglob("_MANIFEST.json")) or any(p.name != "_BUILD.json" for p in out.rglob("*_BUILD.json"))


def hashes(out: Path) -> dict[str, str]:
    """SHA-256 by relative name of all files but the build record, which names absolute paths, and the lock."""
    return {
        str(p.relative_to(out)): hashlib.sha256(p.read_bytes()).hexdigest()
        for p in sorted(out.rglob("*"))
        if p.is_file() and not p.name.endswith(("_BUILD.json", "_LOCK", "_JOURNAL"))
    }


def check_final_names(out: Path, expected: dict[str, str]) -> None:
    """Whatever has a shard's final name after a kill is the finished shard."""
    for name, digest in hashes(out).items():
        if name.endswith(".bin") and expected.get(name) != digest:
            raise SystemExit(f"soak: {name} has its final name, but not its bytes")


if __name__ == "__main__":
    sys.exit(main())
