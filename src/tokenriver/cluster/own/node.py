"""Ray's head node without what a single build has no use for: see `init_lean`.

Ray has no public switch for this (2.60): `ray.init` starts, beside the two processes that do something (gcs_server and
raylet), an autoscaler, a monitor of log files, a dashboard, and two agents, each of which imports Ray (one CPU second)
and most of which are waited for. So its node is extended here, through private names. All are looked for before, and
where one is missing, or the node does not begin, Ray begins as it does by itself.
"""

from __future__ import annotations

import os
import subprocess
import sys
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

from tokenriver.cluster.own.begin_worker import PARENT, PLACES

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["can_be_lean", "init_lean", "replaced", "without_addons"]

_SETTINGS = {
    "enable_worker_prestart": False,  # or `ray.init` would wait for workers, which begin while the driver goes on
    "prestart_worker_first_driver": False,
    "worker_niceness": 0,  # the priority that the command has, as the local engine's threads; else 15 nicer
    "task_events_report_interval_ms": 0,  # none are kept: there is nobody to show them
    "raylet_client_connect_timeout_milliseconds": 20,  # the raylet often calls its own store before that listens, and
    "raylet_client_num_connect_attempts": 500,  # would look again after a second; ten seconds in all, as it is
}
"""Of `ray.init(_system_config=…)`."""

_PORTS = (
    "METRICS_AGENT_PORT_NAME",
    "METRICS_EXPORT_PORT_NAME",
    "DASHBOARD_AGENT_LISTEN_PORT_NAME",
    "RUNTIME_ENV_AGENT_PORT_NAME",
)
_NO_PORT = -1
"""What Ray's agents themselves write where they serve nothing."""

_LOOPBACK = "127.0.0.1"

_AGENTS = ("--dashboard_agent_command=", "--runtime_env_agent_command=")
_RUNTIME_ENVIRONMENT = ("RAY_RUNTIME_ENV_HOOK", "RAY_JOB_CONFIG_JSON_ENV_VAR")
"""Variables by which a caller gives tasks an environment of their own: an agent makes it."""


def can_be_lean(ray: Any) -> bool:
    """Whether this Ray has the names that are used here, and no task needs what is left out."""
    if os.name != "posix" or any(name in os.environ for name in _RUNTIME_ENVIRONMENT):
        return False
    try:
        from ray._private import node, services, utils, worker
        from ray._private.parameter import RayParams

        wanted = worker._maybe_modify_runtime_env(None, _skip_env_hook=True)  # "uv run" has one
        parts = [getattr(node.Node, name) for name in ("start_api_server", "start_raylet", "kill_all_processes")]
        parts += [services.start_ray_process, services.get_node_ip_address, utils.get_dashboard_dependency_error]
        parts += [ray._raylet.persist_port, RayParams.update]
        parts += [getattr(ray._raylet, name) for name in _PORTS]
    except (ImportError, AttributeError, TypeError):
        return False
    return not wanted and all(parts)


def init_lean(ray: Any, *, parent: str = "", **words: Any) -> None:
    """`ray.init` with a node of gcs_server, raylet and workers alone. Raises what it raises, then nothing is left.

    It listens on the loopback only: Ray would look for a way to the internet to find out which address to take, and
    complain where there is none. `parent`: the socket of the process from which workers are forked (forking.py).
    """
    from ray._private import node, services

    with (
        replaced(node, "Node", _lean(node.Node, ray._raylet, parent)),
        replaced(services, "get_node_ip_address", lambda *_: _LOOPBACK),
    ):
        try:
            ray.init(**words, _node_ip_address=_LOOPBACK, _system_config=dict(_SETTINGS))
        except BaseException:
            ray.shutdown()
            raise


@contextmanager
def without_addons() -> Iterator[None]:
    """Let Ray not get ready for arguments of pydantic's, starlette's and its data sets' classes, which no task has:
    importing pydantic takes 0.2 s.
    """
    from ray.util import serialization_addons

    if not hasattr(serialization_addons, "apply"):
        yield
        return
    with replaced(serialization_addons, "apply", lambda _context: None):
        yield


def _lean(usual: Any, raylet: Any, parent: str) -> Any:
    """The node's class, extended; `raylet` is Ray's module of compiled names."""

    class LeanNode(usual):  # type: ignore[misc]
        def __init__(self, ray_params: Any, **words: Any) -> None:
            begin = Path(__file__).with_name("begin_worker.py")
            ray_params.update(no_monitor=True, include_log_monitor=False, setup_worker_path=str(begin))
            try:
                super().__init__(ray_params, **words)
            except BaseException:
                if hasattr(self, "all_processes"):
                    self.kill_all_processes(check_alive=False)
                raise

        def start_api_server(self, **_words: Any) -> None:
            self._webui_url = ""

        def start_raylet(self, *arguments: Any, **words: Any) -> None:
            from ray._private import services, utils

            for name in _PORTS:
                raylet.persist_port(self._session_dir, self._node_id, getattr(raylet, name), _NO_PORT)
            places = f"{int(self._ray_params.num_cpus)}:{self._session_dir}"
            self._ray_params.env_vars = {**(self._ray_params.env_vars or {}), PLACES: places, PARENT: parent}
            start = services.start_ray_process
            with (
                replaced(services, "start_ray_process", lambda command, *a, **w: start(_quiet(command), *a, **w)),
                replaced(utils, "get_dashboard_dependency_error", lambda: None),  # imports aiohttp to find out
            ):
                super().start_raylet(*arguments, **words)
            with suppress(ImportError):  # while it begins: what its end would import
                import ray.dag.compiled_dag_node  # noqa: F401

    return LeanNode


def _quiet(command: list[str]) -> list[str]:
    """The raylet's command with agents that do nothing."""
    stand_in = subprocess.list2cmdline([sys.executable, "-I", "-S", str(Path(__file__).with_name("stand_in.py"))])
    return [next((agent + stand_in for agent in _AGENTS if one.startswith(agent)), one) for one in command]


@contextmanager
def replaced(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Let a module or class have another value under a name for a while."""
    before = getattr(owner, name)
    setattr(owner, name, value)
    try:
        yield
    finally:
        setattr(owner, name, before)
