"""Kills trainings at random moments, resumes them, and compares what they leave with what an uninterrupted one left.

    python tests/killing.py RECIPE DIRECTORY SEED KILLS

Each training is a process of its own, forked after the imports, that tells through a pipe which phase it enters. The
moment of a kill is drawn: a phase, one of its entries, and a time as long as the phase took in the uninterrupted
training. Prints a JSON object: `kills` by phase, `runs`, and `differences`, which has to be empty.
"""

from __future__ import annotations

import json
import os
import random
import shutil
import signal
import sys
import time
from collections import Counter, defaultdict
from pathlib import Path

import sacrebleu  # noqa: F401, for the children
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard.writer import SummaryWriter  # noqa: F401, for the children

from seq2seq import console
from seq2seq.recipe import Recipe, load_recipe
from seq2seq.storage import checkpoints
from seq2seq.storage.run_directory import Log
from seq2seq.training import trainer, verify_resume
from seq2seq.training.validation import Validation
from seq2seq.training.verify_resume import TIME_DEPENDENT_KEYS, collect_results

PHASES = {
    "tokenizer": (trainer, "train_or_load_tokenizers"), "preparation": (trainer, "prepare"),
    "opening the log": (Log, "__init__"), "step": (trainer.Training, "_step"),
    "checkpoint": (trainer, "save_checkpoint"), "pruning": (trainer, "prune_checkpoints"),
    "validation": (Validation, "measure"), "best model": (trainer, "save_bundle"),
    "averaging": (trainer.Training, "_average_checkpoints"), "test": (trainer.Training, "test"),
    "scores": (checkpoints, "replace_json"),
}
KILLS_A_RUN = 6
# With a checkpoint after each step a kill costs one step at most; with one at each validation it costs several.
SETTINGS = ("training.checkpoint_minutes=0", "training.checkpoint_minutes=2")


def start(recipe: Recipe, run: Path) -> tuple[int, int]:
    """A forked training: its process id, and where it tells its phases."""
    reading, writing = os.pipe()
    child = os.fork()
    if child:
        os.close(writing)
        return child, reading
    os.close(reading)
    code = 1
    try:
        for name, (place, function) in PHASES.items():
            setattr(place, function, telling(writing, name, getattr(place, function)))
        console.print_message = console.warn = lambda message: None
        trainer.train(recipe, run)
        code = 0
    finally:
        os._exit(code)


def telling(pipe: int, name: str, function):
    def told(*arguments, **options):
        os.write(pipe, f"{name}\t{time.monotonic()}\t".encode())
        try:
            return function(*arguments, **options)
        finally:
            os.write(pipe, f"{time.monotonic()}\n".encode())

    return told


def uninterrupted(recipe: Recipe, run: Path) -> dict[str, list[float]]:
    """Train to the end; how long each entry of each phase took."""
    child, pipe = start(recipe, run)
    with os.fdopen(pipe) as lines:
        told = lines.read()
    assert os.waitpid(child, 0)[1] == 0, "the uninterrupted training failed"
    durations = defaultdict(list)
    # A phase inside another one is told inside it: names and ends form brackets.
    opened = []
    for word in told.replace("\n", "\n\t").split("\t"):
        if word.endswith("\n"):
            name, began = opened.pop()
            durations[name].append(float(word) - began)
        elif word in PHASES:
            opened.append([word, 0.0])
        elif word:
            opened[-1][1] = float(word)
    return durations


def killed(recipe: Recipe, run: Path, phase: str, entry: int, delay: float) -> bool:
    """Train until so long after the phase's n-th entry; whether there was something to kill."""
    child, pipe = start(recipe, run)
    told = b""
    while told.count(f"{phase}\t".encode()) < entry:
        block = os.read(pipe, 4096)
        if not block:
            break
        told += block
    else:
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    os.close(pipe)
    status = os.waitpid(child, 0)[1]
    if os.WIFSIGNALED(status):
        return True
    assert status == 0, f"{run} did not resume: exit code {os.waitstatus_to_exitcode(status)}"
    return False


def outcome(run: Path) -> dict[str, object]:
    """Return everything that must be equal: weights, all other state, best model and scores, log, TensorBoard's
    curves."""
    found = collect_results(run)
    metadata = json.loads((run / "best" / "metadata.json").read_text())
    found["scores"] = [metadata[key] for key in ("step", "validation", "test")]
    board = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    found["curves"] = {tag: [(event.step, event.value) for event in board.Scalars(tag)]
                       for tag in board.Tags()["scalars"] if tag.rpartition("/")[2] not in TIME_DEPENDENT_KEYS}
    found["litter"] = sorted(path.name for place in (run, run / "checkpoints") for path in place.iterdir()
                             if path.name.startswith(".") and path.name != ".lock" or "writing" in path.name)
    return found


def main() -> None:
    path, directory, seed, wanted = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    assert not (directory / "whole0").exists(), "a finished training tells nothing of its phases"
    rng = random.Random(seed)
    recipes = [load_recipe(path, [setting]) for setting in SETTINGS]
    durations = [uninterrupted(recipe, directory / f"whole{number}") for number, recipe in enumerate(recipes)]
    expected = [outcome(directory / f"whole{number}") for number, _ in enumerate(recipes)]
    kills, differences, runs = Counter(), [], 0
    while kills.total() < wanted:
        run, which = directory / f"run{runs}", runs % len(recipes)
        for _ in range(min(KILLS_A_RUN, wanted - kills.total())):
            phase = rng.choice([name for name in PHASES if durations[which][name]])
            took = durations[which][phase]
            kills[phase] += killed(recipes[which], run, phase, rng.randint(1, len(took)), rng.uniform(0, max(took)))
        assert not killed(recipes[which], run, "never", 1, 0.0)
        found = outcome(run)
        differences += [f"{run.name}: {name}" for name in verify_resume.differences(expected[which], found)]
        shutil.rmtree(run)
        runs += 1
    print(json.dumps({"kills": kills, "runs": runs, "differences": differences,
                      "seconds": {name: round(sum(each), 4) for name, each in durations[0].items()}}))


if __name__ == "__main__":
    main()
