"""Contestants in processes of their own, rounds in turn, and what machine it was on."""

from __future__ import annotations

import atexit
import multiprocessing
import os
import platform
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Sequence
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

Run = Callable[[Any], tuple[float, Any]]
"""Does one round and returns how many units it did (tokens, sentences) and whatever else it wants to tell."""


class Contestant:
    """One system in a process of its own, so that its settings and its memory are its own."""

    def __init__(self, prepare: Callable[..., Run], *arguments: Any) -> None:
        """Start it. `prepare(*arguments)` is called there and gives what a round does; this waits until it is ready."""
        context = multiprocessing.get_context("spawn")
        self.pipe, theirs = context.Pipe()
        self.process = context.Process(target=_serve, args=(theirs, prepare, arguments))
        self.process.start()
        theirs.close()
        # Where the benchmark fails, this process would wait for contestants that wait for it.
        atexit.register(self.pipe.close)
        self._answer()

    def round(self, task: Any) -> tuple[float, Any, float]:
        """Units a second in one round, what the round told, and the most memory ever held until now, in MB."""
        try:
            self.pipe.send(task)
        except BrokenPipeError:
            raise self._failure() from None
        units, told, seconds, memory = self._answer()
        return units / seconds, told, memory

    def close(self) -> None:
        """End it."""
        self.pipe.close()
        self.process.join()

    def _answer(self) -> Any:
        try:
            return self.pipe.recv()
        except EOFError:
            raise self._failure() from None

    def _failure(self) -> SystemExit:
        """The end of the benchmark, because this process has ended."""
        self.process.join()
        code = self.process.exitcode or 0
        return SystemExit(f"a contestant was ended by signal {-code}; Linux ends a process (signal 9) when memory is "
                          "exhausted" if code < 0 else "a contestant failed; its error stands above")


def _serve(pipe: Connection, prepare: Callable[..., Run], arguments: Sequence[Any]) -> None:
    try:
        run = prepare(*arguments)
        pipe.send("ready")
        while True:
            task = pipe.recv()
            began = time.perf_counter()
            units, told = run(task)
            seconds = time.perf_counter() - began
            pipe.send((units, told, seconds, peak_memory()))
    except (EOFError, KeyboardInterrupt):                                       # the other end has closed
        return


def peak_memory() -> float:
    """The most memory that this process and its children ever held, in MB, as if all had held it at once."""
    # On Linux getrusage's maximum begins with that of the process that started this one; VmHWM is its own.
    processes = [os.getpid(), *(child.pid for child in multiprocessing.active_children())]
    statuses = [Path(f"/proc/{process}/status") for process in processes]
    if statuses[0].exists():
        lines = [line for status in statuses for line in status.read_text().splitlines() if line.startswith("VmHWM")]
        return sum(int(line.split()[1]) for line in lines) / 1024
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 2**20


def compete(contestants: dict[str, Contestant], reference: str, repetitions: int, task: Any = None,
            ) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Rounds in turn, after one to warm up, so that what slows the machine for a while slows all alike.

    Returns:
        A row for each contestant: median, lowest and highest rate (units a second), the same of its ratio to the rate
        of `reference` in the same round, and peak memory in MB. And what the last round of each told.
    """
    rates: dict[str, list[float]] = {name: [] for name in contestants}
    told, memory = {}, {}
    for _ in range(repetitions + 1):
        for name, contestant in contestants.items():
            rate, told[name], memory[name] = contestant.round(task)
            rates[name].append(rate)
    rows = []
    for name, (_, *measured) in rates.items():
        ratios = [rate / other for rate, other in zip(measured, rates[reference][1:], strict=True)]
        rows.append({"system": name, "rate": spread(measured), "ratio": spread(ratios), "memory": memory[name]})
    return rows, told


def spread(values: list[float]) -> dict[str, float]:
    """Median, lowest and highest."""
    return {"median": statistics.median(values), "lowest": min(values), "highest": max(values)}


def surroundings() -> dict[str, Any]:
    """Machine, threads, versions and commit."""
    import ctranslate2
    import torch
    import transformers

    import seq2seq
    from seq2seq.devices import describe

    git = subprocess.run(["git", "--no-optional-locks", "describe", "--always", "--dirty"], capture_output=True,
                         text=True, cwd=Path(__file__).parent, check=False)
    return {"machine": describe(torch.device("cpu")), "python": platform.python_version(), "torch": torch.__version__,
            "transformers": transformers.__version__, "ctranslate2": ctranslate2.__version__,
            "seq2seq": seq2seq.__version__, "commit": git.stdout.strip() or "unknown"}
