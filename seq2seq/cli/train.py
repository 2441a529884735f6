"""`seq2seq train`."""

from __future__ import annotations

import os
import shlex
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.cli.common import (
    default_run,
    load_recipe,
    print_table,
    refuse_without_effect,
    require_run_directory,
    scores_as_text,
)
from seq2seq.errors import CheckpointError, UserError

if TYPE_CHECKING:
    from seq2seq.evaluation.scores import ScoresByTest
    from seq2seq.recipe import Recipe

EXAMPLES = ("seq2seq train recipe.yaml",
            "seq2seq train recipe.yaml --set training.max_steps=500 --set seed=2 --run-dir runs/short",
            "seq2seq train mine   # a directory: its recipes 1_….yaml, 2_….yaml, … one after the other",
            "Run the same command again to resume a training that was stopped.")


def train(
    recipe: options.RecipesToTrain,
    settings: options.Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Directory of the run. If it already contains a run, training resumes.",
        show_default="runs/NAME; of a numbered recipe, runs/ beside it")] = None,
    restart: Annotated[bool, typer.Option(
        "--restart", help="Train from the beginning. An existing run is renamed, not deleted.")] = False,
    device: options.TrainingDevice = None,
    precision: options.TrainingPrecisionOption = None,
    threads: options.TrainingThreads = None,
) -> None:
    """Train the recipe's model, or resume its training, and evaluate it on the recipe's test sets.

    The numbered recipes of a directory, which `seq2seq init` writes for text in one language, are trained in order.
    The run of 1_baseline.yaml is runs/1_baseline in the directory.
    """
    if restart and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)):
        raise UserError("--restart would begin the training anew at each restart by torchrun. Leave it out, and "
                        "rename the old run yourself; or let torchrun restart nothing.")
    load = partial(load_recipe, settings=settings, device=device, precision=precision, threads=threads)
    if recipe.is_dir():
        refuse_without_effect("the runs of a directory's recipes are in the directory.", run_dir=run_dir)
        if restart:
            raise UserError(f"--restart would train all recipes of {recipe} anew. Name the one that is to be trained "
                            "from the beginning, and then the directory again.")
        _train_directory(recipe, load)
        return
    loaded = load(recipe)
    run = require_run_directory(run_dir or default_run(loaded, recipe))
    from seq2seq.storage.locks import HOLDER

    if recipe.resolve() == (run / "recipe.yaml").resolve() and not (run / HOLDER).exists():
        raise UserError(f"{recipe} is in the run directory {run}, where the training stores a recipe.yaml of its own. "
                        f"Name another directory, such as --run-dir {run / 'run'}.")
    from seq2seq.training.run import train as train_run

    _show(train_run(loaded, run, restart), loaded, run)


def _train_directory(directory: Path, load: Callable[..., Recipe]) -> None:
    """Train the numbered recipes of a directory in order. load: function of a recipe's path that loads it."""
    from seq2seq.training.planned_runs import plan_directory
    from seq2seq.training.run import train as train_run

    planned = plan_directory(directory, lambda path, runs: load(path, planned=runs))
    for number, one in enumerate(planned, 1):
        console.print_message(f"recipe {number} of {len(planned)}: {one.file}")
        recipe = load(one.file)                                                 # with the models of the runs before
        try:
            scores = train_run(recipe, one.run)
        except CheckpointError as error:
            raise CheckpointError(f"{error} To train this recipe alone from the beginning: seq2seq train "
                                  f"{shlex.quote(str(one.file))} --restart") from error
        _show(scores, recipe, one.run)
    tested = [shlex.quote(str(one.run)) for one in planned if one.recipe.data.test]
    if len(tested) > 1:
        console.print_message(f"compare them with: seq2seq compare {tested[0]} {tested[-1]}")


def _show(scores: ScoresByTest, recipe: Recipe, run: Path) -> None:
    """Print the scores of a run, and how to use its model."""
    if console.is_silent():                                                     # only the main rank prints the scores
        return
    print_table(scores_as_text(scores), nl=bool(scores))
    name = shlex.quote(str(run))
    use = (f"translate with: seq2seq translate {name} FILE" if recipe.task.has_source else
           f"generate text with: seq2seq generate {name} --samples 5")
    console.print_message(f"the model is in {run}; {use}")
