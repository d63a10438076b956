"""The command `tokenriver`, also as `python -m tokenriver`; Ctrl-C while it is still importing is one line too."""

from __future__ import annotations

import atexit
import gc
import os
import signal
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = ["main"]


def main() -> int:
    """Run the command line and return its exit code, which no later signal changes."""
    atexit.register(_on_signals, signal.SIG_IGN)  # first, so that it runs last: after it nothing waits for anything
    usual = gc.get_threshold()
    gc.set_threshold(100_000, *usual[1:])  # looking for garbage in what is being imported takes 0.1 s
    try:
        from tokenriver.cli import main as run

        gc.set_threshold(*usual)
        code = run()
    except KeyboardInterrupt:
        code = 130
        print("tokenriver: interrupted", file=sys.stderr)
    _on_signals(lambda *_: os._exit(code))  # all is said and done, and what is left to end need not be waited for
    return code


def _on_signals(handler: Callable[..., Any] | signal.Handlers) -> None:
    for kind in (signal.SIGINT, signal.SIGTERM):
        signal.signal(kind, handler)


if __name__ == "__main__":
    sys.exit(main())
