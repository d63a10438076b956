"""`tokenizer_specs.json`: which tokenizers an export is made with, in any of its three shapes."""

from __future__ import annotations

import codecs
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from tokenriver.errors import FormatError, UsageError
from tokenriver.shards.layouts import check_name
from tokenriver.shards.manifest import decode_json, read_limited
from tokenriver.storage.copies import local_copy
from tokenriver.storage.paths import is_remote, named_in, to_path

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

__all__ = ["TokenizerSpec", "read_specs", "recommended_bigrams"]

_KINDS = ("byte", "sentencepiece_bpe")
_BYTE_SUFFIX = "byte260"


@dataclass(frozen=True, slots=True)
class TokenizerSpec:
    """One tokenizer to make. `given` is the record as written, with `reuse_model_path` where a model was named.

    `reuse` is an existing model (None: train one); `train_docs` how many documents to train on (None: all).
    """

    name: str
    suffix: str
    kind: str
    vocab_size: int
    given: dict[str, Any]
    reuse: Path | None = None
    train_docs: int | None = None
    trainer_overrides: dict[str, Any] = field(default_factory=dict)

    @property
    def dataset(self) -> str:
        """Name of the export."""
        return f"fineweb10B_{self.suffix}"

    @property
    def artifact(self) -> str:
        """Path of the tokenizer's file, relative to the export's root."""
        return f"tokenizers/fineweb_{self.name}.json" if self.kind == "byte" else self._model("model")

    @property
    def vocab_path(self) -> str:
        """Path of the list of pieces beside a model."""
        return self._model("vocab")

    def _model(self, ending: str) -> str:
        return f"tokenizers/fineweb_{self.vocab_size}_bpe.{ending}"


def read_specs(
    path: str | Path,
    *,
    root: Path,
    reuse: Mapping[int, Path] | None = None,
    train_docs: int | None = None,
    skip_byte: bool = False,
) -> list[TokenizerSpec]:
    """Read the specs: {"tokenizers": […]}, {"tokenizer_specs": […]} or a bare list.

    `reuse` names models by vocabulary size and goes before the records' own `reuse_model_path` (which counts from the
    file's folder); `train_docs` is for records without `tokenizer_train_docs`. Models below `root` are recorded
    relative to it. Raises FormatError naming the record, UsageError for a model that no record wants or that is not
    there.
    """
    path = to_path(path)
    content: Any = decode_json(read_limited(path).removeprefix(codecs.BOM_UTF8), object, path)
    records: Any = content
    if isinstance(content, dict):
        records = content.get("tokenizers", content.get("tokenizer_specs"))
    if not isinstance(records, list) or not records:
        raise FormatError(f'{path}: expected {{"tokenizers": […]}}, {{"tokenizer_specs": […]}} or a list of records')
    models = dict(reuse or {})
    specs = []
    for i, record in enumerate(records):
        spec = _spec(record, f"{path}: record {i}", models, file=path, root=root, train_docs=train_docs)
        if not (skip_byte and spec.kind == "byte"):
            specs.append(spec)
    wanted = {s.vocab_size for s in specs if s.kind != "byte"}
    if unused := sorted(set(models) - wanted):
        raise UsageError(
            f"--reuse-sp-model {unused[0]}=…: {path} has no SentencePiece record with vocab_size {unused[0]} "
            f"(there are {', '.join(map(str, sorted(wanted))) or 'none'})"
        )
    if not specs:
        raise UsageError(f"{path}: nothing is left to export when the byte tokenizer is skipped")
    _refuse_doubles(specs, path)
    return specs


def _spec(
    record: Any, where: str, models: Mapping[int, Path], *, file: Path, root: Path, train_docs: int | None
) -> TokenizerSpec:
    if not isinstance(record, dict):
        raise FormatError(f"{where} is {type(record).__name__}, not an object")
    name, suffix = (_name(record, key, where) for key in ("name", "dataset_suffix"))
    _count(record, "recommended_bigram_vocab_size", where)
    given = {k: v for k, v in record.items() if k != "_base_dir"}
    kind = record.get("kind") or ("byte" if suffix == _BYTE_SUFFIX else "sentencepiece_bpe")
    if kind not in _KINDS:
        raise FormatError(f"{where}: kind is {kind!r}; expected {' or '.join(_KINDS)}")
    vocab_size = record.get("vocab_size", 260 if kind == "byte" else None)
    if not isinstance(vocab_size, int) or isinstance(vocab_size, bool) or not 260 <= vocab_size <= 1 << 16:
        raise FormatError(f"{where}: vocab_size is {vocab_size!r}; expected a whole number from 260 to 65,536")
    if kind == "byte":
        if vocab_size != 260:
            raise FormatError(f"{where}: the byte tokenizer has 260 ids, not {vocab_size}")
        return TokenizerSpec(name, suffix, kind, vocab_size, given)
    model = models.get(vocab_size)
    if model is None and record.get("reuse_model_path") is not None:
        model = to_path(named_in(file, _text(record, "reuse_model_path", where)))
    if model is not None:
        if is_remote(model):
            model = local_copy(str(model))
        if not model.is_file():
            raise UsageError(f"{model}: there is no such model to reuse for {name}")
        given["reuse_model_path"] = _recorded(model, root)
    docs = _count(record, "tokenizer_train_docs", where)
    overrides = record.get("trainer_overrides") or {}
    if not isinstance(overrides, dict):
        raise FormatError(f"{where}: trainer_overrides is {type(overrides).__name__}, not an object")
    return TokenizerSpec(name, suffix, kind, vocab_size, given, model, train_docs if docs is None else docs, overrides)


def _text(record: dict[str, Any], key: str, where: str) -> str:
    value = record.get(key)
    if not isinstance(value, str):
        raise FormatError(f"{where}: {key} is {value!r}; expected a text")
    return value


def _name(record: dict[str, Any], key: str, where: str) -> str:
    try:
        return check_name(_text(record, key, where), what=key)
    except UsageError as error:
        raise FormatError(f"{where}: {error}") from error


def _count(record: dict[str, Any], key: str, where: str) -> int | None:
    value = record.get(key)
    if value is not None and (not isinstance(value, int) or isinstance(value, bool) or value < 1):
        raise FormatError(f"{where}: {key} is {value!r}; expected a whole number above 0")
    return value


def _recorded(model: Path, root: Path) -> str:
    """How the manifest names a reused model: relative to the root, else by its file name (no machine's folders)."""
    real, real_root = model.resolve(), root.resolve()
    return real.relative_to(real_root).as_posix() if real.is_relative_to(real_root) else model.name


def _refuse_doubles(specs: list[TokenizerSpec], path: Path) -> None:
    for what in ("name", "suffix", "artifact"):
        seen: set[str] = set()
        for spec in specs:
            value: str = getattr(spec, what)
            if value in seen:
                raise FormatError(f"{path}: two records have the {what} {value}; their files would be the same")
            seen.add(value)


def recommended_bigrams(spec: TokenizerSpec, vocab_size: int) -> int:
    """The record's own number, else five for each id of the vocabulary rounded up to a multiple of 128."""
    given = spec.given.get("recommended_bigram_vocab_size")
    return given if isinstance(given, int) else -(-vocab_size // 128) * 128 * 5
