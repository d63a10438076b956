"""One data set to be built: everything that is decided before the first document is read, and what follows from it."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import msgspec

from tokenriver.building.assemble import BlockEncoder
from tokenriver.building.choices import (
    arrange_sources,
    choose_cutting,
    choose_separator,
    choose_split,
    choose_variant,
)
from tokenriver.building.dataset import DatasetWriter
from tokenriver.building.journal import Journal
from tokenriver.building.lane_messages import EncoderWords
from tokenriver.building.passes import OpenJob
from tokenriver.building.records import write_records
from tokenriver.building.shape import Shape
from tokenriver.building.summary import BuildSummary
from tokenriver.building.target import Target
from tokenriver.corpus.documents import Position
from tokenriver.corpus.identity import identity_of
from tokenriver.cpus import available_cpus
from tokenriver.resuming.journal import refuse_changes
from tokenriver.shards.header import dtype_of
from tokenriver.shards.index import index_path
from tokenriver.shards.layouts import SPLITS, data_set_directory
from tokenriver.storage.paths import is_remote
from tokenriver.tokenizers.load import load_tokenizer

if TYPE_CHECKING:
    from pathlib import Path

    from tokenriver.building.journal import JournalContent
    from tokenriver.building.options import BuildOptions
    from tokenriver.building.plan import Cutting
    from tokenriver.building.records import Origin, Separator, Written
    from tokenriver.corpus.inputs import InputFacts
    from tokenriver.corpus.sources import SourceOptions
    from tokenriver.corpus.splits import SplitRule
    from tokenriver.shards.header import Variant
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["Job"]


@dataclass(frozen=True, slots=True)
class Job:
    """One data set to be built, decided by `prepare`."""

    options: BuildOptions
    origin: Origin
    tokenizer: Tokenizer
    word: str | None  # the tokenizer's, where it was given by one
    separator: Separator
    variant: Variant
    rule: SplitRule
    cutting: Cutting
    target: Target
    started: float

    @classmethod
    def prepare(
        cls,
        origin: Origin,
        tokenizer: str | os.PathLike[str] | Tokenizer,
        out: Path,
        options: BuildOptions,
        *,
        dataset: str,
    ) -> Job:
        started = time.perf_counter()
        tokenizer = str(tokenizer) if is_remote(tokenizer) else tokenizer
        word = os.fspath(tokenizer) if isinstance(tokenizer, (str, os.PathLike)) else None
        if isinstance(tokenizer, (str, os.PathLike)):
            tokenizer = load_tokenizer(os.fspath(tokenizer), backend=options.backend, separator=options.separator)
        rule = choose_split(origin, options)
        tokenizer_id = options.tokenizer_id or tokenizer.tokenizer_id
        directory = data_set_directory(out, options.layout, tokenizer_id=tokenizer_id, dataset=dataset)
        return cls(
            options=options,
            origin=arrange_sources(origin, rule, options),
            tokenizer=tokenizer,
            word=word,
            separator=choose_separator(tokenizer, options),
            variant=choose_variant(tokenizer, options),
            rule=rule,
            cutting=choose_cutting(rule, options),
            target=Target.at(directory, options.layout, dataset, staging=options.staging),
            started=started,
        )

    def open(self) -> OpenJob:
        """Start writing; the caller holds the directory's lock."""
        self.clear()
        journal = Journal(self.target.journal)
        workers = self.options.workers or available_cpus()
        return OpenJob(self, journal, DatasetWriter(self.shape(), journal, remote=self.target.store, workers=workers))

    def clear(self) -> None:
        """Remove what is to be replaced. IntegrityError for what is in the way."""
        self.target.abort_uploads()
        self.target.end_swap()
        if self.options.overwrite or self.options.restart:
            self.target.begin_anew(
                lambda: {**self.heading(), "engine": self.options.engine},
                overwrite=self.options.overwrite,
                restart=self.options.restart,
            )
        self.target.refuse_finished()

    def shape(self) -> Shape:
        """The llm.c and Parameter Golf layouts leave the header's vocabulary at 0, as those programs do."""
        return Shape(
            directory=self.target.directory,
            layout=self.options.layout,
            dataset=self.target.dataset,
            cutting=self.cutting,
            variant=self.variant,
            header_vocab_size=self.tokenizer.vocab_size if self.options.layout == "tokens" else 0,
            numbered=self.options.numbered,
            max_documents=self.options.max_documents,
            max_tokens=self.options.max_tokens,
            doc_index=self._doc_index,
        )

    @property
    def _doc_index(self) -> bool:
        wanted = self.options.doc_index
        return self.options.layout == "tokens" if wanted is None else wanted

    def _resolved(self) -> dict[str, Any]:
        """The options that decide the bytes, with every default filled in."""
        return {
            "shard_tokens": self.options.shard_tokens,
            "variant": self.variant,
            "split": str(self.rule),
            "text_field": self.options.text_field,
            "document_separator": self.options.document_separator,
            "keep_empty": self.options.keep_empty,
            "doc_index": self._doc_index,
            **({"end_id": self.separator.end} if self.separator.end is not None else {}),
            "dataset_version": self.options.dataset_version,
            **self.options.beyond_the_usual(),
        }

    def heading(self) -> dict[str, Any]:
        """What an unfinished build must have in common with this one to be gone on with."""
        return {
            "layout": self.options.layout,
            "dataset": self.target.dataset,
            "tokenizer": f"{self.tokenizer.tokenizer_id} (sha256 {self.tokenizer.sha256})",
            "separator": [self.separator.id, self.separator.position],
            **self._resolved(),
            "inputs": [identity_of(source) for source in self.origin.sources],
        }

    def take_up(self, journal: Journal, writer: DatasetWriter) -> JournalContent | None:
        """Go on with a journalled build, whose content it returns, or begin (None)."""
        heading = self.heading()
        content = journal.reopen()
        if content is None or content.checkpoint is None:
            if self.target.remote is None:  # a store's name is given before the journal speaks of it
                self.target.refuse_shards("a journal that names none")
            writer.remove_unfinished()
            self.target.remove_segments()
            journal.begin(heading)
            return None
        refuse_changes(msgspec.to_builtins(heading), content.heading, self.target.where)
        position, mark = Position(*writer.resume(content)), content.mark
        if mark is not None and (stream := self.origin.sources[mark.source_index].stream) is not None:
            unchecked = position.offset if position.source_index == mark.source_index else 0
            stream.expect(unchecked, mark.n_bytes, mark.sha256)
        return content

    def reading(self) -> SourceOptions:
        """How the documents are read."""
        return self.options.reading(self.rule.column if self.rule.kind == "column" else None)

    def encoder(self) -> BlockEncoder:
        """What turns parsed blocks into this data set's tokens."""
        return BlockEncoder(
            self.tokenizer,
            self.origin.sources,
            dtype=dtype_of(self.variant),
            separator=self.separator,
            hash_fraction=self.rule.hash_fraction,
            verify_sample=self.options.verify_sample,
        )

    def encoder_words(self, position: Position) -> EncoderWords | None:
        """How another process makes `encoder`; None where the tokenizer was given as an object."""
        if self.word is None:
            return None
        return EncoderWords(
            position,
            tokenizer=self.word,
            tokenizer_sha256=self.tokenizer.sha256,
            backend=self.options.backend,
            separator_option=self.options.separator,
            dtype=dtype_of(self.variant),
            separator=self.separator,
            hash_fraction=self.rule.hash_fraction,
            verify_sample=self.options.verify_sample,
        )

    def write_records(self, writer: Written, hashes: list[InputFacts]) -> Path:
        """The records and the manifest; the last of them."""
        write_records(
            self.target,
            writer,
            origin=self.origin,
            hashes=hashes,
            tokenizer=self.tokenizer,
            separator=self.separator,
            options=self.options,
            resolved=self._resolved(),
        )
        names = [file.name for file in writer.files]
        if self._doc_index:
            names += [index_path(self.target.directory / name).name for name in names]
        return self.target.publish_records(names)

    def summary(self, writer: Written, record: Path, hashes: list[InputFacts], *, resumed: bool) -> BuildSummary:
        """What was made."""
        counts = writer.counts
        return BuildSummary(
            directory=self.target.where,
            record=record,
            layout=self.options.layout,
            dataset=self.target.dataset,
            tokenizer_id=self.options.tokenizer_id or self.tokenizer.tokenizer_id,
            vocab_size=self.tokenizer.vocab_size,
            separator_id=self.separator.id,
            files=sorted(writer.files, key=lambda f: (f.split, f.name)),
            documents=sum(counts.documents),
            tokens=sum(counts.tokens),
            text_bytes=sum(counts.text_bytes),
            documents_by_split=dict(zip(SPLITS, counts.documents, strict=True)),
            tokens_by_split=dict(zip(SPLITS, counts.tokens, strict=True)),
            text_bytes_by_split=dict(zip(SPLITS, counts.text_bytes, strict=True)),
            skipped=dict(sorted(counts.skipped.items())),
            reference_documents=counts.reference_documents,
            special_texts=counts.special_texts,
            sampled=counts.sampled,
            lossless=counts.sampled - counts.lossy_samples,
            input_bytes=sum(facts.n_bytes for facts in hashes),
            seconds=time.perf_counter() - self.started,
            resumed=resumed,
        )
