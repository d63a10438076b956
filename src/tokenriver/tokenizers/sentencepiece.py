"""SentencePiece models: the reference is `sentencepiece`, the fast path gigatoken for BPE with byte fallback."""

from __future__ import annotations

import base64
import json
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import sentencepiece

from tokenriver.cpus import available_cpus
from tokenriver.errors import TokenizerError
from tokenriver.tokenizers.base import Backend, encoder_failure, token_batch
from tokenriver.tokenizers.bpe import load_gigatoken
from tokenriver.tokenizers.byte_level_pieces import (
    ByteLevelPieces,
    ContractionFinder,
    WordSuspects,
    byte_level_form,
    joined_pairs,
)
from tokenriver.tokenizers.checked import CheckedTokenizer, FastPath, Vocabulary, with_fast_path
from tokenriver.tokenizers.fast import FastEncoder
from tokenriver.tokenizers.sentencepiece_model import (
    BYTE,
    CONTROL,
    NORMAL,
    SPACE,
    UNKNOWN,
    UNUSED,
    USER_DEFINED,
    ModelFile,
    code_point_rules,
    later_code_points,
)
from tokenriver.tokenizers.separator import choose_separator
from tokenriver.tokenizers.settled import Settler
from tokenriver.tokenizers.suspects import SuspectFinder
from tokenriver.tokenizers.unicode14 import N_CODE_POINTS
from tokenriver.tokenizers.unicode_suspects import normalized

if TYPE_CHECKING:
    from tokenriver.batches import TextBatch, TokenBatch

__all__ = ["SentencePieceReference", "sentencepiece_tokenizer", "to_tokenizer_json"]


@dataclass(frozen=True, slots=True)
class SentencePieceReference:
    """`sentencepiece` itself, without begin or end ids."""

    processor: Any

    @classmethod
    def from_bytes(cls, raw: bytes, *, where: str) -> SentencePieceReference:
        """Load a model's bytes; raises TokenizerError where the library refuses them."""
        try:
            return cls(sentencepiece.SentencePieceProcessor(model_proto=raw))
        except Exception as error:
            raise TokenizerError(f"{where}: the sentencepiece library refuses it: {error}") from error

    @property
    def version(self) -> str:
        """Library and version."""
        return f"sentencepiece {version('sentencepiece')}"

    def encode(self, batch: TextBatch, *, parallel: bool) -> TokenBatch:
        """Ids of every text, on as many threads as there are processors unless parallel is False."""
        n_threads = available_cpus() if parallel else 1
        try:
            ids = self.processor.encode(batch.texts(), out_type=int, num_threads=n_threads)
        except BaseException as error:
            raise encoder_failure(error) from error
        return token_batch([np.array(one, np.uint32) for one in ids])


def sentencepiece_tokenizer(
    raw: bytes,
    *,
    where: str,
    tokenizer_id: str,
    sha256: str,
    separator: int | str | None,
    configured: int | str | None,
    backend: Backend,
) -> CheckedTokenizer:
    """Build the tokenizer of a .model file's bytes. `where` names it in errors and in the fallback warning."""
    model = ModelFile.parse(raw, where=where)
    reference = SentencePieceReference.from_bytes(raw, where=where)
    bos, eos = int(reference.processor.bos_id()), int(reference.processor.eos_id())
    chosen = choose_separator(
        separator,
        ids={p.text: i for i, p in enumerate(model.pieces)},
        special={},
        vocab_size=len(model.pieces),
        configured=configured if configured is not None or eos < 0 else eos,
        where=where,
    )
    vocabulary = Vocabulary(
        tokenizer_id,
        sha256,
        [_bytes_of(piece.text, piece.kind) for piece in model.pieces],
        tuple(piece.text for piece in model.pieces if piece.kind == CONTROL),
        chosen,
        bos_id=bos if bos >= 0 else None,
        prefix_space=model.add_dummy_prefix,
        special_ids={i: p.text for i, p in enumerate(model.pieces) if p.kind in (CONTROL, UNKNOWN, UNUSED)},
        unknown={i: model.unknown_surface.encode() for i, p in enumerate(model.pieces) if p.kind == UNKNOWN},
    )
    return with_fast_path(vocabulary, reference, lambda: _fast_path(model), backend=backend, where=where)


def _bytes_of(text: str, kind: int) -> bytes:
    if kind in (CONTROL, UNKNOWN, UNUSED):
        return b""
    return bytes([int(text[3:5], 16)]) if kind == BYTE else text.replace(SPACE, " ").encode()


def _fast_path(model: ModelFile) -> FastPath:
    text = to_tokenizer_json(model)
    suspects = normalized(later_code_points(model.charsmap)) if model.charsmap else np.zeros(N_CODE_POINTS, np.bool_)
    whole = FastEncoder(lambda: load_gigatoken(text))
    form = byte_level_form(model, _merges(model))
    settler = Settler(code_point_rules(model.charsmap))
    if form is None or not settler.is_settled:
        return FastPath(whole, SuspectFinder(suspects), cuts_at_space=False)
    contractions = ContractionFinder(joined_pairs(model))
    words = FastEncoder(lambda: load_gigatoken(form.text))
    return FastPath(
        ByteLevelPieces(words, whole, form, settler, contractions),
        WordSuspects(suspects, settler, contractions),
        cuts_at_space=False,
        anchors=True,
    )


def to_tokenizer_json(model: ModelFile) -> str:
    """The model as a tokenizer.json that gigatoken reads; TokenizerError, saying why, where it has no such form.

    Control pieces are left out of the added tokens and of the merges, so that their text is ordinary text.
    """
    for is_wrong, reason in (
        (not model.is_bpe, "it is not a BPE model"),
        (not model.byte_fallback, "it has no byte fallback"),
        (model.whitespace_as_suffix, "it puts white space at the end of pieces"),
        (not model.escape_whitespaces, "it does not escape white space"),
        (any(p.kind == UNUSED for p in model.pieces), "it has unused pieces"),
    ):
        if is_wrong:
            raise TokenizerError(reason)
    user_defined = [(i, p.text) for i, p in enumerate(model.pieces) if p.kind == USER_DEFINED]
    spec = {
        "version": "1.0",
        "added_tokens": [
            {"id": i, "content": text, "special": False, "normalized": False}
            | dict.fromkeys(("single_word", "lstrip", "rstrip"), False)
            for i, text in user_defined
        ],
        "normalizer": {"type": "Sequence", "normalizers": _normalizers(model)},
        "pre_tokenizer": None,
        "post_processor": None,
        "decoder": None,
        "model": {
            "type": "BPE",
            "unk_token": next((p.text for p in model.pieces if p.kind == UNKNOWN), None),
            "fuse_unk": True,
            "byte_fallback": True,
            "vocab": {p.text: i for i, p in enumerate(model.pieces)},
            "merges": _merges(model),
        },
    }
    return json.dumps(spec, ensure_ascii=False)


def _normalizers(model: ModelFile) -> list[dict[str, Any]]:
    steps: list[dict[str, Any]] = []
    if model.charsmap:
        steps.append({"type": "Precompiled", "precompiled_charsmap": base64.b64encode(model.charsmap).decode()})
    if model.remove_extra_whitespaces:
        steps.append({"type": "Strip", "strip_left": True, "strip_right": True})
        steps.append({"type": "Replace", "pattern": {"Regex": " {2,}"}, "content": " "})
    if model.add_dummy_prefix:
        steps.append({"type": "Prepend", "prepend": SPACE})
    steps.append({"type": "Replace", "pattern": {"String": " "}, "content": SPACE})
    return steps


def _merges(model: ModelFile) -> list[list[str]]:
    """Every split of a piece into two pieces, best score first: sentencepiece joins by the score of the result.

    Among the splits of pieces of one score the longer left part goes first, as the leftmost pair does there.
    """
    normal = {p.text: p.score for p in model.pieces if p.kind == NORMAL}
    ranked = [
        (-score, -cut, text)
        for text, score in normal.items()
        for cut in range(1, len(text))
        if text[:cut] in normal and text[cut:] in normal
    ]
    ranked.sort()
    return [[text[:-cut], text[-cut:]] for _, cut, text in ranked]
