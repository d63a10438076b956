"""A cluster of none: tasks run here, one at a time, in an order that the seed draws. What they do is the real thing."""

from __future__ import annotations

import pickle
import random
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import TYPE_CHECKING, Any

from tokenriver.cluster.pool import Outcome, _run
from tokenriver.cluster.shared import place_probe

if TYPE_CHECKING:
    from collections.abc import Iterator


class InlineSession:
    """Stands for a session of 3 CPUs."""

    cpus = 3

    def share(self, folder: Any) -> str:
        return place_probe(folder)

    def beforehand(self, *_function_and_arguments: Any, **_most: int | None) -> AbstractContextManager[None]:
        return nullcontext()


class InlinePool:
    """A TaskPool whose tasks run when they are asked for; arguments and values cross as pickles, as in a cluster."""

    seed = 0
    stop_after: int | None = None
    """Raise KeyboardInterrupt instead of giving back a task after so many."""

    def __init__(self, *_session_folder_and_limit: Any) -> None:
        self._rng = random.Random(self.seed)
        self._waiting: list[tuple[str, Any, bytes]] = []
        self._taken = 0

    @property
    def running(self) -> int:
        return len(self._waiting)

    @property
    def has_room(self) -> bool:
        return len(self._waiting) < 5

    def submit(self, kind: str, key: Any, function: Any, *arguments: Any, **words: str) -> None:
        assert words["what"]
        self._waiting.append((kind, key, pickle.dumps((function, arguments))))

    def next(self) -> tuple[str, Any, Outcome]:
        if self._taken == self.stop_after:
            raise KeyboardInterrupt
        self._taken += 1
        kind, key, call = self._waiting.pop(self._rng.randrange(len(self._waiting)))
        outcome: Outcome = pickle.loads(pickle.dumps(_run(".", *pickle.loads(call))))
        return kind, key, outcome

    def cancel(self, kind: str | None = None, *, after: int = -1) -> None:
        self._waiting = [task for task in self._waiting if kind is not None and (task[0] != kind or task[1] <= after)]


@contextmanager
def inline_session(_address: str | None, **_cpus: int) -> Iterator[InlineSession]:
    """Takes the place of `open_session`."""
    yield InlineSession()
