"""Which id stands between documents: what the model was configured with, else the vocabulary's own end of text.

The rule, in order: the caller's `separator` (an id, a string of the vocabulary, or "none"); `eos_token_id` of
generation_config.json beside the tokenizer (the first, where it is a list); `eos_token` of tokenizer_config.json;
a special token with one of the usual spellings below; for a SentencePiece model its eos. Layouts with a rule of
their own (begin of text in the Parameter Golf and Llama-3 ones) pass the tokenizer's `bos_id`.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from tokenriver.errors import TokenizerError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["END_OF_TEXT", "choose_separator", "configured_separator"]

END_OF_TEXT = "<|endoftext|>"
END_OF_TEXT_SPELLINGS = (END_OF_TEXT, "<|end_of_text|>", "</s>", "<eos>", "<|eos|>", "<|endofdocument|>")


def choose_separator(
    override: int | str | None,
    *,
    ids: Mapping[str, int],
    special: Mapping[str, int],
    vocab_size: int,
    configured: int | str | None,
    where: str,
) -> int | None:
    """The separator's id, or None for none; one that is not in the vocabulary raises TokenizerError.

    `ids` has every piece's id, `special` those of the special tokens, `configured` what the files beside say.
    """
    if override == "none":
        return None
    chosen = configured if override is None else override
    if chosen is None:
        return next((special[text] for text in END_OF_TEXT_SPELLINGS if text in special), None)
    source = "--separator" if override is not None else "the configuration beside the tokenizer"
    if isinstance(chosen, str):
        found = special.get(chosen, ids.get(chosen))
        if found is None and chosen.isascii() and chosen.isdecimal():
            found = int(chosen)
        if found is None:
            raise TokenizerError(
                f"{where}: the separator {chosen!r} (from {source}) is not in the vocabulary; "
                "give one of its tokens, an id, or none"
            )
        chosen = found
    if not 0 <= chosen < vocab_size:
        raise TokenizerError(
            f"{where}: the separator id {chosen} (from {source}) is outside the vocabulary of {vocab_size} ids"
        )
    return chosen


def configured_separator(folder: Path) -> int | str | None:
    """eos_token_id of generation_config.json in a folder, else eos_token of tokenizer_config.json, else None."""
    eos: Any = _read(folder / "generation_config.json").get("eos_token_id")
    if isinstance(eos, list) and eos:
        eos = eos[0]
    if isinstance(eos, int):
        return eos
    eos = _read(folder / "tokenizer_config.json").get("eos_token")
    if isinstance(eos, dict):
        eos = eos.get("content")
    return eos if isinstance(eos, str) else None


def _read(path: Path) -> dict[str, Any]:
    if not path.is_file():
        return {}
    try:
        content = json.loads(path.read_bytes())
    except (ValueError, RecursionError) as error:
        raise TokenizerError(f"{path}: not valid JSON ({error})") from None
    return content if isinstance(content, dict) else {}
