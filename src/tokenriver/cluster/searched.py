"""Where workers look for modules: where their driver does, and nowhere else.

Ray (2.60) puts the driver's current folder first for all workers, also where the driver itself does not search it, as a
command does not: a `statistics.py` that lies there would be imported in the place of Python's own.
"""

from __future__ import annotations

import os
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from tokenriver.cluster.own.node import replaced

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["searched_as_here"]

_PATHS = "_py_driver_sys_path"


@contextmanager
def searched_as_here() -> Iterator[None]:
    """Meanwhile, a driver that connects sends its workers such folders alone as are in its own `sys.path`."""
    from ray.job_config import JobConfig

    name = "_serialize"
    serialize = getattr(JobConfig, name, None)
    if serialize is None:
        yield
        return

    def narrowed(job: Any) -> Any:
        here = {os.path.abspath(path) for path in sys.path}  # noqa: PTH100 - "" is the current folder
        if hasattr(job, _PATHS):
            setattr(job, _PATHS, [path for path in getattr(job, _PATHS) if os.path.abspath(path) in here])  # noqa: PTH100
        return serialize(job)

    with replaced(JobConfig, name, narrowed):
        yield
