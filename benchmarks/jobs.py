"""The contestants of `make bench`: each returns (megabytes of input, seconds), its preparations not counted."""

from __future__ import annotations

import gzip
import hashlib
import multiprocessing
import os
import shutil
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec

if TYPE_CHECKING:
    from collections.abc import Callable

SHARED = Path(__file__).resolve().parents[2] / "shared" / "data"
Result = tuple[float, float]


@dataclass(frozen=True)
class Inputs:
    """Where the text lies; the Parquet file is made from the JSONL on first use."""

    scratch: Path
    megabytes: int

    @property
    def jsonl(self) -> Path:
        return self.scratch / f"text-{self.megabytes}.jsonl"

    @property
    def parquet(self) -> Path:
        path = self.scratch / f"text-{self.megabytes}.parquet"
        if not path.exists():
            import pyarrow.json
            import pyarrow.parquet

            table = pyarrow.json.read_json(self.jsonl).select(["text"])
            pyarrow.parquet.write_table(table, path, compression="zstd", row_group_size=10_000)
        return path

    def texts(self, megabytes: int) -> list[str]:
        """The first texts, of that size in all."""
        texts, size = [], 0
        with open(self.jsonl, encoding="utf-8", newline="\n") as file:
            for line in file:
                texts.append(msgspec.json.decode(line)["text"])
                size += len(texts[-1].encode())
                if size > megabytes * 1_000_000:
                    break
        return texts


class Text(msgspec.Struct, gc=False):
    """The one field that is read."""

    text: str


MEMORY = Path("/dev/shm")
"""Where Linux keeps files in memory: there a build shows what it takes itself, without what the disk takes."""


def build_job(tokenizer: str, source: str = "jsonl", *, in_memory: bool = False) -> Callable[[Inputs], Result]:
    """`tokenriver.build` with everything that it does by default."""

    def job(inputs: Inputs) -> Result:
        import awkward  # noqa: F401 - which the first encoding would import, here and in gigatoken's job

        import tokenriver

        loaded = tokenriver.load_tokenizer(tokenizer if tokenizer == "byte" else str(SHARED / tokenizer))
        build = tokenriver.build  # imported here
        path = getattr(inputs, source)
        warm(path)
        out = Path(tempfile.mkdtemp(prefix="tokenriver-bench-", dir=MEMORY if in_memory else inputs.scratch))
        try:
            started = time.perf_counter()
            build([path], tokenizer=loaded, out=out, dataset="bench")
            return size_of(path, inputs), time.perf_counter() - started
        finally:
            shutil.rmtree(out)

    return job


def gigatoken_job(source: str) -> Callable[[Inputs], Result]:
    """gigatoken alone on the same file, its ids left in memory."""

    def job(inputs: Inputs) -> Result:
        import awkward  # noqa: F401
        import gigatoken

        tokenizer = gigatoken.Tokenizer.from_json(tokenizer_json("hf/gpt2.tokenizer.json.gz"))
        path = getattr(inputs, source)
        warm(path)
        kind: Any = gigatoken.JsonlFileSource if source == "jsonl" else gigatoken.ParquetFileSource
        started = time.perf_counter()
        tokenizer.encode_files(kind([str(path)], "text"))
        return size_of(path, inputs), time.perf_counter() - started

    return job


def tiktoken_pool(inputs: Inputs) -> Result:
    """What llm.c's scripts do: a process pool, one document a call, on 40 MB."""
    texts = inputs.texts(40)
    with multiprocessing.get_context("fork").Pool(os.cpu_count(), initializer=_load_tiktoken) as pool:
        list(pool.imap(_encode_tiktoken, texts[:64], chunksize=16))
        started = time.perf_counter()
        for _ in pool.imap(_encode_tiktoken, texts, chunksize=16):
            pass
        return bytes_of(texts), time.perf_counter() - started


def _load_tiktoken() -> None:
    import tiktoken
    from tiktoken.load import data_gym_to_mergeable_bpe_ranks

    global _encoding
    ranks = data_gym_to_mergeable_bpe_ranks(str(SHARED / "gpt2/vocab.bpe"), str(SHARED / "gpt2/encoder.json"))
    pattern = r"'(?:[sdmt]|ll|ve|re)| ?\p{L}+| ?\p{N}+| ?[^\s\p{L}\p{N}]+|\s+(?!\S)|\s+"
    _encoding = tiktoken.Encoding(
        "gpt2", pat_str=pattern, mergeable_ranks=ranks, special_tokens={"<|endoftext|>": 50256}
    )


def _encode_tiktoken(text: str) -> int:
    return len(_encoding.encode_ordinary(text))


_encoding: Any = None


def huggingface_job(name: str) -> Callable[[Inputs], Result]:
    """Hugging Face tokenizers' own parallel batch call, on 20 MB."""

    def job(inputs: Inputs) -> Result:
        import tokenizers

        tokenizer = tokenizers.Tokenizer.from_str(tokenizer_json(name).decode())
        texts = inputs.texts(20)
        tokenizer.encode_batch(texts[:64])
        started = time.perf_counter()
        for i in range(0, len(texts), 1000):
            tokenizer.encode_batch(texts[i : i + 1000], add_special_tokens=False)
        return bytes_of(texts), time.perf_counter() - started

    return job


def sentencepiece_sp1024(inputs: Inputs) -> Result:
    """sentencepiece with two threads, in batches of 1024 as Parameter Golf's exporter does, on 20 MB."""
    import sentencepiece

    processor = sentencepiece.SentencePieceProcessor(model_file=str(SHARED / "sentencepiece/fineweb_1024_bpe.model"))
    texts = inputs.texts(20)
    started = time.perf_counter()
    for i in range(0, len(texts), 1024):
        processor.encode(texts[i : i + 1024], out_type=int, num_threads=2)
    return bytes_of(texts), time.perf_counter() - started


def msgspec_parse(inputs: Inputs) -> Result:
    """Parsing every line of the same file, keeping nothing."""
    warm(inputs.jsonl)
    decoder = msgspec.json.Decoder(Text)
    started = time.perf_counter()
    with open(inputs.jsonl, "rb") as file:
        while lines := file.readlines(8 << 20):
            for line in lines:
                decoder.decode(line)
    return size_of(inputs.jsonl, inputs), time.perf_counter() - started


def shards_to_check(inputs: Inputs) -> Path:
    """A data set of the whole text in bytes, made once."""
    import tokenriver

    out = inputs.scratch / "verify"
    if not (out / "tokens/byte/bench/_MANIFEST.json").exists():
        tokenriver.build([inputs.jsonl], tokenizer="byte", out=out, dataset="bench")
    for path in out.rglob("*.bin"):
        warm(path)
    return out


def verify(inputs: Inputs) -> Result:
    """`tokenriver.verify` of the data set."""
    import tokenriver

    out = shards_to_check(inputs)
    check = tokenriver.verify  # imported here
    started = time.perf_counter()
    report = check([out])
    seconds = time.perf_counter() - started
    if report.findings:
        raise SystemExit(f"the data set is damaged: {report.findings[0]}")
    return sum(p.stat().st_size for p in out.rglob("*.bin")) / 1e6, seconds


def sha256(inputs: Inputs) -> Result:
    """hashlib.sha256 over the same shards on one core."""
    paths = sorted(shards_to_check(inputs).rglob("*.bin"))
    started = time.perf_counter()
    for path in paths:
        with open(path, "rb") as file:
            hashlib.file_digest(file, "sha256")
    return sum(p.stat().st_size for p in paths) / 1e6, time.perf_counter() - started


def warm(path: Path) -> None:
    """Bring a file into the page cache."""
    with open(path, "rb", buffering=0) as file:
        while file.read(1 << 24):
            pass


def size_of(path: Path, inputs: Inputs) -> float:
    """Megabytes that a speed counts: the JSONL's, also for the same texts in Parquet."""
    del path
    return inputs.jsonl.stat().st_size / 1e6


def bytes_of(texts: list[str]) -> float:
    return sum(len(t.encode()) for t in texts) / 1e6


def tokenizer_json(name: str) -> bytes:
    return gzip.decompress((SHARED / name).read_bytes())


JOBS: dict[str, Callable[[Inputs], Result]] = {
    "build_gpt2": build_job("gpt2"),
    "build_parquet": build_job("gpt2", "parquet"),
    "build_sp1024": build_job("sentencepiece/fineweb_1024_bpe.model"),
    "build_smollm2": build_job("hf/smollm2.tokenizer.json.gz"),
    "build_byte": build_job("byte"),
    "build_byte_in_memory": build_job("byte", in_memory=True),
    "gigatoken_gpt2": gigatoken_job("jsonl"),
    "gigatoken_parquet": gigatoken_job("parquet"),
    "tiktoken_pool": tiktoken_pool,
    "huggingface_gpt2": huggingface_job("hf/gpt2.tokenizer.json.gz"),
    "huggingface_smollm2": huggingface_job("hf/smollm2.tokenizer.json.gz"),
    "sentencepiece_sp1024": sentencepiece_sp1024,
    "msgspec_parse": msgspec_parse,
    "verify": verify,
    "sha256": sha256,
}
