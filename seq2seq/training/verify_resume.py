"""verify-resume: shows on the user's recipe and machine that a killed and resumed training ends like an undisturbed
one."""

from __future__ import annotations

import hashlib
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seq2seq.errors import UserError
from seq2seq.json_reader import parse_json
from seq2seq.recipe import Recipe
from seq2seq.storage.atomic import replace_file
from seq2seq.storage.checkpoints import BEST, MODEL, RECIPE, STATE, list_checkpoints, step_of
from seq2seq.storage.directories import METADATA
from seq2seq.storage.run_directory import LOG_FILE

TIME_DEPENDENT_KEYS = ("seconds", "tokens_per_second", "candidate_step", "good_step")
"""Values that depend on time or on when checkpoints were saved, and so differ between trainings."""
VALIDATIONS, VALID_SENTENCES = 3, 20
LONGEST_DELAY = 0.3
"""Longest delay between a step's log record and the kill, in seconds."""
LOOK_EVERY = 0.02
"""Interval for polling the log, in seconds."""


@dataclass(frozen=True)
class Kill:
    """Kill of a training. signal: its name. step: last step in the log. checkpoint: step it resumed from; 0: the
    start."""

    signal: str
    step: int
    checkpoint: int


@dataclass(frozen=True)
class Verification:
    """Comparison of two trainings of the same recipe. differences: empty if they are bit-identical. weights: sha256 of
    the undisturbed training's final weights."""

    steps: int
    kills: list[Kill]
    differences: list[str]
    weights: str


def shorten(recipe: Recipe, steps: int) -> Recipe:
    """Return the recipe with `steps` steps, each of them logged, a few short validations and no test."""
    whole = recipe.resolve()
    training = whole.training.model_copy(update={
        "max_steps": steps, "validate_every": max(1, steps // VALIDATIONS), "valid_sentences": VALID_SENTENCES,
        "log_every": 1, "early_stopping": 0, "checkpoint_minutes": 0.01})
    return whole.model_copy(update={"training": training, "data": whole.data.model_copy(update={"test": {}}),
                                    "expected": {}})


def verify_resume(recipe: Recipe, place: Path, steps: int, kills: int, advance: Callable[[int], None]) -> Verification:
    """Train twice for so many steps, in processes of their own: once in peace, and once killed so many times and
    started again. All kills are SIGKILL but the last, SIGTERM.

    Args:
        place: a directory for both, which must not exist.
        advance: called with the number of steps that are done.
    Raises:
        UserError: `place` cannot be made; or the recipe cannot be trained, and the message is the training's.
    """
    kills = min(kills, steps - 1)
    try:
        place.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{place} cannot be made: {error.strerror}. Name another --directory.") from error
    replace_file(place / RECIPE, shorten(recipe, steps).to_yaml().encode())
    whole, parted = place / "whole", place / "parted"
    _watch(place, whole, steps, advance, 0)
    parted.mkdir()
    # A large corpus takes long to prepare; that this survives kills too is tested elsewhere.
    for name in ("tokenizer", "prepared", "synthetic"):
        if (whole / name).exists():
            shutil.copytree(whole / name, parted / name)
    rng = random.Random(recipe.seed)
    done = []
    for number, step in enumerate(sorted(rng.sample(range(1, steps), kills)), start=1):
        chosen = signal.SIGTERM if number == kills else signal.SIGKILL
        if _watch(place, parted, step, advance, steps, (chosen, rng.uniform(0, LONGEST_DELAY))):
            newest = max(map(step_of, list_checkpoints(parted)), default=0)
            done.append(Kill(chosen.name, logged_steps(parted), newest))
    _watch(place, parted, steps, advance, steps)
    last = list_checkpoints(whole)[-1]
    weights = hashlib.sha256((last / MODEL).read_bytes()).hexdigest()
    return Verification(steps, done, differences(collect_results(whole), collect_results(parted)), weights)


def _watch(place: Path, run: Path, until: int, advance: Callable[[int], None], before: int,
           kill: tuple[signal.Signals, float] | None = None) -> bool:
    """Train until the log has so many steps, then kill with a delay; without `kill`, train to the end. Whether the
    training was killed: it may have ended before."""
    command = [sys.executable, "-m", "seq2seq", "train", str(place / RECIPE), "--run-dir", str(run)]
    with (place / f"{run.name}.log").open("a+b") as errors:
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            while process.poll() is None:
                advance(before + logged_steps(run))
                if kill and logged_steps(run) >= until:
                    time.sleep(kill[1])
                    process.send_signal(kill[0])
                    if process.wait():
                        return True
                    break
                time.sleep(LOOK_EVERY)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode:
            errors.seek(0)
            raise UserError(f"the training ended with exit code {process.returncode}:\n"
                            f"{errors.read().decode(errors='replace').rstrip()}")
    return False


def logged_steps(run: Path) -> int:
    """The last step in a run's log."""
    records = _records(run)
    return records[-1]["step"] if records else 0


def collect_results(run: Path) -> dict[str, Any]:
    """Return the results of a training to compare, by name: checksums of weights and state, and the log without
    times."""
    # Only the last checkpoint: the steps of earlier ones depend on the clock and on signals.
    files = [run / BEST / MODEL, *(path / name for path in list_checkpoints(run)[-1:] for name in (MODEL, STATE))]
    found: dict[str, Any] = {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
                             for path in files}
    for path in list_checkpoints(run)[-1:]:
        progress = parse_json((path / METADATA).read_bytes())["info"]["progress"]
        found["counters"] = _without_clock({**progress, "window": _without_clock(progress["window"])})
    for record in map(_without_clock, _records(run)):
        found.setdefault(f"the log of step {record['step']}", []).append(record)
    return found


def _without_clock(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in TIME_DEPENDENT_KEYS}


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Return the names of results that differ, or that only one training has, in order."""
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def _records(run: Path) -> list[dict[str, Any]]:
    """The whole lines of a log, which may be in the middle of a write."""
    try:
        text = (run / LOG_FILE).read_bytes()
    except FileNotFoundError:
        return []
    return [parse_json(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
