"""A vocabulary's tokenizer: gigatoken for the texts on which it is exact, the reference library for the others."""

from __future__ import annotations

import warnings
from dataclasses import dataclass, field
from importlib.metadata import version
from typing import TYPE_CHECKING, Literal, Protocol

import numpy as np

from tokenriver.batches import TextBatch, TokenBatch
from tokenriver.errors import TokenizerError
from tokenriver.tokenizers.base import as_text_batch, checked_ids
from tokenriver.tokenizers.windows import anchored, replace_texts, suspect_windows, without_anchors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import ArrayLike, NDArray

    from tokenriver.tokenizers.base import Backend, Texts
    from tokenriver.tokenizers.windows import Windows

__all__ = ["CheckedTokenizer", "Encoder", "FastPath", "Reference", "Suspects", "Vocabulary", "with_fast_path"]

_DIGIT_0 = np.uint8(ord("0"))


class Encoder(Protocol):
    """What encodes on the fast path; thread-safe."""

    def encode(self, batch: TextBatch, *, parallel: bool) -> TokenBatch:
        """Ids of every text; failures raise TokenizerError."""


class Suspects(Protocol):
    """Where the reference must encode."""

    def positions(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Starts of the code points in UTF-8 `data` that the encoder may get wrong, ascending int64."""


class Reference(Protocol):
    """The library that defines a tokenizer's ids."""

    @property
    def version(self) -> str:
        """Library and version, for example "tokenizers 0.22.1"."""

    def encode(self, batch: TextBatch, *, parallel: bool) -> TokenBatch:
        """Ids of every text, special-token text taken as ordinary text; failures raise TokenizerError."""


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """What a vocabulary file says, whatever encodes with it. `token_bytes` has one entry an id, b"" for special ids.

    `prefix_space`: the encoder puts a space before the text, so decoding takes one off the first piece.
    `unknown`: what decoding gives for ids that stand for unknown text, by id. `special_ids`: names of special ids.
    """

    tokenizer_id: str
    sha256: str
    token_bytes: list[bytes] = field(repr=False)
    special_texts: tuple[str, ...]
    separator_id: int | None
    bos_id: int | None = None
    prefix_space: bool = False
    unknown: dict[int, bytes] = field(default_factory=dict)
    special_ids: dict[int, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class FastPath:
    """A gigatoken encoder, what finds the code points that it may get wrong, and facts on the pre-tokenizer.

    `cuts_at_space`: a space after anything but white space always starts a new word, so that a text may be encoded
    in two parts there. `anchors`: so it does behind printable ASCII, but the encoders strip a text's first space, so
    that a sign must stand before it. `cut_digits`: every ASCII digit is a text of its own, a pre-tokenizer that
    gigatoken lacks.
    """

    encoder: Encoder
    suspects: Suspects
    cuts_at_space: bool
    cut_digits: bool = False
    anchors: bool = False

    @property
    def version(self) -> str:
        """Library and version, asked for only when something is done: what it is read with takes 10 ms to load."""
        return f"gigatoken {version('gigatoken')}"

    def encode(self, batch: TextBatch, *, parallel: bool) -> TokenBatch:
        """Ids of every text, right for those without a suspect."""
        if not self.cut_digits:
            return self.encoder.encode(batch, parallel=parallel)
        bounds, of_text = _digit_cuts(batch)
        pieces = self.encoder.encode(TextBatch(batch.data, bounds), parallel=parallel)
        return TokenBatch(pieces.ids, pieces.offsets[of_text])


def _digit_cuts(batch: TextBatch) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Borders of the pieces when each ASCII digit is one, int64; and where each text's border stands among them."""
    first, last = int(batch.offsets[0]), int(batch.offsets[-1])
    digits = np.flatnonzero((batch.data[first:last] - _DIGIT_0) < 10) + first
    is_border = np.zeros(last - first + 1, np.bool_)
    is_border[digits - first] = True
    is_border[digits - first + 1] = True
    is_border[batch.offsets - first] = True
    bounds = np.flatnonzero(is_border) + first
    return bounds, np.searchsorted(bounds, batch.offsets)


@dataclass(frozen=True, slots=True)
class CheckedTokenizer:
    """A Tokenizer over a vocabulary. Without a fast path every text takes the reference."""

    vocabulary: Vocabulary
    reference: Reference
    fast: FastPath | None

    @property
    def tokenizer_id(self) -> str:
        """Short name for folders and manifests."""
        return self.vocabulary.tokenizer_id

    @property
    def sha256(self) -> str:
        """SHA-256 in hex of the artifact."""
        return self.vocabulary.sha256

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""
        return len(self.vocabulary.token_bytes)

    @property
    def separator_id(self) -> int | None:
        """The id to put between documents, or None."""
        return self.vocabulary.separator_id

    @property
    def separator_position(self) -> Literal["before"]:
        """Before each document."""
        return "before"

    @property
    def bos_id(self) -> int | None:
        """The id that the vocabulary names as begin of text, or None."""
        return self.vocabulary.bos_id

    @property
    def backend(self) -> Backend:
        """What really encodes."""
        return "reference" if self.fast is None else "fast"

    @property
    def backend_version(self) -> str:
        """Both libraries' versions with the fast path, else the reference's."""
        return self.reference.version if self.fast is None else f"{self.fast.version}, {self.reference.version}"

    @property
    def special_texts(self) -> tuple[str, ...]:
        """The strings that spell special tokens."""
        return self.vocabulary.special_texts

    @property
    def special_ids(self) -> Mapping[int, str]:
        """Names of the ids that stand for no text of their own."""
        return self.vocabulary.special_ids

    @property
    def prefix_space(self) -> bool:
        """Whether the encoder puts a space before every text."""
        return self.vocabulary.prefix_space

    def encode(self, text: str | bytes) -> NDArray[np.uint32]:
        """Ids of one text, uint32 [n]."""
        return self.encode_batch([text]).ids

    def encode_batch(self, texts: Texts, *, parallel: bool = True) -> TokenBatch:
        """Ids of many texts, equal to the reference's; `n_reference` of the texts had a part encoded by it."""
        return self._encode(as_text_batch(texts), self.fast, parallel=parallel)

    def reference_encode_batch(self, texts: Texts) -> TokenBatch:
        """The same ids, all from the reference library."""
        return self._encode(as_text_batch(texts), None, parallel=True)

    def _encode(self, batch: TextBatch, fast: FastPath | None, *, parallel: bool) -> TokenBatch:
        try:
            if fast is None:
                tokens = self._by_reference(batch, parallel=parallel)
                return TokenBatch(tokens.ids, tokens.offsets, len(batch))
            return self._by_both(fast, batch, parallel=parallel)
        except _TextError as failure:
            text = int(np.searchsorted(batch.offsets, failure.position, side="right")) - 1
            error = TokenizerError(
                f"document {text} of the batch ({int(batch.lengths[text]):,} bytes) cannot be encoded: "
                f"{failure.failure}"
            )
            error.document = text
            raise error from failure.failure

    def _by_both(self, fast: FastPath, batch: TextBatch, *, parallel: bool) -> TokenBatch:
        first, last = int(batch.offsets[0]), int(batch.offsets[-1])
        positions = fast.suspects.positions(batch.data[first:last]) + first
        if len(positions) == 0:
            return naming_the_text(lambda part: fast.encode(part, parallel=parallel), batch)
        windows = suspect_windows(batch, positions, cut=fast.cuts_at_space or fast.anchors, behind_ascii=fast.anchors)
        pieces = TextBatch(batch.data, windows.bounds)
        if not fast.anchors:
            merged = self._by_pieces(fast, pieces, windows, parallel=parallel)
        else:
            is_inner = np.ones(len(pieces), np.bool_)
            is_inner[windows.of_text[:-1]] = False
            pieces = anchored(pieces, is_inner)
            try:
                merged = self._by_pieces(fast, pieces, windows, parallel=parallel)
            except _TextError as error:
                piece = int(np.searchsorted(pieces.offsets, error.position, side="right")) - 1
                raise _TextError(int(windows.bounds[piece]), error.failure) from error
            merged = without_anchors(merged, is_inner)
        return TokenBatch(merged.ids, merged.offsets[windows.of_text], windows.n_texts)

    def _by_pieces(self, fast: FastPath, pieces: TextBatch, windows: Windows, *, parallel: bool) -> TokenBatch:
        everything = naming_the_text(lambda part: fast.encode(part, parallel=parallel), pieces)
        chosen = np.flatnonzero(windows.is_suspect)
        others = self._by_reference(pieces, chosen, parallel=parallel)
        return replace_texts(everything, others, windows.is_suspect)

    def _by_reference(self, batch: TextBatch, chosen: NDArray[np.int64] | None = None, *, parallel: bool) -> TokenBatch:
        if chosen is None:
            return naming_the_text(lambda part: self.reference.encode(part, parallel=parallel), batch)
        try:
            return self.reference.encode(TextBatch.from_texts(batch[i] for i in chosen), parallel=parallel)
        except TokenizerError:
            for i in chosen.tolist():
                naming_the_text(lambda part: self.reference.encode(part, parallel=parallel), batch.slice(i, i + 1))
            raise

    def decode(self, ids: ArrayLike) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes of ids' pieces joined, without the space that the encoder put before the text."""
        table = self.vocabulary.token_bytes
        unknown = self.vocabulary.unknown
        array = checked_ids(ids, vocab_size=len(table)).tolist()
        joined = b"".join([unknown.get(i, table[i]) for i in array] if unknown else [table[i] for i in array])
        return joined.removeprefix(b" ") if self.vocabulary.prefix_space else joined

    def token_bytes_table(self) -> list[bytes]:
        """Raw bytes of every id, [vocab_size]; special ids are b"". A fresh list."""
        return list(self.vocabulary.token_bytes)


def with_fast_path(
    vocabulary: Vocabulary, reference: Reference, build: Callable[[], FastPath], *, backend: Backend, where: str
) -> CheckedTokenizer:
    """The tokenizer with its fast path, if that is asked for and can be built; a warning says why it cannot."""
    fast = None
    if backend == "fast":
        try:
            fast = build()
        except TokenizerError as error:
            warnings.warn(
                f"{where}: encoding with {reference.version} alone, which is slower, because {error}", stacklevel=3
            )
    return CheckedTokenizer(vocabulary, reference, fast)


def naming_the_text(encode: Callable[[TextBatch], TokenBatch], batch: TextBatch) -> TokenBatch:
    """Encode; on failure find the first text that fails by halving, and raise TokenizerError with its bytes' place."""
    try:
        return encode(batch)
    except TokenizerError as error:
        failure = error
    start, stop = 0, len(batch)
    while stop - start > 1:
        middle = (start + stop) // 2
        try:
            encode(batch.slice(start, middle))
            start = middle
        except TokenizerError as error:
            stop, failure = middle, error
    raise _TextError(int(batch.offsets[start]), failure)


class _TextError(TokenizerError):
    """A text that cannot be encoded, known by where it starts in the batch's bytes."""

    def __init__(self, position: int, failure: TokenizerError) -> None:
        super().__init__(f"the text at byte {position} of the batch cannot be encoded: {failure}")
        self.position, self.failure = position, failure
