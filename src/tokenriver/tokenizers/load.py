"""From a name or path to a tokenizer: the one place that knows which file is which kind."""

from __future__ import annotations

import gzip
import hashlib
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tokenriver.errors import TokenizerError, UsageError
from tokenriver.storage.copies import local_copy
from tokenriver.storage.paths import is_url, named, shown, to_path
from tokenriver.tokenizers.byte import ByteTokenizer, defined_name
from tokenriver.tokenizers.separator import choose_separator, configured_separator

if TYPE_CHECKING:
    from tokenriver.tokenizers.base import Backend, Tokenizer

__all__ = ["load_tokenizer"]

_JSON_NAMES = ("tokenizer.json", "tokenizer.json.gz")
_MODEL_NAMES = ("tokenizer.model", "spiece.model", "sentencepiece.bpe.model")
_FORMS = (
    "byte, byte260, a tokenizer.json or a folder with one, a folder with vocab.bpe and encoder.json, "
    "a .tiktoken file, a SentencePiece .model, an encoding name (gpt2, cl100k_base, o200k_base) or a Hub id"
)
_HUB_ID = re.compile(r"\w[\w.-]*(/\w[\w.-]*)?")
_FILE_ENDINGS = (".json", ".json.gz", ".model", ".tiktoken", ".bpe")


@dataclass(frozen=True, slots=True)
class _How:
    """What is asked of a tokenizer beside its files: what encodes, and the separator in the words of the caller."""

    backend: Backend
    separator: int | str | None


def load_tokenizer(name: str | Path, *, backend: Backend = "fast", separator: int | str | None = None) -> Tokenizer:
    """Load a tokenizer by name or path.

    `name`: byte, byte260, a tokenizer.json (or .json.gz) or a folder with one, a folder with vocab.bpe and
    encoder.json, a .tiktoken file (its pattern's name from the file's name, or after a colon, as in
    `my.tiktoken:cl100k_base`), a SentencePiece .model, a tiktoken encoding name, a URL of any of these files, or a
    Hub id. A path that exists
    goes before a name of the same spelling, except byte and byte260.
    `separator`: an id, a string of the vocabulary, "none", or None for the rule in separator.py.
    Raises TokenizerError; without a network it says which local file to give.
    """
    if backend not in ("fast", "reference"):
        raise UsageError(f"backend {backend!r} is unknown; choose fast or reference")
    how = _How(backend, separator)
    text = named(str(name))
    if text in ("byte", "byte260"):
        return _byte(text, separator)
    if is_url(text) or text.lower().startswith("file://"):
        file, _, pattern = text.rpartition(":")
        whole = _fetched(text)
        if whole is None and "/" not in pattern and (ranks := _fetched(file)) is not None:
            return _from_file(ranks, how, tokenizer_id=_id_of(ranks), pattern=pattern)
        if whole is None:
            raise TokenizerError(f"no tokenizer at {shown(text)}; expected {_FORMS}")
        path = whole
    else:
        path = Path(text)
    if path.is_dir():
        return _from_folder(path, how)
    if path.is_file():
        return _from_file(path, how, tokenizer_id=_id_of(path))
    file, colon, pattern = text.rpartition(":")
    if colon and Path(file).is_file():
        path = Path(file)
        return _from_file(path, how, tokenizer_id=_id_of(path), pattern=pattern)
    from tokenriver.tokenizers.ranks import ENCODINGS

    if text in ENCODINGS:
        return _from_encoding_name(text, how)
    if isinstance(name, Path) or text.endswith(_FILE_ENDINGS) or not _HUB_ID.fullmatch(text):
        raise TokenizerError(f"no tokenizer at {text!r}; expected {_FORMS}")
    return _from_hub(text, how)


def _fetched(url: str) -> Path | None:
    """A tokenizer's files from behind a URL as files here; None when there is nothing."""
    if not is_url(url):
        path = to_path(url)
        return path if path.exists() else None
    try:
        return local_copy(url)
    except FileNotFoundError:
        return None


def _byte(name: str, separator: int | str | None) -> ByteTokenizer:
    tokenizer = ByteTokenizer.named("byte" if name == "byte" else "byte260")
    if separator is None:
        return tokenizer
    chosen = choose_separator(
        separator, ids={}, special={}, vocab_size=tokenizer.vocab_size, configured=None, where=name
    )
    return ByteTokenizer(tokenizer.tokenizer_id, tokenizer.n_special, chosen)


def _id_of(path: Path) -> str:
    """A name for folders and manifests: the file's stem, or its folder's name for a plain tokenizer.json."""
    stem = path.name
    for ending in (".gz", ".json", ".model", ".tiktoken"):
        stem = stem.removesuffix(ending)
    stem = stem.removesuffix(".tokenizer")
    if path.name in (*_JSON_NAMES, *_MODEL_NAMES):
        stem = path.resolve().parent.name
    return _plain(stem)


def _plain(name: str) -> str:
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name) or "tokenizer"


def _from_folder(folder: Path, how: _How) -> Tokenizer:
    tokenizer_id = _plain(folder.resolve().name)
    for file in _JSON_NAMES:
        if (folder / file).is_file():
            return _from_file(folder / file, how, tokenizer_id=tokenizer_id)
    if (folder / "vocab.bpe").is_file() and (folder / "encoder.json").is_file():
        return _from_gpt2_files(folder, how, tokenizer_id=tokenizer_id)
    models = [folder / m for m in _MODEL_NAMES if (folder / m).is_file()] or sorted(folder.glob("*.model"))
    if len(models) == 1:
        return _from_file(models[0], how, tokenizer_id=tokenizer_id)
    raise TokenizerError(
        f"{folder}: no tokenizer.json, no vocab.bpe with encoder.json, and {len(models)} .model files; "
        "give the file itself"
    )


def _read(path: Path) -> bytes:
    raw = path.read_bytes()
    if path.suffix != ".gz":
        return raw
    try:
        return gzip.decompress(raw)
    except (OSError, EOFError, zlib.error) as error:
        raise TokenizerError(f"{path}: not a whole gzip file ({error})") from None


def _from_file(path: Path, how: _How, *, tokenizer_id: str, pattern: str | None = None) -> Tokenizer:
    if path.name in ("vocab.bpe", "encoder.json"):
        return _from_gpt2_files(path.parent, how, tokenizer_id=_id_of(path.resolve().parent))
    name = path.name.removesuffix(".gz")
    raw = _read(path)
    if pattern is not None and not name.endswith(".tiktoken"):
        raise TokenizerError(f"{path}: only a .tiktoken file takes a pattern's name (found {pattern!r})")
    if name.endswith(".json"):
        return _from_json(path, raw, how, tokenizer_id=tokenizer_id)
    if name.endswith(".model"):
        return _from_model(path, raw, how, tokenizer_id=tokenizer_id)
    if name.endswith(".tiktoken"):
        encoding = pattern or name.removesuffix(".tiktoken")
        return _from_ranks_file(path, raw, encoding, how, tokenizer_id=tokenizer_id)
    raise TokenizerError(f"{path}: cannot tell a tokenizer by this file's name; expected {_FORMS}")


def _from_json(path: Path, raw: bytes, how: _How, *, tokenizer_id: str) -> Tokenizer:
    from tokenriver.tokenizers.bpe import hugging_face_tokenizer, parse_tokenizer_json, vocabulary_ids

    spec = parse_tokenizer_json(raw, where=str(path))
    if spec.get("tokenizer_type") == "pure_byte":
        return _byte(defined_name(spec, where=str(path)), how.separator)
    ids, special = vocabulary_ids(spec)
    chosen = choose_separator(
        how.separator,
        ids=ids,
        special=special,
        vocab_size=1 + max([*ids.values(), *special.values()], default=-1),
        configured=configured_separator(path.parent),
        where=str(path),
    )
    return hugging_face_tokenizer(
        spec,
        raw,
        where=str(path),
        tokenizer_id=tokenizer_id,
        sha256=hashlib.sha256(raw).hexdigest(),
        separator_id=chosen,
        backend=how.backend,
    )


def _from_model(path: Path, raw: bytes, how: _How, *, tokenizer_id: str) -> Tokenizer:
    from tokenriver.tokenizers.sentencepiece import sentencepiece_tokenizer

    return sentencepiece_tokenizer(
        raw,
        where=str(path),
        tokenizer_id=tokenizer_id,
        sha256=hashlib.sha256(raw).hexdigest(),
        separator=how.separator,
        configured=configured_separator(path.parent),
        backend=how.backend,
    )


def _from_ranks_file(path: Path, raw: bytes, encoding: str, how: _How, *, tokenizer_id: str) -> Tokenizer:
    from tokenriver.tokenizers.ranks import ENCODINGS, parse_tiktoken_file, rank_tokenizer

    if encoding not in ENCODINGS:
        raise TokenizerError(
            f"{path}: a .tiktoken file does not say how text is cut into words, and {encoding!r} is no encoding known "
            f"here; add the pattern's name, as in {path}:cl100k_base ({', '.join(ENCODINGS)})"
        )
    return rank_tokenizer(
        parse_tiktoken_file(raw, where=str(path)),
        ENCODINGS[encoding],
        where=str(path),
        tokenizer_id=tokenizer_id,
        sha256=hashlib.sha256(raw).hexdigest(),
        separator=how.separator,
        configured=configured_separator(path.parent),
        backend=how.backend,
    )


def _from_gpt2_files(folder: Path, how: _How, *, tokenizer_id: str) -> Tokenizer:
    from tokenriver.tokenizers.ranks import ENCODINGS, parse_vocab_bpe, rank_tokenizer

    files = [folder / "vocab.bpe", folder / "encoder.json"]
    for file in files:
        if not file.is_file():
            raise TokenizerError(f"{file}: missing; GPT-2's vocabulary is vocab.bpe and encoder.json together")
    vocab_bpe, encoder_json = (file.read_bytes() for file in files)
    return rank_tokenizer(
        parse_vocab_bpe(vocab_bpe, encoder_json, where=str(folder)),
        ENCODINGS["gpt2"],
        where=str(folder),
        tokenizer_id=tokenizer_id,
        sha256=hashlib.sha256(vocab_bpe + encoder_json).hexdigest(),
        separator=how.separator,
        configured=configured_separator(folder),
        backend=how.backend,
    )


def _from_encoding_name(name: str, how: _How) -> Tokenizer:
    from tokenriver.tokenizers.ranks import ENCODINGS, fetch_ranks, rank_tokenizer, render_tiktoken

    ranks = fetch_ranks(name)
    return rank_tokenizer(
        ranks,
        ENCODINGS[name],
        where=name,
        tokenizer_id=name,
        sha256=hashlib.sha256(render_tiktoken(ranks)).hexdigest(),
        separator=how.separator,
        configured=None,
        backend=how.backend,
    )


def _from_hub(repo_id: str, how: _How) -> Tokenizer:
    from tokenriver.tokenizers.hub_files import fetch_tokenizer_file

    path = fetch_tokenizer_file(repo_id)
    return _from_file(path, how, tokenizer_id=repo_id.rpartition("/")[2])
