"""Many tasks of one kind: given in order, taken as they end; of several errors the first in order is raised."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from tokenriver.cluster.pool import TaskPool

__all__ = ["Call", "completed"]


class Call(NamedTuple):
    """A function with its arguments, the name of a file that it writes ("": none), and itself in words."""

    function: Callable[..., Any]
    arguments: tuple[Any, ...]
    mark: str
    what: str


def completed(pool: TaskPool, kind: str, calls: Sequence[Call]) -> Iterator[tuple[int, Any]]:
    """(index, value) of each call as it ends. Raises the error of the first call that fails, in their order."""
    given = 0
    done: set[int] = set()
    errors: dict[int, Exception] = {}
    while len(done) < len(calls):
        while given < len(calls) and not errors and pool.has_room:
            call = calls[given]
            pool.submit(kind, given, call.function, *call.arguments, mark=call.mark, what=call.what)
            given += 1
        if (ended := pool.next()) is None:
            continue
        _, key, outcome = ended
        assert isinstance(key, int), "calls are known by their index"
        if outcome.error is None:
            done.add(key)
            yield key, outcome.value
        else:
            errors[key] = outcome.error
        if errors:
            first = min(errors)
            pool.cancel(kind, after=first)
            if all(i in done for i in range(first)):
                raise errors[first]
