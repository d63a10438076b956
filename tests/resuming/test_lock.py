"""The lock of a folder never hides what went wrong while it was held."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tokenriver.resuming.lock import locked

if TYPE_CHECKING:
    from pathlib import Path


def test_a_lock_that_cannot_be_removed_does_not_hide_what_went_wrong(tmp_path: Path) -> None:
    lock_file = tmp_path / "new" / "_LOCK"

    def spoil() -> None:
        lock_file.unlink()
        lock_file.mkdir()  # which no unlink removes

    def fail() -> None:
        spoil()
        raise ValueError("the disk is full")

    with pytest.raises(ValueError, match="the disk is full"), locked(lock_file, where=tmp_path):
        fail()
    lock_file.rmdir()
    with locked(lock_file, where=tmp_path):
        assert lock_file.is_file()
    with pytest.raises(OSError, match="_LOCK"), locked(lock_file, where=tmp_path):
        spoil()
