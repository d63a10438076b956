"""The main job on real input that every Python brings: train a tokenizer, build shards, verify, look.

Run by `make quickstart`; every step is a command that you can type yourself, printed before it runs.
"""

from __future__ import annotations

import json
import subprocess
import sys
import sysconfig
import time
from pathlib import Path
from pydoc_data.topics import topics

ROOT = Path("quickstart")


def main() -> int:
    """Write the documents, then run the commands; returns the exit code."""
    started = time.perf_counter()
    documents = write_documents(ROOT / "documents")
    run("train-tokenizer", str(documents), "--type", "sp-bpe", "--vocab-size", "1024", "--out", str(ROOT / "sp1024"))
    summaries = [build(documents, str(ROOT / "sp1024" / "tokenizer.model"), "sp1024"), build(documents, "byte", "byte")]
    run("verify", str(ROOT), "--inputs")
    first = ROOT / "tokens" / "sp1024" / "python-docs" / "train-00000.bin"
    run("inspect", str(first), "--tokenizer", str(ROOT / "sp1024" / "tokenizer.model"), "--document", "0")
    print(f"\n{'tokenizer':<12}{'documents':>12}{'tokens':>14}{'bytes/token':>13}{'MB/s':>8}")
    for name, s in summaries:
        print(
            f"{name:<12}{s['documents']:>12,}{s['tokens']:>14,}{s['text_bytes'] / s['tokens']:>13.2f}"
            f"{s['text_bytes'] / 1e6 / s['seconds']:>8.1f}"
        )
    print(f"\nDone in {time.perf_counter() - started:.0f} s; everything is below {ROOT}/. What to type next:")
    print(f"  .venv/bin/tokenriver inspect {first} --tokenizer {ROOT}/sp1024/tokenizer.model --tokens 0:200")
    print("  .venv/bin/tokenriver build YOUR.jsonl --tokenizer gpt2 --out data     # your own documents")
    print("  .venv/bin/pip install 'tokenriver[torch]'     # PyTorch, for:")
    print(f"  .venv/bin/python examples/train_gpt.py --data {ROOT}/tokens/byte/python-docs")
    print("  .venv/bin/tokenriver --help")
    return 0


def write_documents(directory: Path) -> Path:
    """The language reference, one topic a document, and the standard library's sources, as JSONL files."""
    directory.mkdir(parents=True, exist_ok=True)
    write_jsonl(directory / "language.jsonl", [(name, text) for name, text in sorted(topics.items())])
    library = Path(sysconfig.get_paths()["stdlib"])
    sources = []
    for path in sorted(library.rglob("*.py")):
        relative = path.relative_to(library)
        if "site-packages" in relative.parts or "test" in relative.parts:
            continue
        try:
            sources.append((relative.as_posix(), path.read_text(encoding="utf-8")))
        except UnicodeDecodeError:
            print(f"left out, not UTF-8: {relative}")
    write_jsonl(directory / "library.jsonl", sources)
    return directory


def write_jsonl(path: Path, documents: list[tuple[str, str]]) -> None:
    """One JSON object a line with `id` and `text`."""
    with open(path, "w", encoding="utf-8", newline="\n") as file:
        for name, text in documents:
            file.write(json.dumps({"id": name, "text": text}, ensure_ascii=False) + "\n")


def build(documents: Path, tokenizer: str, name: str) -> tuple[str, dict[str, float]]:
    """Build one data set and return its summary."""
    words = ["build", str(documents), "--tokenizer", tokenizer, "--tokenizer-id", name, "--dataset", "python-docs"]
    output = run(*words, "--out", str(ROOT), "--split", "hash:0.05", "--overwrite", "--json", capture=True)
    return name, json.loads(output)


def run(*words: str, capture: bool = False) -> str:
    """Run `tokenriver WORDS`, showing the command; a failure ends the quickstart with its exit code."""
    print(f"\n$ tokenriver {' '.join(words)}", flush=True)
    command = [sys.executable, "-m", "tokenriver", *words]
    result = subprocess.run(command, stdout=subprocess.PIPE if capture else None, text=True, check=False)
    if result.returncode:
        sys.exit(result.returncode)
    return result.stdout or ""


if __name__ == "__main__":
    sys.exit(main())
