"""The time of a shard's last access: noted when it is opened and every hour, and by no other read."""

from __future__ import annotations

import os
import sys
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import pytest

from tokenriver import TrainLoader, write_shard
from tokenriver.loader import open_shards
from tokenriver.loader.access_time import note_access

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.skipif(sys.platform != "linux", reason="only Linux has O_NOATIME")

LONG_AGO = 10**18  # ns: in 2001


def forget(path: Path) -> None:
    """Let the last access be older than the last change, so that a read moves it by the usual rules."""
    os.utime(path, ns=(LONG_AGO, path.stat().st_mtime_ns))


def noted(path: Path) -> bool:
    return path.stat().st_atime_ns != LONG_AGO


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    path = tmp_path / "x_train_000000.bin"
    write_shard(path, np.arange(20_000) % 1000)
    forget(path)
    path.read_bytes()
    if not noted(path):
        pytest.skip("this file system notes no access (noatime)")
    forget(path)
    return path


def test_an_access_is_noted_now_and_by_no_later_read(shard: Path) -> None:
    descriptor = os.open(shard, os.O_RDONLY)
    try:
        for _ in range(2):  # asked again, it is noted again
            note_access(descriptor)
            assert noted(shard)
            forget(shard)
            assert len(os.pread(descriptor, 1000, 0)) == 1000
            assert not noted(shard)
    finally:
        os.close(descriptor)


def test_a_file_of_somebody_else_is_read_as_ever(shard: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    real = fcntl.fcntl

    def refusing(descriptor: int, command: int, value: int = 0) -> int:
        if command == fcntl.F_SETFL and value & os.O_NOATIME:
            raise PermissionError(1, "Operation not permitted")
        return real(descriptor, command, value)

    monkeypatch.setattr(fcntl, "fcntl", refusing)
    loader = TrainLoader(shard, batch_size=4, seq_len=64, prefetch=0)
    assert next(iter(loader)).inputs.shape == (4, 64)
    forget(shard)
    loader.batch_at(3)
    assert noted(shard)


@pytest.mark.parametrize("prefetch", [0, 2])
def test_a_loader_notes_it_when_a_shard_is_opened_and_then_now_and_then(
    shard: Path, monkeypatch: pytest.MonkeyPatch, prefetch: int
) -> None:
    loader = TrainLoader(shard, batch_size=4, seq_len=64, prefetch=prefetch)
    forget(shard)
    batches = iter(loader)
    next(batches)
    assert noted(shard)
    monkeypatch.setattr(open_shards, "_CHECK_EVERY", 0.0)
    monkeypatch.setattr(open_shards, "_CHECK_SHARD", 0.0)
    monkeypatch.setattr(open_shards, "_LOOK_EVERY", 0.0)
    forget(shard)
    list(islice(batches, 100))
    assert not noted(shard)
    monkeypatch.setattr(open_shards, "_NOTE_EVERY", 0.0)
    list(islice(batches, 100))
    assert noted(shard)
    loader.close()
