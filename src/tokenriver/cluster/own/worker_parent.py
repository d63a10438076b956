"""What the workers of a cluster begun here are forked from: a process that imports and loads once, for all of them.

A script: `worker_parent.py LISTENER DRIVER`, the number of a socket that listens and the driver's; standard input is
what to call before the first fork, pickled. It begins with the command, imports while the cluster begins, and then
forks a worker for each request (request.py). What makes that safe:

- It has one thread. Where what it loaded has begun another, it ends, and workers begin as Ray begins them.
- Ray's compiled part takes two things from the environment when it is loaded. The job is a cluster's first; a request
  for another one is refused. As its node's process it is told this one, so a worker ends when either has ended.
- A worker that was forked and failed is the last: those after it begin as Ray begins them.

SIGTERM ends it with its workers. The kernel sends one when the driver ends without a word.
"""

from __future__ import annotations

import ctypes
import gc
import importlib
import os
import pickle
import runpy
import select
import signal
import socket
import sys
from typing import TYPE_CHECKING, Any

from tokenriver.cluster.own.begin_worker import OBJECTS
from tokenriver.cluster.own.node import without_addons
from tokenriver.cluster.own.postponed import UNUSED, postponed
from tokenriver.cluster.own.request import become, close, receive

if TYPE_CHECKING:
    from collections.abc import Callable

__all__: list[str] = []

_PR_SET_PDEATHSIG = 1

_FIRST_JOB = "01000000"
"""What Ray calls the first job of a cluster."""

_HEARD = (signal.SIGTERM, signal.SIGCHLD)


def _get_ready() -> Callable[[str], None]:
    """Import and load. What lets Ray's compiled part read the rest of the environment again."""
    ahead: Callable[[], object] | None = pickle.load(sys.stdin.buffer)
    os.environ.update(RAY_JOB_ID=_FIRST_JOB, RAY_RAYLET_PID=str(os.getpid()))
    with postponed(*UNUSED):  # until a worker has connected
        for name in ("ray._private.workers.default_worker", "ray._common.usage.usage_lib"):
            importlib.import_module(name)
    if ahead is not None:
        ahead()
    read_again: Callable[[str], None] = sys.modules["ray._raylet"].Config.initialize
    return read_again


def _serve(listener: socket.socket) -> dict[str, Any]:
    """Fork a worker for every request: returns that in the worker, and never here."""
    woken, wakes = socket.socketpair()
    wakes.setblocking(False)
    signal.set_wakeup_fd(wakes.fileno())
    for kind in _HEARD:
        signal.signal(kind, lambda *_: None)
    children: set[int] = set()
    while True:
        heard = select.select([woken, listener] if listener.fileno() >= 0 else [woken], [], [])[0]
        if woken in heard:
            if signal.SIGTERM in woken.recv(4096):
                _end(children)
            if _reap(children):
                listener.close()
            continue
        request = receive(listener.accept()[0])
        if request is None:
            continue
        pid = _fork() if request["environment"].get("RAY_JOB_ID") == _FIRST_JOB else None
        if pid == 0:
            signal.set_wakeup_fd(-1)
            for kind in _HEARD:
                signal.signal(kind, signal.SIG_DFL)
            for one in (woken, wakes, listener):
                one.close()
            return request
        if pid is not None:
            children.add(pid)
        close(request)  # without a worker, the one that asked sees that nobody answers


def _fork() -> int | None:
    try:
        return os.fork()
    except OSError:  # no more processes, or too little memory, for now
        return None


def _reap(children: set[int]) -> bool:
    """Forget the children that have ended; whether one of them failed."""
    failed = False
    while children:
        pid, status = os.waitpid(-1, os.WNOHANG)
        if pid == 0:
            break
        children.discard(pid)
        failed = failed or status != 0
    return failed


def _end(children: set[int]) -> None:
    for pid in children:
        os.kill(pid, signal.SIGKILL)
    for pid in children:
        os.waitpid(pid, 0)
    os._exit(0)


def _main() -> None:
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)
    if os.getppid() != int(sys.argv[2]):
        return
    gc.disable()
    listener = socket.socket(fileno=int(sys.argv[1]))
    read_again = _get_ready()
    if len(os.listdir("/proc/self/task")) > 1:  # noqa: PTH208
        return
    gc.freeze()  # or looking for garbage would copy the pages that the workers share
    request = _serve(listener)
    gc.enable()
    gc.set_threshold(OBJECTS)
    become(request)
    read_again("")
    sys.argv = request["arguments"]
    sys.path.insert(0, os.path.dirname(sys.argv[0]))  # noqa: PTH120 - as if the interpreter had been given the worker itself
    with without_addons():
        runpy.run_path(sys.argv[0], run_name="__main__")


if __name__ == "__main__":
    _main()
