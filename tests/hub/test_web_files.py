"""Files of the web without a hash: a part is gone on with only where the server has the same file still."""

from __future__ import annotations

import gzip
import hashlib
import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from tokenriver.errors import HubError, IntegrityError
from tokenriver.hub.checks import Expected
from tokenriver.hub.transfer import FetchJob, fetch_file
from tokenriver.hub.web import WebFiles

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OLD = bytes(range(250)) * 4_000
NEW = OLD[::-1]


@dataclass
class Web:
    """One file with its headers; the next answers are cut after so many bytes. Ranges asked for are in `asked`."""

    body: bytes = OLD
    headers: dict[str, str] = field(default_factory=dict)
    cuts: list[int] = field(default_factory=list)
    asked: list[str | None] = field(default_factory=list)
    then: tuple[bytes, dict[str, str]] | None = None
    url: str = ""

    def change(self, body: bytes, headers: dict[str, str]) -> None:
        self.body, self.headers = body, headers


@pytest.fixture
def web() -> Iterator[Web]:
    web = Web()

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            wanted = self.headers.get("Range")
            web.asked.append(wanted)
            start = int(wanted.removeprefix("bytes=").rstrip("-")) if wanted else 0
            self.send_response(206 if wanted else 200)
            if wanted:
                self.send_header("Content-Range", f"bytes {start}-{len(web.body) - 1}/{len(web.body)}")
            self.send_header("Content-Length", str(len(web.body) - start))
            for name, value in web.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(web.body[start : web.cuts.pop(0) if web.cuts else None])
            self.close_connection = True
            if web.then is not None:
                web.change(*web.then)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        web.url = f"http://127.0.0.1:{server.server_port}/notes.jsonl"
        yield web
        server.shutdown()


def fetch(web: Web, folder: Path, *, stop_at: int | None = None) -> bytes:
    def progress(_name: str, done: int, _total: int) -> None:
        if stop_at is not None and done >= stop_at:
            raise KeyboardInterrupt

    path = folder / "notes.jsonl"
    fetch_file(WebFiles({"notes.jsonl": web.url}), FetchJob("notes.jsonl", path, Expected(len(OLD))), progress=progress)
    assert [one.name for one in folder.iterdir()] == ["notes.jsonl"], "no part, no note, no lock"
    return path.read_bytes()


VERSIONS = [
    ({"ETag": '"1"'}, {"ETag": '"2"'}),
    ({"Last-Modified": "Mon, 30 Nov 2026 10:00:00 GMT"}, {"Last-Modified": "Mon, 30 Nov 2026 10:00:01 GMT"}),
    ({"ETag": '"1"'}, {}),
    ({}, {"ETag": '"2"'}),
    ({}, {}),
]


@pytest.mark.parametrize(("before", "after"), VERSIONS)
@pytest.mark.parametrize("stop_at", [100_000, len(OLD)])
def test_a_file_that_was_replaced_between_two_runs_is_not_put_behind_the_old_one(
    web: Web, tmp_path: Path, before: dict[str, str], after: dict[str, str], stop_at: int
) -> None:
    web.change(OLD, before)
    with pytest.raises(KeyboardInterrupt):
        fetch(web, tmp_path, stop_at=stop_at)
    assert (tmp_path / "notes.jsonl.part").stat().st_size >= stop_at
    web.change(NEW, after)
    assert fetch(web, tmp_path) == NEW


@pytest.mark.parametrize("headers", [before for before, _ in VERSIONS[:2]])
@pytest.mark.parametrize("stop_at", [100_000, len(OLD)])
def test_a_file_that_is_still_the_same_is_gone_on_with(
    web: Web, tmp_path: Path, headers: dict[str, str], stop_at: int
) -> None:
    web.change(OLD, headers)
    with pytest.raises(KeyboardInterrupt):
        fetch(web, tmp_path, stop_at=stop_at)
    have = (tmp_path / "notes.jsonl.part").stat().st_size
    assert fetch(web, tmp_path) == OLD
    assert web.asked == [None, f"bytes={min(have, len(OLD) - 1)}-"]


@pytest.mark.parametrize(("before", "after"), VERSIONS[:4])
def test_a_file_that_is_replaced_while_its_connection_breaks_off_is_begun_anew(
    web: Web, tmp_path: Path, before: dict[str, str], after: dict[str, str]
) -> None:
    web.change(OLD, before)
    web.cuts, web.then = [300_000], (NEW, after)
    assert fetch(web, tmp_path) == NEW


def test_a_connection_that_breaks_off_is_gone_on_with_where_the_server_tells_no_version(
    web: Web, tmp_path: Path
) -> None:
    web.cuts = [300_000, 600_000]
    assert fetch(web, tmp_path) == OLD
    assert web.asked == [None, "bytes=300000-", "bytes=600000-"]


@dataclass
class _Odd:
    """Answers that servers give and no RFC asks for: what each says of its body, and what it sends."""

    headers: dict[str, str]
    body: bytes
    url: str = ""
    requests: int = 0


@pytest.fixture
def odd() -> Iterator[_Odd]:
    odd = _Odd({}, OLD)

    class Handler(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            pass

        def do_GET(self) -> None:
            odd.requests += 1
            wanted = self.headers.get("Range")
            if wanted and int(wanted.removeprefix("bytes=").rstrip("-")) >= len(odd.body):
                self.send_response(416)
                self.send_header("Content-Length", "0")
                self.end_headers()
                return
            self.send_response(200)
            for name, value in odd.headers.items():
                self.send_header(name, value)
            self.end_headers()
            self.wfile.write(odd.body)

    with ThreadingHTTPServer(("127.0.0.1", 0), Handler) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        odd.url = f"http://127.0.0.1:{server.server_port}/notes"
        yield odd
        server.shutdown()


def fetch_odd(odd: _Odd, folder: Path, name: str = "notes.jsonl", expected: Expected | None = None) -> bytes:
    fetch_file(WebFiles({name: odd.url}), FetchJob(name, folder / name, expected or Expected(None)))
    return (folder / name).read_bytes()


def test_a_body_that_may_have_been_cut_short_without_a_sign_is_taken_only_with_a_hash(
    odd: _Odd, tmp_path: Path
) -> None:
    odd.body = OLD[:400_000]  # no Content-Length, and no chunks: the end of the connection is the end of the body
    with pytest.raises(HubError, match=r"notes\.jsonl: the server does not say how large it is.*name its SHA-256"):
        fetch_odd(odd, tmp_path)
    assert list(tmp_path.iterdir()) == []
    right = hashlib.sha256(OLD).hexdigest()
    with pytest.raises(IntegrityError, match="arrived 2 times with sha256"):
        fetch_odd(odd, tmp_path, expected=Expected(None, right))
    odd.body = OLD
    assert fetch_odd(odd, tmp_path, expected=Expected(None, right)) == OLD


@pytest.mark.parametrize("encoding", ["gzip", "br", "zstd", "deflate"])
def test_what_comes_compressed_against_our_wish_is_not_taken_for_the_file(
    odd: _Odd, tmp_path: Path, encoding: str
) -> None:
    odd.body = gzip.compress(OLD)
    odd.headers = {"Content-Encoding": encoding, "Content-Length": str(len(odd.body))}
    with pytest.raises(HubError, match=rf"notes\.jsonl: the server sends it compressed \(Content-Encoding: {encoding}"):
        fetch_odd(odd, tmp_path)
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("encoding", ["gzip", "x-gzip"])
def test_a_file_that_is_compressed_itself_is_taken_as_it_is(odd: _Odd, tmp_path: Path, encoding: str) -> None:
    odd.body = gzip.compress(OLD)
    odd.headers = {"Content-Encoding": encoding, "Content-Length": str(len(odd.body))}
    assert fetch_odd(odd, tmp_path, name="notes.jsonl.gz") == odd.body


def test_a_file_that_ends_before_the_size_that_was_told_is_given_up(odd: _Odd, tmp_path: Path) -> None:
    odd.headers = {"Content-Length": str(len(OLD))}
    with pytest.raises(HubError, match=r"broke off 5 times in a row without a new byte, at 1,000,000 of 1,500,000"):
        fetch_odd(odd, tmp_path, expected=Expected(1_500_000))
    assert odd.requests <= 12
    assert not (tmp_path / "notes.jsonl").exists()


def test_a_file_that_is_another_one_at_every_request_is_given_up(web: Web, tmp_path: Path) -> None:
    web.cuts = [300_000] * 100
    numbers = iter(range(1000))
    web.then = (OLD, _Numbered(numbers))
    with pytest.raises(HubError, match="without a new byte"):
        fetch(web, tmp_path)
    assert len(web.asked) <= 14


class _Numbered(dict[str, str]):
    """Headers with another ETag each time that they are read."""

    def __init__(self, numbers: Iterator[int]) -> None:
        super().__init__()
        self._numbers = numbers

    def items(self) -> Any:
        return [("ETag", f'"{next(self._numbers)}"')]
