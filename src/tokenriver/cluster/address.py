"""The address of a Ray cluster that is there: whether anybody answers, and what to say when nobody does."""

from __future__ import annotations

import os
import socket
import sys
from pathlib import Path

from tokenriver.errors import ClusterError, UsageError

__all__ = ["check_answers", "no_cluster"]

_ANSWER_SECONDS = 10.0


def check_answers(address: str) -> None:
    """ClusterError when nobody listens at the address: Ray itself would try for minutes."""
    if "://" in address:
        raise UsageError(
            f"--ray-address {address}: give the head's HOST:PORT, or auto, on a machine that sees the shared folder; "
            "Ray Client is not for this"
        )
    found = address
    if address == "auto":
        note = _temporary() / "ray" / "ray_current_cluster"  # where ray start leaves it
        found = os.environ.get("RAY_ADDRESS") or (note.read_text().strip() if note.is_file() else "")
    host, _, port = found.rpartition(":")
    if not (host and port.isdigit()):
        if address != "auto":
            raise UsageError(f"--ray-address {address}: give the head's HOST:PORT, or auto")
        return  # Ray knows other ways to find one, and fails at once without
    try:
        socket.create_connection((host.strip("[]"), int(port)), timeout=_ANSWER_SECONDS).close()
    except OSError as error:
        raise ClusterError(no_cluster(address, f"{found}: {error.strerror or error}")) from error


def _temporary() -> Path:
    """Ray's idea of it."""
    names = ["RAY_TMPDIR", "TMPDIR"] if sys.platform == "linux" else ["RAY_TMPDIR"]
    return Path(next((os.environ[name] for name in names if name in os.environ), "/tmp"))


def no_cluster(address: str | None, reason: str) -> str:
    """The message where none was found at the address, or none could be started."""
    if address is None:
        return f"no Ray cluster could be started here ({reason}); --engine local needs none"
    tip = "start one with ray start --head, or leave --ray-address out"
    if address != "auto" and os.environ.get("RAY_AUTH_MODE", "").lower() != "token":
        tip += "; one that asks for a token (ray get-auth-token) wants RAY_AUTH_MODE=token"
    return f"no Ray cluster at --ray-address {address} ({reason}); {tip}"
