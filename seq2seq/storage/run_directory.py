"""Run directory: the recipe stored in it, and the log."""

from __future__ import annotations

import json
import math
import os
import shutil
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

from seq2seq import console
from seq2seq.errors import CheckpointError, RecipeError
from seq2seq.files import parse_json, real_path
from seq2seq.recipe import Difference, Recipe, differences
from seq2seq.storage.atomic import make_directories, open_without_links, replace_file
from seq2seq.storage.checkpoints import RECIPE, checkpoint_by_step, list_checkpoints, stored_recipe
from seq2seq.storage.directories import DamagedError, read_file

LOG_FILE = "metrics.jsonl"
MAX_LOG_BYTES = 1_000_000_000
"""Maximum size of a log that is read: several million lines."""
TENSORBOARD = "tensorboard"
MAX_STEPS = "training.max_steps"
REMEDY = ("Undo the change, train in another directory with --run-dir, or train from the beginning with seq2seq train "
          "--restart, which renames the old run.")
"""Advice for a run that was trained with another recipe."""


def check_recipe_of_run(recipe: Recipe, run: Path) -> None:
    """Check that a training with `recipe` can start or resume in the directory `run`. Store it in a run without
    checkpoints; in a run with checkpoints, once the text and the models that it names are those of the run.

    Before the first checkpoint, every key of the recipe may differ from the stored recipe. After the first checkpoint,
    only keys for which `may_change_on_resume` is True may differ, and the run must not have more steps than the recipe.
    All differences are printed.
    """
    make_directories(run)
    changes = compare_with_stored_recipe(recipe, run)
    if not all(change.may_change_on_resume for change in changes or ()):
        # The run has no checkpoints: otherwise, the comparison would have raised RecipeError. The tokenizer is deleted
        # and trained again, because the changes may affect it.
        shutil.rmtree(run / "tokenizer", ignore_errors=True)
    for change in changes or ():
        console.print_message(f"changed since this run started: {change}")
    if not list_checkpoints(run):
        store_recipe(recipe, run)


def store_recipe(recipe: Recipe, run: Path) -> None:
    """Write the recipe of a run."""
    replace_file(run / RECIPE, recipe.for_directory(run).to_yaml().encode())


def compare_with_stored_recipe(recipe: Recipe, run: Path, remedy: str = REMEDY) -> list[Difference] | None:
    """Return the differences of a recipe from the recipe that is stored in the run; None if none is stored yet.

    remedy: last sentence of the error message.
    """
    path, trained = run / RECIPE, bool(list_checkpoints(run))
    if not path.exists() and not trained:
        return None
    try:
        stored = stored_recipe(run)
    except (DamagedError, RecipeError) as error:
        if not trained:
            return None
        raise CheckpointError(f"{error}\n{path} must contain the recipe that the checkpoints of this run were trained "
                              "with. Restore it from a backup, or train from the beginning with --restart.") from error
    changes = differences(stored, recipe)
    done = max(checkpoint_by_step(run), default=0)
    if recipe.training.max_steps < done:                                        # what a run has done stays
        changes = [replace(change, new=f"{change.new}, but it has {done} steps, and ends here with {done}",
                           may_change_on_resume=False) if change.key == MAX_STEPS else change for change in changes]
    refused = [change for change in changes if not change.may_change_on_resume]
    if refused and trained:
        listed = "\n".join(f"  {change}" for change in refused)
        raise RecipeError(f"{run} was trained with another recipe:\n{listed}\n{remedy}")
    return changes


def rename_old_run(recipe: Recipe, run: Path) -> Path:
    """Rename a run to the first free name of <run>.1, <run>.2, …, and make an empty directory with the old name.

    Returns:
        The new path of the run.
    """
    run = real_path(run)
    if run == Path.cwd():
        raise RecipeError("the run is the current working directory, which cannot be renamed. Change to another "
                          "directory.")
    inside = [path for corpus in recipe.data.corpora() for path in corpus.resolve(recipe.data_directory).paths
              if real_path(path).is_relative_to(run)]
    if inside:
        raise RecipeError(f"--restart would rename the run, and the corpus {inside[0]} is in it. Move the corpus out "
                          f"of {run}, or train in another directory with --run-dir.")
    models = [recipe.tokenizer_model,                                           # or training.start_from
              *(recipe.directory / model for corpus in recipe.data.train for model in corpus.translated_by or ())]
    if used := [path for path in models if path and real_path(path).is_relative_to(run)]:
        raise RecipeError(f"--restart would rename the run, and the recipe uses the model {used[0]}, which is in it. "
                          "Train in another directory with --run-dir.")
    number = 1
    while (renamed := run.with_name(f"{run.name}.{number}")).exists():
        number += 1
    run.rename(renamed)
    run.mkdir()                                                                 # keeps symbolic links to the run valid
    return renamed


class Log:
    """Log of a training: metrics.jsonl, with one JSON object per line, and the same values for TensorBoard.

    A resumed run removes the records of the steps after its checkpoint, so that no step is logged twice.

    records: number of records in metrics.jsonl.
    """

    def __init__(self, run: Path, step: int, records: int) -> None:
        """Open the log for appending, and keep only its first `records` records, up to `step`."""
        self.path = run / LOG_FILE
        kept = self._keep(step, records)
        self.records = len(kept)
        self._file = open(self.path, "a", encoding="utf-8", opener=open_without_links)  # noqa: SIM115, see `close`
        # TensorBoard reads all event files in a directory. One of them may be truncated if a process was killed. So all
        # old files are replaced by one new file, which contains the whole log.
        for old in (run / TENSORBOARD).glob("events.out.tfevents.*"):
            old.unlink()
        # Imported here because the import takes a second, and only training needs SummaryWriter.
        from torch.utils.tensorboard.writer import SummaryWriter

        self._began = time.time() - max((record.get("seconds", 0.0) for record in kept), default=0.0)
        self._seconds = 0.0
        self._board = SummaryWriter(str(run / TENSORBOARD), purge_step=0)       # 0: viewers discard all old points
        for record in kept:
            self._add_to_tensorboard(**record)

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None:
        """Write a record. kind: training, validation or average; `<kind> of <corpus>` for one of several corpora."""
        self._file.write(json.dumps({"kind": kind, "step": step, **values}) + "\n")
        self._file.flush()
        self.records += 1
        self._add_to_tensorboard(kind, step, **values)

    def _add_to_tensorboard(self, kind: str, step: int, **values: Any) -> None:
        """Write values to TensorBoard. The time between stopping and resuming is left out of their wall time."""
        self._seconds = values.get("seconds", self._seconds)
        for name, value in values.items():
            if isinstance(value, (int, float)):
                self._board.add_scalar(f"{kind}/{name}", value, step, walltime=self._began + self._seconds)

    def sync(self) -> None:
        """Sync the log to disk. Call this before saving a checkpoint, so that the log covers all steps up to it.

        Another thread may call this. It can take seconds while the disk is busy.
        """
        os.fsync(self._file.fileno())

    def close(self) -> None:
        self.sync()
        self._file.close()
        self._board.close()

    def _keep(self, step: int, records: int) -> list[dict[str, Any]]:
        """Keep only the first `records` records up to `step` in metrics.jsonl, and return these records."""
        kept = log_records(self.path, step)[:records] if self.path.exists() else []
        if len(kept) < records:
            console.warn(f"{self.path} is damaged: {records - len(kept):,} of its {records:,} records up to step "
                         f"{step:,} are missing. The training continues, because it does not use the log. The learning "
                         "curves lack these points.")
        replace_file(self.path, b"".join(line for line, _ in kept))
        return [record for _, record in kept]


def log_records(path: Path, last: float = math.inf) -> list[tuple[bytes, dict[str, Any]]]:
    """Return the records of a log up to step `last`, each as a tuple (line, parsed record)."""
    records = []
    for line in read_file(path, MAX_LOG_BYTES).split(b"\n")[:-1]:
        try:
            record = parse_json(line)
            if record["step"] <= last:
                records.append((line + b"\n", record))
        except (ValueError, KeyError, TypeError):
            continue                                                            # damaged line
    return records


class NoLog(Log):
    """Log that writes nothing, for ranks other than the main rank."""

    def __init__(self) -> None:
        self.records = 0

    def write(self, kind: str, step: int, values: dict[str, Any]) -> None: ...

    def sync(self) -> None: ...

    def close(self) -> None: ...
