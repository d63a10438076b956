"""What Ray's node starts here in place of an agent that no task needs: waits until the node has ended.

A script, run by the interpreter alone: `python -I -S stand_in.py`. Ray's raylet wants a command for each of its agents,
ends them with itself, and takes their own end for its own.
"""

import os
import time

__all__: list[str] = []

_LOOK_SECONDS = 1.0
"""A raylet that was killed cannot end its agents: they look."""

if __name__ == "__main__":
    parent = int(os.environ.get("RAY_RAYLET_PID") or os.getppid())
    while os.getppid() == parent:
        time.sleep(_LOOK_SECONDS)
