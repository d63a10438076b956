"""A folder that every node must see: how that is proved, and how files are read that another node has just written."""

from __future__ import annotations

import os
import socket
import time
import uuid
from typing import TYPE_CHECKING

from tokenriver.errors import ClusterError, IntegrityError

if TYPE_CHECKING:
    from pathlib import Path

__all__ = [
    "PARTS",
    "attempt_path",
    "node_of_attempt",
    "not_shared",
    "place_probe",
    "probe_problem",
    "read_exactly",
    "require_probe",
]

PARTS = "parts"
"""Subfolder of a work folder in which every attempt at a file is written; what is whole is renamed out of it."""

_PROBE = "probe-"

_PATIENCE_SECONDS = 30.0
"""How long a file that another node has written may stay invisible: network file systems keep what they know of a
folder for some seconds.
"""


def attempt_path(folder: Path, name: str) -> Path:
    """Where one attempt to write a file goes: no two attempts share a place, and the node can be read from the name."""
    return folder / PARTS / f"{name}@{socket.gethostname()}@{os.getpid()}-{uuid.uuid4().hex[:8]}"


def node_of_attempt(file_name: str) -> tuple[str, str] | None:
    """The name that was attempted and the host, from a file's name; None for any other file."""
    parts = file_name.rsplit("@", 2)
    return (parts[0], parts[1]) if len(parts) == 3 else None


def place_probe(folder: Path) -> str:
    """Write a file with a name that no other folder can hold; its name."""
    name = _PROBE + uuid.uuid4().hex
    (folder / name).write_bytes(name.encode())
    return name


def probe_problem(folder: Path, probe: str, *, patience: float = _PATIENCE_SECONDS) -> str | None:
    """Why this process does not see the probe; None when it does."""
    deadline = time.monotonic() + patience
    while True:
        try:
            if (folder / probe).read_bytes() == probe.encode():
                return None
            problem = "holds other bytes"
        except OSError as error:
            problem = error.strerror or str(error)
        if time.monotonic() >= deadline:
            return problem
        time.sleep(0.2)


def require_probe(folder: Path, probe: str) -> None:
    """ClusterError naming this node unless it sees the probe."""
    problem = probe_problem(folder, probe)
    if problem is not None:
        raise ClusterError(not_shared(folder, socket.gethostname(), problem))


def not_shared(folder: Path, node: str, problem: str) -> str:
    """The message for a node that does not see the folder."""
    return (
        f"{folder}: node {node} does not see the file that was written there ({problem}); the folder must lie on a "
        "file system that every node of the cluster has at the same path"
    )


def read_exactly(path: Path, at: int, size: int) -> bytearray:
    """Bytes [at, at + size) of a file that another node has written.

    Waits for one that is not visible yet; IntegrityError for one that stays missing or short.
    """
    deadline = time.monotonic() + _PATIENCE_SECONDS
    while True:
        try:
            with open(path, "rb", buffering=0) as file:
                file.seek(at)
                data = bytearray(size)
                view = memoryview(data)
                while view and (n := file.readinto(view)):
                    view = view[n:]
            if not view:
                return data
            problem = f"ends {len(view):,} bytes before byte {at + size:,}"
        except FileNotFoundError:
            problem = "is not there"
        if time.monotonic() >= deadline:
            raise IntegrityError(
                f"{path}: {problem}, though a task has written it; the storage lost it",
                advice=("give the command with --restart",),
            )
        time.sleep(0.2)
