"""Ranges by plain HTTP: each is whole, or an error of its own."""

from __future__ import annotations

import os
import random
import threading
from typing import TYPE_CHECKING, Any

import pytest
from plain_server import files_over_http
from s3_server import Fault

from tokenriver.storage import plain_http
from tokenriver.storage.paths import filesystem_of
from tokenriver.storage.plain_http import RefusedError, get_ranges

if TYPE_CHECKING:
    from pathlib import Path

    from s3_server import Bucket

BODY = random.Random(1).randbytes(300_000)


@pytest.fixture
def address(s3: Bucket) -> str:
    url: str = filesystem_of(s3.put("a.bin", BODY))[0].sign(f"{s3.name}/a.bin")
    return url


def test_many_ranges_come_in_the_order_in_which_they_were_asked_for(address: str) -> None:
    rng = random.Random(2)
    wanted = [(address, start, start + rng.randrange(1, 5000)) for start in (rng.randrange(290_000) for _ in range(99))]
    found = get_ranges(wanted, at_once=8)
    assert [one[0] for one in found if not isinstance(one, Exception)] == [BODY[a:b] for _, a, b in wanted]
    tags = {one[1] for one in found if not isinstance(one, Exception)}
    assert len(tags) == 1
    assert None not in tags


@pytest.mark.parametrize("fault", [Fault(cut=10), Fault(reset=10), Fault(status=503), Fault(status=403)])
def test_what_goes_wrong_with_one_range_is_its_own(s3: Bucket, address: str, fault: Fault) -> None:
    s3.server.fail(r"a\.bin", Fault(), fault)
    found = get_ranges([(address, 1000 * k, 1000 * k + 1000) for k in range(3)], at_once=1)
    assert [isinstance(one, Exception) for one in found] == [False, True, False]
    if fault.status:
        assert isinstance(found[1], RefusedError)
        assert found[1].status == fault.status


def test_small_ranges_come_while_a_large_one_is_under_way(s3: Bucket, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_http, "_SMALL_BYTES", 100_000)
    address = filesystem_of(s3.put("b.bin", BODY))[0].sign(f"{s3.name}/b.bin")
    gate, reached = threading.Event(), threading.Event()
    s3.server.fail(r"b\.bin", Fault(hold=gate, reached=reached))
    large: list[Any] = []
    asker = threading.Thread(target=lambda: large.extend(get_ranges([(address, 0, 200_000)], at_once=1)))
    asker.start()
    reached.wait(300)
    small = get_ranges([(address, k, k + 10) for k in range(300)], at_once=200)
    assert [one[0] for one in small if not isinstance(one, Exception)] == [BODY[k : k + 10] for k in range(300)]
    assert not large
    gate.set()
    asker.join()
    assert large[0][0] == BODY[:200_000]


def test_a_range_that_the_object_does_not_have_is_refused_and_never_short(address: str) -> None:
    beyond, over = get_ranges([(address, 400_000, 400_010), (address, 299_990, 300_010)], at_once=2)
    assert isinstance(beyond, RefusedError)
    assert isinstance(over, RefusedError)


def test_a_server_that_answers_with_the_whole_object_is_not_listened_to(tmp_path: Path) -> None:
    (tmp_path / "a.bin").write_bytes(BODY)
    with files_over_http(tmp_path) as url:
        (found,) = get_ranges([(f"{url}/a.bin", 5, 10)], at_once=1)
    assert isinstance(found, RefusedError)
    assert found.status == 200


def test_a_server_that_is_not_there_is_an_error_of_each_range() -> None:
    found = get_ranges([("http://127.0.0.1:1/a", 0, 1)] * 2, at_once=2)
    assert all(isinstance(one, OSError) for one in found)


def test_a_forked_child_has_connections_of_its_own(address: str) -> None:
    get_ranges([(address, 0, 1)], at_once=1)
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        (found,) = get_ranges([(address, 0, 100)], at_once=1)
        os.write(write, b"error" if isinstance(found, Exception) else found[0])
        os._exit(0)
    os.waitpid(child, 0)
    seen = os.read(read, 1000)
    os.close(read)
    os.close(write)
    assert seen == BODY[:100]


def test_a_proxy_of_the_environment_is_used_but_not_where_it_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("HTTP_PROXY", "http_proxy", "NO_PROXY", "no_proxy"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("http_proxy", "http://proxy:3128")
    monkeypatch.setenv("no_proxy", "near")
    plain_http._proxy_of.cache_clear()
    assert plain_http._proxy_of("http", "far") == "http://proxy:3128"
    assert plain_http._proxy_of("http", "near") is None
    plain_http._proxy_of.cache_clear()
