"""What the tests share: the folder of recorded vectors and real data beside the checkout, and an S3 server."""

from __future__ import annotations

import gc
import os
import signal
import sys
from typing import TYPE_CHECKING

# Where the environment forbids to keep bytecode, each process that the tests start compiles all modules anew, and each
# worker of pytest hypothesis and the tests: a tenth of all the time.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)

import pytest  # noqa: E402
from hypothesis import settings  # noqa: E402
from own_threads import end_loaders  # noqa: E402
from shared_folder import SHARED  # noqa: E402

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from s3_server import Bucket, S3Server

# A collection of all objects takes half a second beside vocabularies: a tenth of all the time with the usual limits.
gc.set_threshold(10_000, 10, 10)

settings.register_profile("tokenriver", deadline=None)  # a busy machine is no failure
settings.load_profile("tokenriver")

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:
    # A shell starts what it runs in the background so, and commands that the tests start would never be interrupted.
    signal.signal(signal.SIGINT, signal.default_int_handler)


@pytest.fixture(scope="session")
def shared() -> Path:
    """`../shared`, with the vectors and data; skipped where it is missing, a failure under CI=true."""
    if not SHARED.is_dir():
        message = "../shared (recorded vectors and real data) is not beside this checkout"
        if os.environ.get("CI") == "true":
            pytest.fail(f"{message}, and CI=true demands it")
        pytest.skip(message)
    return SHARED


@pytest.fixture
def staging(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Staging directories of the test's own, all below this one."""
    monkeypatch.setenv("TOKENRIVER_STAGING", str(tmp_path / "staging"))
    return tmp_path / "staging"


@pytest.fixture(scope="session")
def s3_server() -> Iterator[S3Server]:
    """moto's S3 server on the loopback; `s3` gives a bucket of it."""
    from s3_server import S3Server

    with S3Server() as server:
        yield server


@pytest.fixture
def s3(s3_server: S3Server, monkeypatch: pytest.MonkeyPatch) -> Iterator[Bucket]:
    """An empty bucket, found by s3fs here and in child processes through the environment; faults and log are fresh.

    Clients are kept from test to test, since making one costs a third of a second; whoever changes what they are made
    of other than by fsspec's configuration clears them (`fresh_clients`).
    """
    import fsspec.config
    from s3_server import Bucket, environment

    for name, value in environment(s3_server.url).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setitem(fsspec.config.conf, "s3", {"endpoint_url": s3_server.url})  # read when fsspec was imported
    s3_server.mend()
    number = len(s3_server.client.list_buckets()["Buckets"])
    bucket = Bucket(f"test-bucket-{number}", s3_server)
    s3_server.client.create_bucket(Bucket=bucket.name)
    yield bucket
    s3_server.mend()
    end_loaders()
    for key in bucket.names():
        bucket.delete(key)


@pytest.fixture
def fresh_clients() -> Iterator[Callable[[], None]]:
    """Forgets the clients of object stores, when it is called and after the test."""
    import s3fs

    from tokenriver.storage import paths

    def forget() -> None:
        s3fs.S3FileSystem.clear_instance_cache()
        paths._shared.clear()

    yield forget
    forget()


@pytest.fixture
def impatient(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> Bucket:
    """The same bucket with clients that give up at once: for what no retry mends."""
    import fsspec.config
    import s3fs

    from tokenriver.storage import failures

    once = {"endpoint_url": s3.server.url, "config_kwargs": {"retries": {"total_max_attempts": 1}}}
    monkeypatch.setitem(fsspec.config.conf, "s3", once)
    monkeypatch.setattr(s3fs.S3FileSystem, "retries", 1)
    monkeypatch.setattr(failures, "RETRY_SECONDS", ())
    return s3
