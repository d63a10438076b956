"""A connection to a Ray cluster: begun quietly, one of our own or one that is there, and ended if we began it."""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import threading
import warnings
from contextlib import ExitStack, contextmanager, suppress
from typing import TYPE_CHECKING, Any

from tokenriver.cluster.address import check_answers, no_cluster
from tokenriver.cluster.own.folder import own_folder
from tokenriver.cluster.own.forking import WorkerParent, begun_ahead
from tokenriver.cluster.own.node import can_be_lean, init_lean, replaced, without_addons
from tokenriver.cluster.own.postponed import UNUSED, postponed
from tokenriver.cluster.own.secret import own_token
from tokenriver.cluster.searched import searched_as_here
from tokenriver.cluster.shared import not_shared, place_probe, probe_problem
from tokenriver.errors import ClusterError, UsageError

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

__all__ = ["Session", "open_session"]

_MOST_BEFOREHAND = 256
_LOOK_SECONDS = 10.0
"""How long a node looks for the probe: a network file system may show a new file a few seconds late."""


class Session:
    """A cluster that tasks can be given to. `ray` is the module; `cpus` how many there are now."""

    def __init__(self, ray: Any) -> None:
        self.ray = ray

    @property
    def cpus(self) -> int:
        """CPUs of all nodes that are alive."""
        return max(1, int(self.ray.cluster_resources().get("CPU", 1)))

    def share(self, folder: Path) -> str:
        """Prove that every other node sees the folder; the name of the probe, which every task looks for too.

        ClusterError naming the nodes that do not. A task here, on our own node, would tell nothing new.
        """
        from ray.util.scheduling_strategies import NodeAffinitySchedulingStrategy

        probe = place_probe(folder)
        look = self.ray.remote(_look)
        asked, here = {}, self.ray.get_runtime_context().get_node_id()
        for node in self.ray.nodes():
            if node["Alive"] and node["NodeID"] != here:
                where = NodeAffinitySchedulingStrategy(node["NodeID"], soft=False)
                ref = look.options(num_cpus=0, max_retries=0, scheduling_strategy=where).remote(
                    folder, probe, _LOOK_SECONDS
                )
                asked[ref] = f"{node['NodeManagerHostname']} ({node['NodeManagerAddress']})"
        for ref, node in asked.items():
            try:
                problem = self.ray.get(ref)
            except self.ray.exceptions.RayError:
                continue  # it died meanwhile; its tasks will be done elsewhere
            if problem is not None:
                raise ClusterError(not_shared(folder, node, problem))
        return probe

    @contextmanager
    def beforehand(self, function: Callable[..., None], *arguments: Any, most: int | None) -> Iterator[None]:
        """Let every CPU (`most` at most) call `function` once, meanwhile; those that have not by the end never do.

        Begun so, new worker processes are up and have imported what they need when the first task comes.
        """
        n = min(self.cpus, most or _MOST_BEFOREHAND, _MOST_BEFOREHAND)
        remote = self.ray.remote(function).options(num_cpus=1, max_retries=0)
        asked = [remote.remote(*arguments) for _ in range(n)]
        try:
            yield
        finally:
            self.cancel(asked, wait=0)
            ended, _ = self.ray.wait(asked, num_returns=len(asked), timeout=0)
            for ref in ended:
                with suppress(self.ray.exceptions.RayError):  # a node that cannot will say so at its first task
                    self.ray.get(ref)

    def cancel(self, tasks: list[Any], *, wait: float) -> None:
        """Stop tasks, by force, or they would stop in the middle of an import; wait for that, so many seconds at most.

        Those that have ended are left alone. Who waits for a task is woken a little before Ray (2.60) has written down
        that it has ended; cancelled then, it is written down twice, and that ends the driver.
        """
        if tasks:
            _, under_way = self.ray.wait(tasks, num_returns=len(tasks), timeout=0)
            for ref in under_way:
                self.ray.cancel(ref, force=True)
            self.ray.wait(tasks, num_returns=len(tasks), timeout=wait)


def _look(folder: Path, probe: str, patience: float) -> str | None:
    return probe_problem(folder, probe, patience=patience)


@contextmanager
def open_session(address: str | None, *, cpus: int, ahead: Callable[[], object] | None = None) -> Iterator[Session]:
    """Connect to the cluster at `address` ("auto": the one of this machine), or start one of `cpus` CPUs here.

    `ahead` is called before the first worker of such a cluster is there, for all of them: a function of a module, or a
    partial of one, that imports and loads what tasks will need, and begins no thread.
    A connection that the caller has already is used and left alone; one that another thread's build has begun is waited
    for, since a process can have but one. Nothing of the caller is changed: environment, signal handlers and loggers
    are as before when the context ends. Raises UsageError without Ray, ClusterError when no cluster answers.
    """
    _check_current_folder()
    with ExitStack() as held:
        held.enter_context(_one)
        if "ray" in sys.modules and (ray := _import_ray()).is_initialized():
            if not _connections:  # the caller's, for all threads
                held.close()
            yield Session(ray)
        elif address is None:
            with own_folder() as folder, begun_ahead(folder, ahead) as parent:
                ray = _import_ray()
                with _connected(ray, None, cpus, parent, folder):
                    yield Session(ray)
        else:
            ray = _import_ray()
            check_answers(address)
            with _connected(ray, address, cpus):
                yield Session(ray)


_one = threading.RLock()
"""A process has one connection: another thread waits until the one that a build has begun has ended."""

_connections: list[str | None] = []
"""The address of that, if there is one."""


@contextmanager
def _connected(
    ray: Any, address: str | None, cpus: int, parent: WorkerParent | None = None, folder: Path | None = None
) -> Iterator[None]:
    with _kept_environment(), _without_chatter(), searched_as_here(), ExitStack() as own:
        if address is None:
            own.enter_context(own_token(ray))
            own.enter_context(without_addons())
        try:
            _connections.append(address)
            _connect(ray, address, cpus, parent, folder)
            yield
        finally:
            _connections.clear()
            if parent is not None:
                parent.let_go()
            ray.shutdown()


def _check_current_folder() -> None:
    """ClusterError without one: Ray, and what it starts, want to know theirs."""
    try:
        os.getcwd()  # noqa: PTH109 - what pathlib asks
    except OSError as error:
        raise ClusterError(
            f"--engine ray needs the current folder, which is not there any more ({error.strerror}); change to another"
        ) from error


def _import_ray() -> Any:
    try:
        with _no_collection(), postponed(*UNUSED):
            import ray

            with suppress(ImportError):  # what connecting would import
                import ray._common.usage.usage_lib
    except ImportError as error:
        raise UsageError(
            "--engine ray needs the package ray, which is not installed: pip install 'tokenriver[ray]'"
        ) from error
    return ray


def _connect(
    ray: Any, address: str | None, cpus: int, parent: WorkerParent | None = None, folder: Path | None = None
) -> None:
    quiet: dict[str, Any] = {"log_to_driver": False, "configure_logging": False, "logging_level": logging.ERROR}
    handlers = {kind: signal.getsignal(kind) for kind in (signal.SIGINT, signal.SIGTERM)}
    logger = logging.getLogger("ray")
    level = logger.level
    problem = None
    try:
        logger.setLevel(logging.ERROR)
        with warnings.catch_warnings(), _own_signals():
            warnings.simplefilter("ignore")
            if address is None:
                words = {
                    "num_cpus": cpus,
                    "num_gpus": 0,
                    "include_dashboard": False,
                    "_temp_dir": folder and str(folder),
                }
                problem = _begin_here(ray, parent, address="local", **words, **quiet)
            else:
                ray.init(address=address, **quiet)
    except Exception as error:  # Ray raises all kinds, also Exception itself
        reason = str(error).strip().splitlines()[0] if str(error).strip() else type(error).__name__
        raise ClusterError(no_cluster(address, reason)) from error
    finally:
        logger.setLevel(level)
        if threading.current_thread() is threading.main_thread():
            for kind, handler in handlers.items():
                signal.signal(kind, handler)
    if problem is not None:
        warnings.warn(
            f"the cluster here was begun with all that Ray starts, which takes seconds longer, because {problem}",
            stacklevel=2,
        )


def _begin_here(ray: Any, parent: WorkerParent | None, **words: Any) -> str | None:
    """Begin a cluster on this machine, never use one that runs here. What was in the way of the cheap one, if tried."""
    problem = None
    if can_be_lean(ray):
        try:
            init_lean(ray, parent=parent.path if parent else "", **words)
            return None
        except Exception as error:  # of private parts of Ray: anything
            problem = f"the lean start failed ({type(error).__name__}: {error})"
    if parent is not None:
        parent.let_go()
    ray.init(**words)
    return problem


@contextmanager
def _no_collection() -> Iterator[None]:
    """Imports leave no garbage, and make so many objects that looking for it takes a tenth of their time."""
    on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if on:
            gc.enable()


@contextmanager
def _without_chatter() -> Iterator[None]:
    """Ray prints what its daemons say to standard output, where results go; what matters reaches us as errors."""
    from ray._private import worker

    name = "_worker_logs_enabled"  # Ray's own switch, which its debugger uses; it has no public one
    if not hasattr(worker, name):
        yield
        return
    with replaced(worker, name, False):
        yield


@contextmanager
def _own_signals() -> Iterator[None]:
    """Ray would handle SIGTERM while it begins, by an exit without a word and with the signal's number as its code."""
    from ray._private import utils

    name = "set_sigterm_handler"  # as above
    if not hasattr(utils, name):
        yield
        return
    with replaced(utils, name, lambda _handler: None):
        yield


@contextmanager
def _kept_environment() -> Iterator[None]:
    """Ray writes into the environment for the processes that it starts; afterwards it is the caller's again."""
    before = dict(os.environ)
    os.environ.setdefault("RAY_USAGE_STATS_ENABLED", "0")
    os.environ.setdefault("RAY_IGNORE_UNHANDLED_ERRORS", "1")  # of tasks that were cancelled, or whose error is told
    try:
        yield
    finally:
        for name in set(os.environ) - set(before):
            del os.environ[name]
        os.environ.update({k: v for k, v in before.items() if os.environ.get(k) != v})
