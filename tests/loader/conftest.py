"""A small data set whose ids are their own positions, so that a batch says where it came from."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
from positions import write_data_set

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


@pytest.fixture
def data_set(tmp_path: Path) -> Callable[..., Path]:
    """write_data_set below tmp_path / "data"."""
    return lambda sizes, **options: write_data_set(tmp_path / "data", sizes, **options)
