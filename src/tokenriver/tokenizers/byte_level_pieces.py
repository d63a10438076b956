"""SentencePiece BPE with byte fallback as byte-level BPE over words, where that provably gives the same ids.

gigatoken walks a SentencePiece text as a whole, but keeps the ids of every word it has seen of a byte-level one, some
nine times faster. A model's merges can be written over bytes: a character's bytes are merged first, then the pieces.
What differs is that byte-level text is cut into words by GPT-2's pattern before anything is merged:

    's|'t|'re|'ve|'m|'ll|'d| ?\\p{L}+| ?\\p{N}+| ?[^\\s\\p{L}\\p{N}]+|\\s+(?!\\S)|\\s+

A cut is harmless where no piece of the model holds the two characters side by side. So the model must have no piece
with a letter beside a digit or a sign, or with a space behind its first place; the text must have only single spaces,
none at its ends; and no contraction may end inside a word whose letters could be joined. Texts for which that
does not hold, and models, are encoded as before; where it can be seen beforehand what stands in the way, that is the
words around it only, by the reference.
"""

from __future__ import annotations

import json
import unicodedata
from itertools import pairwise
from typing import TYPE_CHECKING, Any

import numpy as np

from tokenriver.batches import TextBatch, TokenBatch, places_of_true, positions_of
from tokenriver.tokenizers.alphabet import BYTE_TO_CHAR
from tokenriver.tokenizers.sentencepiece_model import BYTE, NORMAL, SPACE, USER_DEFINED
from tokenriver.tokenizers.suspects import SuspectFinder
from tokenriver.tokenizers.unicode14 import unassigned
from tokenriver.tokenizers.windows import replace_texts

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from numpy.typing import NDArray

    from tokenriver.tokenizers.checked import Encoder
    from tokenriver.tokenizers.sentencepiece_model import ModelFile
    from tokenriver.tokenizers.settled import Settler

__all__ = ["ByteLevelForm", "ByteLevelPieces", "ContractionFinder", "WordSuspects", "byte_level_form", "joined_pairs"]

_APOSTROPHE = 0x27


class ByteLevelForm:
    """A model written as byte-level BPE: `text` is the tokenizer.json, ids from `n_pieces` on stand for `parts`.

    Such an id is the beginning of a character whose end makes it no piece: the ids of its bytes stand there instead.
    """

    def __init__(self, text: str, n_pieces: int, parts: Sequence[Sequence[int]]) -> None:
        self.text = text
        self._n_pieces = n_pieces
        self._sizes = np.array([len(p) for p in parts], np.int64)
        self._starts = np.cumsum(self._sizes) - self._sizes
        self._flat = np.array([i for p in parts for i in p], np.uint32)

    def expanded(self, tokens: TokenBatch) -> TokenBatch:
        """The ids with every stand-in replaced by what it stands for."""
        at = places_of_true(tokens.ids >= self._n_pieces)
        if len(at) == 0:
            return tokens
        which = tokens.ids[at].astype(np.int64) - self._n_pieces
        grown = np.concatenate([[0], np.cumsum(self._sizes[which] - 1)])
        parts: list[NDArray[np.uint32]] = []
        done = 0
        for place, start, size in zip(
            at.tolist(), self._starts[which].tolist(), self._sizes[which].tolist(), strict=True
        ):
            parts += [tokens.ids[done:place], self._flat[start : start + size]]
            done = place + 1
        parts.append(tokens.ids[done:])
        return TokenBatch(np.concatenate(parts), tokens.offsets + grown[np.searchsorted(at, tokens.offsets)])


class ByteLevelPieces:
    """Encodes with `words`, a byte-level encoder, the texts for which that is exact, and with `whole` the others."""

    def __init__(
        self, words: Encoder, whole: Encoder, form: ByteLevelForm, settler: Settler, contractions: ContractionFinder
    ) -> None:
        self._words, self._whole, self._form = words, whole, form
        self._settler, self._contractions = settler, contractions

    def encode(self, batch: TextBatch, *, parallel: bool) -> TokenBatch:
        """Ids of every text. A failure inside an encoder raises TokenizerError."""
        settled, is_odd = self.settle(batch)
        odd = np.flatnonzero(is_odd)
        if 2 * int(batch.lengths[odd].sum()) > int(batch.offsets[-1] - batch.offsets[0]):
            return self._whole.encode(batch, parallel=parallel)
        tokens = self._form.expanded(self._words.encode(settled, parallel=parallel))
        if len(odd) == 0:
            return tokens
        others = self._whole.encode(TextBatch.from_texts(batch[i] for i in odd.tolist()), parallel=parallel)
        return replace_texts(tokens, others, is_odd)

    def settle(self, batch: TextBatch) -> tuple[TextBatch, NDArray[np.bool_]]:
        """The texts as the words' encoder takes them, and for which of them it is not exact, bool [n]."""
        settled, is_odd = self._settler.settle(batch)
        is_odd[self._contractions.texts(settled)] = True
        return settled, is_odd


class ContractionFinder:
    """Finds the texts with a contraction that the pattern cuts off a word although a piece may reach over the cut.

    A contraction starts a match, so signs or a space before the apostrophe take it into their own match.
    """

    def __init__(self, pairs: Iterable[tuple[str, str]]) -> None:
        self._joins = np.zeros((256, 256), np.bool_)
        for a, b in pairs:
            self._joins[a.encode()[-1], b.encode()[0]] = True
        self._is_short = _bytes_in("stmdSTMD")
        self._is_long = np.zeros((256, 256), np.bool_)
        for text in ("re", "ve", "ll"):
            for a in (text[0], text[0].upper()):
                for b in (text[1], text[1].upper()):
                    self._is_long[ord(a), ord(b)] = True
        self._takes_in = np.zeros(256, np.bool_)
        self._takes_in[[c for c in range(0x20, 0x7F) if not chr(c).isalnum()]] = True

    def texts(self, batch: TextBatch) -> NDArray[np.int64]:
        """Numbers of the texts, ascending; a text too many now and then, never one too few."""
        at = self._cuts(batch.data)
        text = np.searchsorted(batch.offsets, at, side="right") - 1
        is_first = batch.offsets[text] == at
        return np.unique(text[is_first | ~self._takes_in[batch.data[at - 1]]])

    def positions(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Where such contractions stand, ascending int64, but for those that only a text's start makes one."""
        at = self._cuts(data)
        return at[~self._takes_in[data[at - 1]]]

    def _cuts(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        at = positions_of(data, _APOSTROPHE)
        at = at[at + 2 < len(data)]
        one, two, three = data[at + 1], data[at + 2], data[np.minimum(at + 3, len(data) - 1)]
        is_short, is_long = self._is_short[one], self._is_long[one, two]
        found: NDArray[np.int64] = at[(is_short & self._joins[one, two]) | (is_long & self._joins[two, three])]
        return found


class WordSuspects:
    """The suspects of a model and, besides, what keeps a text from being encoded by words, so that few words do."""

    def __init__(self, suspects: NDArray[np.bool_], settler: Settler, contractions: ContractionFinder) -> None:
        self._finder = SuspectFinder(suspects | settler.odd_code_points())
        self._contractions = contractions

    def positions(self, data: NDArray[np.uint8]) -> NDArray[np.int64]:
        """Where they are in `data`, ascending int64."""
        found = np.concatenate([self._finder.positions(data), self._contractions.positions(data)])
        return np.sort(found)


def _bytes_in(characters: str) -> NDArray[np.bool_]:
    table = np.zeros(256, np.bool_)
    table[list(characters.encode())] = True
    return table


def joined_pairs(model: ModelFile) -> set[tuple[str, str]]:
    """The pairs of characters that stand side by side in a piece; a space is "▁"."""
    return {pair for piece in model.pieces if piece.kind == NORMAL for pair in pairwise(piece.text)}


def _class(character: str) -> str:
    """What GPT-2's pattern takes a character for: a letter, a digit or a sign."""
    category = unicodedata.category(character)[0]
    return category if category in "LN" else "S"


def byte_level_form(model: ModelFile, merges: Sequence[Sequence[str]]) -> ByteLevelForm | None:
    """The model as byte-level BPE with its `merges` in order, or None where words could not be cut harmlessly."""
    pieces = {p.text: i for i, p in enumerate(model.pieces) if p.kind == NORMAL}
    byte_ids = {int(p.text[3:5], 16): i for i, p in enumerate(model.pieces) if p.kind == BYTE}
    characters = {c for text in pieces for c in text}
    may_cut = all(
        a == SPACE or (_class(a) == _class(b) and not (unassigned()[ord(a)] or unassigned()[ord(b)]))
        for a, b in joined_pairs(model)
    )
    if (
        not may_cut
        or len(byte_ids) < 256
        or not model.charsmap
        or model.add_dummy_prefix
        or not model.remove_extra_whitespaces
        or any(p.kind == USER_DEFINED for p in model.pieces)
        or any(c.isspace() for c in characters)
        or any(SPACE in text[1:] for text in pieces)
        or not characters <= pieces.keys()
    ):
        return None
    n_pieces = len(model.pieces)
    vocab = {BYTE_TO_CHAR[b]: i for b, i in byte_ids.items()}
    parts: list[list[int]] = []
    ordered: dict[tuple[str, str], None] = {}
    for text in pieces:
        raw = _raw(text)
        if len(text) > 1 or len(raw) == 1:
            continue
        for size in range(2, len(raw) + 1):
            left, right = _spelled(raw[: size - 1]), BYTE_TO_CHAR[raw[size - 1]]
            ordered[left, right] = None
            if size < len(raw) and left + right not in vocab:
                vocab[left + right] = n_pieces + len(parts)
                parts.append([byte_ids[b] for b in raw[:size]])
    vocab.update((_spelled(_raw(text)), i) for text, i in pieces.items())
    rows = [*ordered, *((_spelled(_raw(a)), _spelled(_raw(b))) for a, b in merges)]
    taken = set(vocab.values())
    vocab.update((f"\0{i}", i) for i in range(n_pieces) if i not in taken)
    return ByteLevelForm(_tokenizer_json(vocab, rows), n_pieces, parts)


def _raw(text: str) -> bytes:
    return text.replace(SPACE, " ").encode()


def _spelled(raw: bytes) -> str:
    return "".join(BYTE_TO_CHAR[b] for b in raw)


def _tokenizer_json(vocab: dict[str, int], merges: Sequence[tuple[str, str]]) -> str:
    spec: dict[str, Any] = {
        "version": "1.0",
        "added_tokens": [],
        "normalizer": None,
        "pre_tokenizer": {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": True},
        "post_processor": None,
        "decoder": {"type": "ByteLevel"},
        "model": {
            "type": "BPE",
            "dropout": None,
            "unk_token": None,
            "continuing_subword_prefix": "",
            "end_of_word_suffix": "",
            "fuse_unk": False,
            "byte_fallback": False,
            "vocab": vocab,
            "merges": merges,
        },
    }
    return json.dumps(spec, ensure_ascii=False)
