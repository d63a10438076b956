"""A cluster of one's own: of few processes, with the same bytes, and gone however its driver ends."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
import time
from types import SimpleNamespace

import forked
import psutil
import pytest
from cluster_cases import deterministic
from made_documents import make_texts, write_jsonl

import tokenriver
from tokenriver import ClusterError
from tokenriver.cluster import session
from tokenriver.cluster.own import begin_worker, node, stand_in

WORKER = "/ray/_private/workers/default_worker.py"


def test_rays_own_script_begins_the_workers_that_need_it_with_all_that_it_was_told():
    setup = "/ray/_private/workers/setup_worker.py"
    for needs in (
        [WORKER, "--node-id=7", "--language=CPP"],
        [WORKER, "--node-id=7", '--serialized-runtime-env-context={"env_vars": {"A": "1"}}', "--language=PYTHON"],
        ["-s", WORKER, "--node-id=7", "--language=PYTHON"],
    ):
        assert begin_worker.rays_command(needs) == [sys.executable, setup, *needs]
    for told in (["--language=PYTHON"], ["--serialized-runtime-env-context={}", "--language=PYTHON"], []):
        assert begin_worker.rays_command([WORKER, "--node-id=7", *told]) is None


def test_there_are_as_many_places_as_cpus_and_each_is_free_again_when_its_process_ends(tmp_path):
    code = (
        "import sys; from tokenriver.cluster.own.begin_worker import take_place\n"
        f"print(take_place(2, {str(tmp_path)!r}) is not None, flush=True)\n"
        "sys.stdin.read()"
    )
    with contextlib.ExitStack() as stack:

        def taken():
            process = subprocess.Popen([sys.executable, "-c", code], stdin=-1, stdout=-1, env=with_source())
            stack.enter_context(process)
            stack.callback(process.kill)
            return process, process.stdout.readline()

        found = [taken() for _ in range(3)]
        assert [said for _, said in found] == [b"True\n", b"True\n", b"False\n"], "two of three"
        found[0][0].communicate()
        assert taken()[1] == b"True\n"


@pytest.mark.parametrize("ended", [False, True])
def test_a_worker_that_is_not_forked_begins_by_itself_unless_its_node_has_ended(tmp_path, ended):
    worker, ran = tmp_path / "worker.py", tmp_path / "ran"
    worker.write_text(f"open({str(ran)!r}, 'w').close()")
    environment = {
        **with_source(),
        begin_worker.PLACES: f"1:{tmp_path}",
        begin_worker.PARENT: str(tmp_path / "no-socket"),
        "RAY_RAYLET_PID": "1" if ended else str(os.getpid()),
    }
    subprocess.run([sys.executable, begin_worker.__file__, str(worker)], env=environment, check=True)
    assert ran.exists() is not ended


def test_what_stands_in_for_an_agent_ends_with_its_parent():
    parent = (
        "import os, subprocess, sys\n"
        f"command = [sys.executable, '-I', '-S', {stand_in.__file__!r}]\n"
        "child = subprocess.Popen(command, stdout=2, env={**os.environ, 'RAY_RAYLET_PID': str(os.getpid())})\n"
        "print(child.pid, flush=True)\n"
        "sys.stdin.read()"
    )
    process = subprocess.Popen([sys.executable, "-c", parent], stdin=-1, stdout=-1)
    pid = int(process.stdout.readline())
    assert alive([pid])
    process.kill()
    process.communicate()
    wait_until(lambda: not alive([pid]))


def test_rays_own_start_is_taken_where_a_task_could_need_more(monkeypatch):
    ray = pytest.importorskip("ray")
    assert node.can_be_lean(ray)
    for name in ("RAY_RUNTIME_ENV_HOOK", "RAY_JOB_CONFIG_JSON_ENV_VAR"):
        with monkeypatch.context() as patch:
            patch.setenv(name, "x")
            assert not node.can_be_lean(ray)
    from ray._private import services

    monkeypatch.delattr(services, "start_ray_process")
    assert not node.can_be_lean(ray), "a Ray that is made otherwise"


def test_what_a_lean_start_met_is_said_and_ray_begins_by_itself(monkeypatch):
    begun = []
    ray = SimpleNamespace(init=lambda **words: begun.append(words), exceptions=SimpleNamespace(RayError=OSError))

    def fails(*_ray, **_words):
        raise AttributeError("no such part")

    monkeypatch.setattr(session, "can_be_lean", lambda _ray: True)
    monkeypatch.setattr(session, "init_lean", fails)
    with pytest.warns(UserWarning, match="AttributeError: no such part"):
        session._connect(ray, None, 3)
    assert [words["num_cpus"] for words in begun] == [3]


BUILT = """
import json, os, psutil, threading, tokenriver
from tokenriver.cluster import session
seen, before, at = [], dict(os.environ), session.Session.share
def share(self, folder):
    "Every process of the cluster, once all that begin have begun."
    ray = self.ray
    assert ray.get([ray.remote(lambda: 1).remote() for _ in range(4)])
    for process in psutil.Process().children(recursive=True):
        seen.append(" ".join(process.cmdline()))
        if "worker_parent" in seen[-1] and process.parent().cmdline() == process.cmdline():
            seen[-1] = "ray:: begins"  # forked just now, and not named yet
        if "ray::" in seen[-1]:
            process.kill()  # others take their places
    return at(self, folder)
session.Session.share = share
tokenriver.build({source!r}, tokenizer="byte260", out={out!r}, dataset="docs", engine="ray", workers=2)
print(json.dumps([seen, before == dict(os.environ), [p.pid for p in psutil.Process().children(recursive=True)]]))
"""


@pytest.mark.slow
def test_a_build_begins_no_process_that_it_does_not_need_and_leaves_none(tmp_path):
    pytest.importorskip("ray")
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(200))
    (tmp_path / ("long" * 30)).mkdir()
    environment = {"TMPDIR": str(tmp_path / ("long" * 30)), "RAY_ADDRESS": "", "HOME": str(tmp_path / "home")}
    done = forked.run(BUILT.format(source=str(source), out=str(tmp_path / "ray")), env=environment)
    assert done.returncode == 0, done.stderr
    seen, kept, left = json.loads(done.stdout.splitlines()[-1])
    (folder,) = {found.group() for one in seen if (found := re.search(r"/[^= ]*/tokenriver-ray-\w+", one))}
    assert not os.path.exists(folder)  # noqa: PTH110
    assert not (tmp_path / "home").exists()
    assert not list((tmp_path / ("long" * 30)).iterdir())
    assert any("--node-ip-address=127.0.0.1" in one for one in seen), "nobody else can reach it"
    kinds = {"worker_parent": 0, "gcs_server": 0, "raylet/raylet": 0, "stand_in": 0, "ray::": 0, "begin_worker": 0}
    for command in seen:
        kind = next((kind for kind in kinds if kind in command), None)
        assert kind, command
        kinds[kind] += 1
    assert [kinds[one] for one in ("gcs_server", "raylet/raylet", "stand_in", "worker_parent")] == [1, 1, 2, 1]
    assert kinds["ray::"] <= 2, "no more than there are CPUs"
    assert (kept, left) == (True, [])
    tokenriver.build(source, tokenizer="byte260", out=tmp_path / "local", dataset="docs")
    made = [deterministic(tmp_path / engine / "tokens" / "byte260" / "docs") for engine in ("ray", "local")]
    assert made[0] == made[1]


HELD = """
import psutil, threading
from tokenriver.cluster.session import open_session
def busy(folder):
    import os, threading
    open(f"{{folder}}/{{os.getpid()}}", "w").close()
    threading.Event().wait()
with open_session(None, cpus=2) as connected:
    refs = [connected.ray.remote(busy).remote({folder!r}) for _ in range(2)]
    while len(__import__("os").listdir({folder!r})) < 2:
        threading.Event().wait(0.05)
    print(*(p.pid for p in psutil.Process().children(recursive=True)), flush=True)
    threading.Event().wait()
"""


def test_ray_takes_no_signal_while_it_begins(monkeypatch):
    ray = pytest.importorskip("ray")
    from ray._private import utils

    before, seen = signal.getsignal(signal.SIGTERM), []

    def begin(*_, **__):
        utils.set_sigterm_handler(lambda *_: None)
        seen.append(signal.getsignal(signal.SIGTERM))

    monkeypatch.setattr(session, "_begin_here", begin)
    session._connect(ray, None, 1)
    assert seen == [before]


def test_whatever_ray_raises_while_it_begins_is_one_error(monkeypatch):
    ray = pytest.importorskip("ray")

    def begin(*_, **__):
        raise Exception("The current node timed out during startup.\nmore")

    monkeypatch.setattr(session, "_begin_here", begin)
    with pytest.raises(ClusterError, match=r"be started here \(The current node timed out during startup\.\); "):
        session._connect(ray, None, 1)


def test_a_current_folder_that_is_gone_is_told(tmp_path, monkeypatch):
    (tmp_path / "gone").mkdir()
    monkeypatch.chdir(tmp_path / "gone")
    (tmp_path / "gone").rmdir()
    with pytest.raises(ClusterError, match="needs the current folder, which is not there any more"), open_own():
        pass


@pytest.mark.slow
@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_nothing_is_left_of_a_cluster_whose_driver_is_stopped(tmp_path, kind):
    pytest.importorskip("ray")
    with forked.start(HELD.format(folder=str(tmp_path)), env=cluster_environment()) as driver:
        wait_until(lambda: driver.stdout.endswith("\n") or driver.poll() is not None)
        pids = [int(pid) for pid in driver.stdout.split()]
        assert len(pids) >= 6, driver.stderr
        driver.send_signal(kind)
        wait_until(lambda: driver.poll() is not None)
        wait_until(lambda: not alive(pids))


@pytest.mark.parametrize("kind", [signal.SIGINT, signal.SIGTERM, signal.SIGKILL])
def test_what_workers_would_be_forked_from_ends_with_its_driver_also_while_it_loads(kind, short_folder):
    pytest.importorskip("ray")
    with forked.start(LOADS.format(folder=str(short_folder))) as driver:
        wait_until(lambda: driver.stdout.endswith("\n") or driver.poll() is not None)
        pids = [int(pid) for pid in driver.stdout.split()]
        assert len(pids) == 1, driver.stderr
        driver.send_signal(kind)
        wait_until(lambda: driver.poll() is not None)
        wait_until(lambda: not alive(pids))


LOADS = """
import psutil, time, threading
from functools import partial
from pathlib import Path
from tokenriver.cluster.own.forking import begun_ahead
with begun_ahead(Path({folder!r}), partial(time.sleep, 120)):
    print(*(p.pid for p in psutil.Process().children(recursive=True)), flush=True)
    threading.Event().wait()
"""


def test_two_threads_take_turns_and_a_callers_connection_is_for_all(monkeypatch):
    pytest.importorskip("ray")
    there, order, first_is_in = [], [], threading.Event()
    ray = SimpleNamespace(is_initialized=lambda: bool(there), shutdown=there.clear)
    monkeypatch.setattr(session, "_import_ray", lambda: ray)
    monkeypatch.setattr(session, "check_answers", lambda _address: None)
    monkeypatch.setattr(session, "_connect", lambda *_: there.append("ours"))

    def second():
        first_is_in.wait()
        with session.open_session("auto", cpus=1):
            order.append("second")

    thread = threading.Thread(target=second)
    thread.start()
    with session.open_session("auto", cpus=1):
        first_is_in.set()
        with session.open_session("auto", cpus=1):  # as a build does, while its workers get ready
            thread.join(0.2)
        order.append("first")
    thread.join()
    assert (order, there) == (["first", "second"], [])
    there.append("the caller's")
    with session.open_session("auto", cpus=1):
        thread = threading.Thread(target=second)
        thread.start()
        thread.join()
    assert (order[2:], there) == (["second"], ["the caller's"])


def open_own():
    return session.open_session(None, cpus=1)


def with_source():
    return {**os.environ, "PYTHONPATH": forked.SRC}


def cluster_environment():
    """What a driver needs for a cluster of its own; not the address of one that runs."""
    return {"RAY_TMPDIR": "/tmp", "RAY_ADDRESS": ""}


def alive(pids):
    return [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]


def wait_until(there):
    deadline = time.monotonic() + 300
    while not there():
        assert time.monotonic() < deadline
        threading.Event().wait(0.02)
