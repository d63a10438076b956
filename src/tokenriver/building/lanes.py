"""Where blocks are encoded: by threads of this process and, with many workers, of others beside it.

Threads that encode hold the interpreter's lock for 0.75 of their 7 core-ms a MB (NumPy and the encoders give it back,
the code around them does not), so a dozen of them would wait for each other. Each process has a lock of its own.
"""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import threading
import warnings
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from tokenriver.building.assemble import BlockEncoder, encode_block, expected_text_bytes
from tokenriver.building.lane_messages import EncoderWords, LaneSetup, pack_block, receive, send
from tokenriver.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import TracebackType

    from tokenriver.building.assemble import EncodedBlock
    from tokenriver.corpus.documents import Position, RawBlock
    from tokenriver.corpus.sources import Source, SourceOptions

__all__ = ["Lanes", "share_of_processes"]

_ALONE = 8
"""Workers up to which one process has them all: with all else it holds its lock for 0.95 of 8.5 core-ms a MB, so from
nine cores on it would be the limit."""

_HERE = 2
"""Workers that stay in this process beside others: it reads, cuts and writes as well."""

_A_PROCESS = 8

_LEAST_BYTES = 2 << 30
"""Text from which others are worth the 1.3 s that they take to begin. One process would hold its lock for 2 s of this
text, and for 0.17 s more for each encoder that its threads need."""

_PATIENCE_SECONDS = 5.0
"""For a process whose socket has closed to end."""

_BEGIN = """
import json, runpy, sys
sys.path[:] = json.loads(sys.argv.pop(1))
runpy.run_module("tokenriver.building.lane_process", run_name="__main__", alter_sys=True)
"""


def share_of_processes(workers: int, text_bytes: int) -> tuple[int, list[int]]:
    """How many of the workers are threads here, and how many are those of each process; text of 0 bytes: nobody knows.

    Little text is encoded before a process has begun.
    """
    if workers <= _ALONE or 0 < text_bytes < _LEAST_BYTES:
        return workers, []
    there = workers - _HERE
    n = -(-there // _A_PROCESS)
    return _HERE, [there // n + (i < there % n) for i in range(n)]


class _Process:
    """A process and its sockets, one a worker."""

    def __init__(self, workers: int) -> None:
        pairs = [socket.socketpair() for _ in range(workers)]
        self.sockets = [ours for ours, _ in pairs]
        self.ready = threading.Event()
        self.refused = ""
        handles = [theirs.fileno() for _, theirs in pairs]
        command = [sys.executable, "-W", "ignore", "-c", _BEGIN, json.dumps(sys.path)]
        try:
            self._process = subprocess.Popen(
                [*command, *map(str, handles)], pass_fds=handles, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL
            )
        except BaseException:
            for ours in self.sockets:
                ours.close()
            raise
        finally:
            for _, theirs in pairs:
                theirs.close()

    def begin(self, setup: LaneSetup) -> None:
        """Have it make its encoders; `refused` says why it cannot."""
        try:
            send(self.sockets[0], setup)
            self.refused = receive(self.sockets[0])[0] or ""
        except (EOFError, OSError):
            self.refused = "it ended"
        finally:
            self.ready.set()

    def interrupt(self) -> None:
        """Wake whoever waits for it."""
        for one in self.sockets:
            with suppress(OSError):  # it is gone already
                one.shutdown(socket.SHUT_RDWR)
        self.ready.set()

    def end(self) -> None:
        """Wait until it has gone."""
        self._process.terminate()
        self._process.wait()
        for one in self.sockets:
            one.close()

    def fate(self) -> str:
        """How it ended, for an error."""
        try:
            code = self._process.wait(_PATIENCE_SECONDS)
        except subprocess.TimeoutExpired:
            return "does not answer any more"
        return f"was killed by signal {-code}" if code < 0 else f"ended with code {code}"


class Lanes:
    """Encodes blocks for data sets made together, each `encode_block` of one thread somewhere.

        with Lanes(encoders, words, sources, reading, workers=…) as lanes:
            in_order(lanes.encode, raw, workers=…, begin=lanes.enter, end=lanes.leave)

    `words` says how other processes make each of the encoders; None where they cannot. Raises, in `encode`, what
    `encode_block` raises, and ClusterError.
    """

    def __init__(
        self,
        encoders: Sequence[tuple[Position, BlockEncoder]],
        words: Sequence[EncoderWords | None],
        sources: Sequence[Source],
        reading: SourceOptions,
        *,
        workers: int,
    ) -> None:
        self._encoders = encoders
        self._reading = reading
        known = [one for one in words if one is not None]
        self._setup = LaneSetup(sources, reading, known)
        there: list[int] = []
        if len(known) == len(words) and sys.executable and os.name == "posix":
            _, there = share_of_processes(workers, expected_text_bytes(sources))
        self._n_here = workers - sum(there)
        self._there = there
        self._processes: list[_Process] = []
        self._places: list[tuple[_Process, int]] = []
        self._entered = 0
        self._entering = threading.Lock()
        self._leaving = False
        self._mine = threading.local()

    def __enter__(self) -> Lanes:
        try:
            self._processes += [_Process(n) for n in self._there]
        except OSError as error:
            self._warn(error.strerror or str(error))
        except BaseException:
            self.__exit__(None, None, None)
            raise
        most = max(self._there, default=0)
        self._places = [(one, i) for i in range(most) for one in self._processes if i < len(one.sockets)]
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.leave()
        for one in self._processes:
            one.end()

    def enter(self) -> None:
        """Called by each worker's thread at its beginning: it works here, or stands for one elsewhere."""
        with self._entering:
            place = self._entered - self._n_here
            self._entered += 1
        self._mine.lane = None
        if not 0 <= place < len(self._places):
            return
        process, i = self._places[place]
        if i == 0:
            process.begin(self._setup)
            if process.refused and not self._leaving:
                self._warn(process.refused)
        process.ready.wait()
        if not process.refused:
            self._mine.lane = (process, process.sockets[i])

    def leave(self) -> None:
        """No more is wanted: whoever waits for another process comes back."""
        self._leaving = True
        for one in self._processes:
            one.interrupt()

    def encode(self, box: list[RawBlock]) -> list[EncodedBlock | None]:
        """`encode_block` of the block in the box."""
        if self._mine.lane is None:
            return encode_block(self._encoders, self._reading, box.pop())
        process, lane = self._mine.lane
        message, beside = pack_block(box.pop())
        try:
            send(lane, message, beside)
            del message, beside
            answer: Any = receive(lane)[0]
        except (EOFError, OSError) as error:
            if self._leaving:
                raise ClusterError("the build is being stopped") from error
            raise ClusterError(
                f"a process that encoded for this build {process.fate()}: perhaps there was not memory enough; build "
                "again (it goes on where it stopped), with fewer --workers"
            ) from error
        if isinstance(answer, BaseException):
            raise answer
        return answer  # type: ignore[no-any-return]

    def _warn(self, why: str) -> None:
        warnings.warn(
            f"a process to encode in could not begin ({why}); its share of the work is done by this one",
            RuntimeWarning,
            stacklevel=2,
        )
