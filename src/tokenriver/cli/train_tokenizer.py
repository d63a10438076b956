"""`tokenriver train-tokenizer`: a vocabulary of one's own from documents, read as `build` reads them."""

from __future__ import annotations

import json
import time
from collections import Counter
from typing import TYPE_CHECKING, Annotated, Literal

import typer

from tokenriver.cli.options import (
    AS_JSON,
    DOCUMENT_SEPARATOR,
    INPUTS,
    ON_BAD_RECORD,
    QUIET,
    TEXT_FIELD,
    unescaped,
)
from tokenriver.cli.stopping import at_once
from tokenriver.cli.summaries import plural
from tokenriver.errors import CorpusError

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from tokenriver.cli.progress import Progress
    from tokenriver.corpus.sources import Source, SourceOptions
    from tokenriver.tokenizers.train import TrainedTokenizer

__all__ = ["train_tokenizer_command"]


def train_tokenizer_command(
    inputs: Annotated[
        list[str],
        INPUTS,
    ],
    kind: Annotated[
        Literal["sp-bpe", "byte-bpe"],
        typer.Option(
            "--type",
            metavar="sp-bpe|byte-bpe",
            help="sp-bpe: SentencePiece with byte fallback; byte-bpe: a byte-level tokenizer.json.",
        ),
    ],
    vocab_size: Annotated[int, typer.Option("--vocab-size", metavar="N", min=1, help="Number of ids.")],
    out: Annotated[
        str, typer.Option("--out", metavar="DIR", help="Folder for tokenizer.model or tokenizer.json, or its URL.")
    ],
    text_field: Annotated[str, TEXT_FIELD] = "text",
    document_separator: Annotated[str | None, DOCUMENT_SEPARATOR] = None,
    on_bad_record: Annotated[Literal["error", "skip"], ON_BAD_RECORD] = "error",
    as_json: Annotated[bool, AS_JSON] = False,
    quiet: Annotated[bool, QUIET] = False,
) -> None:
    """Train a tokenizer on documents. The same documents in the same order give the same file."""
    from tokenriver.cli.progress import Progress
    from tokenriver.corpus.documents import SourceOptions, find_sources
    from tokenriver.tokenizers.train import train_tokenizer

    start = time.perf_counter()
    options = SourceOptions(
        text_field=text_field, document_separator=unescaped(document_separator), on_bad_record=on_bad_record
    )
    sources = find_sources(inputs, options)
    sizes = [source.n_bytes for source in sources]
    total = None if None in sizes else sum(n or 0 for n in sizes)
    skipped: Counter[str] = Counter()
    progress = Progress(total, label="reading", quiet=quiet)
    texts = _texts(sources, options, skipped, progress, quiet=quiet)
    trained = train_tokenizer(texts, kind=kind, vocab_size=vocab_size, out=out, training=at_once)
    seconds = time.perf_counter() - start
    if as_json:
        facts = {
            "path": str(trained.path),
            "type": kind,
            "vocab_size": trained.vocab_size,
            "documents": trained.n_texts,
            "empty": trained.n_empty,
            "cut": trained.n_cut,
            "skipped": dict(sorted(skipped.items())),
            "seconds": round(seconds, 3),
        }
        print(json.dumps(facts, indent=2, ensure_ascii=False))
    elif not quiet:
        _print_summary(trained, skipped, seconds)


def _texts(
    sources: Sequence[Source], options: SourceOptions, skipped: Counter[str], progress: Progress, *, quiet: bool
) -> Iterator[str]:
    """The texts of all documents in order, with progress; CorpusError, before the trainer ends, when there is none."""
    from tokenriver.corpus.documents import parse_block, read_blocks

    read = 0
    documents = 0

    def count(_source: int, chunk: bytes) -> None:
        nonlocal read
        read += len(chunk)

    with progress:
        for raw in read_blocks(sources, options, on_raw=count):
            block = parse_block(raw, options)
            skipped.update(block.skipped)
            documents += len(block)
            # Parquet files are not read as a stream of bytes: those behind us count whole.
            behind = (s.n_bytes or 0 for s in sources[: raw.end.source_index] if s.kind == "parquet")
            progress.update(read + sum(behind), documents)
            yield from block.texts.texts()
    if documents == 0:
        raise CorpusError(f"no documents to train on in {len(sources)} files; skipped: {_listed(skipped) or 'nothing'}")
    if not quiet:
        typer.echo(f"training on {plural(documents, 'document')} …", err=True)


def _listed(counts: Counter[str]) -> str:
    return ", ".join(f"{n:,} {kind}" for kind, n in sorted(counts.items()) if n)


def _print_summary(trained: TrainedTokenizer, skipped: Counter[str], seconds: float) -> None:
    texts = plural(trained.n_texts, "document")
    print(f"wrote {trained.path}: {trained.vocab_size:,} ids from {texts} in {seconds:.1f} s")
    if skipped:
        print(f"skipped: {_listed(skipped)}")
    if trained.n_empty:
        print(f"{trained.n_empty:,} documents hold white space alone: nothing to train on")
    if trained.n_cut:
        print(f"{trained.n_cut:,} documents were longer than the trainer takes at once and went in as several")
