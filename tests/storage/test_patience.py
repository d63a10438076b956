"""How long a server asks to be left alone, and that it is: by every way on which something is read from one."""

from __future__ import annotations

import threading
import time
from email.utils import formatdate
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tokenriver.cache import objects
from tokenriver.cache.objects import Objects
from tokenriver.storage import failures
from tokenriver.storage.failures import StorageWarning
from tokenriver.storage.objects import find_object
from tokenriver.storage.patience import seconds_asked, seconds_asked_by
from tokenriver.storage.reading import read_whole

if TYPE_CHECKING:
    from collections.abc import Iterator

BODY = bytes(range(256)) * 40_000


@pytest.mark.parametrize(
    ("headers", "seconds"),
    [
        ({}, None),
        ({"Retry-After": "2"}, 3),
        ({"retry-after": " 120 "}, 121),
        ({"Retry-After": "0"}, 1),
        ({"Retry-After": "86400"}, 3600),
        ({"Retry-After": "9" * 400}, 3600),
        ({"Retry-After": "-5"}, None),
        ({"Retry-After": "1.5"}, None),
        ({"Retry-After": "²"}, None),
        ({"Retry-After": "soon"}, None),
        ({"Retry-After": "Wed, 99 Foo 2026 07:28:00 GMT"}, None),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:30 GMT", "Date": "Wed, 21 Oct 2026 07:28:00 GMT"}, 31),
        ({"Retry-After": "Wed, 21 Oct 2026 07:28:00 GMT", "Date": "Wed, 21 Oct 2026 07:28:30 GMT"}, 1),
    ],
)
def test_seconds_and_dates_are_understood_and_nothing_else(headers: dict[str, str], seconds: float | None) -> None:
    assert seconds_asked(headers) == seconds


def test_a_date_without_the_server_s_own_clock_counts_by_ours() -> None:
    assert seconds_asked({"Retry-After": formatdate(time.time() + 60, usegmt=True)}) == pytest.approx(61, abs=1.5)


def test_each_client_s_errors_are_looked_into() -> None:
    from botocore.exceptions import ClientError

    told: Any = {"ResponseMetadata": {"HTTPHeaders": {"retry-after": "4"}, "HTTPStatusCode": 503}, "Error": {}}
    error = OSError("what s3fs makes of it")
    error.__cause__ = ClientError(told, "GetObject")
    assert seconds_asked_by(error) == 5
    assert seconds_asked_by(ValueError("of something else")) is None
    assert seconds_asked_by(None) is None


class _Busy:
    """A web server with one file that refuses the next requests for its body."""

    def __init__(self) -> None:
        self.refusals: list[tuple[int, dict[str, str]]] = []
        self.knows_ranges = True
        self.asked: list[float] = []
        self.url = ""


@pytest.fixture
def busy() -> Iterator[_Busy]:
    busy = _Busy()

    class Handler(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def log_message(self, *_: object) -> None:
            pass

        def answer(self, status: int, headers: dict[str, str], body: bytes = b"") -> None:
            self.send_response(status)
            for name, value in {**headers, "Content-Length": str(len(body))}.items():
                self.send_header(name, value)
            self.end_headers()
            if self.command != "HEAD":
                self.wfile.write(body)

        def do_HEAD(self) -> None:
            self.send_response(200)
            self.send_header("Content-Length", str(len(BODY)))
            self.end_headers()

        def do_GET(self) -> None:
            wanted = (self.headers.get("Range") or "").removeprefix("bytes=")
            busy.asked.append(time.monotonic())
            if busy.refusals:
                self.answer(*busy.refusals.pop(0))
            elif wanted and busy.knows_ranges:
                start, _, stop = wanted.partition("-")
                part = BODY[int(start) : int(stop) + 1 if stop else None]
                told = f"bytes {start}-{int(start) + len(part) - 1}/{len(BODY)}"
                self.answer(206, {"Content-Range": told}, part)
            else:
                self.answer(200, {}, BODY)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        busy.url = f"http://127.0.0.1:{server.server_port}"
        yield busy
        server.shutdown()


def ask_for(seconds: float, form: str) -> dict[str, str]:
    return {"Retry-After": str(int(seconds)) if form == "seconds" else formatdate(time.time() + seconds, usegmt=True)}


@pytest.mark.parametrize("form", ["seconds", "date"])
@pytest.mark.parametrize("knows_ranges", [True, False])
def test_documents_are_asked_for_again_when_the_server_says(
    busy: _Busy, monkeypatch: pytest.MonkeyPatch, form: str, knows_ranges: bool
) -> None:
    waited: list[float] = []
    monkeypatch.setattr(failures, "_wait", waited.append)
    monkeypatch.setattr(failures, "RETRY_SECONDS", (0.0, 0.0, 0.0))
    file = find_object(f"{busy.url}/a.bin")
    assert file is not None
    busy.knows_ranges = knows_ranges
    busy.refusals = [(429, ask_for(40, form)), (503, ask_for(20, form))]
    with pytest.warns(StorageWarning, match=r"a\.bin: the store failed.*trying again in [234]\d s"):
        assert read_whole(file) == BODY
    assert len(waited) == 2
    assert 38 < waited[0] < 43
    assert 18 < waited[1] < 23


@pytest.mark.parametrize("form", ["seconds", "date"])
@pytest.mark.parametrize("status", [429, 503])
def test_a_loader_s_ranges_are_asked_for_again_when_the_server_says_and_not_before(
    busy: _Busy, monkeypatch: pytest.MonkeyPatch, form: str, status: int
) -> None:
    monkeypatch.setattr(objects, "FIRST_WAIT", 0.0)
    busy.refusals = [(status, ask_for(0 if form == "seconds" else 1, form))]
    wanted = [("a.bin", 10, 20), ("a.bin", 5_000_000, 5_000_100)]
    assert Objects(busy.url).ranges(wanted, at_once=1) == [BODY[10:20], BODY[5_000_000:5_000_100]]
    refused, *later = busy.asked
    assert len(later) == 2, "nothing was asked for twice"
    assert later[-1] - refused > 0.9
