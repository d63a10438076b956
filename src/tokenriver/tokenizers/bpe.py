"""BPE from a Hugging Face tokenizer.json: the reference is `tokenizers`, the fast path gigatoken where it is exact."""

from __future__ import annotations

import copy
import json
from dataclasses import dataclass
from importlib.metadata import version
from typing import TYPE_CHECKING, Any

import numpy as np
import tokenizers

from tokenriver.errors import TokenizerError
from tokenriver.tokenizers.alphabet import BYTE_TO_CHAR, CHAR_TO_BYTE, bytes_of_all
from tokenriver.tokenizers.base import encoder_failure, token_batch
from tokenriver.tokenizers.checked import CheckedTokenizer, FastPath, Vocabulary, with_fast_path
from tokenriver.tokenizers.fast import FastEncoder
from tokenriver.tokenizers.marked import MARK
from tokenriver.tokenizers.sentencepiece_model import SPACE
from tokenriver.tokenizers.suspects import SuspectFinder
from tokenriver.tokenizers.unicode_suspects import code_points_with_bytes, nfc, numeric, unassigned

if TYPE_CHECKING:
    from tokenriver.batches import TextBatch, TokenBatch
    from tokenriver.tokenizers.base import Backend

__all__ = [
    "HuggingFaceReference",
    "fast_path",
    "hugging_face_tokenizer",
    "load_gigatoken",
    "parse_tokenizer_json",
    "token_bytes",
    "vocabulary_ids",
]

_CONTRACTIONS = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)"
_LLAMA3 = _CONTRACTIONS + r"|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
PROVEN_PATTERNS = (_LLAMA3, _LLAMA3.replace("{1,3}", ""))
"""Split patterns (Llama-3, Qwen) on which gigatoken was compared with its reference over every code point."""

_MAX_MISSING_BYTES = 64
"""A byte-level vocabulary that lacks more single bytes than this is left to the reference, quietly fast enough."""


def parse_tokenizer_json(raw: bytes, *, where: str) -> dict[str, Any]:
    """The JSON as a dict; raises TokenizerError where it is not a tokenizer.json."""
    try:
        spec = json.loads(raw)
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{where}: not valid JSON ({error}); expected a Hugging Face tokenizer.json") from None
    if isinstance(spec, dict) and spec.get("tokenizer_type") == "pure_byte":
        return spec
    if not isinstance(spec, dict) or not isinstance(spec.get("model"), dict):
        raise TokenizerError(f'{where}: no "model" object in it; expected a Hugging Face tokenizer.json')
    return spec


@dataclass(frozen=True, slots=True)
class HuggingFaceReference:
    """`tokenizers`, with special-token text taken as ordinary text and nothing added, cut or padded."""

    tokenizer: tokenizers.Tokenizer

    @classmethod
    def from_json(cls, raw: bytes, *, where: str) -> HuggingFaceReference:
        """Load tokenizer.json's bytes; raises TokenizerError where the library refuses them."""
        try:
            tokenizer = tokenizers.Tokenizer.from_str(raw.decode())
        except Exception as error:
            raise TokenizerError(f"{where}: the tokenizers library refuses it: {error}") from error
        tokenizer.no_truncation()
        tokenizer.no_padding()
        tokenizer.encode_special_tokens = True
        return cls(tokenizer)

    @property
    def version(self) -> str:
        """Library and version."""
        return f"tokenizers {version('tokenizers')}"

    def encode(self, batch: TextBatch, *, parallel: bool) -> TokenBatch:
        """Ids of every text. The library spreads a batch over its own threads unless parallel is False."""
        texts = batch.texts()
        try:
            if parallel:
                encodings = self.tokenizer.encode_batch_fast(texts, add_special_tokens=False)
            else:
                encodings = [self.tokenizer.encode(text, add_special_tokens=False) for text in texts]
        except BaseException as error:
            raise encoder_failure(error) from error
        return token_batch([np.array(e.ids, np.uint32) for e in encodings])


def hugging_face_tokenizer(
    spec: dict[str, Any],
    raw: bytes,
    *,
    where: str,
    tokenizer_id: str,
    sha256: str,
    separator_id: int | None,
    backend: Backend,
) -> CheckedTokenizer:
    """Build the tokenizer of a tokenizer.json, parsed and raw. `where` names it in errors and the fallback warning."""
    reference = HuggingFaceReference.from_json(raw, where=where)
    special = [t for t in spec.get("added_tokens") or [] if t["special"]]
    vocabulary = Vocabulary(
        tokenizer_id,
        sha256,
        token_bytes(spec),
        tuple(t["content"] for t in special),
        separator_id,
        bos_id=_begin_of_text(special),
        prefix_space=_is_prefix_space(spec.get("normalizer")),
        special_ids={int(t["id"]): t["content"] for t in special},
    )
    return with_fast_path(vocabulary, reference, lambda: fast_path(spec), backend=backend, where=where)


_BEGIN_OF_TEXT = ("<|begin_of_text|>", "<s>", "<bos>", "<|startoftext|>")


def _begin_of_text(special: list[dict[str, Any]]) -> int | None:
    ids = {t["content"]: int(t["id"]) for t in special}
    return next((ids[text] for text in _BEGIN_OF_TEXT if text in ids), None)


def fast_path(spec: dict[str, Any]) -> FastPath:
    """gigatoken for a tokenizer.json, with its special tokens taken out so that their text is ordinary text.

    Raises TokenizerError, saying why, where gigatoken is not known to be exact or does not load the file.
    """
    cut_digits = _require_known_shape(spec)
    slim = {**spec, "added_tokens": [t for t in spec.get("added_tokens") or [] if not t["special"]]}
    suspects = unassigned().copy()
    if spec["model"].get("byte_fallback"):
        suspects[:] = False
    else:
        missing = [b for b in range(256) if BYTE_TO_CHAR[b] not in spec["model"]["vocab"]]
        if missing:
            slim = _with_placeholders(slim, missing)
            suspects |= code_points_with_bytes(missing)
    if cut_digits:
        slim = {**slim, "pre_tokenizer": spec["pre_tokenizer"]["pretokenizers"][1]}
        suspects |= numeric()
    if spec.get("normalizer") and not spec["model"].get("byte_fallback"):
        suspects |= nfc()
    mark_id = None if spec["model"].get("byte_fallback") else 1 + max([*_model_ids(slim).values(), *_added_ids(spec)])
    if mark_id is not None:
        slim = {**slim, "added_tokens": [*slim["added_tokens"], {"id": mark_id, "content": MARK, **_PLAIN_SPECIAL}]}
    text = json.dumps(slim, ensure_ascii=False)
    return FastPath(
        FastEncoder(lambda: load_gigatoken(text), mark_id=mark_id),
        SuspectFinder(suspects),
        cuts_at_space=not spec["model"].get("byte_fallback")
        and not any(" " in t["content"] for t in slim["added_tokens"]),
        cut_digits=cut_digits,
    )


_PLAIN_SPECIAL = {"special": True, "single_word": False, "lstrip": False, "rstrip": False, "normalized": False}


def _added_ids(spec: dict[str, Any]) -> list[int]:
    return [int(token["id"]) for token in spec.get("added_tokens") or []]


def load_gigatoken(tokenizer_json: str) -> Any:
    """A gigatoken encoder; raises TokenizerError where it does not support the file."""
    import gigatoken

    try:
        return gigatoken.Tokenizer.from_json(tokenizer_json)
    except BaseException as error:
        raise encoder_failure(error) from error


def _require_known_shape(spec: dict[str, Any]) -> bool:
    """Raise TokenizerError unless gigatoken is proven exact on this kind of file; true where digits must be cut."""
    model = spec["model"]
    if model.get("type", "BPE") != "BPE" or "merges" not in model:
        raise TokenizerError(f"gigatoken has no {model.get('type')} model")
    if model.get("dropout") or model.get("continuing_subword_prefix") or model.get("end_of_word_suffix"):
        raise TokenizerError("its BPE uses dropout, a prefix inside words or a suffix at their end")
    for token in spec.get("added_tokens") or []:
        flags = [f for f in ("lstrip", "rstrip", "single_word") if token.get(f)]
        flags += ["normalized"] if token.get("normalized") and spec.get("normalizer") else []
        if not token["special"] and flags:
            raise TokenizerError(f"its added token {token['content']!r} is matched with {', '.join(flags)}")
    if model.get("byte_fallback"):
        if spec.get("pre_tokenizer") or not _is_prefix_space(spec.get("normalizer")):
            raise TokenizerError("it is byte-fallback BPE with another normalizer or pre-tokenizer than Llama-2's")
        missing = [b for b in range(256) if f"<0x{b:02X}>" not in model["vocab"]]
        if missing:
            raise TokenizerError(f"its vocabulary lacks {len(missing)} of the 256 byte pieces")
        return False
    if spec.get("normalizer") not in (None, {"type": "NFC"}):
        raise TokenizerError(f"its normalizer is {spec['normalizer'].get('type')}")
    missing = [b for b in range(256) if BYTE_TO_CHAR[b] not in model["vocab"]]
    if len(missing) > _MAX_MISSING_BYTES:
        raise TokenizerError(f"its vocabulary lacks {len(missing)} of the 256 single bytes")
    return _cuts_digits(spec.get("pre_tokenizer") or {})


def _cuts_digits(pre: dict[str, Any]) -> bool:
    """Whether the pre-tokenizer is Digits then ByteLevel; TokenizerError if gigatoken is not proven on it."""
    if _is_byte_level(pre, use_regex=True):
        return False
    steps = pre.get("pretokenizers") or []
    if pre.get("type") == "Sequence" and len(steps) == 2:
        first, second = steps
        if first["type"] == "Split":
            known = first.get("pattern", {}).get("Regex") in PROVEN_PATTERNS
            isolated = first["behavior"] == "Isolated" and not first["invert"]
            if known and isolated and _is_byte_level(second, use_regex=False):
                return False
        elif first["type"] == "Digits" and first["individual_digits"] and _is_byte_level(second, use_regex=True):
            return True
    raise TokenizerError(f"gigatoken is not known to be exact on its pre-tokenizer ({pre.get('type')})")


def _is_byte_level(step: dict[str, Any], *, use_regex: bool) -> bool:
    return (
        step.get("type") == "ByteLevel"
        and not step.get("add_prefix_space")
        and step.get("use_regex", True) is use_regex
    )


def _is_prefix_space(normalizer: dict[str, Any] | None) -> bool:
    """Whether the normalizer is Llama-2's: "▁" before the text, then "▁" for every space."""
    steps = (normalizer or {}).get("normalizers") or []
    return steps == [
        {"type": "Prepend", "prepend": SPACE},
        {"type": "Replace", "pattern": {"String": " "}, "content": SPACE},
    ]


def _with_placeholders(spec: dict[str, Any], missing: list[int]) -> dict[str, Any]:
    """Give the missing single bytes ids above the vocabulary, so that gigatoken loads; no text that uses them comes."""
    model = copy.copy(spec["model"])
    top = 1 + max(model["vocab"].values())
    model["vocab"] = model["vocab"] | {BYTE_TO_CHAR[b]: top + k for k, b in enumerate(missing)}
    return {**spec, "model": model}


def token_bytes(spec: dict[str, Any]) -> list[bytes]:
    """Raw bytes of every id of a tokenizer.json: byte-level pieces, byte-fallback pieces, added tokens as text."""
    model = spec["model"]
    vocab = _model_ids(spec)
    added = spec.get("added_tokens") or []
    size = 1 + max([*vocab.values(), *(t["id"] for t in added)], default=-1)
    table = [b""] * size
    is_byte_level = '"ByteLevel"' in json.dumps([spec.get("pre_tokenizer"), spec.get("decoder")])
    added_ids = {t["id"] for t in added}
    pieces = {i: piece for piece, i in vocab.items() if i not in added_ids}
    plain = [i for i in pieces if is_byte_level and CHAR_TO_BYTE.keys() >= set(pieces[i])]
    for i, raw in zip(plain, bytes_of_all([pieces[i] for i in plain]), strict=True):
        table[i] = raw
    for i in pieces.keys() - set(plain):
        piece = pieces[i]
        if model.get("byte_fallback") and len(piece) == 6 and piece.startswith("<0x") and piece.endswith(">"):
            table[i] = bytes([int(piece[3:5], 16)])
        else:
            table[i] = piece.replace(SPACE, " ").encode()
    for token in added:
        table[token["id"]] = b"" if token["special"] else token["content"].encode()
    return table


def vocabulary_ids(spec: dict[str, Any]) -> tuple[dict[str, int], dict[str, int]]:
    """Ids of a tokenizer.json by text: of every piece and added token, and of the special tokens alone."""
    added = spec.get("added_tokens") or []
    special = {t["content"]: int(t["id"]) for t in added if t["special"]}
    return _model_ids(spec) | {t["content"]: int(t["id"]) for t in added}, special


def _model_ids(spec: dict[str, Any]) -> dict[str, int]:
    vocab: Any = spec["model"].get("vocab") or {}
    return {piece: i for i, (piece, _) in enumerate(vocab)} if isinstance(vocab, list) else vocab
