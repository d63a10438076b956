"""The tokenizers of an export: trained on its documents or taken over, with the files that Parameter Golf expects."""

from __future__ import annotations

import hashlib
import itertools
import json
from contextlib import nullcontext
from typing import TYPE_CHECKING

from tokenriver.corpus.documents import SourceOptions, find_sources, parse_block, read_blocks
from tokenriver.errors import TokenizerError
from tokenriver.files import atomic_write, sha256_file
from tokenriver.shards.manifest import decode_json, read_limited, render_json
from tokenriver.tokenizers.byte import BYTE260_SPECIAL_IDS, ByteTokenizer, byte260_json
from tokenriver.tokenizers.load import load_tokenizer
from tokenriver.tokenizers.sentencepiece_model import ModelFile
from tokenriver.tokenizers.train import train_tokenizer

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from tokenriver.golfing.documents import Documents
    from tokenriver.golfing.specs import TokenizerSpec
    from tokenriver.tokenizers.base import Backend, Tokenizer

    Training = Callable[[], AbstractContextManager[object]]

__all__ = ["TRAINED", "end_of_text", "make_vocabulary", "vocab_lines"]

TRAINED = "_TRAINED.json"
"""Beside the tokenizers while an export is unfinished: what each model was trained from, so that none is twice."""


def make_vocabulary(
    spec: TokenizerSpec,
    documents: Documents,
    root: Path,
    *,
    backend: Backend,
    accept: Callable[[str], None],
    training: Training = nullcontext,
) -> Tokenizer:
    """Write a spec's files below `root` and load the tokenizer.

    A model is copied where the spec names one, else trained on the first documents, all of them by default. `accept`
    is called with its SHA-256 and may raise: what is there belongs to a data set that was made with it. `training` is
    that of `train_tokenizer`. Raises
    TokenizerError when the model has more ids than the spec says or lacks begin and end of text; nothing is replaced
    by a model of another size, or by what is none.
    """
    path = root / spec.artifact
    path.parent.mkdir(parents=True, exist_ok=True)
    if spec.kind == "byte":
        accept(ByteTokenizer.named("byte260").sha256)
        _write(path, (json.dumps(byte260_json(), indent=2, sort_keys=True) + "\n").encode())
        return load_tokenizer(path, backend=backend)
    raw = spec.reuse.read_bytes() if spec.reuse is not None else _trained(spec, documents, path, training)
    model = ModelFile.parse(raw, where=str(spec.reuse or path))
    if len(model.pieces) > spec.vocab_size or (spec.reuse is not None and len(model.pieces) != spec.vocab_size):
        raise TokenizerError(
            f"{spec.reuse or path}: {len(model.pieces):,} pieces, but {spec.name} has vocab_size {spec.vocab_size:,}"
        )
    accept(hashlib.sha256(raw).hexdigest())
    _write(path, raw)
    _write(root / spec.vocab_path, vocab_lines(model))
    tokenizer = load_tokenizer(path, backend=backend)
    if tokenizer.bos_id is None:
        raise TokenizerError(f"{path}: it has no begin-of-text id, which stands before each document in this layout")
    return tokenizer


def _write(path: Path, raw: bytes) -> None:
    if not (path.is_file() and path.read_bytes() == raw):
        with atomic_write(path) as file:
            file.write(raw)


def vocab_lines(model: ModelFile) -> bytes:
    """The pieces as sentencepiece lists them in a .vocab file: piece, tab, score, one a line."""
    return "".join(f"{piece.text}\t{piece.score:g}\n" for piece in model.pieces).encode()


def _trained(spec: TokenizerSpec, documents: Documents, path: Path, training: Training) -> bytes:
    """Train, unless an unfinished export did so already from the same documents in the same way; the model's bytes."""
    recipe = {
        "docs_sha256": documents.sha256,
        "train_docs": spec.train_docs,
        "vocab_size": spec.vocab_size,
        "trainer_overrides": spec.trainer_overrides,
    }
    key = hashlib.sha256(json.dumps(recipe, sort_keys=True).encode()).hexdigest()
    notes = path.with_name(TRAINED)
    done = decode_json(read_limited(notes), dict[str, list[str]], notes) if notes.exists() else {}
    if path.is_file() and done.get(path.name) == [key, sha256_file(path)]:
        return path.read_bytes()
    trained = train_tokenizer(
        itertools.islice(_texts(documents.path), spec.train_docs),
        kind="sp-bpe",
        vocab_size=spec.vocab_size,
        out=path.parent,
        name=f".{path.name}",  # not yet in the place of another one
        trainer_overrides=spec.trainer_overrides,
        training=training,
    )
    raw = trained.path.read_bytes()
    trained.path.unlink()
    done[path.name] = [key, hashlib.sha256(raw).hexdigest()]
    with atomic_write(notes) as file:
        file.write(render_json(done))
    return raw


def _texts(path: Path) -> Iterator[str]:
    options = SourceOptions()
    for raw in read_blocks(find_sources([path], options), options):
        yield from parse_block(raw, options).texts.texts()


def end_of_text(spec: TokenizerSpec, root: Path) -> int:
    """The id that ends a text (-1: a model without one)."""
    if spec.kind == "byte":
        return BYTE260_SPECIAL_IDS["eos_id"]
    import sentencepiece

    return int(sentencepiece.SentencePieceProcessor(model_file=str(root / spec.artifact)).eos_id())
