"""The folder of a cluster begun here is where its sockets can be, and nobody has to clean up after it."""

from __future__ import annotations

import os
import subprocess
import sys
from types import SimpleNamespace

import forked
import pytest

from tokenriver import ClusterError
from tokenriver.cluster.own import folder, secret

ONLY = pytest.mark.skipif(os.name != "posix", reason="locks and sockets of POSIX")


@pytest.fixture
def bases(monkeypatch):
    """Let there be no other folders than those that are named."""

    def let(*paths):
        monkeypatch.setattr(folder, "_bases", lambda: list(paths))

    return let


@ONLY
def test_the_first_folder_that_will_do_is_taken_and_nothing_is_left_in_it(tmp_path, bases, short_folder):
    odd, full = short_folder / "ö", short_folder / "f"
    odd.mkdir()
    bases(tmp_path / ("d" * 120), odd, short_folder / "no", full, short_folder)
    with folder.own_folder() as path:
        assert path.parent == short_folder
        assert path.stat().st_mode & 0o777 == 0o700
        (path / "session" / "sockets").mkdir(parents=True)
        (path / "session" / "sockets" / "plasma_store").touch()
    assert list(short_folder.iterdir()) == [odd]


@ONLY
def test_a_folder_without_room_is_passed_over(bases, monkeypatch, short_folder):
    bases(short_folder)
    monkeypatch.setattr(folder.os, "statvfs", lambda _path: SimpleNamespace(f_bavail=1, f_frsize=4096))
    with pytest.raises(ClusterError, match=rf"\({short_folder}: no space left\); set RAY_TMPDIR"), folder.own_folder():
        pass


@ONLY
def test_where_none_will_do_all_that_were_tried_are_named(bases, short_folder):
    bases(short_folder / ("d" * 60), short_folder / "no", type(short_folder)("relative"))
    reasons = (
        r"d: a name of more than \d+ bytes is too long for sockets; .*/no: No such file.*; relative: its name is not"
    )
    with pytest.raises(ClusterError, match=reasons), folder.own_folder():
        pass


HOLDS = """
import sys
from pathlib import Path
from tokenriver.cluster.own import folder
folder._bases = lambda: [Path({base!r})]
with folder.own_folder() as path:
    print(path, flush=True)
    sys.stdin.read()
"""


@ONLY
def test_what_a_killed_command_left_is_removed_by_the_next_and_what_another_uses_is_not(bases, short_folder):
    bases(short_folder)
    code = HOLDS.format(base=str(short_folder))
    command, words = [sys.executable, "-c", code], {"env": {**os.environ, "PYTHONPATH": forked.SRC}}
    with subprocess.Popen(command, stdin=-1, stdout=-1, **words) as other:
        held = type(short_folder)(other.stdout.readline().decode().strip())
        with folder.own_folder():
            assert held.exists(), "in use"
        other.kill()
        other.wait()
        assert held.exists()
        with folder.own_folder() as path:
            assert list(short_folder.iterdir()) == [path]


def test_a_cluster_has_a_token_of_its_own_and_the_callers_is_as_before(monkeypatch):
    said = []

    def ray():
        loader = SimpleNamespace(instance=lambda: SimpleNamespace(reset_cache=lambda: said.append("forgotten")))
        read = SimpleNamespace(initialize=lambda _words: said.append(os.environ.get("RAY_AUTH_TOKEN")))
        return SimpleNamespace(_raylet=SimpleNamespace(Config=read, AuthenticationTokenLoader=loader))

    monkeypatch.delenv("RAY_AUTH_MODE", raising=False)
    monkeypatch.setenv("RAY_AUTH_TOKEN", "the caller's")
    with secret.own_token(ray()):
        assert os.environ["RAY_AUTH_MODE"] == "token"
        assert len(os.environ["RAY_AUTH_TOKEN"]) == 64
        own = os.environ["RAY_AUTH_TOKEN"]
    assert said == [own, "forgotten", "the caller's", "forgotten"]
    assert "RAY_AUTH_MODE" not in os.environ
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    with secret.own_token(ray()):
        assert os.environ["RAY_AUTH_TOKEN"] == "the caller's"
    monkeypatch.delenv("RAY_AUTH_MODE")
    with secret.own_token(SimpleNamespace(_raylet=None)):
        assert os.environ["RAY_AUTH_TOKEN"] == "the caller's", "a Ray without tokens"
