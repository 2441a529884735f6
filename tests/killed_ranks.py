"""Kill one rank of a distributed training in each phase, resume, and compare with an uninterrupted training.

    python tests/killed_ranks.py RECIPE DIRECTORY CASES

CASES is a JSON list of [number of ranks, rank to kill, phase]. The ranks are processes forked after the imports, not
by `torchrun`, so that no agent ends the others: each must notice the loss itself. Prints a JSON list with an object per
case: `killed` (exit codes of the ranks), `seconds` (from the kill to the end of the last rank), `messages` (standard
error of each rank), `resumed` (exit codes) and `differences` from the uninterrupted training, which must be empty.
"""

from __future__ import annotations

import functools
import json
import os
import shutil
import signal
import socket
import sys
import threading
import time
from pathlib import Path

import sacrebleu  # noqa: F401, imported once, before forking
import torch._inductor  # noqa: F401, as above: deterministic algorithms import it
from killing import differences, outcome
from torch.utils.tensorboard.writer import SummaryWriter  # noqa: F401, imported once, before forking

from seq2seq.cli import main
from seq2seq.training import loop, lost_ranks, run
from seq2seq.training.validation import Validation

# Function of each phase, and the number of its call in which the rank is killed. The main rank calls the functions of
# the first group; while it stays in one, another rank is killed. All ranks call the functions of the second group.
MAIN_RANK_PHASES = {
    "tokenizer training": (run, "train_or_load_tokenizers", 1), "preparation": (run, "prepare", 1),
    "saving a checkpoint": (loop, "save_checkpoint", 2), "averaging": (loop, "average_intact", 1),
}
COMMON_PHASES = {
    "first step": (loop.TrainingLoop, "update", 1), "middle of training": (loop.TrainingLoop, "update", 8),
    "validation": (Validation, "measure", 2),
    "final test": (run, "evaluate_tests", 1),
}
PHASES = MAIN_RANK_PHASES | COMMON_PHASES
LIMIT_SECONDS = 60


def kill_in(phase: str, rank: int, victim: int, reached: Path) -> None:
    """Let the victim kill itself in a phase. `reached` is created at this moment."""
    owner, name, entry = PHASES[phase]
    function = getattr(owner, name)
    calls = 0

    def die() -> None:
        reached.touch()
        os.kill(os.getpid(), signal.SIGKILL)

    def wait_and_die() -> None:
        while not reached.with_suffix(".main").exists():
            time.sleep(0.01)
        die()

    @functools.wraps(function)
    def counted(*arguments, **options):
        nonlocal calls
        calls += 1
        if calls == entry:
            if rank == victim:
                die()
            reached.with_suffix(".main").touch()
            while True:                                                         # works for hours
                time.sleep(0.01)
        return function(*arguments, **options)

    if phase in COMMON_PHASES:
        if rank == victim:
            setattr(owner, name, counted)
    elif rank == 0:
        setattr(owner, name, counted)
    elif rank == victim:
        threading.Thread(target=wait_and_die, daemon=True).start()


def start(recipe: Path, run: Path, size: int, death: tuple[str, int, Path] | None = None) -> list[int]:
    """Fork the ranks of a training and return their process ids. death: phase, rank and file of `kill_in`."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    children = []
    for rank in range(size):
        child = os.fork()
        if child:
            children.append(child)
            continue
        try:
            os.dup2(os.open(f"{run}.{rank}.errors", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o666), 2)
            os.dup2(2, 1)
            os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": str(size),
                           "RANK": str(rank), "LOCAL_RANK": str(rank), "LOCAL_WORLD_SIZE": str(size)}
            if death:
                kill_in(death[0], rank, death[1], death[2])
            os._exit(main(["train", str(recipe), "--run-dir", str(run)]))
        finally:
            os._exit(99)
    return children


def exit_codes(children: list[int]) -> list[int | None]:
    """Wait for the ranks; returns the exit codes, and None for ranks that were still running after LIMIT_SECONDS."""
    codes: dict[int, int | None] = {}
    deadline = time.monotonic() + LIMIT_SECONDS
    while len(codes) < len(children):
        for child in children:
            if child not in codes:
                ended, status = os.waitpid(child, os.WNOHANG)
                if ended:
                    codes[child] = os.waitstatus_to_exitcode(status)
                elif time.monotonic() > deadline:
                    os.kill(child, signal.SIGKILL)
                    os.waitpid(child, 0)
                    codes[child] = None
        time.sleep(0.02)
    return [codes[child] for child in children]


def main_program() -> None:
    recipe, directory, cases = Path(sys.argv[1]), Path(sys.argv[2]), json.loads(sys.argv[3])
    lost_ranks.GRACE_SECONDS = 3                                                # saves time
    expected = {}
    for size in sorted({size for size, _, _ in cases}):
        whole = directory / f"whole{size}"
        assert exit_codes(start(recipe, whole, size)) == [0] * size, Path(f"{whole}.0.errors").read_text()
        expected[size] = outcome(whole)
    results = []
    for number, (size, victim, phase) in enumerate(cases):
        run, reached = directory / f"run{number}", directory / f"run{number}.reached"
        children = start(recipe, run, size, (phase, victim, reached))
        killed = exit_codes(children)
        seconds = time.time() - reached.stat().st_mtime if reached.exists() else None
        messages = [Path(f"{run}.{rank}.errors").read_text() for rank in range(size)]
        resumed = exit_codes(start(recipe, run, size))
        different = ["exit codes"] if any(resumed) else differences(expected[size], outcome(run))
        results.append({"killed": killed, "seconds": seconds, "messages": messages, "resumed": resumed,
                        "differences": different})
        if not different:
            shutil.rmtree(run)
    print(json.dumps(results))


if __name__ == "__main__":
    main_program()
