"""One display of progress for all long work: a bar on a terminal, else a plain line now and then.

The library knows nothing of it: it calls `update(bytes_done, documents, tokens)`, any callable of that shape will do.
"""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, TextIO

from tokenriver.cli.summaries import plural
from tokenriver.files import human_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from types import TracebackType

    from rich.progress import Progress as RichProgress
    from rich.progress import TaskID

__all__ = ["LINE_SECONDS", "Progress", "human_duration"]

LINE_SECONDS = 10.0
"""Without a terminal a line is printed at most this often."""

_BAR_SECONDS = 0.1


class Progress:
    """Bytes, documents, tokens, MB/s and the time left, estimated from bytes; use it as a context manager.

    `total_bytes` may be None (standard input): then there is neither a share nor a time left, unless `expect` says it
    later. `update` takes totals so far, not steps, and may be called as often as one likes. Silent with `quiet`.
    Leaving without an error prints a last line at 100 %.
    """

    def __init__(
        self,
        total_bytes: int | None,
        *,
        label: str,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._total = total_bytes
        self._label = label
        self._stream = sys.stderr if stream is None else stream
        self._quiet = quiet
        self._clock = clock
        self._start = self._last = clock()
        self._now = (0, 0, 0)
        self._has_bar = False  # known when it is entered
        self._bar: RichProgress | None = None
        self._task: TaskID | None = None

    def __enter__(self) -> Progress:
        self._start = self._last = self._clock()
        self._has_bar = not self._quiet and self._stream.isatty()
        if self._total is not None:
            self.expect(self._total)
        return self

    def expect(self, total_bytes: int | None) -> None:
        """The work begins, and there is so much of it; None where nobody knows."""
        self._total = total_bytes
        if self._has_bar and self._bar is None:
            self._open_bar()

    def __call__(self, bytes_done: int, documents: int = 0, tokens: int = 0) -> None:
        """As `update`."""
        self.update(bytes_done, documents, tokens)

    def update(self, bytes_done: int, documents: int = 0, tokens: int = 0) -> None:
        """Say how far the work is: input bytes, documents and tokens since its beginning."""
        self._now = (bytes_done, documents, tokens)
        if self._has_bar and self._bar is None:
            self._open_bar()
        now = self._clock()
        if self._quiet or now - self._last < (LINE_SECONDS if self._bar is None else _BAR_SECONDS):
            return
        self._last = now
        if self._bar is not None and self._task is not None:
            self._bar.update(self._task, completed=bytes_done, figures=self._figures())
        else:
            self._print(self._line())

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._bar is not None and self._task is not None:
            done = self._now[0] if kind or self._total is None else self._total
            self._bar.update(self._task, completed=done, total=self._total or done, figures=self._figures())
            self._bar.stop()
        elif kind is None and not self._quiet:
            self._now = (self._total or self._now[0], *self._now[1:])
            self._print(self._line(last=True))

    def _open_bar(self) -> None:
        from rich.console import Console
        from rich.progress import BarColumn, TaskProgressColumn, TextColumn, TimeRemainingColumn
        from rich.progress import Progress as RichProgress

        self._bar = RichProgress(
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            TaskProgressColumn(),
            TextColumn("{task.fields[figures]}"),
            TimeRemainingColumn(elapsed_when_finished=True),
            console=Console(file=self._stream),
        )
        self._task = self._bar.add_task(self._label, total=self._total, figures="")
        self._bar.start()

    def _print(self, line: str) -> None:
        print(line, file=self._stream, flush=True)

    def _line(self, *, last: bool = False) -> str:
        done = self._now[0]
        spent = self._clock() - self._start
        if last:
            return f"{self._label}: 100 % · {self._figures()} · {human_duration(spent)}"
        if not self._total:
            return f"{self._label}: {self._figures()}"
        left = human_duration(spent * (self._total - done) / done) if done else "unknown"
        # Never 100 % before the end: readers may overshoot, and the last shard is still to be written.
        share = min(99, 100 * done // self._total)
        return f"{self._label}: {share} % · {self._figures()} · {left} left"

    def _figures(self) -> str:
        done, documents, tokens = self._now
        parts = [human_bytes(done)]
        if documents:
            parts.append(plural(documents, "document"))
        if tokens:
            parts.append(plural(tokens, "token"))
        spent = self._clock() - self._start
        parts.append(f"{done / 1e6 / spent:.1f} MB/s" if spent > 0 else "- MB/s")
        return " · ".join(parts)


def human_duration(seconds: float) -> str:
    """4000 → '1 h 06 min', 95 → '1 min 35 s', 2.5 → '2.5 s'."""
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"
