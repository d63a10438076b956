"""The secret of a cluster begun here: made for it, and known to its processes alone.

Ray (2.60) would take the user's own, and where there is none write one into the home folder, which may not be writable,
and which makes every cluster that is begun later ask for it.
"""

from __future__ import annotations

import os
import secrets
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterator

__all__ = ["own_token"]

_MODE, _TOKEN = "RAY_AUTH_MODE", "RAY_AUTH_TOKEN"


@contextmanager
def own_token(ray: Any) -> Iterator[None]:
    """Meanwhile, Ray begins clusters with a new token; none where the caller wants none, or this Ray knows none.

    Afterwards it reads again what the environment says, in which the two variables are as before.
    """
    read_again = getattr(getattr(ray._raylet, "Config", None), "initialize", None)
    loader = getattr(ray._raylet, "AuthenticationTokenLoader", None)
    if read_again is None or loader is None or os.environ.get(_MODE, "token").lower() != "token":
        yield
        return
    before = {name: os.environ.get(name) for name in (_MODE, _TOKEN)}
    os.environ.update({_MODE: "token", _TOKEN: secrets.token_hex(32)})
    _read(read_again, loader)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value
        _read(read_again, loader)


def _read(read_again: Any, loader: Any) -> None:
    read_again("")
    loader.instance().reset_cache()
