"""Files of the web without a hash: a part is gone on with only where the server has the same file still."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING

import pytest

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
