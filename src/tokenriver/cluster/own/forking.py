"""The process that the workers of a cluster begun here are forked from (worker_parent.py), as its driver sees it."""

from __future__ import annotations

import importlib.util
import os
import pickle
import signal
import socket
import subprocess
import sys
import warnings
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

__all__ = ["WorkerParent", "begun_ahead"]

_ONE_THREAD = {
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",  # as Ray sets it in a worker
    "JE_ARROW_MALLOC_CONF": "background_thread:false",
}
"""What the libraries that it loads know by variables: with threads it could not be forked."""

_MOST_WAITING = 512
_END_SECONDS = 5.0


class WorkerParent:
    """The process, which listens at `path`; what it writes goes to the file `said`."""

    def __init__(self, process: subprocess.Popen[bytes], path: str, said: Path) -> None:
        self.path = path
        self._process = process
        self._said = said
        self._ended_with: int | None = None
        self._let_go = False

    def tell(self, ahead: bytes) -> None:
        """Give it what it is to call, pickled."""
        assert self._process.stdin is not None
        with suppress(BrokenPipeError), self._process.stdin as given:  # it has failed: `end` says so
            given.write(ahead)

    def let_go(self) -> None:
        """Let it end, and its workers, meanwhile."""
        if not self._let_go:
            self._let_go = True
            self._ended_with = self._process.poll()
            self._process.terminate()

    def end(self) -> None:
        """Wait until it has ended. A warning where it had failed before."""
        self.let_go()
        try:
            self._process.wait(_END_SECONDS)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        if self._ended_with not in (None, 0, -signal.SIGTERM):  # that is for the whole group, or for a session's end
            said = ""
            with suppress(OSError):  # whoever cleans temporary folders was here
                said = self._said.read_text(errors="replace")
            lines = said.split("\n")
            reason = next((line for line in reversed(lines) if line.strip()), f"it ended with {self._ended_with}")
            warnings.warn(
                "every worker of the cluster here has imported and loaded by itself, which takes longer, because the "
                f"process that would have done it for all failed ({reason})",
                stacklevel=2,
            )


@contextmanager
def begun_ahead(folder: Path, ahead: Callable[[], object] | None) -> Iterator[WorkerParent | None]:
    """Begin it, before anything else takes time. None where there can be none: workers begin as Ray begins them.

    It imports Ray and calls `ahead`: a function of a module, or a partial of one. It has ended when the context ends.
    Its socket is in `folder`, which the cluster's own processes alone know.
    """
    if sys.platform != "linux" or importlib.util.find_spec("ray") is None:
        yield None
        return
    parent = _begin(folder)
    if parent is None:
        yield None
        return
    try:
        parent.tell(pickle.dumps(ahead))
        yield parent
    finally:
        parent.end()


def _begin(folder: Path) -> WorkerParent | None:
    path, said = f"{folder}/socket", folder / "said"
    script = str(Path(__file__).with_name("worker_parent.py"))
    with socket.socket(socket.AF_UNIX) as listener, said.open("wb") as errors:
        try:
            listener.bind(path)
        except OSError:  # a folder of too long a name for sockets
            return None
        listener.listen(_MOST_WAITING)
        blocked = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})  # Ctrl-C is for the driver
        try:
            process = subprocess.Popen(
                [sys.executable, "-P", script, str(listener.fileno()), str(os.getpid())],
                stdin=subprocess.PIPE,
                stdout=subprocess.DEVNULL,
                stderr=errors,
                pass_fds=[listener.fileno()],
                env={**os.environ, **_ONE_THREAD},
            )
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, blocked)
    return WorkerParent(process, path, said)
