"""What one process must do alone in a build of 15 T tokens: cut, plan, keep the journal, write the manifest.

    python benchmarks/simulate_scale.py [--documents 20_000_000_000] [--shards 150_000] [--json FILE]

Everything is the build's own code; only the documents are not there. Their lengths come from a file of 64 chunks in
the segments' format (log-normal, 1 in 100 of val), drawn anew for each of the half million chunks; a cut reads its
chunk from that file as the driver would read it from shared storage. The time of the storage itself is not in it.
"""

from __future__ import annotations

import argparse
import json
import platform
import resource
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.building.assemble import EncodedBlock
from tokenriver.building.journal import Journal
from tokenriver.building.plan import Cutting
from tokenriver.building.ray_engine.build_log import BuildLog
from tokenriver.building.ray_engine.encode_task import SegmentFacts
from tokenriver.building.ray_engine.segments import Chunk, SegmentWriter, read_documents
from tokenriver.building.ray_engine.shard_plan import PlannedShard, ShardPlanner
from tokenriver.building.target import Target
from tokenriver.cluster.shared import PARTS
from tokenriver.corpus.blocks import Position
from tokenriver.corpus.manifest import CorpusFile, CorpusManifest, render_corpus_manifest
from tokenriver.corpus.ranges import cut_ranges
from tokenriver.corpus.sources import Source, SourceOptions
from tokenriver.shards.manifest import ManifestFile, TokensManifest, read_manifest, write_manifest
from tokenriver.shards.record import BuildRecord, InputRecord, TokenizerRecord, read_record, write_record

if TYPE_CHECKING:
    from collections.abc import Iterator

TOKENS_A_DOCUMENT = 750
BYTES_A_TOKEN = 4.0
CHUNK_DOCUMENTS = 128 * (1 << 20) // int(TOKENS_A_DOCUMENT * BYTES_A_TOKEN)
CHUNKS_A_SEGMENT = 4
VARIANTS = 64
FILE_BYTES = 250_000_000


def main() -> int:
    """Run all parts and print what they cost."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--documents", type=int, default=2 * 10**10)
    parser.add_argument("--shards", type=int, default=150_000)
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    parts: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory() as scratch:
        folder = Path(scratch)
        variants = write_variants(folder / "variants")
        n_chunks = -(-options.documents // CHUNK_DOCUMENTS)
        shard_tokens = options.documents * TOKENS_A_DOCUMENT // options.shards
        with measured("cut 60 TB of inputs into ranges", parts):
            n_ranges = cut(options.documents)
        chunks = [variants[v] for v in np.random.default_rng(0).integers(VARIANTS, size=n_chunks).tolist()]
        with measured("plan: chunks in order to shards", parts) as facts:
            files = plan(chunks, folder / "variants", shard_tokens, facts)
        facts |= {"chunks": n_chunks, "documents": sum(c.n_documents for c in chunks), "ranges": n_ranges}
        with measured("journal: written", parts) as facts:
            facts["bytes"] = write_journal(folder, chunks, files)
        with measured("journal: read again", parts):
            log = BuildLog.open(Target(folder, "tokens", "docs"))
            assert len(log.shards) == len(files)
            log.journal.close()
        del log, chunks
        with measured("records and manifest: written and read", parts) as facts:
            facts |= write_records(folder, files, options.documents)
    for part in parts:
        print(json.dumps(part))
    worst = max(part["seconds"] for part in parts), max(part["peak_mib"] for part in parts)
    print(f"slowest part {worst[0]:.0f} s (600 allowed), peak {worst[1]:.0f} MiB (2,048 allowed)")
    if options.json:
        machine = {"system": platform.platform(), "python": platform.python_version()}
        options.json.write_text(json.dumps({"machine": machine, "parts": parts}, indent=1) + "\n")
    return 0 if worst[0] < 600 and worst[1] < 2048 else 1


class measured:  # noqa: N801 - reads as a word
    """Time of a part and the process's peak so far."""

    def __init__(self, words: str, parts: list[dict[str, Any]]) -> None:
        self._words, self._parts = words, parts
        self._facts: dict[str, Any] = {}

    def __enter__(self) -> dict[str, Any]:
        self._wall, self._cpu = time.perf_counter(), time.process_time()
        return self._facts

    def __exit__(self, *_error: object) -> None:
        self._facts["part"] = self._words
        self._facts["seconds"] = round(time.perf_counter() - self._wall, 2)
        self._facts["cpu_seconds"] = round(time.process_time() - self._cpu, 2)
        self._facts["peak_mib"] = round(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
        self._parts.append(self._facts)
        print(self._words, self._facts, file=sys.stderr, flush=True)


def write_variants(folder: Path) -> list[Chunk]:
    """A segment's documents as the encoding tasks leave them, one chunk a segment; no ids are written."""
    (folder / PARTS).mkdir(parents=True)
    found = []
    for v in range(VARIANTS):
        rng = np.random.default_rng(v + 1)
        lengths = np.maximum(1, rng.lognormal(np.log(TOKENS_A_DOCUMENT) - 0.5, 1.0, CHUNK_DOCUMENTS)).astype(np.int64)
        bounds = np.concatenate([[0], np.cumsum(lengths)])
        writer = SegmentWriter(folder, v, 0, two_streams=True)
        block = EncodedBlock(
            start=Position(0, 0),
            end=Position(0, 0),
            source_documents={0: CHUNK_DOCUMENTS},
            stream=np.zeros(int(bounds[-1]), np.uint16),
            bounds=bounds,
            given=(rng.random(CHUNK_DOCUMENTS) < 0.01).astype(np.uint8),
            text_bytes=(lengths * BYTES_A_TOKEN).astype(np.int64),
            skipped=Counter(),
            reference_documents=0,
            special_texts=0,
            sampled=0,
            lossy_samples=0,
        )
        writer.add(block)
        writer.publish()
        for stream in (".train", ".val"):
            (folder / f"{v:07d}{stream}").unlink()
        found += writer.chunks
    return found


def inputs(documents: int) -> list[Source]:
    """Files of 250 MB that hold so many documents."""
    n = int(documents * TOKENS_A_DOCUMENT * BYTES_A_TOKEN) // FILE_BYTES
    return [Source(f"/data/part-{i:06d}.jsonl", f"part-{i:06d}.jsonl", "jsonl", "", FILE_BYTES) for i in range(n)]


def cut(documents: int) -> int:
    """How many ranges the inputs are cut into."""
    return sum(1 for _ in cut_ranges(inputs(documents), SourceOptions(), range_bytes=512 << 20))


def plan(chunks: list[Chunk], folder: Path, shard_tokens: int, facts: dict[str, Any]) -> list[ManifestFile]:
    """Plan every shard as the driver does, letting go of each as it is given out."""
    reads = [0]

    def read(chunk: Chunk, with_text: bool) -> Any:
        reads[0] += 1
        return read_documents(folder, chunk, two_streams=True, with_text=with_text)

    planner = ShardPlanner(Cutting(shard_tokens, whole_documents=True), two_streams=True, read=read)
    files = []
    for chunk in unique(chunks):
        files += [entry(shard) for shard in planner.add(chunk)]
    files += [entry(shard) for shard in planner.finish()]
    counts = planner.counts
    assert sum(file.n_tokens for file in files) == sum(counts.tokens), "every token is in a shard"
    assert sum(file.n_docs for file in files) == sum(counts.documents), "every document is in a shard"
    facts |= {"shards": len(files), "tokens": sum(counts.tokens), "chunks_read": reads[0]}
    return files


def unique(chunks: list[Chunk]) -> Iterator[Chunk]:
    """The chunks as objects of their own, as they come from the tasks."""
    for chunk in chunks:
        yield Chunk(*(getattr(chunk, name) for name in Chunk.__struct_fields__))


def entry(shard: PlannedShard) -> ManifestFile:
    """What the task that writes a shard would give back."""
    split = ("train", "val")[shard.split]
    name = f"{split}-{shard.index:06d}.bin"
    return ManifestFile(name=name, split=split, n_tokens=shard.tokens, n_docs=shard.documents, sha256="0" * 64)  # type: ignore[arg-type]


def write_journal(folder: Path, chunks: list[Chunk], files: list[ManifestFile]) -> int:
    """The journal of the whole build; its size. Syncs are left out: each costs what the storage makes it cost."""
    log = BuildLog(Target(folder, "tokens", "docs"), Journal(folder / "_JOURNAL"))
    log.begin({"layout": "tokens", "inputs": [[f"part-{i:06d}", FILE_BYTES, i] for i in range(240_000)]}, 512 << 20)
    for k in range(0, len(chunks), CHUNKS_A_SEGMENT):
        facts = SegmentFacts(
            chunks=chunks[k : k + CHUNKS_A_SEGMENT],
            sizes={f"{k:07d}{suffix}": 1 << 28 for suffix in (".train", ".val", ".docs")},
            skipped={},
            reference_documents=0,
            special_texts=0,
            sampled=16,
            lossy_samples=0,
            inputs={},
            crc=1,
        )
        log.journal.append({"segment": k // CHUNKS_A_SEGMENT, "facts": facts}, sync=False)
    for i, file in enumerate(files):
        log.journal.append({"shard": file, "released": [[i, 0]]}, sync=False)
    log.journal.close()
    return log.journal.path.stat().st_size


def write_records(folder: Path, files: list[ManifestFile], documents: int) -> dict[str, int]:
    """The facts of all inputs and the manifest, written and the manifest read; their sizes in bytes."""
    corpus = CorpusManifest(
        "docs",
        "v1",
        [CorpusFile(s.name, 80_000, FILE_BYTES, "0" * 64) for s in inputs(documents)],
        {"train": documents, "val": 0},
    )
    facts = render_corpus_manifest(corpus)
    # The tokens layout names 100,000 shards a split at most; the record of llm.c's layout lists them all.
    manifest = TokensManifest(
        tokenizer_id="gpt2",
        tokenizer_sha256="0" * 64,
        vocab_size=50257,
        doc_sep_id=50256,
        dataset="docs",
        version="v1",
        corpus_manifest_sha256="0" * 64,
        files=[renamed(file, f"train-{i:05d}.bin") for i, file in enumerate(files[:100_000])],
    )
    manifest_path, record_path = folder / "_MANIFEST.json", folder / "docs_BUILD.json"
    write_manifest(manifest_path, manifest)
    assert read_manifest(manifest_path) == manifest
    tokenizer = TokenizerRecord(tokenizer_id="gpt2", sha256="0" * 64, vocab_size=50257)
    record = BuildRecord(
        layout="llmc",
        dataset="docs",
        tokenizer=tokenizer,
        inputs=[InputRecord(path=s.file, name=s.name, n_bytes=FILE_BYTES, sha256="0" * 64) for s in inputs(documents)],
        files=[renamed(file, f"docs_train_{i:06d}.bin") for i, file in enumerate(files)],
    )
    write_record(record_path, record)
    assert read_record(record_path) == record
    sizes = {path.name: path.stat().st_size for path in (manifest_path, record_path)}
    return {"_CORPUS.json": len(facts), **sizes}


def renamed(file: ManifestFile, name: str) -> ManifestFile:
    """The same entry of train under another name."""
    return ManifestFile(name=name, split="train", n_tokens=file.n_tokens, n_docs=file.n_docs, sha256=file.sha256)


if __name__ == "__main__":
    sys.exit(main())
