"""Tasks under way on a cluster: given out as there is room, taken back in any order, done again when a node dies.

What a task raises on purpose comes back as a value: it would be raised again on every node, so it is not tried again.
A worker or node that dies is Ray's business, `_RETRIES` times a task.
"""

from __future__ import annotations

import statistics
import time
import traceback
import warnings
from contextlib import chdir, contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenriver.cluster.shared import PARTS, attempt_path, node_of_attempt
from tokenriver.errors import ClusterError

if TYPE_CHECKING:
    from collections.abc import Callable, Hashable, Iterator

    from tokenriver.cluster.session import Session

__all__ = ["Outcome", "TaskPool"]

_RETRIES = 5
_CPUS_EVERY_SECONDS = 5.0
_WAIT_SECONDS = 0.5
_CANCEL_SECONDS = 5.0
_LOOK_EVERY_SECONDS = 5.0

_SLOW_SECONDS = 30.0
_SLOW_TIMES = 4.0
_FEW = 3
"""A task is named when it takes longer than both, after so many of its kind have ended."""


@dataclass(frozen=True, slots=True)
class Outcome:
    """What became of a task: its value, or the error that it raised; the seconds that it took."""

    value: Any
    error: Exception | None
    seconds: float


@dataclass(slots=True)
class _Task:
    kind: str
    key: Hashable
    mark: str
    what: str
    seen: float | None = None
    named: bool = False


@dataclass(slots=True)
class TaskPool:
    """Tasks of several kinds on one cluster.

    `folder` is the work folder in whose PARTS their attempts can be seen; `most` limits the tasks at the same time
    (None: by the cluster's CPUs).
    """

    session: Session
    folder: Path
    most: int | None = None
    _running: dict[Any, _Task] = field(default_factory=dict)
    _ended: list[tuple[str, Hashable, Outcome]] = field(default_factory=list)
    _seconds: dict[str, list[float]] = field(default_factory=dict)
    _cpus: int = 0
    _cpus_at: float = 0.0
    _looked_at: float = 0.0
    _remote: Any = None

    @property
    def running(self) -> int:
        """Tasks that were given and not taken back, ended or not."""
        return len(self._running) + len(self._ended)

    @property
    def has_room(self) -> bool:
        """Whether another task would not wait for long. A cluster that grows is noticed."""
        now = time.monotonic()
        if not self._cpus or now - self._cpus_at > _CPUS_EVERY_SECONDS:
            self._cpus, self._cpus_at = self.session.cpus, now
        room = self._cpus + max(2, self._cpus // 4)
        return len(self._running) < (room if self.most is None else min(room, self.most))

    def submit(
        self, kind: str, key: Hashable, function: Callable[..., Any], *arguments: Any, mark: str, what: str
    ) -> None:
        """Give a task: `function`, of a module that every node has, with its arguments.

        `mark` is the name of a file that it writes, by which its node is found ("": none, then one is made for that);
        `what` is the task in words.
        """
        if self._remote is None:
            self._remote = self.session.ray.remote(_run).options(
                num_cpus=1, max_retries=_RETRIES, retry_exceptions=False
            )
        sign = None if mark else (self.folder, f"{kind}-{key}")
        ref = self._remote.remote(str(Path.cwd()), function, arguments, sign)
        self._running[ref] = _Task(kind, key, mark or f"{kind}-{key}", what)

    def next(self) -> tuple[str, Hashable, Outcome] | None:
        """A task that has ended, as (kind, key, outcome); None when none has within half a second.

        ClusterError when a task was lost for good. Stragglers are named in a warning.
        """
        if not self._ended:
            ready, _ = self.session.ray.wait(list(self._running), num_returns=1, timeout=_WAIT_SECONDS)
            if ready:  # and whatever else is there
                more, _ = self.session.ray.wait(list(self._running), num_returns=len(self._running), timeout=0)
                self._ended += [self._take(ref) for ref in more]
            self._look()
        return self._ended.pop(0) if self._ended else None

    def _take(self, ref: Any) -> tuple[str, Hashable, Outcome]:
        task = self._running.pop(ref)
        try:
            outcome: Outcome = self.session.ray.get(ref)
        except self.session.ray.exceptions.RayError as error:
            raise ClusterError(f"{task.what}: {_lost(self.session.ray, error)}") from error
        self._seconds.setdefault(task.kind, []).append(outcome.seconds)
        return task.kind, task.key, outcome

    def _look(self) -> None:
        """Name the tasks that take much longer than the others of their kind did."""
        now = time.monotonic()
        if now - self._looked_at < _LOOK_EVERY_SECONDS:
            return
        self._looked_at = now
        nodes: dict[str, str] = {}
        for path in (self.folder / PARTS).glob("*@*@*"):
            found = node_of_attempt(path.name)
            if found is not None:
                nodes[found[0]] = found[1]
        for task in self._running.values():
            node = nodes.get(task.mark)
            if node is None:
                continue
            task.seen = now if task.seen is None else task.seen
            self._name_straggler(task, now - task.seen, node)

    def _name_straggler(self, task: _Task, seconds: float, node: str) -> None:
        others = self._seconds.get(task.kind, [])
        if task.named or len(others) < _FEW or seconds < _SLOW_SECONDS:
            return
        median = statistics.median(others)
        if seconds > _SLOW_TIMES * median:
            task.named = True
            warnings.warn(
                f"{task.what} has taken {seconds:.0f} s on node {node}, where the others took {median:.1f} s; waiting "
                "for it",
                stacklevel=2,
            )

    def cancel(self, kind: str | None = None, *, after: int = -1) -> None:
        """Stop all tasks, or those of a kind whose key is a number above `after`; they are not taken back."""
        gone = [
            ref
            for ref, task in self._running.items()
            if kind is None or (task.kind == kind and isinstance(task.key, int) and task.key > after)
        ]
        for ref in gone:
            del self._running[ref]
        self.session.cancel(gone, wait=_CANCEL_SECONDS)


def _lost(ray: Any, error: Exception) -> str:
    """Why a task has no outcome, in one line, and what to do."""
    lines = [line for line in str(error).splitlines() if line.strip()] or [type(error).__name__]
    first, last, kind = lines[0].strip(), lines[-1].strip(), type(error).__name__
    if isinstance(error, ray.exceptions.RayTaskError):  # of what is beside `_run`, which gives back what tasks raise
        tip = "every node needs tokenriver, and what it needs, in the version that is here"
        return f"a worker could not run this task ({last}); {tip}"
    goes_on = "the same command goes on from what is finished"
    if isinstance(error, ray.exceptions.LocalRayletDiedError):
        return f"Ray's node on this machine (raylet) has ended; {goes_on}"
    return f"the cluster lost this task {_RETRIES + 1} times or cannot run it ({kind}: {first}); {goes_on}"


def _run(
    directory: str, function: Callable[..., Any], arguments: tuple[Any, ...], sign: tuple[Path, str] | None = None
) -> Outcome:
    """On a worker: the function's value or error. Relative paths mean what they mean to the driver.

    `sign` is the work folder and the name of an empty file that shows there, while it runs, on which node.
    """
    start = time.monotonic()
    try:
        with chdir(directory) if Path(directory).is_dir() else nullcontext(), _shown(sign):
            value = function(*arguments)
    except Exception as error:
        error.add_note(traceback.format_exc())
        return Outcome(None, error, time.monotonic() - start)
    return Outcome(value, None, time.monotonic() - start)


@contextmanager
def _shown(sign: tuple[Path, str] | None) -> Iterator[None]:
    if sign is None:
        yield
        return
    path = attempt_path(*sign)
    with suppress(OSError):  # a node that does not see the folder says so when the task looks for the probe
        path.touch()
    try:
        yield
    finally:
        with suppress(OSError):
            path.unlink()
