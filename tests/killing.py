"""Kill trainings at random moments, resume them, and compare the results with those of an uninterrupted training.

    python tests/killing.py RECIPE DIRECTORY SEED KILLS

Each training is a separate process, forked after the imports, which reports through a pipe when it enters and leaves a
phase. The moment of a kill is random: a phase, one of its entries, and a delay of at most the longest duration of the
phase in the uninterrupted training. Prints a JSON object: `kills` by phase, `runs`, and `differences`, which must be
empty.
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

import sacrebleu  # noqa: F401, imported once, before forking
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard.writer import SummaryWriter  # noqa: F401, imported once, before forking

from seq2seq import console
from seq2seq.check import verify_resume
from seq2seq.check.verify_resume import TIME_DEPENDENT_KEYS, collect_results
from seq2seq.recipe import Recipe, load_recipe
from seq2seq.storage import checkpoints
from seq2seq.storage.run_directory import Log
from seq2seq.training import trainer
from seq2seq.training.validation import Validation

PHASES = {
    "tokenizer": (trainer, "train_or_load_tokenizers"), "preparation": (trainer, "prepare"),
    "opening the log": (Log, "__init__"), "step": (trainer.Training, "_step"),
    "checkpoint": (trainer, "save_checkpoint"), "pruning": (trainer, "prune_checkpoints"),
    "validation": (Validation, "measure"), "best model": (trainer, "save_bundle"),
    "averaging": (trainer.Training, "_average_checkpoints"), "test": (trainer.Training, "test"),
    "scores": (checkpoints, "replace_file"),
}
KILLS_PER_RUN = 6
# With a checkpoint after each step, a kill loses at most one step; with checkpoints at validations only, several.
SETTINGS = ("training.checkpoint_minutes=0", "training.checkpoint_minutes=2")


def start(recipe: Recipe, run: Path) -> tuple[int, int]:
    """Fork a training; returns its process id and the read end of the pipe to which it reports its phases."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child:
        os.close(write_end)
        return child, read_end
    os.close(read_end)
    code = 1
    try:
        for name, (owner, function) in PHASES.items():
            setattr(owner, function, reporting(write_end, name, getattr(owner, function)))
        console.print_message = console.warn = lambda message: None
        trainer.train(recipe, run)
        code = 0
    finally:
        os._exit(code)


def reporting(pipe: int, name: str, function):
    """Wrap a function so that it writes its phase and the times of its start and end to the pipe."""
    def wrapper(*arguments, **options):
        os.write(pipe, f"{name}\t{time.monotonic()}\t".encode())
        try:
            return function(*arguments, **options)
        finally:
            os.write(pipe, f"{time.monotonic()}\n".encode())

    return wrapper


def train_uninterrupted(recipe: Recipe, run: Path) -> dict[str, list[float]]:
    """Train to the end; returns the duration of each entry of each phase."""
    child, pipe = start(recipe, run)
    with os.fdopen(pipe) as lines:
        report = lines.read()
    assert os.waitpid(child, 0)[1] == 0, "the uninterrupted training failed"
    durations = defaultdict(list)
    # Phases can be nested; starts and ends then match like brackets.
    opened = []
    for word in report.replace("\n", "\n\t").split("\t"):
        if word.endswith("\n"):
            name, began = opened.pop()
            durations[name].append(float(word) - began)
        elif word in PHASES:
            opened.append([word, 0.0])
        elif word:
            opened[-1][1] = float(word)
    return durations


def train_and_kill(recipe: Recipe, run: Path, phase: str, entry: int, delay: float) -> bool:
    """Train and kill the training `delay` seconds after the n-th entry of a phase; returns False if it ended before."""
    child, pipe = start(recipe, run)
    report = b""
    while report.count(f"{phase}\t".encode()) < entry:
        block = os.read(pipe, 4096)
        if not block:
            break
        report += block
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
    """Return everything that must be equal: weights, the rest of the train state, best model, scores, log, TensorBoard
    curves, and the names of temporary files that were not removed."""
    results = collect_results(run)
    metadata = json.loads((run / "best" / "metadata.json").read_text())
    results["scores"] = [metadata[key] for key in ("step", "validation", "test")]
    board = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    results["curves"] = {tag: [(event.step, event.value) for event in board.Scalars(tag)]
                         for tag in board.Tags()["scalars"] if tag.rpartition("/")[2] not in TIME_DEPENDENT_KEYS}
    results["temporary files"] = sorted(
        path.name for directory in (run, run / "checkpoints") for path in directory.iterdir()
        if path.name.startswith(".") and path.name != ".lock" or "writing" in path.name)
    return results


def main() -> None:
    path, directory, seed, max_kills = Path(sys.argv[1]), Path(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
    assert not (directory / "whole0").exists(), "a finished training would report no phases"
    rng = random.Random(seed)
    recipes = [load_recipe(path, [setting]) for setting in SETTINGS]
    durations = [train_uninterrupted(recipe, directory / f"whole{number}") for number, recipe in enumerate(recipes)]
    expected = [outcome(directory / f"whole{number}") for number, _ in enumerate(recipes)]
    kills, differences, runs = Counter(), [], 0
    while kills.total() < max_kills:
        run, index = directory / f"run{runs}", runs % len(recipes)
        for _ in range(min(KILLS_PER_RUN, max_kills - kills.total())):
            phase = rng.choice([name for name in PHASES if durations[index][name]])
            times = durations[index][phase]
            kills[phase] += train_and_kill(recipes[index], run, phase, rng.randint(1, len(times)),
                                           rng.uniform(0, max(times)))
        assert not train_and_kill(recipes[index], run, "never", 1, 0.0)
        differences += [f"{run.name}: {name}" for name in verify_resume.differences(expected[index], outcome(run))]
        shutil.rmtree(run)
        runs += 1
    print(json.dumps({"kills": kills, "runs": runs, "differences": differences,
                      "seconds": {name: round(sum(times), 4) for name, times in durations[0].items()}}))


if __name__ == "__main__":
    main()
