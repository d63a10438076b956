"""How even a table of counts is, for tests of shuffles."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import numpy as np

__all__ = ["chi_square_excess"]


def chi_square_excess(counts: np.ndarray, freedom: int) -> float:
    """How many standard deviations a table of counts is less even than chance (normal for many degrees)."""
    expected = counts.sum() / counts.size
    return float((((counts - expected) ** 2 / expected).sum() - freedom) / math.sqrt(2 * freedom))
