"""Train a vocabulary of one's own: SentencePiece BPE with byte fallback, or byte-level BPE as a tokenizer.json.

The same texts in the same order give the same file: both trainers run on one thread.
"""

from __future__ import annotations

import io
import re
from contextlib import ExitStack, nullcontext
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

from tokenriver.errors import TokenizerError, UsageError
from tokenriver.files import atomic_write, make_directory
from tokenriver.storage.paths import to_folder
from tokenriver.tokenizers.sentencepiece_model import ModelFile
from tokenriver.tokenizers.separator import END_OF_TEXT

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

__all__ = ["TrainedTokenizer", "train_tokenizer"]

Kind = Literal["sp-bpe", "byte-bpe"]
_N_BYTES = 256
_MAX_CHARACTERS = 4096
"""Texts go to the trainers in pieces of at most so many characters, cut at a space: sentencepiece drops longer
lines without a word, and the time of byte-level training grows with the square of a word's length."""


_SENTENCEPIECE: dict[str, Any] = {
    "model_type": "bpe",
    "character_coverage": 0.999,
    "byte_fallback": True,
    "split_digits": True,
    "normalization_rule_name": "nmt_nfkc",
    "add_dummy_prefix": False,
    "pad_id": 0,
    "bos_id": 1,
    "eos_id": 2,
    "unk_id": 3,
    "hard_vocab_limit": False,
    "max_sentence_length": 4 * _MAX_CHARACTERS,
    "num_threads": 1,
    "minloglevel": 2,
}
"""Parameter Golf's settings (docs/golf.md, "export"), on one thread so that the same texts give the same model."""

_TOO_SMALL = re.compile(r"smaller than required_chars\. \d+ vs (\d+)")
"""What sentencepiece says, among other things, of a vocabulary that has no room for the texts' characters."""

_MOST_IDS = 2**31 - 1
"""What both trainers count with 32 bits."""

_NOT_OVERRIDDEN = {"input", "sentence_iterator", "model_prefix", "model_writer", "vocab_size"}


@dataclass(frozen=True, slots=True)
class TrainedTokenizer:
    """What a training run wrote and what it left out.

    `path` is the artifact (load_tokenizer takes it, or its folder). `n_empty` texts had nothing to train on;
    `n_cut` texts had a word longer than 4,096 characters, which went in as several. `vocab_size` is what came out:
    less than asked for where the texts do not fill it.
    """

    path: Path
    vocab_size: int
    n_texts: int
    n_empty: int
    n_cut: int


def train_tokenizer(
    texts: Iterable[str],
    *,
    kind: Kind,
    vocab_size: int,
    out: str | Path,
    name: str | None = None,
    trainer_overrides: Mapping[str, Any] | None = None,
    training: Callable[[], AbstractContextManager[object]] = nullcontext,
) -> TrainedTokenizer:
    """Train on texts and write `tokenizer.model` ("sp-bpe") or `tokenizer.json` ("byte-bpe") into the folder `out`.

    sp-bpe has the Parameter Golf settings (docs/golf.md): pad/bos/eos/unk = 0/1/2/3, nmt_nfkc, no dummy prefix.
    byte-bpe ends its documents with <|endoftext|>, id 0. `name` is another name for the file; `trainer_overrides` are
    further words for sentencepiece's trainer, or other values (sp-bpe alone). `training` gives a context for the time
    in which the trainer has all texts and lets no Python run, minutes perhaps; nothing is written in it. Raises
    UsageError for a vocabulary that cannot hold the 256 bytes, TokenizerError where the texts cannot fill it or there
    are none.
    """
    folder = to_folder(out, option="--out")
    least = _N_BYTES + (4 if kind == "sp-bpe" else 1)
    if kind not in ("sp-bpe", "byte-bpe"):
        raise UsageError(f"tokenizer type {kind!r} is unknown; expected sp-bpe or byte-bpe")
    if vocab_size < least:
        raise UsageError(f"--vocab-size {vocab_size} is too small for {kind}; the bytes and control ids need {least}")
    if vocab_size > _MOST_IDS:
        raise UsageError(f"--vocab-size {vocab_size:,} is too large; ids are at most {_MOST_IDS:,}")
    if trainer_overrides and (kind != "sp-bpe" or set(trainer_overrides) & _NOT_OVERRIDDEN):
        wrong = ", ".join(sorted(set(trainer_overrides) & _NOT_OVERRIDDEN)) or "with byte-bpe"
        raise UsageError(f"trainer_overrides cannot be given {wrong}: where texts come from and go to is fixed here")
    with ExitStack() as stack:
        feed = _Feed(iter(texts), lambda: stack.enter_context(training()))
        if kind == "sp-bpe":
            raw, size = _sentencepiece(feed, vocab_size, trainer_overrides or {})
        else:
            raw, size = _byte_level(feed, vocab_size)
    make_directory(folder)
    path = folder / (name or ("tokenizer.model" if kind == "sp-bpe" else "tokenizer.json"))
    with atomic_write(path) as file:
        file.write(raw)
    return TrainedTokenizer(path, size, feed.n_texts, feed.n_empty, feed.n_cut)


class _Feed:
    """Iterates over texts as the trainers want them, counting what they would drop silently."""

    def __init__(self, texts: Iterator[str], at_end: Callable[[], object]) -> None:
        self._texts, self._at_end = texts, at_end
        self.n_texts = self.n_empty = self.n_cut = 0

    def __iter__(self) -> Iterator[str]:
        for text in self._texts:
            self.n_texts += 1
            if not text.strip():
                self.n_empty += 1
                continue
            pieces, inside_word = _cut(text)
            self.n_cut += inside_word
            yield from pieces
        self._at_end()


def _cut(text: str) -> tuple[list[str], bool]:
    """A text as pieces of at most _MAX_CHARACTERS, each cut before a space where there is one; whether one had none."""
    pieces: list[str] = []
    inside_word = False
    start = 0
    while len(text) - start > _MAX_CHARACTERS:
        space = text.rfind(" ", start + 1, start + _MAX_CHARACTERS)
        inside_word |= space < 0
        stop = space if space > 0 else start + _MAX_CHARACTERS
        pieces.append(text[start:stop])
        start = stop
    return [*pieces, text[start:]], inside_word


def _sentencepiece(feed: _Feed, vocab_size: int, overrides: Mapping[str, Any]) -> tuple[bytes, int]:
    import sentencepiece

    model = io.BytesIO()
    try:
        sentencepiece.SentencePieceTrainer.train(
            sentence_iterator=iter(feed),
            model_writer=model,
            **{**_SENTENCEPIECE, "vocab_size": vocab_size, **overrides},
        )
    except (RuntimeError, OSError, ValueError, TypeError, AttributeError) as error:
        if needed := _TOO_SMALL.search(str(error)):
            raise TokenizerError(
                f"--vocab-size {vocab_size:,} is too small for these texts: their characters, the bytes and the "
                f"control ids need {int(needed[1]):,}"
            ) from error
        raise TokenizerError(
            f"sentencepiece cannot train {vocab_size:,} pieces on {feed.n_texts:,} texts: {error}"
        ) from error
    raw = model.getvalue()
    return raw, len(ModelFile.parse(raw, where="the trained model").pieces)


def _byte_level(feed: _Feed, vocab_size: int) -> tuple[bytes, int]:
    import tokenizers
    from tokenizers import decoders, models, pre_tokenizers, trainers

    tokenizer = tokenizers.Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size,
        special_tokens=[END_OF_TEXT],
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tokenizer.train_from_iterator(iter(feed), trainer=trainer)
    if feed.n_texts == feed.n_empty:
        raise TokenizerError(f"nothing to train on: {feed.n_texts:,} texts, {feed.n_empty:,} of them empty")
    return tokenizer.to_str(pretty=True).encode() + b"\n", tokenizer.get_vocab_size()
