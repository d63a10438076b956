"""How many bytes of text an id stands for: counted in raw token bytes, never through decoded text.

A token that is a part of a character decodes to U+FFFD, three bytes for one; so nothing here decodes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from tokenriver.errors import TokenizerError
from tokenriver.tokenizers.base import checked_ids

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["TextTable", "text_bytes", "token_bytes", "unknown_ids"]


UNKNOWN_NAMES = ("<unk>", "[UNK]", "<|unk|>")
"""What vocabularies that do not mark it otherwise call the unknown id."""

_MOST_TABLES = 8
_TABLES: dict[tuple[str, int, int | None, int | None], TextTable] = {}
"""Tables made so far, by the tokenizer's checksum: some 20 ms each, and `text_bytes` is called for every document."""


@dataclass(frozen=True, slots=True, eq=False)
class TextTable:
    """What the bytes of a text follow from, by id: int64 and bool, each [vocab_size].

    `n_bytes`: bytes of the id. `is_text` is false for separators and control ids, which stand for no text; an unknown
    id is text, of bytes that nobody can tell from it (0 here).
    `has_prefix`: the piece begins with a space that is not the text's where it begins a document (the tokenizer puts
    one before each text); all false for tokenizers that put none.
    """

    n_bytes: NDArray[np.int64]
    is_text: NDArray[np.bool_]
    has_prefix: NDArray[np.bool_]

    @classmethod
    def of(cls, tokenizer: Tokenizer, *, separator_id: int | None = None) -> TextTable:
        """The table of a tokenizer; `separator_id` is a data set's own, where it is another than the tokenizer's."""
        key = (tokenizer.sha256, tokenizer.vocab_size, tokenizer.separator_id, separator_id)
        if key not in _TABLES:
            if len(_TABLES) >= _MOST_TABLES:
                _TABLES.clear()
            _TABLES[key] = cls._of(tokenizer, separator_id)
        return _TABLES[key]

    @classmethod
    def _of(cls, tokenizer: Tokenizer, separator_id: int | None) -> TextTable:
        pieces = tokenizer.token_bytes_table()
        n_bytes = np.array([len(piece) for piece in pieces], np.int64)
        is_text = n_bytes > 0
        if separator_id is not None and separator_id >= len(pieces):
            raise TokenizerError(
                f"the data's separator is id {separator_id:,}, outside the {len(pieces):,} ids of "
                f"{tokenizer.tokenizer_id}; is it the tokenizer of this data set?"
            )
        for i in (*tokenizer.special_ids, tokenizer.separator_id, tokenizer.bos_id, separator_id):
            if i is not None:
                n_bytes[i], is_text[i] = 0, False
        is_text[list(unknown_ids(tokenizer))] = True
        has_prefix = np.zeros(len(pieces), np.bool_)
        if tokenizer.prefix_space:
            has_prefix = np.array([piece.startswith(b" ") for piece in pieces], np.bool_) & (n_bytes > 0)
        return cls(n_bytes, is_text, has_prefix)

    def target_bytes(self, targets: NDArray[np.int64], previous: NDArray[np.int64]) -> NDArray[np.int64]:
        """Bytes of each target, given the id before it: one less for the tokenizer's own space at a text's start."""
        begins = ~self.is_text[previous] & self.has_prefix[targets]
        return self.n_bytes[targets] - begins


def unknown_ids(tokenizer: Tokenizer) -> frozenset[int]:
    """Ids that stand for text which the vocabulary cannot spell."""
    by_model = getattr(getattr(tokenizer, "vocabulary", None), "unknown", {})
    return frozenset([*by_model, *(i for i, name in tokenizer.special_ids.items() if name in UNKNOWN_NAMES)])


def token_bytes(tokenizer: Tokenizer) -> NDArray[np.int64]:
    """For every id the number of bytes it stands for, int64 [vocab_size].

    From the raw bytes of the vocabulary: a byte piece is 1, "▁" in a SentencePiece piece one space, so 1 each;
    separators, control and unknown ids are 0.
    """
    return TextTable.of(tokenizer).n_bytes.copy()


def text_bytes(tokenizer: Tokenizer, ids: ArrayLike) -> int:
    """Bytes of the text that a document's ids, or a stream with separators, stand for.

    Beyond the sum of `token_bytes` it knows that SentencePiece puts a space before each text: it is not counted on
    the first piece and on pieces after a separator or another control id. For a tokenizer that loses nothing this is
    the UTF-8 length of the texts. Raises TokenizerError for an id outside the vocabulary.
    """
    table = TextTable.of(tokenizer)
    array = checked_ids(ids, vocab_size=len(table.n_bytes))
    if not len(array):
        return 0
    first = int(table.n_bytes[array[0]]) - int(table.has_prefix[array[0]])
    return first + int(table.target_bytes(array[1:], array[:-1]).sum())
