"""A loader that streams from an S3 server on the loopback, limited to so many bytes a second, beside local files.

    python benchmarks/streaming.py [--megabytes-per-second 200] [--megabytes 1600] [--json FILE]

The server is a process of its own that sends files' bytes at no more than the limit, all connections together, and
does nothing else, so that the client stack (s3fs, aiobotocore) and this loader are what is measured. The consumer
stands for a model: it takes batches at a fixed rate, from a fraction of the limit to above it. A loader keeps up when
the consumer's batches come at the rate at which it asks for them; above the limit it cannot, and then the share of the
limit that it reaches is what counts. Each case begins with an empty cache. CPU seconds are those of the loader's
process.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import platform
import re
import socket
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np

B, T = 64, 1024
BATCH_BYTES = (B * T + 1) * 2
SHARD_TOKENS = 100_000_000


def make_data_set(folder: Path, megabytes: int, shard_tokens: int) -> None:
    """Shards of random ids with a manifest."""
    from tokenriver import write_shard

    folder.mkdir(parents=True, exist_ok=True)
    rng, files = np.random.default_rng(0), []
    for k in range(max(1, round(megabytes * 1e6 / 2 / shard_tokens))):
        name = f"train-{k:05d}.bin"
        write_shard(folder / name, rng.integers(0, 50257, shard_tokens, dtype=np.uint16), vocab_size=50257)
        digest = hashlib.sha256((folder / name).read_bytes()).hexdigest()
        files.append({"name": name, "split": "train", "n_tokens": shard_tokens, "n_docs": 1, "sha256": digest})
    manifest = {"tokenizer_id": "gpt2", "tokenizer_sha256": "0" * 64, "doc_sep_id": 50256, "files": files}
    (folder / "_MANIFEST.json").write_text(json.dumps(manifest))


class Server:
    """The least of S3 that a reader needs: HEAD, GET with a range, and a listing; bodies within a rate."""

    def __init__(self, folder: Path, bytes_per_second: float) -> None:
        self.folder, self.rate = folder, bytes_per_second
        self._lock, self._until = threading.Lock(), 0.0
        self.socket = socket.create_server(("127.0.0.1", 0), backlog=512)
        self.port = self.socket.getsockname()[1]

    def serve(self) -> None:
        """Answer for ever, a thread a connection."""
        while True:
            connection, _ = self.socket.accept()
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            threading.Thread(target=self._talk_to_its_end, args=(connection,), daemon=True).start()

    def _talk_to_its_end(self, connection: socket.socket) -> None:
        with contextlib.suppress(ConnectionError):  # a client that was killed, or had enough
            self._talk(connection)

    def _talk(self, connection: socket.socket) -> None:
        stream = connection.makefile("rb")
        while line := stream.readline():
            method, target, _ = line.decode("latin-1").split(" ", 2)
            wanted = None
            while (header := stream.readline().strip()) != b"":
                if header.lower().startswith(b"range:"):
                    a, b = re.search(rb"bytes=(\d+)-(\d+)", header).groups()  # type: ignore[union-attr]
                    wanted = int(a), int(b) + 1
            self._answer(connection, method, target, wanted)

    def _answer(self, to: socket.socket, method: str, target: str, wanted: tuple[int, int] | None) -> None:
        path, _, query = target.partition("?")
        if "list-type" in query:
            rows = "".join(
                f"<Contents><Key>set/{p.name}</Key><Size>{p.stat().st_size}</Size><ETag>x</ETag>"
                "<LastModified>2026-01-01T00:00:00.000Z</LastModified><StorageClass>STANDARD</StorageClass></Contents>"
                for p in sorted(self.folder.iterdir())
            )
            body = f'<?xml version="1.0"?><ListBucketResult><IsTruncated>false</IsTruncated>{rows}</ListBucketResult>'
            head = f"HTTP/1.1 200 OK\r\nContent-Type: application/xml\r\nContent-Length: {len(body)}\r\n\r\n"
            to.sendall((head + body).encode())
            return
        file = self.folder / path.rpartition("/")[2]
        if not file.is_file():
            to.sendall(b"HTTP/1.1 404 Not Found\r\nContent-Length: 0\r\n\r\n")
            return
        size = file.stat().st_size
        start, stop = wanted or (0, size)
        status = f"206 Partial Content\r\nContent-Range: bytes {start}-{stop - 1}/{size}" if wanted else "200 OK"
        fixed = 'ETag: "x"\r\nLast-Modified: Thu, 01 Jan 2026 00:00:00 GMT\r\nContent-Type: binary/octet-stream\r\n'
        to.sendall(f"HTTP/1.1 {status}\r\n{fixed}Content-Length: {stop - start}\r\n\r\n".encode())
        if method == "GET":
            with open(file, "rb") as source:
                while start < stop:
                    n = min(1 << 18, stop - start)
                    self._wait_for_turn(n)
                    start += os.sendfile(to.fileno(), source.fileno(), start, n)  # perhaps not all of them

    def _wait_for_turn(self, n: int) -> None:
        with self._lock:
            self._until = max(self._until, time.monotonic() - 0.05) + n / self.rate
            wait = self._until - time.monotonic()
        if wait > 0:
            time.sleep(wait)


def run_case(source: str, *, order: str, rate: float, seconds: float, cache: Path | None, limit: str | None) -> Any:
    """What a consumer that asks for `rate` bytes a second gets, after its first batch."""
    from tokenriver import TrainLoader

    options: Any = {} if cache is None else {"cache_dir": cache, "cache_limit": limit}
    loader = TrainLoader(source, batch_size=B, seq_len=T, order=order, epochs=1, **options)  # type: ignore[arg-type]
    begun, batches = time.perf_counter(), iter(loader)
    next(batches)
    first, cpu = time.perf_counter() - begun, time.process_time()
    pause, start, count, late = BATCH_BYTES / rate, time.perf_counter(), 0, 0.0
    for count, _ in enumerate(batches, 1):
        due = start + count * pause
        now = time.perf_counter()
        late = max(late, now - due)
        if now < due:
            time.sleep(due - now)
        if now - start > seconds:
            break
    took = time.perf_counter() - start
    found = count * BATCH_BYTES / took
    loader.close()
    return {
        "asked_MB_s": round(rate / 1e6, 1),
        "got_MB_s": round(found / 1e6, 1),
        "share": round(found / rate, 3),
        "first_batch_s": round(first, 2),
        "latest_s": round(late, 2),
        "cpu_ms_per_MB": round((time.process_time() - cpu) * 1e3 / (count * BATCH_BYTES / 1e6), 2),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--megabytes-per-second", type=float, default=200)
    parser.add_argument("--megabytes", type=int, default=1600)
    parser.add_argument("--shard-tokens", type=int, default=SHARD_TOKENS)
    parser.add_argument("--seconds", type=float, default=6)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--serve", type=Path, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    rate = arguments.megabytes_per_second * 1e6
    if arguments.serve is not None:
        server = Server(arguments.serve, rate)
        print(server.port, flush=True)
        server.serve()
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary) / "set"
        make_data_set(folder, arguments.megabytes, arguments.shard_tokens)
        command = [sys.executable, __file__, "--serve", str(folder)]
        child = subprocess.Popen(
            [*command, "--megabytes-per-second", str(arguments.megabytes_per_second)], stdout=subprocess.PIPE, text=True
        )
        assert child.stdout is not None
        os.environ |= {
            "AWS_ACCESS_KEY_ID": "none",
            "AWS_SECRET_ACCESS_KEY": "none",
            "AWS_DEFAULT_REGION": "us-east-1",
            "FSSPEC_S3_ENDPOINT_URL": f"http://127.0.0.1:{child.stdout.readline().strip()}",
        }
        try:
            cases = measure(Path(temporary), folder, rate, arguments.seconds)
        finally:
            child.kill()
    for case in cases:
        print("  ".join(f"{key} {value}" for key, value in case.items()))
    if arguments.json is not None:
        facts = {
            "what": "benchmarks/streaming.py",
            "machine": f"{platform.machine()}, {os.cpu_count()} cores, {platform.system()}",
            "python": platform.python_version(),
            "store_MB_s": arguments.megabytes_per_second,
            "shape": {"B": B, "T": T, "megabytes": arguments.megabytes, "shard_tokens": arguments.shard_tokens},
            "load_average": os.getloadavg(),
            "cases": cases,
        }
        arguments.json.write_text(json.dumps(facts, indent=2) + "\n")


def bare_client(seconds: float) -> dict[str, Any]:
    """s3fs alone: two threads that ask for four ranges of 4 MiB at a time, and drop them."""
    from fsspec.core import url_to_fs

    fs, root = url_to_fs("s3://bucket/set")
    path, done = f"{root}/train-00000.bin", [0, 0]
    size = fs.info(path)["size"]
    start, cpu = time.perf_counter(), time.process_time()

    def read(k: int) -> None:
        at = 0
        while time.perf_counter() - start < seconds:
            starts = [at % max(1, size - (20 << 20)) + (i << 22) for i in range(4)]
            done[k] += sum(map(len, fs.cat_ranges([path] * 4, starts, [a + (4 << 20) for a in starts])))
            at += 16 << 20

    threads = [threading.Thread(target=read, args=(k,)) for k in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    took, cpu = time.perf_counter() - start, time.process_time() - cpu
    return {"got_MB_s": round(sum(done) / took / 1e6, 1), "cpu_ms_per_MB": round(cpu * 1e9 / sum(done), 2)}


def measure(temporary: Path, folder: Path, rate: float, seconds: float) -> list[dict[str, Any]]:
    """Local files, then the store in order and shuffled, at several rates of the consumer."""
    cases = []
    for order in ("sequential", "shuffled", "block-shuffled"):
        options: dict[str, Any] = {"order": order, "seconds": seconds, "cache": None, "limit": None}
        cases.append({"case": f"local files, {order}", **run_case(str(folder), rate=1e12, **options)})
    cases.append({"case": "store, s3fs alone", **bare_client(seconds)})
    for order, limit, shares in (
        ("sequential", "100GB", (0.1, 0.25, 0.5, 0.75, 0.9, 10)),
        ("shuffled", "100GB", (0.001, 0.1)),
        ("shuffled", "0", (0.002, 0.005, 10)),
        ("block-shuffled", "0", (0.1, 0.5, 0.75, 0.9)),
        ("block-shuffled", "100GB", (0.1, 0.5, 0.9)),
    ):
        for k, share in enumerate(shares):
            cache = temporary / f"cache-{order}-{limit}-{k}"
            options = {"order": order, "rate": rate * share, "seconds": seconds, "cache": cache, "limit": limit}
            found = run_case("s3://bucket/set", **options)
            kept = "whole shards" if limit != "0" else "no cache"
            cases.append({"case": f"store, {order}, {kept}, consumer at {share} of it", **found})
            if (order, share) != ("sequential", 10):
                for path in cache.glob("*/*.bin*"):
                    path.unlink(missing_ok=True)
    # The last case in order has left the cache full, or nearly so.
    cache = temporary / "cache-sequential-100GB-5"
    for order, seconds_more in (("sequential", 60.0), ("shuffled", seconds)):
        options = {"order": order, "rate": 1e12, "seconds": seconds_more, "cache": cache, "limit": "100GB"}
        found = run_case("s3://bucket/set", **options)
    cases.append({"case": "store, shuffled, all of it in the cache", **found})
    return cases


if __name__ == "__main__":
    main()
