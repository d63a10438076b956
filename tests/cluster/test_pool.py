"""Tasks under way: stragglers are named with their node, once, and only when there is something to compare with."""

from __future__ import annotations

import socket
import warnings
from types import SimpleNamespace

import pytest
from inline_pool import InlineSession

from tokenriver.cluster import pool as pool_module
from tokenriver.cluster.pool import TaskPool, _Task
from tokenriver.cluster.searched import searched_as_here
from tokenriver.cluster.session import Session
from tokenriver.cluster.shared import PARTS, attempt_path, node_of_attempt


@pytest.fixture
def clock(monkeypatch):
    """Seconds that the test sets."""
    now = [1000.0]
    monkeypatch.setattr(pool_module.time, "monotonic", lambda: now[0])
    return now


@pytest.fixture
def pool(tmp_path):
    (tmp_path / PARTS).mkdir()
    (tmp_path / PARTS / "0000003.train@node7@41-ab12").touch()
    pool = TaskPool(InlineSession(), tmp_path)
    pool._running["ref"] = _Task("encode", 3, "0000003.train", "encoding /in/a.jsonl")
    return pool


def test_a_task_that_takes_much_longer_than_the_others_is_named_once(pool, clock):
    pool._seconds["encode"] = [9.0, 10.0, 12.0]
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool._look()
        clock[0] += 35
        pool._look()
    clock[0] += 10
    with pytest.warns(
        UserWarning, match=r"encoding /in/a\.jsonl has taken 45 s on node node7, where the others took 10"
    ):
        pool._look()
    clock[0] += 500
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool._look()


def test_nothing_is_slow_while_nothing_is_known(pool, clock):
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        pool._look()
        clock[0] += 5000
        pool._look()


def test_an_attempt_names_its_file_and_its_node(tmp_path):
    first, second = attempt_path(tmp_path, "a@b-00000.bin"), attempt_path(tmp_path, "a@b-00000.bin")
    assert first != second
    assert node_of_attempt(first.name + ".part")[0] == "a@b-00000.bin"
    assert node_of_attempt("probe-12") is None


def test_a_task_that_writes_no_file_shows_its_node_while_it_runs(tmp_path):
    (tmp_path / PARTS).mkdir()

    def nodes():
        return [node_of_attempt(path.name) for path in (tmp_path / PARTS).iterdir()]

    outcome = pool_module._run(".", nodes, (), (tmp_path, "hash-7"))
    assert outcome.value == [("hash-7", socket.gethostname())]
    assert nodes() == []
    assert pool_module._run(".", len, ((),), (tmp_path / "nowhere", "hash-7")).value == 0


def test_a_task_that_has_just_ended_is_not_cancelled():
    cancelled, ended = [], ["two"]

    def wait(tasks, *, num_returns, timeout):  # noqa: ARG001
        return [task for task in tasks if task in ended], [task for task in tasks if task not in ended]

    def cancel(task, *, force):
        assert force
        cancelled.append(task)
        ended.append(task)

    session = Session(SimpleNamespace(wait=wait, cancel=cancel))
    session.cancel(["one", "two", "three"], wait=5)
    session.cancel([], wait=5)
    assert cancelled == ["one", "three"]


def test_why_a_task_has_no_outcome_is_told_in_one_line():
    ray = pytest.importorskip("ray")
    from ray import exceptions

    missing = exceptions.RayTaskError(
        "_run", "\x1b[36mray::_run()\x1b[39m (pid=7)\nModuleNotFoundError: No module 'x'", None
    )
    said = pool_module._lost(ray, missing)
    assert said.startswith("a worker could not run this task (ModuleNotFoundError: No module 'x'); every node needs ")
    assert pool_module._lost(ray, exceptions.LocalRayletDiedError()).startswith(
        "Ray's node on this machine (raylet) has"
    )
    lost = pool_module._lost(ray, exceptions.WorkerCrashedError())
    assert lost.startswith("the cluster lost this task 6 times or cannot run it (WorkerCrashedError: ")
    assert "\n" not in said + lost


def test_workers_search_for_modules_where_their_driver_does(tmp_path, monkeypatch):
    pytest.importorskip("ray")
    from ray.job_config import JobConfig

    monkeypatch.syspath_prepend(str(tmp_path / "script"))
    job = JobConfig()
    job._py_driver_sys_path.extend([str(tmp_path / "script"), str(tmp_path)])
    with searched_as_here():
        job._serialize()
    assert job._py_driver_sys_path == [str(tmp_path / "script")]
