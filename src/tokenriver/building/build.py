"""`tokenriver.build`: one call from documents to a finished, verified-as-written data set."""

from __future__ import annotations

import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Unpack

from tokenriver.building.assemble import BlockEncoder
from tokenriver.building.dataset import DatasetWriter, Shape
from tokenriver.building.journal import Journal
from tokenriver.building.options import BuildOptions, BuildWords
from tokenriver.building.pipeline import ProgressSink, default_workers, in_order, read_ahead
from tokenriver.building.plan import Cutting
from tokenriver.building.records import write_records
from tokenriver.building.target import Target
from tokenriver.corpus.documents import Position, read_blocks
from tokenriver.corpus.hashing import InputHasher
from tokenriver.corpus.sources import SourceOptions, find_sources
from tokenriver.corpus.splits import SplitRule, default_split
from tokenriver.errors import CorpusError, ResumeError, TokenizerError, UsageError
from tokenriver.shards.header import VARIANTS, Variant, variant_for
from tokenriver.shards.layouts import GOLF_NAME, data_set_directory
from tokenriver.tokenizers.load import load_tokenizer

if TYPE_CHECKING:
    import os
    from collections.abc import Sequence

    from tokenriver.building.dataset import BuildCounts
    from tokenriver.corpus.sources import Source
    from tokenriver.shards.manifest import ManifestFile
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["BuildSummary", "build"]


@dataclass(frozen=True, slots=True)
class BuildSummary:
    """What a build made. Per split: "train", "val"; `text_bytes` are UTF-8 bytes of text, `seconds` wall time.

    `skipped` counts records that gave no document, by kind; `reference_documents` those that the reference encoded;
    `special_texts` the texts that spell a special token (encoded as ordinary text); of `sampled` documents compared
    with the reference, `lossless` decode to their own bytes. `resumed` says that earlier work was kept.
    """

    directory: Path
    record: Path
    layout: str
    dataset: str
    tokenizer_id: str
    vocab_size: int
    separator_id: int | None
    files: list[ManifestFile] = field(repr=False)
    documents: int
    tokens: int
    text_bytes: int
    documents_by_split: dict[str, int]
    tokens_by_split: dict[str, int]
    skipped: dict[str, int]
    reference_documents: int
    special_texts: int
    sampled: int
    lossless: int
    input_bytes: int
    seconds: float
    resumed: bool


def build(
    inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
    *,
    tokenizer: str | os.PathLike[str] | Tokenizer,
    out: str | os.PathLike[str],
    progress: ProgressSink | None = None,
    **options: Unpack[BuildWords],
) -> BuildSummary:
    """Turn documents into token shards with their manifest, and return what was made.

    `inputs` are files, directories, globs, a corpus directory or "-"; `tokenizer` what `load_tokenizer` takes, or a
    loaded tokenizer; `out` the artifacts root (layout "tokens") or the folder of the shards ("llmc", "golf"). The
    other words are those of BuildOptions. Run again after an interruption, it goes on where it stopped.

    Raises UsageError for words that cannot work, CorpusError for bad documents, TokenizerError for an encoder that
    differs from its reference, IntegrityError when a finished data set is in the way, ResumeError when an unfinished
    one was made otherwise.
    """
    return _Build(inputs, tokenizer, Path(out), BuildOptions.from_words(options), progress).run()


class _Build:
    """The parts of one build, put together in `__init__` from the options, and run once."""

    def __init__(
        self,
        inputs: Sequence[str | os.PathLike[str]] | str | os.PathLike[str],
        tokenizer: str | os.PathLike[str] | Tokenizer,
        out: Path,
        options: BuildOptions,
        progress: ProgressSink | None,
    ) -> None:
        self.started = time.perf_counter()
        self.options = options
        self.progress = progress
        words = [inputs] if isinstance(inputs, (str, Path)) else list(inputs)  # type: ignore[arg-type]
        self.origin = find_origin(words)
        self.tokenizer = _load(tokenizer, options)
        self.separator = choose_separator(self.tokenizer, options)
        self.variant = choose_variant(self.tokenizer, options)
        dataset = GOLF_NAME if options.layout == "golf" else options.dataset or name_of(words)
        self.tokenizer_id = options.tokenizer_id or self.tokenizer.tokenizer_id
        directory = data_set_directory(out, options.layout, tokenizer_id=self.tokenizer_id, dataset=dataset)
        self.target = Target(directory, options.layout, dataset)
        self.rule = choose_split(self.origin, options)
        self.source_options = SourceOptions(
            text_field=options.text_field,
            split_field=self.rule.column,
            on_bad_record=options.on_bad_record,
            keep_empty=options.keep_empty,
            document_separator=options.document_separator,
        )

    def run(self) -> BuildSummary:
        """Build under the directory's lock; what was begun in vain is removed."""
        with self.target.locked():
            if self.options.overwrite:
                self.target.clear()
            self.target.refuse_finished()
            if self.options.restart:
                self.target.clear()
            journal = Journal(self.target.journal)
            writer = DatasetWriter(self._shape(), journal)
            try:
                position, resumed = self._take_up(journal, writer)
                hashes = self._stream(writer, position)
                record = self._finish(writer, hashes)
            except BaseException:
                writer.abort()
                if not writer.files:
                    journal.remove()
                    writer.remove_unfinished()
                raise
            finally:
                journal.close()
            journal.remove()
        return self._summary(writer, record, resumed)
