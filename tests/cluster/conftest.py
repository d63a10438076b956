"""One cluster of three simulated nodes for all tests that need one: starting it takes longer than they do."""

from __future__ import annotations

import os
import tempfile
import warnings
from pathlib import Path

import pytest


@pytest.fixture
def short_folder():
    """A folder whose name leaves room for a socket's; `tmp_path` may not."""
    with tempfile.TemporaryDirectory(dir="/tmp") as folder:
        yield Path(folder)


@pytest.fixture(scope="session")
def ray_cluster():
    """A running cluster of three nodes with one CPU each; its driver is this process."""
    ray = pytest.importorskip("ray")
    before = dict(os.environ)
    # Workers are processes of their own, and import what this one does.
    os.environ["PYTHONPATH"] = os.pathsep.join([*_source_folders(), before.get("PYTHONPATH", "")])
    os.environ.update(RAY_AUTH_MODE="disabled", RAY_USAGE_STATS_ENABLED="0", RAY_TMPDIR="/tmp")
    os.environ["RAY_health_check_period_ms"] = "500"  # noqa: SIM112 - its name
    os.environ["RAY_health_check_failure_threshold"] = "3"  # noqa: SIM112
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        from ray.cluster_utils import Cluster

        head = {"num_cpus": 1, "include_dashboard": False, "include_log_monitor": False, "no_monitor": True}
        cluster = Cluster(initialize_head=True, head_node_args=head)
        for _ in range(2):
            cluster.add_node(num_cpus=1, wait=False)
        cluster.wait_for_nodes()
        ray.init(address=cluster.address, log_to_driver=False, configure_logging=False, logging_level="ERROR")
    yield cluster
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        ray.shutdown()
        cluster.shutdown()
    os.environ.clear()
    os.environ.update(before)


def _source_folders() -> list[str]:
    root = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))  # noqa: PTH100, PTH120
    return [os.path.join(root, "src"), os.path.join(root, "tests", "cluster")]  # noqa: PTH118
