"""Small, sound data sets in each layout, for tests that damage them."""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING

from tokenriver import write_shard
from tokenriver.shards.layouts import Layout, Split, data_set_directory, record_prefix, shard_name
from tokenriver.shards.manifest import ManifestFile, TokensManifest, write_manifest
from tokenriver.shards.record import BuildRecord, InputRecord, SplitRecord, TokenizerRecord, write_record

if TYPE_CHECKING:
    from pathlib import Path

SEPARATOR = 0
VOCAB = 1000
TOKENIZER_SHA = hashlib.sha256(b"tokenizer").hexdigest()


def documents(first: int, n: int) -> list[list[int]]:
    """`n` documents of 1, 2, 3, … ids, none of them the separator, each id naming its place."""
    return [[1 + (first + i + j) % (VOCAB - 1) for j in range(i + 1)] for i in range(n)]


def joined(docs: list[list[int]], separator: int | None = SEPARATOR) -> list[int]:
    """Documents as a stream, each preceded by the separator."""
    return [i for doc in docs for i in (doc if separator is None else [separator, *doc])]


def make_inputs(directory: Path) -> list[InputRecord]:
    """Two raw input files and what a build records of them."""
    directory.mkdir(parents=True, exist_ok=True)
    records = []
    for name in ("a.jsonl", "b.jsonl"):
        raw = b'{"text":"' + name.encode() + b'"}\n'
        path = directory / name
        path.write_bytes(raw)
        records.append(InputRecord(path=str(path), name=name, n_bytes=len(raw), sha256=hashlib.sha256(raw).hexdigest()))
    return records


def tokenizer_record(separator: int | None = SEPARATOR) -> TokenizerRecord:
    """What a build records of its tokenizer."""
    return TokenizerRecord(tokenizer_id="toy", sha256=TOKENIZER_SHA, vocab_size=VOCAB, separator_id=separator)


def make_tokens_set(root: Path, *, separator: int | None = SEPARATOR, dataset: str = "tales") -> Path:
    """A data set in the tokens layout: two train shards and one val shard of whole documents, all records beside."""
    directory = data_set_directory(root, "tokens", tokenizer_id="toy", dataset=dataset)
    directory.mkdir(parents=True)
    files = []
    plan: list[tuple[Split, int, list[list[int]]]] = [
        ("train", 0, documents(0, 20)),
        ("train", 1, documents(50, 12)),
        ("val", 0, documents(99, 5)),
    ]
    for split, index, docs in plan:
        name = shard_name("tokens", dataset, split, index)
        facts = write_shard(directory / name, joined(docs, separator), vocab_size=VOCAB)
        files.append(
            ManifestFile(name=name, split=split, n_tokens=facts.n_tokens, n_docs=len(docs), sha256=facts.sha256)
        )
    corpus = b'{"files": []}\n'
    (directory / "_CORPUS.json").write_bytes(corpus)
    manifest = TokensManifest(
        tokenizer_id="toy",
        tokenizer_sha256=TOKENIZER_SHA,
        vocab_size=VOCAB,
        doc_sep_id=separator,
        dataset=dataset,
        version="v1",
        corpus_manifest_sha256=hashlib.sha256(corpus).hexdigest(),
        files=files,
    )
    record = BuildRecord(
        layout="tokens",
        dataset=dataset,
        tokenizer=tokenizer_record(separator),
        options={"shard_tokens": 300},
        inputs=make_inputs(root / "in"),
        splits=split_records(files),
    )
    write_record(directory / "_BUILD.json", record)
    write_manifest(directory / "_MANIFEST.json", manifest)
    return directory


def split_records(files: list[ManifestFile]) -> dict[str, SplitRecord]:
    """What was produced, when nothing got lost."""
    sides = sorted({f.split for f in files})
    return {
        side: SplitRecord(
            documents=sum(f.n_docs for f in files if f.split == side),
            tokens=sum(f.n_tokens for f in files if f.split == side),
        )
        for side in sides
    }


def make_cut_set(directory: Path, layout: Layout, *, dataset: str = "tales", shard_tokens: int = 50) -> Path:
    """A data set cut at exactly `shard_tokens` ids, in the llmc or golf layout, with its record."""
    directory.mkdir(parents=True, exist_ok=True)
    streams: list[tuple[Split, list[int]]]
    if layout == "llmc":
        stream = joined(documents(0, 20))
        streams = [("val", stream[:shard_tokens]), ("train", stream[shard_tokens:])]
    else:
        streams = [("val", joined(documents(0, 9))), ("train", joined(documents(9, 15)))]
    files: list[ManifestFile] = []
    for split, stream in streams:
        for i, start in enumerate(range(0, len(stream), shard_tokens)):
            ids = stream[start : start + shard_tokens]
            name = shard_name(layout, dataset, split, len(files) if layout == "llmc" else i)
            facts = write_shard(directory / name, ids)
            files.append(
                ManifestFile(
                    name=name,
                    split=split,
                    n_tokens=facts.n_tokens,
                    n_docs=ids.count(SEPARATOR),
                    sha256=facts.sha256,
                )
            )
    record = BuildRecord(
        layout=layout,
        dataset=dataset,
        tokenizer=tokenizer_record(),
        options={"shard_tokens": shard_tokens},
        inputs=make_inputs(directory.parent / "in"),
        files=files,
        splits=split_records(files),
    )
    write_record(directory / f"{record_prefix(layout, dataset)}_BUILD.json", record)
    return directory
