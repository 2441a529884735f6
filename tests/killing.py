"""Kill a command at random moments, run it again, and compare the result with that of an uninterrupted command.

    python tests/killing.py KIND KILLS [SEED]

KIND: training, back-translation, adaptation or translation. Each kill has its own new directory: the command is killed
(SIGKILL) once, at a random time or in a random call of a function that writes files or computes, and run again to its
end. Prints the calls in which it was killed, each difference, and "N of N equal".

The command runs in a process forked after the imports, so that a kill takes only the time of the toy command.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

import sacrebleu  # noqa: F401, imported once, before forking
import torch
import torch._inductor  # noqa: F401, as above: deterministic algorithms import it
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator
from torch.utils.tensorboard.writer import SummaryWriter  # noqa: F401, imported once, before forking
from toy import RECIPE, WORDS, copy_finished_run, write_corpus

from seq2seq.cli import main as seq2seq
from seq2seq.cli import translate as translate_command
from seq2seq.storage.checkpoints import MODEL, STATE, best_bundle, list_checkpoints
from seq2seq.storage.directories import METADATA
from seq2seq.storage.run_directory import LOG_FILE
from seq2seq.training import synthetic_text
from seq2seq.training.clock import PHASES
from seq2seq.training.loop import TrainingLoop
from seq2seq.translation import sources
from seq2seq.translation.translator import Translator

CALLS = {"fsync": (os, "fsync"), "replace": (os, "replace"), "rename": (os, "rename"), "step": (TrainingLoop, "update"),
         "search": (Translator, "search_parts")}
"""Functions in which a command is killed, before or after the call."""
BLOCK_LINES = 7
"""Number of lines that are translated between two commits."""
# Keys of log records and train states that depend on the clock, or on the steps at which checkpoints were saved.
TIME_DEPENDENT_KEYS = ("seconds", "peak_memory", "tokens_per_second", *PHASES, "candidate_step", "good_step")

TRAINING = RECIPE.replace("vocab_size: auto", "vocab_size: auto, subword_sampling: 0.1").replace(
    "  max_steps: 11", "  max_steps: 17\n  accumulation: 2\n  checkpoint_minutes: 0\n  average: {kind: best, count: 2}")
SHORT = RECIPE.replace("max_steps: 11", "max_steps: 4\n  checkpoint_minutes: 0").replace(
    "validate_every: 5", "validate_every: 2")
PAIRS = "{source: train.en, target: train.de}"


# Results


def outcome(run: Path) -> dict[str, Any]:
    """Return everything that must be equal in two runs: weights, the rest of the train state, best model, scores, log,
    TensorBoard curves, synthetic text, and the names of temporary files that were not removed."""
    last = list_checkpoints(run)[-1]                                            # earlier ones depend on the clock
    results: dict[str, Any] = {
        name: hashlib.sha256(path.read_bytes()).hexdigest() for name, path in [
            ("best", best_bundle(run) / MODEL), ("weights", last / MODEL), ("state", last / STATE),
            *((path.name, path) for path in run.glob("synthetic/*.txt"))]}
    progress = json.loads((last / METADATA).read_bytes())["info"]["progress"]
    results["the train state"] = _without_clock({**progress, "window": _without_clock(progress["window"])})
    results["the log"] = [_without_clock(json.loads(line)) for line in (run / LOG_FILE).read_bytes().splitlines()]
    metadata = json.loads((best_bundle(run) / METADATA).read_text())
    results["scores"] = [metadata.get(key) for key in ("step", "validation", "test")]
    board = EventAccumulator(str(run / "tensorboard"), size_guidance={"scalars": 0}).Reload()
    results["curves"] = {tag: [(event.step, event.value) for event in board.Scalars(tag)]
                         for tag in board.Tags()["scalars"] if tag.rpartition("/")[2] not in TIME_DEPENDENT_KEYS}
    results["temporary files"] = sorted(
        path.name for directory in (run, run / "checkpoints", run / "bundles") for path in directory.iterdir()
        if path.name.startswith(".") and path.name not in (".lock", ".holder") or "writing" in path.name)
    return results


def _without_clock(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in TIME_DEPENDENT_KEYS}


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Return the names of the results that differ or exist in one of them only, in their order."""
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def bytes_of(*paths: Path) -> dict[str, str]:
    return {str(Path(*path.parts[-2:])): hashlib.sha256(path.read_bytes()).hexdigest() for path in paths}


# Kinds: each function writes the input files to a directory, and returns the arguments of a command whose result is at
# RESULT, and a function that returns what must be equal.

RESULT = "RESULT"
Kind = tuple[list[str], Callable[[Path], dict[str, Any]]]


def training(folder: Path, recipe: str = TRAINING) -> Kind:
    if not (folder / "train.en").exists():
        write_corpus(folder)
    (folder / "killed.yaml").write_text(recipe)
    return ["train", str(folder / "killed.yaml"), "--run-dir", RESULT], outcome


def back_translation(folder: Path) -> Kind:
    copy_finished_run(folder)
    return training(folder, SHORT.replace("source: en, target: de", "source: de, target: en").replace(
        PAIRS, "{source: train.de, target: train.en}, {target: train.en, translated_by: run}").replace(
        "source: valid.en, target: valid.de", "source: valid.de, target: valid.en"))


def adaptation(folder: Path) -> Kind:
    copy_finished_run(folder)
    generator = random.Random(3)
    pairs = [generator.choices(WORDS[:5], k=4) for _ in range(200)]
    for side, language in enumerate(("en", "de")):
        (folder / f"memory.{language}").write_text("".join(
            " ".join(word[side] for word in words) + "\n" for words in pairs))
    command = ["adapt", str(folder / "run"), str(folder / "memory.en"), str(folder / "memory.de"), "--output", RESULT,
               "--allow-loss", "100", "--set", "training.max_steps=40", "--set", "training.validate_every=20", "--set",
               "training.learning_rate=0.02", "--set", "training.threads=1"]

    def results(output: Path) -> dict[str, Any]:
        weights = (best_bundle(output) / MODEL).read_bytes()
        return outcome(output / "training") | {"adapted weights": hashlib.sha256(weights).hexdigest()}

    return command, results


def translation(folder: Path) -> Kind:
    run = copy_finished_run(folder)
    lines = (folder / "train.en").read_text()
    (folder / "in").write_text(lines + "\n" + lines.replace("\n", "\r\n"))
    command = ["translate", str(run), str(folder / "in"), "--output", RESULT, "--resume", "--device", "cpu",
               "--threads", "1", "--format", "jsonl"]
    return command, lambda path: bytes_of(path) | {"other files": sorted(
        other.name for other in path.parent.iterdir() if other.name.startswith(path.name) and other != path)}


KINDS = {"training": training, "back-translation": back_translation, "adaptation": adaptation,
         "translation": translation}


# Killing


def start(command: list[str], result: Path, watch: Callable[[str, Callable], Callable]) -> int:
    """Fork a process that runs a command; returns its id. watch: replaces each function of CALLS."""
    child = os.fork()
    if child:
        return child
    try:
        for name, (owner, function) in CALLS.items():
            setattr(owner, function, watch(name, getattr(owner, function)))
        synthetic_text._taken_from_another_run = lambda translation: False
        sources.FIRST_BLOCK_LINES = synthetic_text.BLOCK_LINES = translate_command.BLOCK_LINES = BLOCK_LINES
        with (result.parent / "messages").open("w") as messages:
            sys.stdout = sys.stderr = messages
            code = seq2seq([argument.replace(RESULT, str(result)) for argument in command])
    except BaseException:
        code = 99
    os._exit(code)


def run_whole(command: list[str], result: Path) -> tuple[Counter[str], float]:
    """Run the command to its end; returns how often it calls each function, and its duration."""
    read_end, write_end = os.pipe()

    def watch(name, function):
        return lambda *arguments, **options: (os.write(write_end, f"{name} ".encode()),
                                              function(*arguments, **options))[1]

    began, child = time.monotonic(), start(command, result, watch)
    os.close(write_end)
    with os.fdopen(read_end) as pipe:
        calls = Counter(pipe.read().split())
    finish(child, result)
    return calls, time.monotonic() - began


def finish(child: int, result: Path) -> None:
    if status := os.waitpid(child, 0)[1]:
        sys.exit(f"{(result.parent / 'messages').read_text()}\nexit code {os.waitstatus_to_exitcode(status)}")


def kill(command: list[str], result: Path, calls: Counter[str], seconds: float, draw: random.Random) -> str:
    """Start the command and kill it once. Return where; "" if it ended before."""
    name = draw.choice(["time", *calls])
    entry, before, delay = draw.randint(1, calls[name] or 1), draw.random() < 0.5, draw.uniform(0, seconds)

    def watch(called, function):
        count = 0

        def call(*arguments, **options):
            nonlocal count
            count += called == name
            if count == entry and before:
                os.kill(os.getpid(), signal.SIGKILL)
            returned = function(*arguments, **options)
            if count == entry:
                os.kill(os.getpid(), signal.SIGKILL)
            return returned

        return call

    child = start(command, result, watch)
    if name == "time":
        time.sleep(delay)
        os.kill(child, signal.SIGKILL)
    return name if os.WIFSIGNALED(os.waitpid(child, 0)[1]) else ""


def compare(kind: str, kills: int, seed: int = 1) -> tuple[int, Counter[str]]:
    """Kill `kills` commands; return the number of equal results, and the number of kills by function."""
    draw, equal, killed = random.Random(seed), 0, Counter[str]()
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        command, results = KINDS[kind](folder)
        calls, seconds = run_whole(command, folder / "whole")
        expected = results(folder / "whole")
        while killed.total() < kills:
            result = folder / f"killed{killed.total()}"
            if place := kill(command, result, calls, seconds, draw):
                killed[place] += 1
                finish(start(command, result, lambda name, function: function), result)
                found = differences({key.replace("whole", ""): value for key, value in expected.items()},
                                    {key.replace(result.name, ""): value for key, value in results(result).items()})
                equal += not found
                if found:
                    print(f"killed in {place}: {', '.join(found)} differ", flush=True)
            for path in folder.glob(f"{result.name}*"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
    return equal, killed


if __name__ == "__main__":
    torch.set_num_threads(1)
    equal, killed = compare(sys.argv[1], int(sys.argv[2]), *map(int, sys.argv[3:]))
    times = os.times()
    print(f"killed in {', '.join(f'{name}: {count}' for name, count in killed.items())}; processor time per kill: "
          f"{(times.children_user + times.children_system) / killed.total():.1f} seconds")
    print(f"{equal} of {killed.total()} equal")
    sys.exit(equal < killed.total())
