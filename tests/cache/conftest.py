"""A bucket for each test, and one client for all of them: s3fs takes a second of CPU to make one."""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING

import pytest

from tokenriver.cache import objects

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from s3_server import Bucket, S3Server

_NUMBERS = itertools.count()


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket, found by s3fs here and in child processes through the environment; faults and log are fresh."""
    import fsspec.config
    from s3_server import Bucket, environment

    for name, value in environment(s3_server.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("AWS_MAX_ATTEMPTS", "1")  # of botocore in child processes; s3fs tries by itself too
    monkeypatch.setattr("s3fs.S3FileSystem.retries", 2)
    once = {"endpoint_url": s3_server.url, "config_kwargs": {"retries": {"total_max_attempts": 1}}}
    monkeypatch.setitem(fsspec.config.conf, "s3", once)  # a client of its own: others are not to try once only
    s3_server.mend()
    bucket = Bucket(f"cache-bucket-{next(_NUMBERS)}", s3_server)
    s3_server.client.create_bucket(Bucket=bucket.name)
    yield bucket
    s3_server.mend()


@pytest.fixture
def hurried(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Waits of hundredths of a second, and a cache of the test's own."""
    monkeypatch.setattr(objects, "FIRST_WAIT", 0.01)
    monkeypatch.setattr(objects, "LONGEST_WAIT", 0.05)
    monkeypatch.setenv("TOKENRIVER_CACHE_DIR", str(tmp_path / "cache"))
