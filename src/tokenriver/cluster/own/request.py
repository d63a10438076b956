"""The request for a worker, from the process that Ray's node began (begin_worker.py) to the one that forks.

One message on a socket: eight bytes of length with the open files, then JSON: all that a process has from the one that
began it. The worker itself answers; without an answer there is none. Few imports, since every worker begins with them.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import socket
from typing import Any

__all__ = ["ask", "become", "close", "receive"]

_ANSWER = b"here"
_ANSWER_SECONDS = 20.0
"""A third of the time that Ray gives a worker to begin."""

_HEAD = 8
_STREAMS = 3
_MOST_FILES = 8
_OUT_OF_MEMORY = "/proc/self/oom_score_adj"
"""Ray's node sets it for a worker, so that the kernel takes that before the node."""


def ask(path: str, arguments: list[str], *files: int) -> bool:
    """Whether a worker with these arguments, these open files and this process's surroundings has begun."""
    umask = os.umask(0o077)
    os.umask(umask)
    asked = {
        "arguments": arguments,
        "environment": dict(os.environ),
        "directory": os.getcwd(),  # noqa: PTH109 - pathlib takes longer to import than all of this
        "umask": umask,
        "blocked": [int(kind) for kind in signal.pthread_sigmask(signal.SIG_BLOCK, [])],
        "open_files": resource.getrlimit(resource.RLIMIT_NOFILE),
        "out_of_memory": _out_of_memory(),
    }
    message = json.dumps(asked).encode()
    try:
        with socket.socket(socket.AF_UNIX) as connection:
            connection.settimeout(_ANSWER_SECONDS)
            connection.connect(path)
            socket.send_fds(connection, [len(message).to_bytes(_HEAD, "big")], [*range(_STREAMS), *files])
            connection.sendall(message)
            return connection.recv(len(_ANSWER)) == _ANSWER
    except OSError:  # it has ended, will have no more of them, or takes too long
        return False


def _out_of_memory() -> str:
    with open(_OUT_OF_MEMORY) as score:
        return score.read()


def receive(connection: socket.socket) -> dict[str, Any] | None:
    """A request, with the connection and the open files that came with it; None where it breaks off."""
    message, files = bytearray(), list[int]()
    try:
        connection.settimeout(_ANSWER_SECONDS)
        head, files, _, _ = socket.recv_fds(connection, _HEAD, _MOST_FILES)
        while len(message) < (size := int.from_bytes(head, "big")) and (more := connection.recv(size - len(message))):
            message += more
    except OSError:  # it broke off: what came is no JSON, so None below
        pass
    request = {"connection": connection, "files": files}
    try:
        return {**request, **json.loads(message)}
    except ValueError:
        close(request)
        return None


def close(request: dict[str, Any]) -> None:
    """Let go what this process has of a request."""
    for file in request["files"]:
        os.close(file)
    request["connection"].close()


def become(request: dict[str, Any]) -> None:
    """Let this process, just forked, be what was asked for, and answer. OSError where nobody waits any more."""
    os.setpgid(0, 0)  # as Ray's node does with what it begins, to end it with what it has begun itself
    for number, file in enumerate(request["files"][:_STREAMS]):
        os.dup2(file, number)
        os.close(file)
    os.environ.clear()
    os.environ.update(request["environment"])
    os.chdir(request["directory"])
    os.umask(request["umask"])
    resource.setrlimit(resource.RLIMIT_NOFILE, tuple(request["open_files"]))
    if _out_of_memory() != request["out_of_memory"]:
        with open(_OUT_OF_MEMORY, "w") as score:
            score.write(request["out_of_memory"])
    signal.pthread_sigmask(signal.SIG_SETMASK, request["blocked"])
    with request["connection"] as connection:
        connection.sendall(_ANSWER)
