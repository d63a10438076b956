"""Progress of many files over the network: bytes of the whole and of each file under way."""

from __future__ import annotations

import sys
import threading
import time
from typing import TYPE_CHECKING, TextIO

from tokenriver.cli.progress import LINE_SECONDS
from tokenriver.cli.summaries import plural
from tokenriver.files import human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

__all__ = ["Transfers"]

_BAR_SECONDS = 0.1


class Transfers:
    """Told (name, bytes there, bytes in all) from several threads; use it as a context manager.

    On a terminal a bar for the whole and one for each file under way; elsewhere a line at most every 10 s that names
    the files under way with their shares.
    """

    def __init__(
        self, *, quiet: bool = False, stream: TextIO | None = None, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._clock = clock
        self._start = self._last = clock()
        self._files: dict[str, tuple[int, int]] = {}
        self._lock = threading.Lock()
        self._bars: RichProgress | None = None
        self._tasks: dict[str, TaskID] = {}

    def __enter__(self) -> Transfers:
        self._start = self._last = self._clock()
        if not self._quiet and self._stream.isatty():
            self._open_bars()
        return self

    def __call__(self, name: str, done: int, total: int) -> None:
        """Say how far a file is."""
        with self._lock:
            self._files[name] = (done, total)
            if self._quiet:
                return
            finished = done >= total
            now = self._clock()
            if not finished and now - self._last < (LINE_SECONDS if self._bars is None else _BAR_SECONDS):
                return
            if self._bars is not None:
                self._last = now
                self._show(name, done, total)
            elif now - self._last >= LINE_SECONDS:
                self._last = now
                print(self._line(), file=self._stream, flush=True)

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        if self._bars is not None:
            self._bars.stop()
        elif kind is None and not self._quiet and self._files:
            spent = max(self._clock() - self._start, 1e-9)
            done = sum(n for n, _ in self._files.values())
            files = plural(len(self._files), "file")
            line = f"fetching: 100 % · {files} · {human_bytes(done)} · {done / 1e6 / spent:.1f} MB/s"
            print(line, file=self._stream, flush=True)

    def _line(self) -> str:
        done, total = (sum(column) for column in zip(*self._files.values(), strict=True))
        under_way = [
            f"{name.rpartition('/')[2]} {100 * n // max(of, 1)} %" for name, (n, of) in self._files.items() if n < of
        ]
        shown = ", ".join(under_way[:4]) + (", …" if len(under_way) > 4 else "")
        return f"fetching: {human_bytes(done)} of {human_bytes(total)} begun · {shown}"

    def _open_bars(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
        from rich.progress import Progress as RichProgress

        columns = (TextColumn("{task.description}"), BarColumn(bar_width=24), DownloadColumn())
        console = Console(file=self._stream)
        self._bars = RichProgress(*columns, TransferSpeedColumn(), TimeRemainingColumn(), console=console)
        self._tasks[""] = self._bars.add_task("all begun", total=None)
        self._bars.start()

    def _show(self, name: str, done: int, total: int) -> None:
        assert self._bars is not None
        if name not in self._tasks and done < total:
            self._tasks[name] = self._bars.add_task(name.rpartition("/")[2], total=total)
        if name in self._tasks:
            self._bars.update(self._tasks[name], completed=done)
            if done >= total:
                self._bars.remove_task(self._tasks.pop(name))
        so_far, of = (sum(column) for column in zip(*self._files.values(), strict=True))
        self._bars.update(self._tasks[""], completed=so_far, total=of)
