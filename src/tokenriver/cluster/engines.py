"""The words of --engine: who does the work. What comes out does not depend on it."""

from __future__ import annotations

from tokenriver.errors import UsageError

__all__ = ["ENGINES", "check_engine", "check_rereadable"]

ENGINES = ("local", "ray")


def check_engine(engine: str, ray_address: str | None) -> None:
    """UsageError for an engine that does not exist, or an address without the engine that it is for."""
    if engine not in ENGINES:
        raise UsageError(f"--engine is {engine!r}; it must be one of {', '.join(ENGINES)}")
    if ray_address is not None and engine != "ray":
        raise UsageError(f"--ray-address {ray_address} goes with --engine ray")


def check_rereadable(names: list[str]) -> None:
    """UsageError when standard input is among the inputs of a cluster."""
    if "-" in names:
        raise UsageError("--engine ray cannot read standard input (-): save it to a file that every node sees")
