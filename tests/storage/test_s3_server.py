"""The S3 server of the tests does what the tests of storage rely on."""

from __future__ import annotations

from typing import TYPE_CHECKING

import fsspec
import pytest
from s3_server import Fault

if TYPE_CHECKING:
    from s3_server import Bucket


def test_an_object_put_is_read_through_s3fs(s3: Bucket) -> None:
    url = s3.put("folder/a b.bin", b"x" * 100)
    with fsspec.open(url, "rb") as file:
        assert file.read() == b"x" * 100
    assert s3.names() == ["folder/a b.bin"]


def test_two_refusals_are_retried_by_the_client_and_logged(s3: Bucket) -> None:
    url = s3.put("a.bin", b"x" * 100)
    s3.server.fail("a.bin", Fault(status=503), Fault(status=503))
    assert fsspec.filesystem("s3").cat_file(url) == b"x" * 100
    assert [r.status for r in s3.server.requests("a.bin")] == [503, 503, 200]


@pytest.mark.parametrize("fault", [Fault(cut=10), Fault(reset=10)])
def test_a_body_that_ends_early_is_retried_by_the_client(s3: Bucket, fault: Fault) -> None:
    url = s3.put("a.bin", b"x" * 100_000)
    s3.server.fail("a.bin", fault)
    assert fsspec.filesystem("s3").cat_file(url) == b"x" * 100_000
    assert [r.sent for r in s3.server.requests("a.bin")] == [10, 100_000]
