"""The rules that a data set must keep, as pure functions of numbers and names: each yields what is wrong.

docs/format.md states them; verify.py reads the files and asks here.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from tokenriver.shards.header import variant_for
from tokenriver.shards.layouts import SPLITS, parse_shard_name
from tokenriver.shards.manifest import ManifestFile, TokensManifest

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from tokenriver.shards.found import DataSet
    from tokenriver.shards.record import BuildRecord
    from tokenriver.shards.scan import ShardScan

__all__ = ["data_set_problems", "id_problem", "key_order_problem", "shard_problems"]


def id_problem(scan: ShardScan, vocab_size: int) -> Iterator[str]:
    """An id that is not below the smallest vocabulary named (the header's, or `vocab_size` of the manifest)."""
    if scan.too_large is not None:
        position, found = scan.too_large
        limit = min(v for v in (scan.header.vocab_size, vocab_size) if v)
        yield f"id {found} at token {position:,} is not below the vocabulary of {limit:,} ids"


def shard_problems(scan: ShardScan, file: ManifestFile, data_set: DataSet) -> Iterator[str]:
    """Where a shard differs from its entry in the manifest or record, and from what its layout demands."""
    header, source = scan.header, data_set.source.name
    if scan.sha256 != file.sha256:
        yield f"sha256 is {scan.sha256}, {source} says {file.sha256}: the bytes changed"
    if header.n_tokens != file.n_tokens:
        yield f"{header.n_tokens:,} tokens, {source} says n_tokens {file.n_tokens:,}"
    yield from id_problem(scan, data_set.vocab_size)
    yield from _header_problems(scan, data_set)
    if scan.separators is None or header.n_tokens == 0:
        return
    counted_by_file = data_set.layout == "tokens" or data_set.separator_position == "before"
    if counted_by_file and scan.separators != file.n_docs:
        yield (
            f"separator {data_set.separator_id} occurs {scan.separators:,} times, {source} says n_docs {file.n_docs:,}"
        )
    if data_set.layout == "tokens":
        before = data_set.separator_position == "before"
        edge = scan.first_id if before else scan.last_id
        if edge != data_set.separator_id:
            where = "begins" if before else "ends"
            yield f"{where} with id {edge}, not with separator {data_set.separator_id}: documents are not whole"


def _header_problems(scan: ShardScan, data_set: DataSet) -> Iterator[str]:
    header, source = scan.header, data_set.source.name
    if header.variant == "llama-3":
        return
    if data_set.layout != "tokens":
        if header.vocab_size:
            yield f"the header names a vocabulary of {header.vocab_size:,}; the {data_set.layout} layout leaves it 0"
        return
    if header.vocab_size != data_set.vocab_size:
        yield f"the header's vocabulary is {header.vocab_size:,}, {source} says vocab_size {data_set.vocab_size:,}"
    expected = variant_for(data_set.vocab_size)
    if header.variant != expected:
        yield f"ids are {header.variant}, but with a vocabulary of {data_set.vocab_size:,} they are {expected}"


def data_set_problems(data_set: DataSet) -> Iterator[str]:
    """What is wrong with a manifest or record as a whole, without looking into shards."""
    yield from _numbering_problems(data_set)
    yield from _cut_problems(data_set)
    if data_set.manifest is not None:
        yield from _directory_problems(data_set.manifest, data_set.directory)
    if data_set.record is not None:
        yield from _conservation_problems(data_set, data_set.record)
        if data_set.manifest is not None:
            yield from _agreement_problems(data_set.manifest, data_set.record)


def key_order_problem(raw: bytes) -> Iterator[str]:
    """A manifest whose keys are doubled or not in the order of its schema (the values are checked elsewhere)."""
    expected = list(TokensManifest.__struct_fields__), list(ManifestFile.__struct_fields__)
    objects: list[list[str]] = []

    def note(pairs: list[tuple[str, object]]) -> dict[str, object]:
        objects.append([key for key, _ in pairs])
        return {}

    json.loads(raw, object_pairs_hook=note)
    wrong = next((keys for keys in objects if keys not in expected), None)
    if wrong is not None:
        yield f"keys are not in the order that docs/format.md states: {', '.join(wrong)}"


def _numbering_problems(data_set: DataSet) -> Iterator[str]:
    """Numbers run from 0 without a gap: for each split, or over all files in the llmc layout."""
    numbers: dict[str, list[int]] = {}
    for file in data_set.files:
        name = parse_shard_name(file.name)
        if name is not None and name.index is not None:
            numbers.setdefault("" if data_set.layout == "llmc" else f" of {name.split}", []).append(name.index)
        if name is not None and name.split != file.split:
            yield f"{file.name} is recorded as {file.split}"
    for which, found in numbers.items():
        if sorted(found) != list(range(len(found))):
            yield f"shard numbers{which} do not run from 0 to {len(found) - 1}: {_brief(sorted(found))}"


def _brief(numbers: list[int]) -> str:
    text = ", ".join(map(str, numbers[:8]))
    return text + (", …" if len(numbers) > 8 else "")


def _cut_problems(data_set: DataSet) -> Iterator[str]:
    size = data_set.record.options.get("shard_tokens") if data_set.record else None
    if not isinstance(size, int) or any(_without_number(f) for f in data_set.files):
        return
    if data_set.layout == "tokens":
        for file in data_set.files:
            if file.n_tokens > size and file.n_docs > 1:
                yield f"{file.name} holds {file.n_tokens:,} tokens in {file.n_docs:,} documents, over {size:,} a shard"
        return
    for split in SPLITS:
        files: Sequence[ManifestFile] = [f for f in data_set.files if f.split == split]
        for i, file in enumerate(files):
            if file.n_tokens > size or (file.n_tokens < size and i + 1 < len(files)):
                yield f"{file.name} holds {file.n_tokens:,} tokens; every shard but the last holds {size:,}"


def _without_number(file: ManifestFile) -> bool:
    name = parse_shard_name(file.name)
    return name is None or name.index is None


def _directory_problems(manifest: TokensManifest, directory: Path) -> Iterator[str]:
    directory = directory.absolute()
    if directory.parent.parent.name != "tokens":
        return
    expected = f"{manifest.tokenizer_id}/{manifest.dataset}"
    if f"{directory.parent.name}/{directory.name}" != expected:
        yield f"names {expected}, but lies in tokens/{directory.parent.name}/{directory.name}"


def _conservation_problems(data_set: DataSet, record: BuildRecord) -> Iterator[str]:
    """Tokens written = tokens produced, for each split; documents likewise (in total, where a cut may move them)."""
    source = "_BUILD.json" if data_set.layout == "tokens" else data_set.source.name
    for split, produced in record.splits.items():
        written = [f for f in data_set.files if f.split == split]
        tokens = sum(f.n_tokens for f in written)
        if tokens != produced.tokens:
            yield f"{split}: {tokens:,} tokens in the shards, {source} says {produced.tokens:,} were produced"
        documents = sum(f.n_docs for f in written)
        if data_set.layout != "llmc" and documents != produced.documents:
            yield f"{split}: {documents:,} documents in the shards, {source} says {produced.documents:,} were produced"
    if data_set.layout == "llmc" and record.splits:
        documents = sum(f.n_docs for f in data_set.files)
        produced_in_all = sum(s.documents for s in record.splits.values())
        if documents != produced_in_all:
            yield f"{documents:,} documents in the shards, {source} says {produced_in_all:,} were produced"


def _agreement_problems(manifest: TokensManifest, record: BuildRecord) -> Iterator[str]:
    pairs = {
        "tokenizer_sha256": (manifest.tokenizer_sha256, record.tokenizer.sha256),
        "vocab_size": (manifest.vocab_size, record.tokenizer.vocab_size),
        "doc_sep_id": (manifest.doc_sep_id, record.tokenizer.separator_id),
        "dataset": (manifest.dataset, record.dataset),
    }
    for key, (ours, theirs) in pairs.items():
        if ours != theirs:
            yield f"{key} is {ours!r}, _BUILD.json says {theirs!r}"
    ours, theirs = manifest.corpus_manifest_sha256, record.corpus_manifest_sha256
    if theirs and ours != theirs:
        yield f"corpus_manifest_sha256 is {ours}, _BUILD.json says {theirs}"
    if record.files and record.files != manifest.files:
        yield "files differ from the list in _BUILD.json"
