"""What a build on Ray costs on one machine beside the local engine: the same file, taking turns, as ratios of medians.

    python benchmarks/cluster.py FILE --tokenizer T [--runs 3] [--json FILE]

Every measurement is a process of its own with everything imported (`alone`: but Ray). Three clocks for Ray: `cold` is
the first build on a cluster that runs (its workers have begun, its services have come to rest), in which every worker
imports and loads the tokenizer; `warm` the second on it; `alone` a build that starts a cluster for itself and ends it.
Asked for is cold : local at most 1.5; CPU seconds stand beside, since wall time is noisy on a shared machine.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import math
import os
import platform
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path
from typing import Any


def main() -> int:
    """Measure in turns and print the ratios."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--scratch", type=Path, default=Path("scratch/cluster"))
    parser.add_argument("--json", type=Path)
    parser.add_argument("--job", choices=["local", "ray", "alone"], help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.job:
        print(json.dumps(JOBS[options.job](options)))
        return 0
    runs: dict[str, list[dict[str, float]]] = {job: [] for job in JOBS}
    for _ in range(options.runs):
        for job, done in runs.items():
            command = [sys.executable, __file__, str(options.file), "--tokenizer", options.tokenizer, "--job", job]
            command += ["--scratch", str(options.scratch)]
            result = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=True)
            done.append(json.loads(result.stdout.splitlines()[-1]))
            print(job, done[-1], file=sys.stderr, flush=True)
    medians = {
        f"{job} {name}": statistics.median(run[name] for run in done)
        for job, done in runs.items()
        for name in done[0]
        if name != "digest"
    }
    assert len({run["digest"] for done in runs.values() for run in done}) == 1, "the engines differ"
    local = medians["local seconds"]
    ratios = {f"{name} : local": round(medians[f"ray {name}"] / local, 2) for name in ("cold", "warm")}
    ratios["alone : local"] = round(medians["alone seconds"] / local, 2)
    for name in ("cold_cpu", "warm_cpu"):
        ratios[f"{name} : local"] = round(medians[f"ray {name}"] / medians["local cpu"], 2)
    for name, value in {**medians, **ratios}.items():
        print(f"{name:<24}{value:8.2f}")
    if options.json:
        facts = {
            "megabytes": options.file.stat().st_size / 1e6,
            "cores": os.cpu_count(),
            "system": platform.platform(),
            "runs": runs,
            "medians": medians,
            "ratios": ratios,
        }
        options.json.write_text(json.dumps(facts, indent=1) + "\n")
    return 0


def build(options: argparse.Namespace, engine: str) -> tuple[float, str]:
    """Seconds of one build, and a digest of what it left."""
    import tokenriver

    out = options.scratch / engine
    shutil.rmtree(out, ignore_errors=True)
    start = time.perf_counter()
    summary = tokenriver.build(options.file, tokenizer=options.tokenizer, out=out, engine=engine)
    seconds = time.perf_counter() - start
    digest = hashlib.sha256(repr([f.sha256 for f in summary.files]).encode()).hexdigest()
    shutil.rmtree(out)
    return seconds, digest


def local_job(options: argparse.Namespace) -> dict[str, Any]:
    """The local engine; the tokenizer is loaded by the build, as it is in every worker of a cluster."""
    import tokenriver.building.build  # noqa: F401

    before = time.process_time()
    seconds, digest = build(options, "local")
    return {"seconds": seconds, "cpu": time.process_time() - before, "digest": digest}


def ray_job(options: argparse.Namespace) -> dict[str, Any]:
    """A cluster of this machine's CPUs at rest, and two builds on it."""
    import tokenriver.building.ray_engine.run  # noqa: F401
    from tokenriver.cluster.session import open_session
    from tokenriver.cpus import available_cpus

    with open_session(None, cpus=available_cpus()) as session:
        session.ray.get([session.ray.remote(a_second).remote() for _ in range(session.cpus)])
        come_to_rest()
        cpu = [cpu_of_all()]
        cold, digest = build(options, "ray")
        cpu.append(cpu_of_all())
        warm, again = build(options, "ray")
        cpu.append(cpu_of_all())
        assert digest == again
    return {
        "cold": cold,
        "warm": warm,
        "cold_cpu": cpu[1] - cpu[0],
        "warm_cpu": cpu[2] - cpu[1],
        "digest": digest,
    }


def alone_job(options: argparse.Namespace) -> dict[str, Any]:
    """A build with a cluster of its own, from the call to its end."""
    import tokenriver.building.ray_engine.run  # noqa: F401

    seconds, digest = build(options, "ray")
    return {"seconds": seconds, "digest": digest}


def a_second() -> None:
    """A task for every worker: long enough that no worker takes two."""
    time.sleep(1)


def come_to_rest() -> None:
    """Wait until the services of the cluster, which begin for seconds after it has answered, take a tenth of a core."""
    before = -math.inf
    while (now := cpu_of_all()) - before > 0.1:
        before = now
        time.sleep(1)


def cpu_of_all() -> float:
    """CPU seconds of this process and of those that the cluster consists of, its own services included."""
    import psutil

    processes = [psutil.Process(), *psutil.Process().children(recursive=True)]
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


JOBS = {"local": local_job, "ray": ray_job, "alone": alone_job}


if __name__ == "__main__":
    sys.exit(main())
