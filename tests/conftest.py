"""What the tests share: the folder of recorded vectors and real data beside the checkout."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest
from shared_folder import SHARED

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture(scope="session")
def shared() -> Path:
    """`../shared`, with the vectors and data; skipped where it is missing, a failure under CI=true."""
    if not SHARED.is_dir():
        message = "../shared (recorded vectors and real data) is not beside this checkout"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{message}, and CI=true demands it")
        pytest.skip(message)
    return SHARED
