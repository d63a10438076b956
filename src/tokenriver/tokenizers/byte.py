"""The two tokenizers that need no vocabulary: a byte is an id, plain (256 ids) or after four control ids (260).

They have no reference library to be checked against: one addition a byte is its own definition.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokenriver.batches import TokenBatch
from tokenriver.errors import TokenizerError
from tokenriver.tokenizers.base import as_text_batch, checked_ids

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import ArrayLike, NDArray

    from tokenriver.batches import TextBatch
    from tokenriver.tokenizers.base import Backend, Texts

__all__ = ["BYTE260_SPECIAL_IDS", "ByteTokenizer", "byte260_json", "defined_name"]

BYTE260_SPECIAL_IDS = {"pad_id": 0, "bos_id": 1, "eos_id": 2, "unk_id": 3}
"""Control ids of byte260; byte b is id 4 + b (docs/format.md, "Byte tokenizers")."""


def byte260_json() -> dict[str, Any]:
    """The JSON that the Parameter Golf layout stores for byte260 (docs/format.md, "Byte tokenizers")."""
    config = {**BYTE260_SPECIAL_IDS, "byte_offset": len(BYTE260_SPECIAL_IDS), "byte_count": 256}
    return {"tokenizer_type": "pure_byte", "config": config, "vocab_size": 260}


def defined_name(definition: Mapping[str, Any], *, where: str) -> Literal["byte", "byte260"]:
    """Which of the two a definition like `byte260_json` is; TokenizerError for one that numbers the bytes otherwise."""
    names: dict[int, Literal["byte", "byte260"]] = {256: "byte", 260: "byte260"}
    size, config = definition.get("vocab_size"), definition.get("config", {})
    expected = byte260_json()["config"] if size == 260 else {"byte_offset": 0, "byte_count": 256}
    if isinstance(size, int) and size in names and isinstance(config, dict):
        meant = {key: value for key, value in config.items() if key in byte260_json()["config"]}
        if all(expected.get(key) == value for key, value in meant.items()):
            return names[size]
    raise TokenizerError(
        f"{where}: a pure_byte tokenizer with vocab_size {size!r} and config {config!r:.200}; known are 256 ids (id = "
        f"byte) and 260 ({json.dumps(byte260_json()['config'])})"
    )


@dataclass(frozen=True, slots=True)
class ByteTokenizer:
    """id = byte + n_special. `sha256` is that of the rendered definition, as there is no file."""

    tokenizer_id: str
    n_special: int = 0
    separator_id: int | None = None

    @classmethod
    def named(cls, name: Literal["byte", "byte260"]) -> ByteTokenizer:
        """`byte` has 256 ids and no separator; `byte260` has its bos, 1, as separator."""
        if name == "byte":
            return cls("byte")
        return cls("byte260", len(BYTE260_SPECIAL_IDS), BYTE260_SPECIAL_IDS["bos_id"])

    @property
    def vocab_size(self) -> int:
        """256 or 260."""
        return 256 + self.n_special

    @property
    def sha256(self) -> str:
        """SHA-256 of the JSON that defines the mapping, rendered with sorted keys and without spaces."""
        definition = (
            byte260_json() if self.n_special else {"config": {}, "tokenizer_type": "pure_byte", "vocab_size": 256}
        )
        return hashlib.sha256(json.dumps(definition, sort_keys=True, separators=(",", ":")).encode()).hexdigest()

    @property
    def separator_position(self) -> Literal["before"]:
        """Before each document."""
        return "before"

    @property
    def bos_id(self) -> int | None:
        """1 with byte260, else None."""
        return BYTE260_SPECIAL_IDS["bos_id"] if self.n_special else None

    @property
    def backend(self) -> Backend:
        """Always "fast"."""
        return "fast"

    @property
    def backend_version(self) -> str:
        """NumPy's version, which does the addition."""
        return f"numpy {np.__version__}"

    @property
    def special_texts(self) -> tuple[str, ...]:
        """No text spells a control id."""
        return ()

    @property
    def special_ids(self) -> Mapping[int, str]:
        """pad, bos, eos and unk with byte260."""
        return {i: f"<{name.removesuffix('_id')}>" for name, i in BYTE260_SPECIAL_IDS.items() if self.n_special}

    @property
    def prefix_space(self) -> bool:
        """No."""
        return False

    def encode(self, text: str | bytes) -> NDArray[np.uint32]:
        """Ids of one text, uint32 [n bytes]."""
        return self.encode_batch([text]).ids

    def encode_batch(self, texts: Texts, *, parallel: bool = True) -> TokenBatch:  # noqa: ARG002
        """One id a byte. `parallel` changes nothing here."""
        batch = as_text_batch(texts)
        first, last = int(batch.offsets[0]), int(batch.offsets[-1])
        ids = batch.data[first:last].astype(np.uint32)
        if self.n_special:
            ids += np.uint32(self.n_special)
        return TokenBatch(ids, batch.offsets - first)

    def encode_batch_narrow(self, batch: TextBatch) -> TokenBatch:
        """The same ids as uint8, the text's own bytes (`byte`), or uint16: a build narrows them anyway."""
        first, last = int(batch.offsets[0]), int(batch.offsets[-1])
        ids: NDArray[Any] = batch.data[first:last]
        if self.n_special:
            ids = np.add(ids, self.n_special, dtype=np.uint16)
        return TokenBatch(ids, batch.offsets - first)

    def reference_encode_batch(self, texts: Texts) -> TokenBatch:
        """The same by Python's own bytes, one document at a time."""
        batch = as_text_batch(texts)
        lists = [[b + self.n_special for b in text] for text in batch]
        ids = np.array([i for one in lists for i in one], np.uint32)
        return TokenBatch(ids, batch.offsets - batch.offsets[0], len(batch))

    def decode(self, ids: ArrayLike) -> str:
        """Text of ids; bytes that are not UTF-8 become U+FFFD."""
        return self.decode_bytes(ids).decode(errors="replace")

    def decode_bytes(self, ids: ArrayLike) -> bytes:
        """The bytes; control ids give none."""
        array = checked_ids(ids, vocab_size=self.vocab_size) - self.n_special
        return array[array >= 0].astype(np.uint8).tobytes()

    def token_bytes_table(self) -> list[bytes]:
        """b"" for the control ids, then the 256 bytes."""
        return [b""] * self.n_special + [bytes([b]) for b in range(256)]
