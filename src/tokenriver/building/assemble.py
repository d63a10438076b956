"""From a block of documents to the tokens that go into shards: encode, check, and set the separators.

`encode_block` is what a worker does; it is pure, so blocks can be encoded anywhere and in any order. One block may be
encoded for several data sets at once: it is read and parsed only once.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.batches import TextBatch, tally
from tokenriver.building.culprit import failing_document, first_difference
from tokenriver.building.special_texts import SpecialTexts
from tokenriver.corpus.documents import parse_block
from tokenriver.corpus.ranges import text_bytes
from tokenriver.corpus.splits import VAL, hash_split
from tokenriver.errors import TokenizerError
from tokenriver.tokenizers.byte import ByteTokenizer

if TYPE_CHECKING:
    from collections.abc import Sequence
    from fractions import Fraction

    from numpy.typing import NDArray

    from tokenriver.batches import TokenBatch
    from tokenriver.building.records import Separator
    from tokenriver.corpus.documents import DocumentBlock, Position, RawBlock
    from tokenriver.corpus.sources import Source, SourceOptions
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["BlockEncoder", "EncodedBlock", "encode_block", "expected_text_bytes", "join_documents"]

_LONG_DOCUMENT = 2048
"""Tokens a document from which copying slice by slice beats one masked assignment (0.36 and 0.23 ms a MB at 660)."""


@dataclass(frozen=True, slots=True, eq=False)
class EncodedBlock:
    """A block ready to be cut: `stream` [n_tokens] in the shard's dtype, separators included, and what was seen.

    `bounds` int64 [n + 1] and `given` uint8 [n] | None are what building.plan takes; `text_bytes` int64 [n] the UTF-8
    bytes of each document.
    """

    start: Position
    end: Position
    source_documents: dict[int, int]
    stream: NDArray[np.unsignedinteger]
    bounds: NDArray[np.int64]
    given: NDArray[np.uint8] | None
    text_bytes: NDArray[np.int64]
    skipped: Counter[str]
    reference_documents: int
    special_texts: int
    sampled: int
    lossy_samples: int

    def first(self, n: int) -> EncodedBlock:
        """The block's first n documents; what was counted of the whole block stays as it is."""
        sources = np.repeat(list(self.source_documents), list(self.source_documents.values()))[:n]
        return replace(
            self,
            source_documents=tally(sources),
            stream=self.stream[: int(self.bounds[n])],
            bounds=self.bounds[: n + 1],
            given=None if self.given is None else self.given[:n],
            text_bytes=self.text_bytes[:n],
        )


def join_documents(
    tokens: TokenBatch, *, before: int | None, after: int | None, dtype: np.dtype[np.unsignedinteger]
) -> tuple[NDArray[np.unsignedinteger], NDArray[np.int64]]:
    """One stream of all documents, each with the id `before` it and/or `after` it, and the documents' bounds.

    The ids must fit `dtype`; the caller has checked them against the vocabulary.
    """
    n = len(tokens)
    extra = (before is not None) + (after is not None)
    if not extra:
        return tokens.ids.astype(dtype), tokens.offsets
    bounds = tokens.offsets + extra * np.arange(n + 1, dtype=np.int64)
    stream = np.empty(int(bounds[-1]), dtype)
    lead = before is not None
    if len(tokens.ids) > _LONG_DOCUMENT * n:
        ids, ends = tokens.ids, tokens.offsets.tolist()
        target = (bounds[:-1] + lead).tolist()
        for i, to in enumerate(target):
            stream[to : to + ends[i + 1] - ends[i]] = ids[ends[i] : ends[i + 1]]
    else:
        is_text = np.ones(len(stream), np.bool_)
        if lead:
            is_text[bounds[:-1]] = False
        if after is not None:
            is_text[bounds[1:] - 1] = False
        stream[is_text] = tokens.ids
    if lead:
        stream[bounds[:-1]] = before
    if after is not None:
        stream[bounds[1:] - 1] = after
    return stream, bounds


class BlockEncoder:
    """Everything that a worker needs to turn raw blocks into encoded ones; shared by all workers, holds no state.

    `expected_bytes`: text in all inputs, about, where the sources are not all of them.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        sources: Sequence[Source],
        *,
        dtype: np.dtype[np.unsignedinteger],
        separator: Separator,
        hash_fraction: Fraction | None,
        verify_sample: int,
        expected_bytes: int | None = None,
    ) -> None:
        self._tokenizer = tokenizer
        self._sources = sources
        self._dtype = dtype
        self._separator = separator
        self._hash_fraction = hash_fraction
        self._verify_sample = verify_sample
        self._expected_bytes = expected_text_bytes(sources) if expected_bytes is None else expected_bytes
        self._special = SpecialTexts(tokenizer.special_texts)

    def encode(self, start: Position, end: Position, box: list[DocumentBlock]) -> EncodedBlock:
        """Encode the block in `box`, compare a sample with the reference, and join; raises TokenizerError.

        The block is taken out of the box, and what is not needed any more is let go at once: it may be one document
        of hundreds of megabytes.
        """
        block = box.pop()
        given = block.splits if self._hash_fraction is None else hash_split(block.texts, self._hash_fraction)
        special_texts = self._special.count(block.texts)
        sample = self._choose_sample(block.texts, end)
        tokens = self._encode(block)
        lengths = block.texts.lengths
        block = replace(block, texts=TextBatch.from_texts([]))
        self._check_range(block, tokens)
        lossy = self._compare_sample(block, tokens, sample)
        n_reference = tokens.n_reference
        stream, bounds = join_documents(
            tokens, before=self._separator.before, after=self._separator.after, dtype=self._dtype
        )
        del tokens
        self._check_separators(block, stream, bounds)
        leaves_trace = np.diff(bounds) > 0
        n_traceless = len(leaves_trace) - int(np.count_nonzero(leaves_trace))
        if n_traceless:
            # Without a separator a document of no token stands nowhere in the stream: it is counted, not written.
            bounds = np.append(bounds[:-1][leaves_trace], bounds[-1])
            given = None if given is None else given[leaves_trace]
            lengths = lengths[leaves_trace]
        return EncodedBlock(
            start=start,
            end=end,
            source_documents=tally(block.source_indices[leaves_trace]),
            stream=stream,
            bounds=bounds,
            given=given,
            text_bytes=lengths,
            skipped=block.skipped + Counter(no_token=n_traceless),
            reference_documents=n_reference,
            special_texts=special_texts,
            sampled=len(sample),
            lossy_samples=lossy,
        )

    def _encode(self, block: DocumentBlock) -> TokenBatch:
        """All documents of a block on this thread; an encoder's failure names the document."""
        try:
            if isinstance(self._tokenizer, ByteTokenizer):
                return self._tokenizer.encode_batch_narrow(block.texts)
            return self._tokenizer.encode_batch(block.texts, parallel=False)
        except TokenizerError as error:
            if error.document is None:
                raise
            raise TokenizerError(f"{self._where(block, error.document)}: {error}") from error
        except Exception as error:
            document = None if isinstance(error, MemoryError) else failing_document(self._tokenizer, block.texts)
            if document is None:
                raise
            what = f"{self._where(block, document)}: the tokenizer raised {type(error).__name__}: {error}"
            raise TokenizerError(what) from error

    def _where(self, block: DocumentBlock, index: int) -> str:
        return block.where(index, self._sources)

    def _check_range(self, block: DocumentBlock, tokens: TokenBatch) -> None:
        """Refuse an id outside the tokenizer's own vocabulary, naming the document."""
        if tokens.ids.size and int(tokens.ids.max()) >= self._tokenizer.vocab_size:
            at = int(tokens.ids.argmax())
            document = int(np.searchsorted(tokens.offsets, at, "right")) - 1
            raise TokenizerError(
                f"{self._where(block, document)}: the tokenizer gave id {tokens.ids[at]}, outside its vocabulary of "
                f"{self._tokenizer.vocab_size:,}"
            )

    def _check_separators(
        self, block: DocumentBlock, stream: NDArray[np.unsignedinteger], bounds: NDArray[np.int64]
    ) -> None:
        """Refuse a text that gives the separator's id itself: its document could not be told from two."""
        separator = self._separator
        if separator.id is None:
            return
        wanted = (separator.before == separator.id) + (separator.after == separator.id)
        parts = range(0, len(stream), _LOOK_IDS)  # a document may have hundreds of millions of ids
        if sum(np.count_nonzero(stream[i : i + _LOOK_IDS] == separator.id) for i in parts) == wanted * (
            len(bounds) - 1
        ):
            return
        document_of = np.searchsorted(bounds, np.flatnonzero(stream == separator.id), "right") - 1
        document = int(np.argmax(np.bincount(document_of) > wanted))
        raise TokenizerError(
            f"{self._where(block, document)}: the text itself gives id {separator.id}, the separator, so documents "
            "could not be told apart",
            advice=("give an id that no text gives with --separator, or none",),
        )

    def _choose_sample(self, texts: TextBatch, end: Position) -> dict[int, bytes]:
        """Texts spread evenly over the block, by their index: its share of the sample by bytes, and never none.

        Nobody knows how much standard input will bring: there the share is of what has come so far, so the sample
        grows with the logarithm of the input.
        """
        n = len(texts)
        if not self._verify_sample or not n:
            return {}
        whole = self._expected_bytes or end.offset
        wanted = min(n, -(-int(texts.offsets[-1] - texts.offsets[0]) * self._verify_sample // max(1, whole)))
        chosen = ((np.arange(wanted) + 0.5) * n // max(wanted, 1)).astype(np.int64)
        return {i: texts[i] for i in chosen[texts.lengths[chosen] <= _SAMPLE_BYTES].tolist()}

    def _compare_sample(self, block: DocumentBlock, tokens: TokenBatch, sample: dict[int, bytes]) -> int:
        """Encode the sample with the reference too and raise at the first difference.

        Returns how many of it do not decode to their own text.
        """
        if not sample:
            return 0
        expected = self._tokenizer.reference_encode_batch(list(sample.values()))
        lossy = 0
        for (i, text), want in zip(sample.items(), expected, strict=True):
            if not np.array_equal(tokens[i], want):
                raise TokenizerError(f"{self._where(block, i)}: {first_difference(tokens[i], want, self._tokenizer)}")
            lossy += self._tokenizer.decode_bytes(want) != text
        return lossy


def expected_text_bytes(sources: Sequence[Source]) -> int:
    """About how much text the sources hold; 0 when standard input is among them.

    How many documents are compared with the reference depends on it, nothing else.
    """
    if any(source.stream is not None for source in sources):
        return 0
    return sum(map(text_bytes, sources))


def encode_block(
    encoders: Sequence[tuple[Position, BlockEncoder]], source_options: SourceOptions, raw: RawBlock
) -> list[EncodedBlock | None]:
    """Parse a block once and encode it with every encoder whose data set is not past it: its position comes first.

    Raises CorpusError or TokenizerError.
    """
    start, end = raw.start, raw.end
    block = parse_block(raw, source_options)
    del raw
    wanted = [i for i, (position, _) in enumerate(encoders) if start >= position]
    results: list[EncodedBlock | None] = [None] * len(encoders)
    for i in wanted[:-1]:
        results[i] = encoders[i][1].encode(start, end, [block])
    if wanted:
        box = [block]
        del block
        results[wanted[-1]] = encoders[wanted[-1]][1].encode(start, end, box)
    return results


_LOOK_IDS = 1 << 20
"""Ids looked through for the separator at once."""

_SAMPLE_BYTES = 4 << 20
"""Documents over this size are not in the sample: the reference would take longer than all the rest."""


assert VAL == 1, "hash_split and the split column mark val with 1"
