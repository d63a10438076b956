"""A cluster at work on one folder: connected, the folder shared and proved to be, and both gone afterwards."""

from __future__ import annotations

import shutil
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import partial
from importlib import import_module
from typing import TYPE_CHECKING

from tokenriver.cluster.pool import TaskPool
from tokenriver.cluster.session import open_session
from tokenriver.cluster.shared import PARTS

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

__all__ = ["Work", "work_on"]


@dataclass(frozen=True, slots=True)
class Work:
    """Where tasks leave their files, the probe by which a node knows the folder, and the tasks themselves."""

    folder: Path
    probe: str
    pool: TaskPool
    cpus: int


@contextmanager
def work_on(folder: Path, *, address: str | None, workers: int | None, cores: int, module: str) -> Iterator[Work]:
    """Work in a fresh folder, which is removed at the end whatever happens.

    `workers` limits the tasks at a time; `cores` are those of a cluster that is started here. `module` has the tasks.
    """
    ahead = partial(import_module, module)
    with open_session(address, cpus=workers or cores, ahead=ahead) as session:
        missing = [parent for parent in folder.parents if not parent.exists()]
        shutil.rmtree(folder, ignore_errors=True)
        (folder / PARTS).mkdir(parents=True)
        pool = TaskPool(session, folder, None if address is None else workers)
        try:
            yield Work(folder, session.share(folder), pool, session.cpus)
        finally:
            pool.cancel()
            shutil.rmtree(folder, ignore_errors=True)
            for parent in missing:
                with suppress(OSError):  # it holds something by now
                    parent.rmdir()
