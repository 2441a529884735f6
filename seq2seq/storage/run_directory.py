"""Run directory: admission of a recipe, and the log."""

from __future__ import annotations

import hashlib
import json
import math
import os
import shutil
import time
import zlib
from pathlib import Path
from typing import Any

from seq2seq import console
from seq2seq.errors import RecipeError
from seq2seq.json_reader import parse_json
from seq2seq.recipe import Difference, Recipe, differences, load_recipe
from seq2seq.storage.atomic import replace_file
from seq2seq.storage.checkpoints import RECIPE, list_checkpoints, newest_checkpoint
from seq2seq.storage.checksums import sealed_text, unsealed_text
from seq2seq.storage.directories import read_file

LOG_FILE = "metrics.jsonl"
TENSORBOARD = "tensorboard"


def check_and_store_recipe(recipe: Recipe, run: Path) -> Recipe:
    """Check that `recipe` may start or resume in the directory `run`, save the resolved recipe there, and return the
    recipe to train with, that of `compare_with_stored_recipe`.

    Changed keys that only prolong or report are taken over, with a message.

    Raises:
        RecipeError: as `compare_with_stored_recipe`.
    """
    run.mkdir(parents=True, exist_ok=True)
    path = run / RECIPE
    recipe, changes = compare_with_stored_recipe(recipe, run)
    if changes is None and path.exists():
        if newest_checkpoint(run) is None:
            shutil.rmtree(run / "tokenizer", ignore_errors=True)
        console.warn(f"{path} is damaged: it is not what was saved. It is written again.")
    elif changes is not None:
        if not all(change.prolongs for change in changes):
            # The run has no checkpoint yet, so the tokenizer of the old recipe is deleted and trained again.
            shutil.rmtree(run / "tokenizer", ignore_errors=True)
        for change in changes:
            console.say(f"changed since this run began: {change}")
        if not changes:
            return recipe
    replace_file(path, sealed_text(recipe.resolve().to_yaml().encode()))
    return recipe


def compare_with_stored_recipe(recipe: Recipe, run: Path) -> tuple[Recipe, list[Difference] | None]:
    """Return the recipe to resume the run with, and its differences from the run's stored recipe. Writes nothing.

    If the recipe says `vocab_size: auto`, a run with checkpoints keeps the size in its stored recipe, which may come
    from a version with another default.

    Returns:
        None instead of differences if the run has no recipe, or a damaged one.
    Raises:
        RecipeError: the run was trained with another recipe; the message shows every difference.
    """
    path = run / RECIPE
    if not path.exists():
        return recipe, None
    if unsealed_text(read_file(path)) is None:
        _require_recipe_of_checkpoints(recipe, path, run)
        return recipe, None
    stored = load_recipe(path, check_files=False)
    trained = bool(list_checkpoints(run))
    if trained and recipe.tokenizer.vocab_size == "auto":
        kept = recipe.tokenizer.model_copy(update={"vocab_size": stored.tokenizer.vocab_size})
        recipe = recipe.model_copy(update={"tokenizer": kept})
    changes = differences(stored, recipe)
    refused = [change for change in changes if not change.prolongs]
    if refused and trained:
        shown = "\n".join(f"  {change}" for change in refused)
        raise RecipeError(f"{run} was trained with another recipe:\n{shown}\n"
                          "Undo the change, train in another directory with --run-dir, or start anew with "
                          "--restart, which moves the old run aside.")
    return recipe, changes


def recipe_checksum(recipe: Recipe) -> str:
    """Return the sha256 of a resolved recipe, which checkpoints store."""
    return hashlib.sha256(recipe.resolve().to_yaml().encode()).hexdigest()


def _require_recipe_of_checkpoints(recipe: Recipe, path: Path, run: Path) -> None:
    """Raise RecipeError if the run has checkpoints that were trained with another recipe."""
    checkpoint = newest_checkpoint(run)
    if checkpoint is not None and checkpoint.info.get("recipe") != recipe_checksum(recipe):
        raise RecipeError(f"{path} is damaged: it is not what was saved, and the recipe given here is not the one that "
                          "this run was last trained with. Start with that one, unchanged, or restore the file from a "
                          "copy, or start anew with --restart.")


def move_aside(recipe: Recipe, run: Path) -> Path:
    """Rename a run to the first free name of the form <run>.1, <run>.2, …; returns the new path.

    Raises:
        RecipeError: the recipe's text lies inside the run and would go with it, or the run is the working directory.
    """
    run = run.absolute().resolve()
    if run == Path.cwd():
        raise RecipeError("the run's directory is the one you are in, which cannot be moved aside; go elsewhere.")
    inside = [path for corpus in recipe.data.corpora() for path in corpus.resolve(recipe.data_directory).paths
              if path.resolve().is_relative_to(run)]
    if inside:
        raise RecipeError(f"--restart would move {inside[0]} away with the run. Move the text out of {run}, or "
                          "train in another directory with --run-dir.")
    number = 1
    while (place := run.with_name(f"{run.name}.{number}")).exists():
        number += 1
    run.rename(place)
    run.mkdir()                                                                 # a link may lead here
    return place


class Log:
    """metrics.jsonl, one JSON object a line, and the same numbers for TensorBoard.

    A resumed run drops the records after its checkpoint, so that no step is logged twice. records: number of records.
    crc32: zlib.crc32 of their bytes.
    """

    def __init__(self, run: Path, step: int, records: int | None, crc32: int | None = None) -> None:
        """Open the log for appending, and drop the records after `step` or beyond the first `records`.

        records: number of records to keep; None: all up to `step`. crc32: of the kept records' bytes; None: unknown.
        """
        self.path = run / LOG_FILE
        self.crc32 = 0
        kept = self._keep(step, records, crc32)
        self.records = len(kept)
        self._file = open(self.path, "a", encoding="utf-8")                     # noqa: SIM115, closed by `close`
        # TensorBoard orders files by time, and the file of a killed process may be truncated. So one new file is
        # written from the whole log, with each step exactly once.
        for old in (run / TENSORBOARD).glob("events.out.tfevents.*"):
            old.unlink()
        # TensorBoard's writer takes a second to import; only training needs it.
        from torch.utils.tensorboard.writer import SummaryWriter

        self._began = time.time() - max((record.get("seconds", 0.0) for record in kept), default=0.0)
        self._seconds = 0.0
        self._board = SummaryWriter(str(run / TENSORBOARD), purge_step=0)       # viewers drop what they have read
        for record in kept:
            self._show(**record)

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """kind: what is logged, such as training or validation."""
        line = json.dumps({"kind": kind, "step": step, **values}) + "\n"
        self._file.write(line)
        self._file.flush()
        self.crc32 = zlib.crc32(line.encode(), self.crc32)
        self.records += 1
        self._show(kind, step, **values)

    def _show(self, kind: str, step: int, **values: Any) -> None:
        """Write to TensorBoard, with the seconds of training as the time."""
        self._seconds = values.get("seconds", self._seconds)
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self._board.add_scalar(f"{kind}/{name}", value, step, walltime=self._began + self._seconds)

    def flush(self) -> None:
        """Sync the log to disk. Called before a checkpoint is saved, which must not be newer than its log."""
        self._file.flush()
        os.fsync(self._file.fileno())
        self._board.flush()

    def close(self) -> None:
        self.flush()
        self._file.close()
        self._board.close()

    def _keep(self, step: int, records: int | None, crc32: int | None) -> list[dict[str, Any]]:
        """Truncate the file after the first `records` up to `step`, and return these records."""
        kept = log_records(self.path, step)[:records] if self.path.exists() else []
        contents = b"".join(line for line, _ in kept)
        self.crc32 = zlib.crc32(contents)
        if crc32 not in (None, self.crc32):
            console.warn(f"{self.path} is damaged: its records up to step {step:,} are not what was logged. The "
                         "training goes on, it reads nothing from them; the curves may lack a point or have a wrong "
                         "one.")
        replace_file(self.path, contents)
        return [record for _, record in kept]


def log_records(path: Path, last: float = math.inf) -> list[tuple[bytes, dict[str, Any]]]:
    """Return the records of a log up to step `last`, each with its line."""
    found = []
    for line in read_file(path).split(b"\n")[:-1]:
        try:
            record = parse_json(line)
            if record["step"] <= last:
                found.append((line + b"\n", record))
        except (ValueError, KeyError, TypeError):
            continue                                                            # truncated when a process was killed
    return found


class NoLog(Log):
    """Log that writes nothing, for ranks other than the main rank."""

    def __init__(self) -> None:
        self.records = self.crc32 = 0

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None: ...

    def flush(self) -> None: ...

    def close(self) -> None: ...
