"""What Ray's node starts for every worker here: the worker, as Ray would, but no more of them than there are CPUs.

A script: `begin_worker.py FLAG… WORKER.py ARGUMENT…`, in the place of Ray's own, which makes a runtime environment;
where there is one, or the interpreter has flags, that one is called. For the first tasks of all, Ray begins one worker
more than it has CPUs, which would import for a CPU second and then be idle: here it waits, before it imports anything,
until another has ended. Then the worker is forked from the process that has imported everything (worker_parent.py); it
imports by itself where there is none that will.
"""

from __future__ import annotations

import fcntl
import gc
import os
import sys
import time

__all__ = ["OBJECTS", "PARENT", "PLACES", "rays_command", "take_place"]

PLACES = "TOKENRIVER_WORKER_PLACES"
"""The variable that tells how many workers may be: "N:FOLDER", where each keeps a lock on a file of its own."""

PARENT = "TOKENRIVER_WORKER_PARENT"
"""The variable that tells at which socket the process listens from which workers are forked."""

_TOLD_TO_SETUP = ("--serialized-runtime-env-context=", "--language=")
"""Arguments that are for Ray's script, not for the worker."""

_LOOK_SECONDS = 0.1

OBJECTS = 100_000
"""New objects between two looks for garbage (700 by itself): of the imports, 0.2 s of 1.7 went into looking."""


def rays_command(arguments: list[str]) -> list[str] | None:
    """The command of Ray's own script with the arguments that this one has, where a worker needs it."""
    worker = next(i for i, one in enumerate(arguments) if one.endswith(".py"))
    told = dict(one.split("=", 1) for one in arguments if one.startswith(_TOLD_TO_SETUP))
    python = told.get("--language", "PYTHON") == "PYTHON"
    if worker == 0 and python and told.get("--serialized-runtime-env-context", "{}").strip() in ("", "{}"):
        return None
    setup = os.path.join(os.path.dirname(arguments[worker]), "setup_worker.py")  # noqa: PTH118, PTH120
    return [sys.executable, setup, *arguments]


def take_place(n: int, folder: str) -> int | None:
    """One of n places, as an open file: kept until this process, or what it becomes, ends. None where none is free."""
    for i in range(n):
        file = os.open(f"{folder}/worker-place-{i}", os.O_CREAT | os.O_RDWR | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(file)
        else:
            os.set_inheritable(file, True)
            return file
    return None


def _begin() -> None:
    arguments = sys.argv[1:]
    n, _, folder = os.environ.get(PLACES, "").partition(":")
    encodes = all(one.partition("=")[2] == "WORKER" for one in arguments if one.startswith("--worker-type="))
    node = int(os.environ.get("RAY_RAYLET_PID") or os.getppid())
    place = None
    while n and encodes and (place := take_place(int(n), folder)) is None:
        time.sleep(_LOOK_SECONDS)
        if os.getppid() != node:
            return
    command = rays_command(arguments)
    if command is not None:
        os.execv(command[0], command)
    sys.argv = [one for one in arguments if not one.startswith(_TOLD_TO_SETUP)]
    if place is not None and _is_forked(sys.argv, place):
        return
    if os.getppid() != node:  # a worker would import, wait for its node for half a minute, and make its folder again
        return
    gc.set_threshold(OBJECTS)
    sys.path[0] = os.path.dirname(sys.argv[0])  # noqa: PTH120 - as if the interpreter had been given the worker itself
    import runpy

    runpy.run_path(sys.argv[0], run_name="__main__")


def _is_forked(arguments: list[str], place: int) -> bool:
    """Whether the worker that this process is to be has been forked from the one that has loaded everything."""
    path = os.environ.get(PARENT)
    if not path:
        return False
    from tokenriver.cluster.own.request import ask

    if ask(path, arguments, place):
        return True
    time.sleep(_LOOK_SECONDS)  # both may be ending with their driver: time to see it
    return False


if __name__ == "__main__":
    _begin()
