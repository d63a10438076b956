"""What a loader hands out: a batch, and the raw form of it that is read first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tokenriver.errors import IntegrityError
from tokenriver.loader.segments import positions

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tokenriver.loader.prepared import Prepared
    from tokenriver.loader.rows import Located

__all__ = ["Batch", "Marks", "Raw", "require_int32"]


@dataclass(slots=True)
class Batch:
    """One rank's part of a global batch: `inputs` and `targets` [B, T], targets one token later.

    `step` counts within `epoch`, both from 0. `mask` is bool [B, T], False where a target does not count: padding
    (zeros), or the beginning of another document that no separator announces; None when all count. With documents
    marked, `cu_seqlens` int32 [documents + 1] are their borders in the B · T inputs laid end to end (each row begins
    one, and so does a row's padding), and `position_ids` count from 0 in each.
    """

    inputs: NDArray[Any]
    targets: NDArray[Any]
    epoch: int
    step: int
    mask: NDArray[np.bool_] | None = None
    cu_seqlens: NDArray[np.int32] | None = None

    @property
    def position_ids(self) -> NDArray[np.int32] | None:
        """Position of each input in its document, int32 [B, T], from 0 at every border; made when it is asked for."""
        if self.cu_seqlens is None:
            return None
        rows, seq_len = self.inputs.shape
        borders = self.cu_seqlens[:-1]
        return positions(borders[borders < rows * seq_len], rows, seq_len)


class Marks(NamedTuple):
    """What a batch says about its rows beside ids: as in Batch."""

    mask: NDArray[np.bool_] | None
    cu_seqlens: NDArray[np.int32] | None


class Raw(NamedTuple):
    """A filled buffer: where it belongs, how many rows are real, whether they lie end to end, and what they are.

    `rows` are where they were read, or their pieces; `patches` the ids of targets that lie elsewhere. `unmarked`: no
    target lies elsewhere or does not count, and nobody asks where documents begin. `known`: the buffer's ids have been
    looked at, and are of the vocabulary.
    """

    epoch: int
    step: int
    n_rows: int
    contiguous: bool
    rows: Located | Prepared
    patches: NDArray[Any] | None = None
    unmarked: bool = False
    known: bool = False


def require_int32(ids: NDArray[Any], where: str) -> None:
    """Raise IntegrityError where uint32 ids do not fit into int32, which would make negative ones of them."""
    if ids.dtype.itemsize == 4 and ids.size and ids.view(np.int32).min() < 0:
        raise IntegrityError(
            f"{where}: the id {int(ids.max()):,} does not fit into int32; take int64, or verify the shards if no "
            "vocabulary is that large"
        )
