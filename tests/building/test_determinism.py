"""One hash over workers, block sizes, hash seeds, start methods and the order in which the inputs were made."""

from __future__ import annotations

import hashlib
import json
import os
import subprocess
import sys
from pathlib import Path

from build_helpers import hashes
from made_documents import make_texts, write_jsonl

import tokenriver

SRC = str(Path(tokenriver.__file__).parents[1])

PROGRAM = """
import json, multiprocessing, sys
import tokenriver

def job(words):
    tokenriver.build(**words)

if __name__ == "__main__":
    method, words = json.loads(sys.argv[1])
    if method is None:
        job(words)
    else:
        process = multiprocessing.get_context(method).Process(target=job, args=(words,))
        process.start()
        process.join()
        sys.exit(process.exitcode)
"""

MATRIX = [
    (None, "0", {"workers": 1, "block_bytes": 8 << 20}),
    (None, "1", {"workers": 2, "block_bytes": 1}),
    (None, "2", {"workers": 8, "block_bytes": 1000}),
    ("spawn", "3", {"workers": 2, "block_bytes": 4096}),
    ("forkserver", "4", {"workers": 1, "block_bytes": 333}),
    ("fork", "random", {"workers": 2, "backend": "reference", "verify_sample": 0}),
]


def test_the_matrix_has_one_hash(tmp_path):
    program = tmp_path / "program.py"
    program.write_text(PROGRAM)
    texts = make_texts(200)
    results = set()
    for number, (method, seed, words) in enumerate(MATRIX):
        folder = tmp_path / f"inputs{number}" / "docs"
        folder.mkdir(parents=True)
        order = range(8) if number % 2 else reversed(range(8))
        for part in order:
            write_jsonl(folder / f"part{part}.jsonl", texts[part * 25 : part * 25 + 25])
        out = tmp_path / f"out{number}"
        call = {"inputs": [str(folder)], "tokenizer": "byte260", "out": str(out), "shard_tokens": 3000, **words}
        result = subprocess.run(
            [sys.executable, program, json.dumps([method, call])],
            env={**os.environ, "PYTHONPATH": SRC, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=False,
        )
        assert result.returncode == 0, result.stderr
        facts = json.dumps(hashes(out / "tokens" / "byte260" / "docs"), sort_keys=True)
        results.add(hashlib.sha256(facts.encode()).hexdigest())
    assert len(results) == 1
