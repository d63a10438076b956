"""Bits per byte, defined once, twice: `text` and `golf` (docs/bpb.md).

text   nats of text targets / ln 2 / bytes of text; a separator or control id is in neither sum
golf   mean nats of all targets / ln 2 · targets / bytes by Parameter Golf's tables
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from tokenriver.bpb.golf import bpb_of, byte_tables
from tokenriver.bpb.tables import TextTable
from tokenriver.errors import UsageError

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

    from tokenriver.bpb.source import SplitBytes
    from tokenriver.tokenizers.base import Tokenizer

__all__ = ["BitsPerByte", "Definition"]

Definition = Literal["text", "golf"]

_FIELDS = ("nats", "targets", "text_nats", "text_targets", "text_bytes", "golf_bytes")


class BitsPerByte:
    """Sums of nats, targets and bytes, in batches of any shape, and the figures that follow from them.

    `add(nats, targets, previous)`: the loss of each target in nats, the target ids, and the id before each (the
    model's inputs). NumPy arrays, or torch tensors on any device; with tensors the sums stay on the device until a
    figure is asked for. Sums of ranks and batches add up: `a + b`, or gather `as_array()` and use `from_array`.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer_id = tokenizer.tokenizer_id
        self._text = TextTable.of(tokenizer)
        self._golf = byte_tables(tokenizer)
        self._sums = np.zeros(len(_FIELDS), np.longdouble)
        self._tensors: dict[str, tuple[Any, ...]] = {}
        self._pending: dict[str, Any] = {}

    @property
    def vocab_size(self) -> int:
        """Ids that targets may have."""
        return len(self._text.n_bytes)

    def add(self, nats: Any, targets: Any, previous: Any) -> None:
        """Take in targets with their losses. UsageError for other shapes, a NaN, or (NumPy) an id out of range."""
        shapes = {tuple(a.shape) if hasattr(a, "shape") else np.shape(a) for a in (nats, targets, previous)}
        if len(shapes) != 1:
            raise UsageError(
                f"nats, targets and previous ids have the shapes {sorted(shapes)}; all three must be alike"
            )
        if hasattr(nats, "detach"):
            self._add_tensors(nats, targets, previous)
        else:
            self._add_arrays(nats, _numpy(targets), _numpy(previous))

    def _add_arrays(self, nats: ArrayLike, targets: ArrayLike, previous: ArrayLike) -> None:
        losses = np.asarray(nats, np.float64).reshape(-1)
        if np.isnan(losses).any():
            raise UsageError(f"the loss of target {int(np.argmax(np.isnan(losses)))} is not a number (NaN)")
        ids, before = self._ids(targets), self._ids(previous)
        is_text = self._text.is_text[ids]
        wide = losses.astype(np.longdouble)
        self._sums += np.array(
            [
                wide.sum(),
                len(ids),
                wide[is_text].sum(),
                int(is_text.sum()),
                int(self._text.target_bytes(ids, before).sum()),
                int(self._golf.target_bytes(ids, before).sum()),
            ],
            np.longdouble,
        )

    def _ids(self, ids: ArrayLike) -> NDArray[np.int64]:
        array = np.asarray(ids).reshape(-1).astype(np.int64)
        if len(array) and not 0 <= int(array.min()) <= int(array.max()) < self.vocab_size:
            wrong = int(array.max() if array.min() >= 0 else array.min())
            raise UsageError(f"id {wrong} is outside {self.tokenizer_id}'s vocabulary of {self.vocab_size:,} ids")
        return array

    def _add_tensors(self, nats: Any, targets: Any, previous: Any) -> None:
        import torch

        if nats.device.type == "mps":  # it has no float64
            nats = nats.cpu()
        key = str(nats.device)
        if key not in self._tensors:
            golf, text = self._golf, self._text
            arrays: tuple[NDArray[Any], ...] = (
                text.n_bytes,
                text.is_text,
                text.has_prefix,
                golf.base_bytes.astype(np.int64),
            )
            arrays += (golf.has_leading_space, golf.is_boundary)
            self._tensors[key] = tuple(torch.from_numpy(np.ascontiguousarray(a)).to(nats.device) for a in arrays)
        n_bytes, is_text, has_prefix, base, space, boundary = self._tensors[key]
        losses = nats.detach().reshape(-1).double()
        ids = torch.as_tensor(targets, device=nats.device).reshape(-1).long()
        before = torch.as_tensor(previous, device=nats.device).reshape(-1).long()
        chosen = is_text[ids]
        zero = torch.zeros((), dtype=torch.float64, device=nats.device)
        sums = torch.stack(
            [
                losses.sum(),
                zero + ids.numel(),
                torch.where(chosen, losses, zero).sum(),
                chosen.sum().double(),
                (n_bytes[ids] - (has_prefix[ids] & ~is_text[before]).long()).sum().double(),
                (base[ids] + (space[ids] & ~boundary[before]).long()).sum().double(),
            ]
        )
        self._pending[key] = self._pending[key] + sums if key in self._pending else sums

    def as_array(self) -> NDArray[np.float64]:
        """[nats, targets, text nats, text targets, text bytes, golf bytes], float64 [6]: add these over ranks.

        UsageError where a loss was NaN (tensors are not looked at before).
        """
        for sums in self._pending.values():
            self._sums += sums.cpu().numpy().astype(np.longdouble)
        self._pending.clear()
        if np.isnan(self._sums).any():
            raise UsageError("a loss among the tensors added is not a number (NaN)")
        return self._sums.astype(np.float64)

    def from_array(self, sums: ArrayLike) -> BitsPerByte:
        """Sums over ranks as an object with this one's tables."""
        array = np.asarray(sums, np.float64)
        if array.shape != (len(_FIELDS),):
            raise UsageError(f"an array of shape {array.shape}; expected {len(_FIELDS)} sums: {', '.join(_FIELDS)}")
        return self._with(array.astype(np.longdouble))

    def __add__(self, other: object) -> BitsPerByte:
        if other == 0:
            return self
        if not isinstance(other, BitsPerByte):
            return NotImplemented
        if other.tokenizer_id != self.tokenizer_id or other.vocab_size != self.vocab_size:
            raise UsageError(f"sums of {self.tokenizer_id} and of {other.tokenizer_id} do not add up")
        self.as_array()
        other.as_array()
        return self._with(self._sums + other._sums)

    __radd__ = __add__

    def merge(self, other: BitsPerByte) -> BitsPerByte:
        """The same as `self + other`."""
        return self + other

    def _with(self, sums: Any) -> BitsPerByte:
        made = object.__new__(BitsPerByte)
        made.__dict__.update(self.__dict__, _sums=sums, _tensors={}, _pending={})
        return made

    def _value(self, name: str) -> float:
        self.as_array()
        return float(self._sums[_FIELDS.index(name)])

    @property
    def n_targets(self) -> int:
        """Targets added, separators included."""
        return int(self._value("targets"))

    @property
    def n_bytes(self) -> int:
        """Bytes of text that the targets stand for (definition `text`)."""
        return int(self._value("text_bytes"))

    @property
    def golf_bytes(self) -> int:
        """Bytes of the targets by Parameter Golf's tables."""
        return int(self._value("golf_bytes"))

    @property
    def nats_per_token(self) -> float:
        """Mean loss over all targets; NaN without any."""
        self.as_array()
        return float(self._sums[0] / self._sums[1]) if self._sums[1] else math.nan

    @property
    def bits_per_token(self) -> float:
        """The same in bits."""
        return self.nats_per_token / math.log(2)

    def bits_per_byte(self, definition: Definition = "text", *, split: SplitBytes | None = None) -> float:
        """Bits per byte; NaN without a byte.

        `text` with `split` (bpb.source.split_bytes) divides by the bytes of the source text: where the tokenizer
        normalises, ids stand for fewer or more. The split's ratio of the two is applied to the bytes added here.
        """
        self.as_array()
        nats, targets, text_nats, _, n_bytes, golf_bytes = self._sums
        if definition == "golf":
            return bpb_of(float(nats), int(targets), int(golf_bytes))[1] if golf_bytes else math.nan
        if definition != "text":
            raise UsageError(f"definition {definition!r} is unknown; choose text or golf")
        ratio = 1.0 if split is None else split.ratio
        return float(text_nats / n_bytes) / math.log(2) / ratio if n_bytes else math.nan

    def report(self, *, split: SplitBytes | None = None) -> str:
        """All figures in a few lines; with `split` also by source bytes, and how far the two are apart."""
        text, golf = self.bits_per_byte("text"), self.bits_per_byte("golf")
        lines = [
            f"{self.n_targets:,} targets, {self.n_bytes:,} bytes of text",
            f"nats per token      {self.nats_per_token:.6f}",
            f"bits per token      {self.bits_per_token:.6f}",
            f"bits per byte text  {text:.6f}  (bytes that the ids stand for)",
        ]
        if split is not None:
            by_source = self.bits_per_byte("text", split=split)
            lines.append(
                f"bits per byte text  {by_source:.6f}  (source bytes: {split.source:,} for {split.ids:,} by ids; "
                f"difference {by_source - text:+.6f}, {by_source / text - 1:+.4%})"
            )
        lines.append(f"bits per byte golf  {golf:.6f}  ({self.golf_bytes:,} bytes by its tables)")
        return "\n".join(lines)


def _numpy(values: Any) -> Any:
    return values.detach().cpu().numpy() if hasattr(values, "detach") else values
