"""A real S3 server on the loopback (moto's), with faults that a test scripts: what s3fs talks to in tests.

    with S3Server() as server:
        server.fail("train-00000.bin", Fault(status=503), Fault(status=503))   # the next two GETs of it
        ... server.url, server.log, server.uploads_under_way("bucket")

Fixtures `s3_server` (one a session) and `s3` (a bucket of its own and the environment, also for child processes) are in
conftest.py.
"""

from __future__ import annotations

import re
import socket
import struct
import threading
import time
from collections import deque
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote

import boto3
from botocore.config import Config

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

__all__ = ["KEY_ID", "SECRET", "Bucket", "Fault", "Request", "S3Server", "environment"]

KEY_ID, SECRET = "AKIAOFTHETESTS", "secret-of-the-tests"


@dataclass
class Fault:
    """What goes wrong with one request for an object.

    `status` (with `headers`): this answer instead; `cut`: the connection ends after so many bytes of the body; `reset`:
    it is reset after so many; `flip`: that byte of the body is another; `hold`: the answer waits for this event;
    `reached`: set when the request has come.
    """

    status: int | None = None
    cut: int | None = None
    reset: int | None = None
    flip: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    hold: threading.Event | None = None
    reached: threading.Event | None = None


@dataclass
class Request:
    """One line of the log: what was asked for and what came of it; `sent` counts body bytes.

    `call` is the client's name for what it asks for, the same when it asks again by itself; `copy_of` the object that
    the server is asked to copy.
    """

    method: str
    path: str
    query: str
    range: str | None = None
    status: int = 0
    sent: int = 0
    failed: bool = False
    call: str = ""
    copy_of: str | None = None


@dataclass
class _Rule:
    pattern: re.Pattern[str]
    method: str
    query: str | None
    faults: deque[Fault]
    always: bool


class S3Server:
    """moto's S3 behind a fault-making layer, in a thread; state is that of the process, so buckets need own names.

    `bytes_per_second`: bodies of objects are sent no faster, all connections together (None: as fast as can be).
    """

    def __init__(self) -> None:
        self.log: list[Request] = []
        self.bytes_per_second: float | None = None
        self._rules: list[_Rule] = []
        self._lock = threading.Lock()
        self._sent_until = 0.0

    def __enter__(self) -> S3Server:
        from moto.moto_server.werkzeug_app import MotoRequestHandler, create_backend_app
        from werkzeug.serving import make_server

        self._moto = create_backend_app("s3")  # without moto's search for the service, which lists a folder each time
        quiet = type("Quiet", (MotoRequestHandler,), {"log": lambda *_: None})
        self._server = make_server("127.0.0.1", 0, self, threaded=True, request_handler=quiet)
        self._server.daemon_threads = True  # type: ignore[attr-defined]
        self.url = f"http://127.0.0.1:{self._server.server_port}"
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        self.client = boto3.client(
            "s3",
            endpoint_url=self.url,
            aws_access_key_id=KEY_ID,
            aws_secret_access_key=SECRET,
            region_name="us-east-1",
            config=Config(retries={"max_attempts": 1}, s3={"addressing_style": "path"}),
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.client.close()
        self._server.shutdown()
        self._server.server_close()

    def fail(
        self, name: str, *faults: Fault, method: str = "GET", query: str | None = None, always: bool = False
    ) -> None:
        """The next requests of that method whose path matches `name` (a pattern) go so, one fault each.

        `query`: only those whose query string has this in it (uploadId, list-type=2). `always`: the first fault, for
        ever.
        """
        with self._lock:
            self._rules.append(_Rule(re.compile(name), method, query, deque(faults), always))

    def mend(self) -> None:
        """Forget the faults that are still to come, and the log."""
        with self._lock:
            self._rules.clear()
            self.log.clear()
            self.bytes_per_second = None

    def requests(self, name: str, method: str = "GET") -> list[Request]:
        """The requests of a method so far whose path matches."""
        return [r for r in self.log if r.method == method and re.search(name, r.path)]

    def uploads_under_way(self, bucket: str) -> list[str]:
        """Keys of multipart uploads that were begun and neither completed nor aborted."""
        return [u["Key"] for u in self.client.list_multipart_uploads(Bucket=bucket).get("Uploads", [])]

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[bytes]:
        """The layer itself, a WSGI application."""
        path = unquote(environ["PATH_INFO"].encode("latin-1").decode("utf-8", "replace"))
        request = Request(
            environ["REQUEST_METHOD"],
            path,
            environ["QUERY_STRING"],
            environ.get("HTTP_RANGE"),
            call=environ.get("HTTP_AMZ_SDK_INVOCATION_ID", ""),
            copy_of=environ.get("HTTP_X_AMZ_COPY_SOURCE"),
        )
        fault = self._take_fault(request)
        self.log.append(request)
        if fault.reached is not None:
            fault.reached.set()
        if fault.hold is not None:
            fault.hold.wait(60)
        if fault.status is not None:
            return self._refuse(request, fault, environ, start_response)

        def begin(status: str, headers: list[tuple[str, str]], exc_info: Any = None) -> Any:
            request.status = int(status.split()[0])
            return start_response(status, headers, exc_info) if exc_info else start_response(status, headers)

        answer = self._moto(environ, begin)
        if request.method != "GET":
            _reset_if_asked(fault, environ)
            return answer
        return self._send(request, fault, b"".join(answer), environ["werkzeug.socket"])

    def _take_fault(self, request: Request) -> Fault:
        with self._lock:
            for rule in self._rules:
                if (
                    rule.faults
                    and rule.method == request.method
                    and rule.pattern.search(request.path)
                    and (rule.query is None or rule.query in request.query)
                ):
                    request.failed = True
                    return rule.faults[0] if rule.always else rule.faults.popleft()
        return Fault()

    def _refuse(self, request: Request, fault: Fault, environ: dict[str, Any], start_response: Any) -> list[bytes]:
        left = int(environ.get("CONTENT_LENGTH") or 0)
        while left and (chunk := environ["wsgi.input"].read(min(left, 1 << 20))):
            left -= len(chunk)
        code = {403: "AccessDenied", 404: "NoSuchKey", 503: "SlowDown"}.get(fault.status or 0, "InternalError")
        body = f"<Error><Code>{code}</Code><Message>as the test wants it</Message></Error>".encode()
        request.status = fault.status or 0
        headers = {"Content-Type": "application/xml", "Content-Length": str(len(body)), **fault.headers}
        start_response(f"{fault.status} Fault", list(headers.items()))
        return [body if request.method != "HEAD" else b""]

    def _send(self, request: Request, fault: Fault, body: bytes, connection: socket.socket) -> Iterator[bytes]:
        if fault.flip is not None:
            body = body[: fault.flip] + bytes([body[fault.flip] ^ 1]) + body[fault.flip + 1 :]
        end = min((n for n in (fault.cut, fault.reset, len(body)) if n is not None), default=len(body))
        for start in range(0, end, 1 << 16):
            chunk = body[start : min(start + (1 << 16), end)]
            self._wait_for_turn(len(chunk))
            request.sent += len(chunk)
            yield chunk
        if fault.reset is not None:
            _reset(connection)
        elif fault.cut is not None:
            connection.shutdown(socket.SHUT_RDWR)

    def _wait_for_turn(self, n: int) -> None:
        if self.bytes_per_second is None:
            return
        with self._lock:
            self._sent_until = max(self._sent_until, time.monotonic()) + n / self.bytes_per_second
            wait = self._sent_until - time.monotonic()
        threading.Event().wait(max(0.0, wait))


def _reset_if_asked(fault: Fault, environ: dict[str, Any]) -> None:
    if fault.reset is not None:
        _reset(environ["werkzeug.socket"])


def _reset(connection: socket.socket) -> None:
    """Close with RST, so that the peer sees a reset and no orderly end."""
    connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    connection.close()


def environment(url: str) -> dict[str, str]:
    """What a process needs in its environment to find the server; credentials are of the tests."""
    return {
        "AWS_ACCESS_KEY_ID": KEY_ID,
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": "/dev/null",
        "AWS_SHARED_CREDENTIALS_FILE": "/dev/null",
        "AWS_EC2_METADATA_DISABLED": "true",
        "FSSPEC_S3_ENDPOINT_URL": url,
    }


@dataclass
class Bucket:
    """An own bucket of a test: `url` is its "s3://…", `server` the server with its faults and log."""

    name: str
    server: S3Server

    @property
    def url(self) -> str:
        """s3://NAME"""
        return f"s3://{self.name}"

    def put(self, key: str, body: bytes) -> str:
        """Store an object and return its URL."""
        self.server.client.put_object(Bucket=self.name, Key=key, Body=body)
        return f"{self.url}/{key}"

    def put_folder(self, folder: Any, prefix: str = "") -> str:
        """Store every file of a folder below a prefix, and return the prefix's URL."""
        for path in sorted(folder.rglob("*")):
            if path.is_file():
                self.put(f"{prefix}/{path.relative_to(folder).as_posix()}".lstrip("/"), path.read_bytes())
        return f"{self.url}/{prefix}".rstrip("/")

    def get(self, key: str) -> bytes:
        """The bytes of an object."""
        body: bytes = self.server.client.get_object(Bucket=self.name, Key=key)["Body"].read()
        return body

    def names(self, prefix: str = "") -> list[str]:
        """Keys below a prefix, sorted."""
        pages = self.server.client.get_paginator("list_objects_v2").paginate(Bucket=self.name, Prefix=prefix)
        return sorted(one["Key"] for page in pages for one in page.get("Contents", []))

    keys = names

    def delete(self, key: str) -> None:
        """Remove an object."""
        self.server.client.delete_object(Bucket=self.name, Key=key)
