"""Processes for the tests to kill: forked from one that has imported everything, and killed at a step of their work.

    killed(f"from tokenriver.building import journal; kill_at(journal.Journal, 'record', 2); tokenriver.build(…)")

A new interpreter takes most of a second until its work begins, a fork some hundredths; it is as much a process of its
own, with its own standard streams and the environment that the test has when it starts it.
"""

from __future__ import annotations

import atexit
import functools
import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, Any

__all__ = ["SRC", "Child", "command", "kill_at", "killed", "run", "start"]

SRC = str(Path(__file__).resolve().parents[1] / "src")

_MOST = 1 << 17
"""Bytes of a message to the process that forks: the code and the environment."""


def kill_at(owner: Any, name: str, count: int = 1, *, before: bool = False, about: str = "") -> None:
    """In the process to be killed: SIGKILL at that call of a function (before or after it is done).

    `about`: only calls with this in their arguments count.
    """
    original, calls = getattr(owner, name), [0]

    def patched(*args: Any, **words: Any) -> Any:
        calls[0] += not about or about in str(args)
        last = calls[0] == count and (not about or about in str(args))
        if not (before and last):
            result = original(*args, **words)
        if last:
            os.kill(os.getpid(), signal.SIGKILL)
        return result

    setattr(owner, name, patched)


class Child:
    """A process under way; `stdout` and `stderr` are what it has written so far."""

    def __init__(self, code: str, *, stdin: Path | str = os.devnull, env: dict[str, str] | None = None) -> None:
        self._out, self._err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 - closed by __exit__
        asked = {"code": code, "env": {**os.environ, "PYTHONPATH": SRC, **(env or {})}, "cwd": str(Path.cwd())}
        with open(stdin, "rb") as given:
            streams = [given.fileno(), self._out.fileno(), self._err.fileno()]
            self.pid = _ask(asked, streams)
        self.returncode: int | None = None

    def __enter__(self) -> Child:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End it if it is under way, and forget what it wrote."""
        if self.poll() is None:
            self.kill()
            self.wait()
        self._out.close()
        self._err.close()

    def poll(self) -> int | None:
        """The exit code if it has ended, the signal's number below zero."""
        return self._look(block=False)

    def wait(self) -> int | None:
        """Its exit code, when it has ended."""
        return self._look(block=True)

    def _look(self, *, block: bool) -> int | None:
        if self.returncode is None:
            self.returncode = _ask({"wait": self.pid, "block": block}, [])
        return self.returncode

    def send_signal(self, number: int) -> None:
        """As of subprocess."""
        if self.returncode is None:
            os.kill(self.pid, number)

    def kill(self) -> None:
        """SIGKILL."""
        self.send_signal(signal.SIGKILL)

    @property
    def stdout(self) -> str:
        return _text(self._out)

    @property
    def stderr(self) -> str:
        return _text(self._err)


def _text(file: IO[bytes]) -> str:
    return os.pread(file.fileno(), os.fstat(file.fileno()).st_size, 0).decode()


start = Child


def command(*words: object) -> str:
    """The code of `python -m tokenriver WORDS`."""
    call = "runpy.run_module('tokenriver', run_name='__main__', alter_sys=True)"
    return f"import runpy, sys\nsys.argv[1:] = {[str(word) for word in words]!r}\n{call}"


def run(code: str, **words: Any) -> subprocess.CompletedProcess[str]:
    """The code, run to its end."""
    with Child(code, **words) as child:
        code_of_exit = child.wait()
        assert code_of_exit is not None
        return subprocess.CompletedProcess(["forked"], code_of_exit, child.stdout, child.stderr)


def killed(code: str, **words: Any) -> subprocess.CompletedProcess[str]:
    """Code that SIGKILL must end; it finds `kill_at` and `tokenriver` there."""
    done = run(f"import tokenriver\nfrom forked import kill_at\n{code}", **words)
    assert done.returncode == -signal.SIGKILL, done.stderr
    return done


@functools.cache
def _forking() -> socket.socket:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    command = [sys.executable, __file__, str(theirs.fileno())]
    process = subprocess.Popen(
        command, pass_fds=[theirs.fileno()], stdin=subprocess.DEVNULL, env={**os.environ, "PYTHONPATH": SRC}
    )
    theirs.close()

    def end() -> None:
        ours.close()
        process.wait()

    atexit.register(end)
    return ours


def _ask(asked: dict[str, Any], streams: list[int]) -> Any:
    socket.send_fds(_forking(), [json.dumps(asked).encode()], streams)
    answer = _forking().recv(_MOST)
    assert answer, "the process that forks has ended"
    return json.loads(answer)


def _serve(channel: socket.socket) -> tuple[dict[str, Any], list[int]]:
    """Fork whenever asked to; in the new process the code to run, with its streams."""
    while True:
        message, streams, _, _ = socket.recv_fds(channel, _MOST, 3)
        if not message:
            sys.exit()
        asked = json.loads(message)
        if "wait" in asked:
            pid, status = os.waitpid(asked["wait"], 0 if asked["block"] else os.WNOHANG)
            answer = os.waitstatus_to_exitcode(status) if pid else None
        else:
            answer = os.fork()
            if not answer:
                channel.close()
                return asked, streams
        for stream in streams:
            os.close(stream)
        channel.send(json.dumps(answer).encode())


def _main() -> dict[str, Any]:
    import fsspec.config
    import s3fs  # noqa: F401

    import tokenriver

    for name in ("build", "write_corpus", "TrainLoader"):
        getattr(tokenriver, name)
    asked, streams = _serve(socket.socket(fileno=int(sys.argv[1])))
    for standard, stream in enumerate(streams):
        os.dup2(stream, standard)
        os.close(stream)
    os.environ.clear()
    os.environ.update(asked["env"])
    os.chdir(asked["cwd"])
    sys.argv[:] = ["-c"]
    fsspec.config.set_conf_env(fsspec.config.conf)  # it read the environment when it was imported
    return asked


if __name__ == "__main__":
    exec(compile(_main()["code"], "<code of a test>", "exec"), {"__name__": "__main__"})
