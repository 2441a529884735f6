"""The command verify-resume: check, for the user's recipe and on their machine, that a training that is killed and
resumed ends with the same weights as an uninterrupted training."""

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
from seq2seq.files.json_reader import parse_json
from seq2seq.recipe import Recipe
from seq2seq.signals import SIGKILL, stopping_by_signal
from seq2seq.storage.atomic import replace_file
from seq2seq.storage.checkpoints import BEST, MODEL, RECIPE, STATE, list_checkpoints, step_of
from seq2seq.storage.directories import METADATA
from seq2seq.storage.run_directory import LOG_FILE
from seq2seq.training.teachers import TEACHERS

TIME_DEPENDENT_KEYS = ("seconds", "tokens_per_second", "candidate_step", "good_step")
"""Keys of log records and train states whose values depend on the clock, or on the steps at which checkpoints were
saved, and therefore differ between the interrupted and the uninterrupted training."""
VALIDATIONS, VALID_SENTENCES = 3, 20
"""Approximate number of validations in each training, and number of sentences translated in each validation."""
MAX_KILL_DELAY_SECONDS = 0.3
"""Maximum delay between the log record of a step and the kill. The delay is drawn at random."""
POLL_SECONDS = 0.02
"""Interval at which the log is read."""


@dataclass(frozen=True)
class Kill:
    """Kill of a training.

    signal: name of the signal. step: last step in the log. checkpoint: step of the newest checkpoint, from which the
    training resumes; 0: there is none, and the training starts from the beginning.
    """

    signal: str
    step: int
    checkpoint: int


@dataclass(frozen=True)
class Verification:
    """Comparison of the interrupted and the uninterrupted training.

    steps: number of steps of each training. kills: kills of the interrupted training. differences: names of the results
    that differ; empty if all are bit-identical. weights: sha256 of the uninterrupted training's final weights.
    """

    steps: int
    kills: list[Kill]
    differences: list[str]
    weights: str


def shorten(recipe: Recipe, steps: int) -> Recipe:
    """Return the recipe with `steps` steps, a log record for each of them, a few short validations and no test sets."""
    resolved = recipe.resolve()
    training = resolved.training.model_copy(update={
        "max_steps": steps, "validate_every": max(1, steps // VALIDATIONS), "valid_sentences": VALID_SENTENCES,
        "log_every": 1, "early_stopping": 0, "checkpoint_minutes": 0.01})
    return resolved.model_copy(update={"training": training, "data": resolved.data.model_copy(update={"test": {}}),
                                       "expected": {}})


def verify_resume(recipe: Recipe, directory: Path, steps: int, kills: int,
                  advance: Callable[[int], None]) -> Verification:
    """Train the same recipe twice in separate processes, once without and once with interruptions, and compare both.

    The last kill is a SIGTERM, the others are SIGKILLs.

    Args:
        directory: new directory for both runs.
        steps: number of steps of each training.
        kills: number of times that the interrupted training is killed and resumed. At most `steps` - 1 kills are done.
        advance: called repeatedly with the number of steps that both trainings together have done so far.
    Raises:
        UserError: the directory cannot be created, or the training fails; the message contains its error.
    """
    kills = min(kills, steps - 1)
    try:
        directory.mkdir(parents=True)
    except OSError as error:
        raise UserError(f"{directory} cannot be created: {error.strerror}. Name another --directory.") from error
    replace_file(directory / RECIPE, shorten(recipe, steps).to_yaml().encode())
    uninterrupted, interrupted = directory / "whole", directory / "parted"
    _watch(directory, uninterrupted, steps, advance, 0)
    interrupted.mkdir()
    # The second training gets a copy of the prepared data. So only steps are interrupted, not the preparation, and the
    # preparation, which takes long for a large corpus or with teachers, is not repeated.
    for name in ("tokenizer", "prepared", "synthetic", TEACHERS):
        if (uninterrupted / name).exists():
            shutil.copytree(uninterrupted / name, interrupted / name)
    rng = random.Random(recipe.seed)
    done = []
    for number, step in enumerate(sorted(rng.sample(range(1, steps), kills)), start=1):
        kind = signal.SIGTERM if number == kills else SIGKILL
        if _watch(directory, interrupted, step, advance, steps, (kind, rng.uniform(0, MAX_KILL_DELAY_SECONDS))):
            newest = max(map(step_of, list_checkpoints(interrupted)), default=0)
            done.append(Kill(kind.name, logged_steps(interrupted), newest))
    _watch(directory, interrupted, steps, advance, steps)
    last = list_checkpoints(uninterrupted)[-1]
    weights = hashlib.sha256((last / MODEL).read_bytes()).hexdigest()
    different = differences(collect_results(uninterrupted), collect_results(interrupted))
    return Verification(steps, done, different, weights)


def _watch(directory: Path, run: Path, until: int, advance: Callable[[int], None], before: int,
           kill: tuple[signal.Signals, float] | None = None) -> bool:
    """Start a training, and wait until it ends or kill it after some steps.

    Args:
        until: step after which the training is killed, but not before it has started its own log.
        before: number of steps of earlier trainings, for the progress bar.
        kill: signal, and delay in seconds before it is sent; None: let the training end.
    Returns:
        True if the training was killed; False if it ended by itself, which can happen before the kill.
    Raises:
        Stopped: SIGINT or SIGTERM arrived. The training has been ended, too.
        UserError: the training failed.
    """
    command = [sys.executable, "-m", "seq2seq", "train", str(directory / RECIPE), "--run-dir", str(run)]
    old_log = _log_file_number(run)
    message = f"stopped; delete {directory} before you run the same command again"
    with (directory / f"{run.name}.log").open("a+b") as errors, stopping_by_signal(message=message) as request:
        request.waiting = True                                  # a signal raises Stopped at once, also during `wait`
        process = subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=errors)
        try:
            while process.poll() is None:
                advance(before + logged_steps(run))
                # Until the training has replaced the log of the killed training, the log says nothing about it.
                if kill and _log_file_number(run) != old_log and logged_steps(run) >= until:
                    time.sleep(kill[1])
                    process.send_signal(kill[0])
                    if process.wait():
                        return True
                    break
                time.sleep(POLL_SECONDS)
        finally:
            if process.poll() is None:
                process.kill()
                process.wait()
        if process.returncode:
            errors.seek(0)
            raise UserError(f"the training ended with exit code {process.returncode}:\n"
                            f"{errors.read().decode(errors='replace').rstrip()}")
    return False


def _log_file_number(run: Path) -> int | None:
    """Return the inode number of a run's log; None if there is no log. A training that starts replaces the file."""
    try:
        return (run / LOG_FILE).stat().st_ino
    except FileNotFoundError:
        return None


def logged_steps(run: Path) -> int:
    """Return the last step in a run's log; 0 if it is empty."""
    records = _records(run)
    return records[-1]["step"] if records else 0


def collect_results(run: Path) -> dict[str, Any]:
    """Return the results of a training that are compared, by name.

    The results are the checksums of the best weights and of the last checkpoint's files, the last train state, and all
    log records. TIME_DEPENDENT_KEYS are omitted from the train state and the log records.
    """
    # Only the last checkpoint is compared: the steps of earlier checkpoints depend on the clock and on signals.
    files = [run / BEST / MODEL, *(path / name for path in list_checkpoints(run)[-1:] for name in (MODEL, STATE))]
    results: dict[str, Any] = {str(path.relative_to(run)): hashlib.sha256(path.read_bytes()).hexdigest()
                               for path in files}
    for path in list_checkpoints(run)[-1:]:
        progress = parse_json((path / METADATA).read_bytes())["info"]["progress"]
        results["the train state"] = _without_clock({**progress, "window": _without_clock(progress["window"])})
    for record in map(_without_clock, _records(run)):
        results.setdefault(f"the log of step {record['step']}", []).append(record)
    return results


def _without_clock(values: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if name not in TIME_DEPENDENT_KEYS}


def differences(first: dict[str, Any], second: dict[str, Any]) -> list[str]:
    """Return the names of the results that differ or exist in one training only, in their order."""
    return [name for name in {**first, **second} if first.get(name) != second.get(name)]


def _records(run: Path) -> list[dict[str, Any]]:
    """Return the records of a log. An incomplete last line, which the training is still writing, is omitted."""
    try:
        text = (run / LOG_FILE).read_bytes()
    except FileNotFoundError:
        return []
    return [parse_json(line) for line in text[: text.rfind(b"\n") + 1].splitlines()]
