"""Workers of a cluster begun here are forked from a process that has loaded for all, and begun as Ray does without."""

from __future__ import annotations

import json
import os
import signal
import socket
import threading
import time
from functools import partial

import forked
import pytest
from cluster_cases import deterministic
from made_documents import make_texts, write_jsonl

import tokenriver
from tokenriver.cluster.own import forking, request

ENVIRONMENT = {"RAY_TMPDIR": "/tmp", "RAY_ADDRESS": ""}

SEEN = """
import _thread, json, os, sys, threading, time, warnings
from functools import partial
from importlib import import_module
from tokenriver.cluster.session import open_session

def see():
    import os, signal, sys
    threading.Event().wait(0.3)  # or one worker would do it for all
    parent = open(f"/proc/{os.getppid()}/cmdline").read()
    return {
        "pid": os.getpid(),
        "forked": "worker_parent" in parent,
        "named": open("/proc/self/cmdline").read().startswith("ray::see"),
        "loaded": "colorsys" in sys.modules,
        "group": os.getpgrp() == os.getpid(),
        "deaf": signal.SIGINT in signal.pthread_sigmask(signal.SIG_BLOCK, []),
        "raylet": os.environ["RAY_RAYLET_PID"] in parent,
        "set": [os.environ.get("OPENBLAS_NUM_THREADS"), os.environ.get("HERE"), os.getcwd()],
        "score": int(open("/proc/self/oom_score_adj").read()),
        "searched": os.getcwd() in sys.path,
        "names": os.urandom(8).hex() + __import__("ray").ObjectID.from_random().hex(),
    }

def seen(ahead):
    with warnings.catch_warnings(record=True) as said:
        warnings.simplefilter("always")
        with open_session(None, cpus=2, ahead=ahead) as session:
            found = session.ray.get([session.ray.remote(see).remote() for _ in range(2)])
    return [found, [str(one.message) for one in said]]
os.environ["HERE"] = "yes"
"""


def see(tmp_path, monkeypatch, *aheads: str):
    pytest.importorskip("ray")
    monkeypatch.chdir(tmp_path)
    calls = ", ".join(f"seen({ahead})" for ahead in aheads)
    done = forked.run(f"{SEEN}\nprint(json.dumps([{calls}]))", env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


@pytest.mark.slow
def test_workers_are_forked_and_are_what_ray_would_have_begun(tmp_path, monkeypatch):
    ours, usual = see(
        tmp_path,
        monkeypatch,
        "partial(import_module, 'colorsys')",
        "partial(_thread.start_new_thread, time.sleep, (9,))",
    )
    assert [found["forked"] for found in ours[0]] == [True, True]
    assert [found["loaded"] for found in ours[0]] == [True, True]
    assert [found["forked"] for found in usual[0]] == [False, False], "there was a second thread"
    assert (ours[1], usual[1]) == ([], [])
    for found in (*ours[0], *usual[0]):
        assert found["named"]
        assert found["group"]
        assert found["deaf"]
        assert not found["searched"], "a module of any name may lie in the current folder"
        assert found["set"] == [None, "yes", str(tmp_path)]
        assert found["score"] == usual[0][0]["score"]
    assert len({found["pid"] for found in ours[0]}) == len({found["names"] for found in ours[0]}) == 2


@pytest.mark.slow
def test_what_went_wrong_with_loading_for_all_is_said_and_each_worker_loads(tmp_path, monkeypatch):
    ((found, said),) = see(tmp_path, monkeypatch, "partial(int, 'no number')")
    assert [one["forked"] for one in found] == [False, False]
    assert len(said) == 1
    assert said[0].endswith("all failed (ValueError: invalid literal for int() with base 10: 'no number')")


BUILT = """
import json, psutil, tokenriver
from tokenriver.building.ray_engine import driver, run
run._MOST_RANGE = 20_000
take, killed = driver.Driver._take_segment, []
def kill(self, number, outcome):
    "Once, while tasks are under way: what the test is about."
    if not killed:
        for process in psutil.Process().children(recursive=True):
            words = " ".join(process.cmdline())
            if {kill!r} in words:
                killed.append([words, process.parent().cmdline()])
                process.kill()
    take(self, number, outcome)
driver.Driver._take_segment = kill
done = tokenriver.build({source!r}, tokenizer="byte260", out={out!r}, dataset="docs", engine="ray", workers=2)
print(json.dumps([killed, [p.pid for p in psutil.Process().children(recursive=True)]]))
"""


@pytest.mark.slow
@pytest.mark.parametrize("kill", ["ray::", "worker_parent"])
def test_what_is_killed_in_the_middle_is_replaced_and_the_bytes_are_the_same(tmp_path, kill):
    pytest.importorskip("ray")
    source = write_jsonl(tmp_path / "docs.jsonl", make_texts(400))
    code = BUILT.format(source=str(source), out=str(tmp_path / "ray"), kill=kill)
    done = forked.run(code, env=ENVIRONMENT)
    assert done.returncode == 0, done.stderr
    killed, left = json.loads(done.stdout.splitlines()[-1])
    assert left == []
    assert len(killed) == (2 if kill == "ray::" else 1)
    if kill == "ray::":
        assert all("worker_parent" in " ".join(parent) for _, parent in killed)
    tokenriver.build(source, tokenizer="byte260", out=tmp_path / "local", dataset="docs")
    made = [deterministic(tmp_path / engine / "tokens" / "byte260" / "docs") for engine in ("ray", "local")]
    assert made[0] == made[1]


def test_without_an_answer_the_worker_is_not_there(tmp_path):
    path = str(tmp_path / "socket")
    assert not request.ask(path, ["worker.py"])
    with socket.socket(socket.AF_UNIX) as listener:
        listener.bind(path)
        listener.listen()
        found = []

        def hang_up():
            found.append(request.receive(listener.accept()[0]))
            request.close(found[0])

        thread = threading.Thread(target=hang_up)
        thread.start()
        assert not request.ask(path, ["worker.py", "--node-id=7"], 0)
        thread.join()
    assert found[0]["arguments"] == ["worker.py", "--node-id=7"]
    assert found[0]["environment"] == dict(os.environ)
    assert found[0]["directory"] == os.getcwd()  # noqa: PTH109
    assert len(found[0]["files"]) == 4


@pytest.mark.parametrize("message", [b"", b"\0\0\0\0\0\0\0\x09{", b"\0\0\0\0\0\0\0\x01{"])
def test_a_request_that_breaks_off_is_none(message):
    ours, theirs = socket.socketpair()
    with ours, theirs:
        theirs.sendall(message)
        theirs.shutdown(socket.SHUT_WR)
        assert request.receive(ours) is None
        assert ours.fileno() == -1


def test_there_is_none_where_a_socket_cannot_be_or_ray_is_missing(tmp_path, monkeypatch, short_folder):
    (tmp_path / ("d" * 120)).mkdir()
    with forking.begun_ahead(tmp_path / ("d" * 120), None) as parent:
        assert parent is None
    monkeypatch.setattr(forking.importlib.util, "find_spec", lambda _name: None)
    with forking.begun_ahead(short_folder, None) as parent:
        assert parent is None


def test_ending_it_while_it_loads_is_no_failure(short_folder):
    pytest.importorskip("ray")
    before = signal.pthread_sigmask(signal.SIG_BLOCK, [])
    with forking.begun_ahead(short_folder, partial(time.sleep, 120)) as parent:
        assert parent is not None
        assert os.path.exists(parent.path)  # noqa: PTH110
    assert signal.pthread_sigmask(signal.SIG_BLOCK, []) == before


def test_one_that_was_told_to_end_with_its_driver_has_not_failed(short_folder):
    pytest.importorskip("ray")
    with forking.begun_ahead(short_folder, partial(time.sleep, 120)) as parent:
        parent._process.send_signal(signal.SIGTERM)  # as the whole group, or all of a job's processes, get it
        parent._process.wait()
