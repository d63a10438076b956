"""What is written after the last shard: the facts about the inputs, the build record, and the manifest, last."""

from __future__ import annotations

import hashlib
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol

from tokenriver import __version__
from tokenriver.corpus.manifest import CorpusFile, CorpusManifest, render_corpus_manifest
from tokenriver.files import atomic_write, sha256_file
from tokenriver.shards.index import index_path
from tokenriver.shards.layouts import BUILD_RECORD, CORPUS_RECORD, SPLITS
from tokenriver.shards.manifest import ManifestFile, TokensManifest, write_manifest
from tokenriver.shards.record import BuildRecord, InputRecord, SplitRecord, TokenizerRecord, write_record

if TYPE_CHECKING:
    from collections import Counter

    from tokenriver.building.counts import BuildCounts
    from tokenriver.building.options import BuildOptions
    from tokenriver.building.target import Target
    from tokenriver.corpus.inputs import InputFacts
    from tokenriver.corpus.sources import Source
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["Origin", "Separator", "Written", "write_records"]


@dataclass(frozen=True, slots=True)
class Origin:
    """Where the documents come from: the sources in order, and the corpus directory if they are one.

    `facts` are of whoever found them (a recipe: name, repository, commit …) and go into the build record.
    """

    sources: list[Source]
    corpus_manifest: Path | None
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Separator:
    """The id that stands before (or after) each document, or None; `end` stands after it in addition, or None."""

    id: int | None
    position: str
    end: int | None = None

    @property
    def before(self) -> int | None:
        """The id to put before each document."""
        return self.id if self.position == "before" else None

    @property
    def after(self) -> int | None:
        """The id to put after each document."""
        return self.id if self.position == "after" else self.end


class Written(Protocol):
    """What was written, whoever wrote it: the shards, the SHA-256 of their document indexes by the shards' names, what
    was counted, and the documents of each source."""

    @property
    def files(self) -> list[ManifestFile]: ...

    @property
    def indexes(self) -> dict[str, str]: ...

    @property
    def counts(self) -> BuildCounts: ...

    @property
    def source_documents(self) -> Counter[int]: ...


def write_records(
    target: Target,
    writer: Written,
    *,
    origin: Origin,
    hashes: list[InputFacts],
    tokenizer: Tokenizer,
    separator: Separator,
    options: BuildOptions,
    resolved: dict[str, Any],
) -> Path:
    """Write `_CORPUS.json` (for raw files), the build record and, in the tokens layout, the manifest; return the last.

    `hashes` are the facts of every source that was read; `resolved` the options that decided the bytes.
    """
    corpus_sha256 = _corpus_facts(target, writer, origin, hashes, options)
    files = sorted(writer.files, key=lambda f: (f.split, f.name))
    record = _build_record(
        target, writer, files, corpus_sha256, origin, hashes, tokenizer, separator, options, resolved
    )
    write_record(target.record(BUILD_RECORD), record)
    if target.layout != "tokens":
        return target.record(BUILD_RECORD)
    manifest = TokensManifest(
        tokenizer_id=options.tokenizer_id or tokenizer.tokenizer_id,
        tokenizer_sha256=tokenizer.sha256,
        vocab_size=tokenizer.vocab_size,
        doc_sep_id=separator.id,
        dataset=target.dataset,
        version=options.dataset_version,
        corpus_manifest_sha256=corpus_sha256,
        files=files,
    )
    write_manifest(target.final_record, manifest)
    return target.final_record


def _corpus_facts(
    target: Target,
    writer: Written,
    origin: Origin,
    hashes: list[InputFacts],
    options: BuildOptions,
) -> str:
    """SHA-256 of the corpus's manifest, or of the same facts about raw files, written beside the shards."""
    if origin.corpus_manifest is not None:
        return sha256_file(origin.corpus_manifest)
    facts = CorpusManifest(
        name=target.dataset,
        version=options.dataset_version,
        files=[
            CorpusFile(source.name, writer.source_documents[i], hashes[i].n_bytes, hashes[i].sha256)
            for i, source in enumerate(origin.sources[: len(hashes)])
        ],
        documents=dict(zip(SPLITS, writer.counts.documents, strict=True)),
    )
    raw = render_corpus_manifest(facts)
    with atomic_write(target.record(CORPUS_RECORD)) as file:
        file.write(raw)
    return hashlib.sha256(raw).hexdigest()


def _place(source: Source, folders: dict[str, str]) -> str:
    """Where a source is; `folders` keeps the places of folders, which are asked for each of ten thousand files."""
    if source.stream is not None:
        return "-"
    if source.remote is not None:
        return str(source.remote)
    folder, _, name = source.file.rpartition(os.sep)
    if name in ("", ".", ".."):
        return os.path.abspath(source.file)  # noqa: PTH100 - a Path costs, with many sources
    if folder not in folders:
        near = folder or ("." if name == source.file else os.sep)
        folders[folder] = os.path.join(os.path.abspath(near), "")  # noqa: PTH100, PTH118 - as above
    return folders[folder] + name


def _build_record(
    target: Target,
    writer: Written,
    files: list[ManifestFile],
    corpus_sha256: str,
    origin: Origin,
    hashes: list[InputFacts],
    tokenizer: Tokenizer,
    separator: Separator,
    options: BuildOptions,
    resolved: dict[str, Any],
) -> BuildRecord:
    counts = writer.counts
    folders: dict[str, str] = {}
    return BuildRecord(
        version=__version__,
        layout=target.layout,
        dataset=target.dataset,
        tokenizer=TokenizerRecord(
            tokenizer_id=options.tokenizer_id or tokenizer.tokenizer_id,
            sha256=tokenizer.sha256,
            vocab_size=tokenizer.vocab_size,
            separator_id=separator.id,
            separator_position="after" if separator.position == "after" else "before",
        ),
        options=resolved,
        inputs=[
            InputRecord(
                path=_place(source, folders),
                name=source.name,
                n_bytes=hashes[i].n_bytes,
                sha256=hashes[i].sha256,
            )
            for i, source in enumerate(origin.sources[: len(hashes)])
        ],
        corpus_manifest_sha256=corpus_sha256,
        origin=origin.facts,
        files=files,
        indexes={index_path(Path(f.name)).name: writer.indexes[f.name] for f in files if f.name in writer.indexes},
        splits={
            name: SplitRecord(documents=counts.documents[i], tokens=counts.tokens[i], text_bytes=counts.text_bytes[i])
            for i, name in enumerate(SPLITS)
        },
        skipped=dict(sorted(counts.skipped.items())),
        encoder={
            "backend": tokenizer.backend,
            "version": tokenizer.backend_version,
            "reference_documents": counts.reference_documents,
            "sample_checked": counts.sampled,
            "sample_lossless": counts.sampled - counts.lossy_samples,
            "special_texts": counts.special_texts,
        },
    )
