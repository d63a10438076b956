"""A small Hub over real HTTP on the loopback, with faults that a test scripts: what the client talks to in tests.

Commits, trees with pages, resolve with redirects for large files, ranges, ETags, uploads through preupload, LFS batch
and commit. Every request is in `log`.
"""

from __future__ import annotations

import base64
import hashlib
import json
import re
import socket
import struct
import threading
from collections import defaultdict, deque
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any
from urllib.parse import parse_qs, quote, unquote, urlsplit

if TYPE_CHECKING:
    from pathlib import Path

LARGE = (".bin", ".model", ".jsonl", ".parquet", ".zst")


@dataclass
class Fault:
    """What goes wrong with one GET of a file's body.

    `cut`: the connection ends after so many bytes; `reset`: it is reset after so many; `flip`: that byte is another;
    `status` (with `headers`): this answer instead; `ignore_range`: the whole body with 200.
    """

    cut: int | None = None
    reset: int | None = None
    flip: int | None = None
    status: int | None = None
    headers: dict[str, str] = field(default_factory=dict)
    ignore_range: bool = False
    hang: threading.Event | None = None


@dataclass
class Request:
    """One line of the log; `sent` counts body bytes of a file."""

    method: str
    path: str
    name: str = ""
    range: str | None = None
    status: int = 0
    sent: int = 0
    authorized: bool = False


@dataclass
class Repo:
    """Commits from old to new: (id, {path: bytes})."""

    commits: list[tuple[str, dict[str, bytes]]]
    private: bool = False
    messages: list[list[str]] = field(default_factory=list)
    """The paths of each commit's operations in their order."""

    def files(self, revision: str) -> tuple[str, dict[str, bytes]] | None:
        if revision == "main":
            return self.commits[-1]
        return next((c for c in self.commits if c[0] == revision), None)


def git_id(body: bytes) -> str:
    return hashlib.sha1(b"blob %d\0" % len(body) + body).hexdigest()


class LocalHub:
    """Start with `with LocalHub() as hub`; `hub.url` is its HF_ENDPOINT."""

    def __init__(self, *, page: int = 1000) -> None:
        self.repos: dict[str, Repo] = {}
        self.blobs: dict[str, bytes] = {}
        self.faults: dict[str, deque[Fault]] = defaultdict(deque)
        self.api_faults: deque[Fault] = deque()
        self.log: list[Request] = []
        self.page = page
        self.token = "hf_secret_of_the_tests"
        self.vanished: set[str] = set()
        self._lock = threading.Lock()
        handler = type("Handler", (_Handler,), {"hub": self})
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
        self._server.daemon_threads = True
        port = self._server.server_address[1]
        self.url = f"http://127.0.0.1:{port}"
        self.storage = f"http://localhost:{port}"
        """Large files are stored on another host, so no token may go there."""

    def __enter__(self) -> LocalHub:
        threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()

    def add(self, repo_id: str, files: dict[str, bytes], *, private: bool = False) -> Repo:
        """A repository with these files as a further commit."""
        repo = self.repos.setdefault(repo_id, Repo([], private))
        before = repo.commits[-1][1] if repo.commits else {}
        self.commit(repo, {**before, **files})
        return repo

    def add_folder(self, repo_id: str, folder: Path, prefix: str = "") -> Repo:
        """A repository with every file of a folder."""
        files = {prefix + p.relative_to(folder).as_posix(): p.read_bytes() for p in folder.rglob("*") if p.is_file()}
        return self.add(repo_id, files)

    def commit(self, repo: Repo, files: dict[str, bytes]) -> str:
        listing = "".join(f"{name} {hashlib.sha256(body).hexdigest()}\n" for name, body in sorted(files.items()))
        oid = hashlib.sha1(f"{len(repo.commits)}\n{listing}".encode()).hexdigest()
        for name, body in files.items():
            if name.endswith(LARGE):
                self.blobs[hashlib.sha256(body).hexdigest()] = body
        repo.commits.append((oid, files))
        return oid

    def fail(self, name: str, *faults: Fault) -> None:
        """The next GETs of that file's body go so, one fault each."""
        self.faults[name].extend(faults)

    def bodies(self, name: str) -> list[Request]:
        """The requests that sent bytes of a file."""
        return [r for r in self.log if r.method == "GET" and r.name == name and r.sent]

    def requests(self, name: str) -> list[Request]:
        """All GETs of a file but redirects."""
        return [r for r in self.log if r.method == "GET" and r.name == name and r.status != 302]

    def take_fault(self, name: str) -> Fault:
        with self._lock:
            waiting = self.faults.get(name)
            return waiting.popleft() if waiting else Fault()

    def take_api_fault(self) -> Fault | None:
        with self._lock:
            return self.api_faults.popleft() if self.api_faults else None


def _entry(name: str, body: bytes) -> dict[str, Any]:
    entry: dict[str, Any] = {"type": "file", "path": name, "size": len(body), "oid": git_id(body)}
    if name.endswith(LARGE):
        entry["lfs"] = {"oid": hashlib.sha256(body).hexdigest(), "size": len(body), "pointerSize": 130}
    return entry


def _folder(name: str) -> dict[str, Any]:
    return {"type": "directory", "path": name, "size": 0, "oid": "0" * 40}


class _Handler(BaseHTTPRequestHandler):
    hub: LocalHub
    protocol_version = "HTTP/1.1"
    disable_nagle_algorithm = True  # head and body are two writes: the second would wait 40 ms for the first's ACK

    def log_message(self, *_: object) -> None:
        """Requests are in the hub's own log."""

    def do_GET(self) -> None:
        self._route("GET")

    def do_HEAD(self) -> None:
        self._route("HEAD")

    def do_POST(self) -> None:
        self._route("POST")

    def do_PUT(self) -> None:
        self._route("PUT")

    def _route(self, method: str) -> None:
        self.close_connection = False
        parts = urlsplit(self.path)
        path = unquote(parts.path)
        query = parse_qs(parts.query)
        authorized = self.headers.get("Authorization") == f"Bearer {self.hub.token}"
        self.entry = Request(method, path, range=self.headers.get("Range"), authorized=authorized)
        self.hub.log.append(self.entry)
        raw = self._body()
        try:
            if path.startswith("/lfs/"):
                self._blob(method, path.removeprefix("/lfs/"), query, raw)
            elif path.startswith("/api/"):
                self._api(method, path.removeprefix("/api/"), query, raw)
            elif found := re.fullmatch(r"/datasets/([^/]+/[^/]+)\.git/info/lfs/objects/batch", path):
                self._batch(json.loads(raw))
            elif found := re.fullmatch(r"/datasets/([^/]+/[^/]+)/resolve/([^/]+)/(.+)", path):
                self._resolve(method, *found.groups())
            else:
                self._json({"error": "no such page"}, 404)
        except (BrokenPipeError, ConnectionResetError):
            self.close_connection = True

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding", "").lower() == "chunked":
            pieces = []
            while size := int(self.rfile.readline().split(b";")[0], 16):
                pieces.append(self.rfile.read(size))
                self.rfile.readline()
            self.rfile.readline()
            return b"".join(pieces)
        return self.rfile.read(int(self.headers.get("Content-Length") or 0))

    def _json(self, value: Any, status: int = 200, headers: dict[str, str] | None = None) -> None:
        self._send(json.dumps(value).encode(), status, {"Content-Type": "application/json", **(headers or {})})

    def _send(self, body: bytes, status: int, headers: dict[str, str]) -> None:
        self.entry.status = status
        self.send_response(status)
        headers.setdefault("Content-Length", str(len(body)))
        for key, value in headers.items():
            self.send_header(key, value)
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(body)

    def _api(self, method: str, path: str, query: dict[str, list[str]], raw: bytes) -> None:
        if (fault := self.hub.take_api_fault()) is not None:
            self._json({"error": "scripted"}, fault.status or 500, fault.headers)
        elif path == "repos/create":
            self._create(json.loads(raw))
        elif path == "validate-yaml":
            self._json({"errors": [], "warnings": []})
        elif found := re.fullmatch(r"datasets/([^/]+/[^/]+)(?:/(paths-info)/[^/]+|/tree/main(/?.*))?", path):
            self._browse(*found.groups(), query, raw)
        elif found := re.fullmatch(r"datasets/([^/]+/[^/]+)/(revision|tree|preupload|commit)/([^/]+)(?:/(.*))?", path):
            repo_id, what, revision, _ = found.groups()
            repo = self._repo(repo_id)
            if repo is None:
                return
            commit = repo.files(revision)
            if commit is None:
                self._json({"error": "no revision"}, 404, {"X-Error-Code": "RevisionNotFound"})
            elif what == "revision":
                self._json({"id": repo_id, "sha": commit[0], "siblings": [{"rfilename": n} for n in commit[1]]})
            elif what == "tree":
                self._tree(repo_id, commit, query)
            elif what == "preupload":
                self._preupload(commit[1], json.loads(raw))
            else:
                self._commit(repo_id, repo, raw)
        else:
            self._json({"error": f"no API {method} {path}"}, 404)

    def _browse(
        self, repo_id: str, info: str | None, folder: str | None, query: dict[str, list[str]], raw: bytes
    ) -> None:
        """What the file system of URLs (hf://) asks: a repository, what some paths are, what is in a folder."""
        repo = self._repo(repo_id)
        if repo is None:
            return
        sha, files = repo.commits[-1]
        folders = {name[:i] for name in files for i, c in enumerate(name) if c == "/"}
        if info is not None:
            paths = [p for p in parse_qs(raw.decode())["paths"] if p in files or p in folders]
        elif folder is None:
            self._json({"id": repo_id, "sha": sha, "siblings": [{"rfilename": n} for n in files]})
            return
        else:
            prefix = unquote(folder).strip("/") + "/" if folder else ""
            deep = query.get("recursive", ["False"])[0].lower() == "true"
            paths = [
                p
                for p in sorted({*files, *folders})
                if p.startswith(prefix) and (deep or "/" not in p.removeprefix(prefix))
            ]
            if not paths:
                self._json({"error": "no entry"}, 404, {"X-Error-Code": "EntryNotFound"})
                return
        self._json([_entry(p, files[p]) if p in files else _folder(p) for p in paths])

    def _repo(self, repo_id: str) -> Repo | None:
        repo = self.hub.repos.get(repo_id)
        if repo is None or (repo.private and not self.entry.authorized):
            self._json({"error": "Repository not found"}, 404, {"X-Error-Code": "RepoNotFound"})
            return None
        return repo

    def _tree(self, repo_id: str, commit: tuple[str, dict[str, bytes]], query: dict[str, list[str]]) -> None:
        entries = []
        entries += [_entry(name, body) for name, body in sorted(commit[1].items())]
        folders = sorted({name.rsplit("/", 1)[0] for name in commit[1] if "/" in name})
        entries += [_folder(f) for f in folders]
        start = int(query.get("cursor", ["0"])[0])
        headers = {}
        if start + self.hub.page < len(entries):
            url = (
                f"{self.hub.url}/api/datasets/{repo_id}/tree/{commit[0]}?recursive=True&cursor={start + self.hub.page}"
            )
            headers["Link"] = f'<{url}>; rel="next"'
        self._json(entries[start : start + self.hub.page], headers=headers)

    def _resolve(self, method: str, repo_id: str, revision: str, name: str) -> None:
        self.entry.name = name
        repo = self._repo(repo_id)
        if repo is None:
            return
        commit = repo.files(revision)
        if commit is None or name not in commit[1] or name in self.hub.vanished:
            self._json({"error": "Entry not found"}, 404, {"X-Error-Code": "EntryNotFound"})
            return
        body = commit[1][name]
        headers = {"X-Repo-Commit": commit[0], "Accept-Ranges": "bytes"}
        if name.endswith(LARGE):
            sha256 = hashlib.sha256(body).hexdigest()
            headers |= {"X-Linked-Size": str(len(body)), "X-Linked-Etag": f'"{sha256}"', "ETag": f'"{git_id(body)}"'}
            headers["Location"] = f"{self.hub.storage}/lfs/{sha256}?name={quote(name, safe='')}"
            self._send(b"", 302, headers)
        else:
            self._serve(method, name, body, {**headers, "ETag": f'"{git_id(body)}"'})

    def _blob(self, method: str, sha256: str, query: dict[str, list[str]], raw: bytes) -> None:
        if method == "PUT":
            self.hub.blobs[sha256] = raw
            self._send(b"", 200, {"ETag": '"done"'})
            return
        self.entry.name = query.get("name", [""])[0]
        self._serve(method, self.entry.name, self.hub.blobs[sha256], {"ETag": f'"{sha256}"', "Accept-Ranges": "bytes"})

    def _serve(self, method: str, name: str, body: bytes, headers: dict[str, str]) -> None:
        fault = self.hub.take_fault(name) if method == "GET" else Fault()
        if fault.status is not None:
            self._json({"error": "scripted"}, fault.status, fault.headers)
            return
        start, status = 0, 200
        asked = re.fullmatch(r"bytes=(\d+)-(\d*)", self.headers.get("Range") or "")
        if asked and not fault.ignore_range:
            start, status = int(asked[1]), 206
            if start >= len(body):
                self._send(b"", 416, {"Content-Range": f"bytes */{len(body)}"})
                return
            size, body = len(body), body[: int(asked[2]) + 1] if asked[2] else body
            headers["Content-Range"] = f"bytes {start}-{len(body) - 1}/{size}"
        if fault.flip is not None:
            body = body[: fault.flip] + bytes([body[fault.flip] ^ 1]) + body[fault.flip + 1 :]
        rest = body[start:]
        stop = next((k for k in (fault.cut, fault.reset) if k is not None), len(rest))
        self.entry.status = status
        self.send_response(status)
        for key, value in {**headers, "Content-Length": str(len(rest))}.items():
            self.send_header(key, value)
        self.end_headers()
        if method == "HEAD":
            return
        self.wfile.write(rest[:stop])
        self.wfile.flush()
        self.entry.sent = min(stop, len(rest))
        if fault.hang is not None:
            fault.hang.wait(30)
        if fault.reset is not None:
            self.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            self.connection.close()
        if stop < len(rest):
            self.close_connection = True

    def _create(self, wanted: dict[str, Any]) -> None:
        repo_id = f"{wanted.get('organization') or 'me'}/{wanted['name']}"
        if not self.entry.authorized:
            self._json({"error": "Unauthorized"}, 401)
        elif repo_id in self.hub.repos:
            self._json({"error": "exists", "url": f"{self.hub.url}/datasets/{repo_id}"}, 409)
        else:
            private = wanted.get("visibility") == "private" or bool(wanted.get("private"))
            self.hub.add(repo_id, {".gitattributes": b"*.bin filter=lfs\n"}, private=private)
            self._json({"url": f"{self.hub.url}/datasets/{repo_id}", "id": repo_id, "name": repo_id})

    def _preupload(self, files: dict[str, bytes], wanted: dict[str, Any]) -> None:
        answers = []
        for entry in wanted["files"]:
            mode = "lfs" if entry["path"].endswith(LARGE) else "regular"
            answer = {"path": entry["path"], "uploadMode": mode, "shouldIgnore": False}
            if entry["path"] in files:
                body = files[entry["path"]]
                answer["oid"] = hashlib.sha256(body).hexdigest() if mode == "lfs" else git_id(body)
            answers.append(answer)
        self._json({"files": answers})

    def _batch(self, wanted: dict[str, Any]) -> None:
        objects = []
        for entry in wanted["objects"]:
            answer = dict(entry)
            if entry["oid"] not in self.hub.blobs:
                answer["actions"] = {"upload": {"href": f"{self.hub.url}/lfs/{entry['oid']}"}}
            objects.append(answer)
        self._json({"transfer": "basic", "objects": objects})

    def _commit(self, repo_id: str, repo: Repo, raw: bytes) -> None:
        if not self.entry.authorized:
            self._json({"error": "Unauthorized"}, 401)
            return
        files = dict(repo.commits[-1][1])
        order = []
        for line in raw.splitlines():
            operation = json.loads(line)
            value = operation["value"]
            if operation["key"] == "file":
                files[value["path"]] = base64.b64decode(value["content"])
            elif operation["key"] == "lfsFile":
                files[value["path"]] = self.hub.blobs[value["oid"]]
            elif operation["key"] == "deletedFile":
                del files[value["path"]]
            if "path" in value:
                order.append(value["path"])
        repo.messages.append(order)
        oid = self.hub.commit(repo, files)
        url = f"{self.hub.url}/datasets/{repo_id}/commit/{oid}"
        self._json({"success": True, "commitOid": oid, "commitUrl": url})
