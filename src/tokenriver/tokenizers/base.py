"""What every tokenizer offers, and how texts become one batch: the words that building and checking rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING, Literal, Protocol, TypeAlias

import numpy as np

from tokenriver.batches import TextBatch, TokenBatch, offsets_of
from tokenriver.errors import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import ArrayLike, NDArray

__all__ = ["Backend", "Texts", "Tokenizer", "as_text_batch", "checked_ids", "encoder_failure", "token_batch"]

Backend = Literal["fast", "reference"]
Texts: TypeAlias = "Sequence[str | bytes] | TextBatch"


class Tokenizer(Protocol):
    """Text to ids and back. Ids never include a separator or begin-of-text: whoever joins documents adds it.

    `encode_batch` may be called from several threads at once on one object; the encoder runs without the GIL.
    A TextBatch is trusted to hold valid UTF-8 (the readers check it); a sequence of str or bytes is checked here.
    """

    @property
    def tokenizer_id(self) -> str:
        """Short name for folders and manifests, for example "gpt2"."""

    @property
    def sha256(self) -> str:
        """SHA-256 in hex of the artifact (the bytes of tokenizer.json, of the .model file, …)."""

    @property
    def vocab_size(self) -> int:
        """One more than the largest id."""

    @property
    def separator_id(self) -> int | None:
        """The id to put between documents, or None."""

    @property
    def separator_position(self) -> Literal["before"]:
        """Where the tokenizer's layouts put the separator by default."""

    @property
    def bos_id(self) -> int | None:
        """The id that the vocabulary names as begin of text, or None."""

    @property
    def backend(self) -> Backend:
        """What encodes: "fast" (gigatoken, with the reference for the texts it is not exact on) or "reference"."""

    @property
    def backend_version(self) -> str:
        """The encoding libraries and their versions."""

    @property
    def special_texts(self) -> tuple[str, ...]:
        """The strings that spell special tokens; inside a document they are ordinary text."""

    @property
    def special_ids(self) -> Mapping[int, str]:
        """Name of every id that stands for no text of its own (control ids, unknown), by id."""

    @property
    def prefix_space(self) -> bool:
        """Whether the encoder puts a space before every text, so that a document's first piece has one too many."""

    def encode(self, text: str | bytes) -> NDArray[np.uint32]:
        """Ids of one text, uint32 [n]."""

    def encode_batch(self, texts: Texts, *, parallel: bool = True) -> TokenBatch:
        """Ids of many texts. `parallel=False` keeps the work on the calling thread. Raises TokenizerError."""

    def reference_encode_batch(self, texts: Texts) -> TokenBatch:
        """The same ids, all from the reference library."""

    def decode(self, ids: ArrayLike) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD."""

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """Bytes of ids, exactly as the vocabulary holds them. Special ids give no bytes."""

    def token_bytes_table(self) -> list[bytes]:
        """Raw bytes of every id, [vocab_size]; special ids are b""."""


def as_text_batch(texts: Texts) -> TextBatch:
    """Join texts into one batch.

    TokenizerError for one text instead of a sequence, and, naming the text, for what is neither str nor bytes, a lone
    surrogate or bytes that are not UTF-8.
    """
    if isinstance(texts, TextBatch):
        return texts
    if isinstance(texts, (str, bytes)):
        raise TokenizerError(f"a batch is a sequence of texts, not one {type(texts).__name__}; encode() takes one text")
    pieces: list[bytes] = []
    for i, text in enumerate(texts):
        if not isinstance(text, (str, bytes)):
            raise TokenizerError(f"document {i} is {type(text).__name__}, not a text; expected str or bytes")
        try:
            if isinstance(text, str):
                pieces.append(text.encode())
            else:
                text.decode()
                pieces.append(text)
        except UnicodeError as error:
            raise TokenizerError(
                f"document {i} is not Unicode text: {error.reason} at {error.start}; "
                f"expected valid UTF-8 without lone surrogates"
                if isinstance(error, (UnicodeEncodeError, UnicodeDecodeError))
                else f"document {i} is not Unicode text: {error}"
            ) from None
    return TextBatch.from_texts(pieces)


def token_batch(ids: list[NDArray[np.uint32]]) -> TokenBatch:
    """One batch of a list of id arrays, all counted as the reference's."""
    offsets = offsets_of([len(one) for one in ids])
    return TokenBatch(np.concatenate([np.zeros(0, np.uint32), *ids]), offsets, len(ids))


def checked_ids(ids: ArrayLike, *, vocab_size: int) -> NDArray[np.int64]:
    """Ids as int64 [n]; one outside the vocabulary raises TokenizerError naming it and its position."""
    array = np.asarray(ids)
    if array.size == 0:
        return np.zeros(0, np.int64)
    if array.dtype.kind not in "iu":
        raise TokenizerError(f"ids have the type {array.dtype}; expected integers")
    array = array.astype(np.int64).reshape(-1)
    if not 0 <= int(array.min()) <= int(array.max()) < vocab_size:
        at = int(np.argmax((array < 0) | (array >= vocab_size)))
        raise TokenizerError(
            f"id {int(array[at])} at position {at:,} is outside the vocabulary of {vocab_size:,} ids; "
            "another tokenizer made it"
        )
    return array


def encoder_failure(error: BaseException) -> TokenizerError:
    """A failure inside an encoder as a TokenizerError; what is not the encoder's (Ctrl-C, exit) goes on as it is.

    Encoders written in Rust panic with an exception that derives from BaseException alone.
    """
    if isinstance(error, (KeyboardInterrupt, SystemExit, GeneratorExit, MemoryError)):
        raise error
    return TokenizerError(f"{type(error).__name__}: {error}")
