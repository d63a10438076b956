"""What each thread of a build costs, and at how many cores it would be the limit; the same for the lock they share.

    python benchmarks/serial.py INPUT… --tokenizer T [--workers 2] [--elsewhere]

CPU time a thread, in milliseconds a MB of input, so that two cores tell what 32 would do: a thread that takes 0.25 of 8
in all keeps up with 32. `--elsewhere` has all blocks encoded in other processes, as most are with many workers and much
text, so that what is left in the first one is seen (the caller's time then includes loading the tokenizer). Where there
is a C compiler, the time for which threads hold the interpreter's lock is measured as well (lock.c).
"""

from __future__ import annotations

import argparse
import ctypes
import os
import resource
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import defaultdict
from pathlib import Path

_PRELOADED = "TOKENRIVER_BENCH_LOCK"


class Record(ctypes.Structure):
    _fields_ = [("thread", ctypes.c_int64), ("held_ns", ctypes.c_int64), ("times", ctypes.c_int64)]
    _fields_ += [("since", ctypes.c_int64)]


class Threads:
    """CPU seconds of the threads that ended, by native id, and everybody's name."""

    def __init__(self) -> None:
        self.names = {threading.get_native_id(): "caller"}
        self.cpu: dict[int, float] = {}
        original = threading.Thread.run

        def run(thread: threading.Thread) -> None:
            self.names[threading.get_native_id()] = thread.name.removeprefix("tokenriver-").rstrip("_0123456789")
            try:
                original(thread)
            finally:
                self.cpu[threading.get_native_id()] = time.thread_time()

        threading.Thread.run = run


def begin_with_lock(scratch: Path) -> None:
    """Compile lock.c and begin again with it preloaded, where that is possible."""
    compiler, library = shutil.which("cc"), scratch / "lock.so"
    if os.environ.get(_PRELOADED) or compiler is None or sys.implementation.name != "cpython":
        return
    source = Path(__file__).with_name("lock.c")
    if subprocess.run([compiler, "-O2", "-shared", "-fPIC", "-o", library, source, "-ldl"], check=False).returncode:
        return
    env = {**os.environ, "LD_PRELOAD": str(library), _PRELOADED: str(library)}
    os.execve(sys.executable, [sys.executable, *sys.argv], env)


def watch_lock() -> ctypes.PyDLL | None:
    """Tell the library which conditions are the lock's: the two that threads signal which do nothing but trade it."""
    if not os.environ.get(_PRELOADED):
        return None
    os.environ.pop("LD_PRELOAD", None)  # not for the processes that the build begins
    library = ctypes.PyDLL(os.environ[_PRELOADED])
    threads = [threading.Thread(target=lambda: [time.sleep(0) for _ in range(2000)]) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    addresses = (ctypes.c_void_p * 64).in_dll(library, "seen")
    times = (ctypes.c_int * 64).in_dll(library, "seen_times")
    n = ctypes.c_int.in_dll(library, "n_seen").value
    drop, take = sorted(address for _, address in sorted((times[i], addresses[i]) for i in range(n))[-2:])
    library.lock_watch(ctypes.c_void_p(take), ctypes.c_void_p(drop))
    library.lock_records.restype = ctypes.POINTER(Record)
    return library


def held_ms(library: ctypes.PyDLL | None) -> dict[int, float]:
    """Milliseconds for which each thread has held the lock so far."""
    if library is None:
        return {}
    records = library.lock_records()
    return {records[i].thread: records[i].held_ns / 1e6 for i in range(library.lock_count())}


def main() -> int:
    """Build twice, once small to have everything imported, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("inputs", nargs="+", type=Path)
    parser.add_argument("--tokenizer", required=True)
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--elsewhere", action="store_true")
    options = parser.parse_args()
    home = Path("scratch").resolve()
    home.mkdir(exist_ok=True)
    begin_with_lock(home)
    library, threads = watch_lock(), Threads()

    import tokenriver
    from tokenriver.building import lanes

    with tempfile.TemporaryDirectory(dir=home) as folder:
        scratch = Path(folder)
        (scratch / "warm.jsonl").write_text('{"text":"warm"}\n' * 1000)
        tokenizer = options.tokenizer if options.elsewhere else tokenriver.load_tokenizer(options.tokenizer)
        words = {"tokenizer": tokenizer, "workers": options.workers, "dataset": "bench"}
        tokenriver.build([scratch / "warm.jsonl"], out=scratch / "warm", **words)
        if options.elsewhere:
            lanes._ALONE, lanes._HERE, lanes._LEAST_BYTES = 0, 0, 0
        threads.cpu.clear()
        before, usage = held_ms(library), resource.getrusage(resource.RUSAGE_SELF)
        started = time.thread_time()
        summary = tokenriver.build(options.inputs, out=scratch / "out", **words)
        threads.cpu[threading.get_native_id()] = time.thread_time() - started
        report(threads, before, held_ms(library), usage, summary.input_bytes / 1e6)
    return 0


def report(
    threads: Threads,
    before: dict[int, float],
    held: dict[int, float],
    usage: resource.struct_rusage,
    megabytes: float,
) -> None:
    """Print ms a MB by kind of thread: all of them, the busiest, and what they held the lock for."""
    now, there = resource.getrusage(resource.RUSAGE_SELF), resource.getrusage(resource.RUSAGE_CHILDREN)
    here_ms = (now.ru_utime + now.ru_stime - usage.ru_utime - usage.ru_stime) * 1e3 / megabytes
    whole_ms = here_ms + (there.ru_utime + there.ru_stime) * 1e3 / megabytes
    kinds: dict[str, list[float]] = defaultdict(lambda: [0.0, 0.0, 0.0])
    for thread, seconds in threads.cpu.items():
        kind, ms = kinds[threads.names[thread]], seconds * 1e3 / megabytes
        kind[0], kind[1] = kind[0] + ms, max(kind[1], ms)
        kind[2] += (held.get(thread, 0.0) - before.get(thread, 0.0)) / megabytes
    print(f"{megabytes:,.0f} MB; {whole_ms:.2f} core-ms a MB, {here_ms:.2f} of them in the first process")
    print(f"{'thread':16} {'all':>7} {'busiest':>8} {'its limit':>10} {'lock':>7}")
    for name, (ms, busiest, lock) in sorted(kinds.items(), key=lambda item: -item[1][0]):
        print(f"{name:16} {ms:7.3f} {busiest:8.3f} {whole_ms / max(busiest, 1e-9):6.0f} cores {lock:7.3f}")
    lock = sum(kind[2] for kind in kinds.values())
    if lock:
        print(f"the lock is held for {lock:.3f} ms a MB: the limit at {whole_ms / lock:.0f} cores")


if __name__ == "__main__":
    sys.exit(main())
