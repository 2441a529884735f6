"""Measure systems in separate processes that take turns, and describe the machine and the versions of libraries."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import PackageNotFoundError, version
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any, ParamSpec

P = ParamSpec("P")
Run = Callable[[Any], tuple[float, Any]]
"""Function that does the work of one round. Returns the number of units (tokens or sentences) that it processed, and
its output or None."""
System = tuple[str, Run]
"""Name of a system, with the precision in which it computes (not the one it was asked for), and the function of a
round."""


class SystemProcess:
    """A system to measure, such as a library in one precision.

    It runs in a separate process, so that its settings and its memory are independent of those of other systems.

    name: what the system says that it is.
    """

    def __init__(self, prepare: Callable[P, System], *arguments: P.args, **options: P.kwargs) -> None:
        """Start the process, and wait until it is ready for the first round.

        prepare: function that the process calls with the arguments.
        """
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, prepare, arguments, options))
        self.process.start()
        theirs.close()
        # If the benchmark fails, close the pipe so that the process ends. Otherwise, each would wait for the other.
        atexit.register(self.pipe.close)
        self.name: str = self._answer()

    def round(self, task: Any) -> tuple[float, Any, float]:
        """Run one round. Return the units a second, the output of the round, and the peak memory so far in MB."""
        try:
            self.pipe.send(task)
        except BrokenPipeError:
            raise self._failure() from None
        units, output, seconds, memory = self._answer()
        return units / seconds, output, memory

    def close(self) -> None:
        """End the process."""
        self.pipe.close()
        self.process.join()

    def _answer(self) -> Any:
        try:
            return self.pipe.recv()
        except EOFError:
            raise self._failure() from None

    def _failure(self) -> SystemExit:
        """Return the exception that ends the benchmark after the process has died."""
        self.process.join()
        code = self.process.exitcode or 0
        return SystemExit(f"a system was ended by signal {-code}; Linux ends a process (signal 9) when memory is "
                          "exhausted" if code < 0 else "a system failed; see its error above")


def _serve(pipe: Connection, prepare: Callable[..., System], arguments: Sequence[Any], options: dict[str, Any]) -> None:
    try:
        name, run = prepare(*arguments, **options)
        pipe.send(name)
        while True:
            task = pipe.recv()
            began = time.perf_counter()
            units, output = run(task)
            seconds = time.perf_counter() - began
            pipe.send((units, output, seconds, peak_memory()))
    except (EOFError, KeyboardInterrupt):                                       # the benchmark has ended
        return


def peak_memory() -> float:
    """Return the sum of the peak memory of this process and of its children, in MB."""
    # On Linux, getrusage's maximum includes memory of the process that started this one; VmHWM does not.
    processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    statuses = [Path(f"/proc/{process}/status") for process in processes]
    if statuses[0].exists():
        lines = [line for status in statuses for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return sum(int(line.split()[1]) for line in lines) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def by_name(systems: Iterable[SystemProcess]) -> dict[str, SystemProcess]:
    """Return the systems by name. A system that computes what an earlier one computes, because this machine lacks what
    was asked of it, is closed, and a message says so."""
    named: dict[str, SystemProcess] = {}
    for system in systems:
        if named.setdefault(system.name, system) is not system:
            print(f"A row is left out: the system computes as {system.name}, which has a row.", file=sys.stderr)
            system.close()
    return named


def measure_in_rounds(systems: dict[str, SystemProcess], reference: str, repetitions: int, task: Any = None,
                      ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Run one warm-up round, then `repetitions` rounds of all systems in turn.

    Because the systems take turns, a temporary slowdown of the machine affects all of them.

    Returns:
        A row for each system, and the outputs of the last round by system. A row has the rate in units a second and its
        ratio to the rate of `reference` in the same round, each as median, lowest and highest value, and the peak
        memory in MB.
    """
    rates: dict[str, list[float]] = {name: [] for name in systems}
    outputs, memory = {}, {}
    for _ in range(repetitions + 1):
        for name, system in systems.items():
            rate, outputs[name], memory[name] = system.round(task)
            rates[name].append(rate)
    rows = []
    for name, (_, *measured) in rates.items():
        ratios = [rate / other for rate, other in zip(measured, rates[reference][1:], strict=True)]
        rows.append({"system": name, "rate": spread(measured), "ratio": spread(ratios), "memory": memory[name]})
    return rows, outputs


def spread(values: list[float]) -> dict[str, float]:
    """Return median, lowest and highest value."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def environment() -> dict[str, Any]:
    """Return the machine, its kernels, the versions of Python and the libraries, and the commit of this repository."""
    import torch

    import seq2seq
    from seq2seq.devices import describe
    from seq2seq.inference.engines import describe_kernels

    git = subprocess.run(["git", "--no-optional-locks", "describe", "--always", "--dirty"], capture_output=True,
                         text=True, cwd=Path(__file__).parent, check=False)
    return {"machine": describe("cpu"), "kernels": describe_kernels("int8"), "python": platform.python_version(),
            "torch": torch.__version__,
            **{name: version_of(name) for name in ("transformers", "ctranslate2")},
            "seq2seq": seq2seq.__version__, "commit": git.stdout.strip() or "unknown"}


def version_of(package: str) -> str:
    """Return the version of a package. Not every benchmark needs all packages."""
    try:
        return version(package)
    except PackageNotFoundError:
        return "not installed"
