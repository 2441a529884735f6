"""`seq2seq train`."""

from __future__ import annotations

import os
import shlex
from pathlib import Path
from typing import Annotated

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.cli.common import default_run, load_recipe, print_table, require_run_directory, scores_as_text
from seq2seq.errors import UserError

EXAMPLES = ("seq2seq train recipe.yaml",
            "seq2seq train recipe.yaml --set training.max_steps=500 --set seed=2 --run-dir runs/short",
            "Run the same command again to resume a training that was stopped.")


def train(
    recipe: options.RecipeFile,
    settings: options.Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Directory of the run. If it already contains a run, training resumes.",
        show_default="runs/NAME")] = None,
    restart: Annotated[bool, typer.Option(
        "--restart", help="Train from the beginning. An existing run is renamed, not deleted.")] = False,
    device: options.TrainingDevice = None,
    precision: options.TrainingPrecisionOption = None,
    threads: options.TrainingThreads = None,
) -> None:
    """Train the recipe's model, or resume its training, and evaluate it on the recipe's test sets."""
    if restart and int(os.environ.get("TORCHELASTIC_MAX_RESTARTS", 0)):
        raise UserError("--restart would begin the training anew at each restart by torchrun. Leave it out, and "
                        "rename the old run yourself; or let torchrun restart nothing.")
    loaded = load_recipe(recipe, settings, device=device, precision=precision, threads=threads)
    run = require_run_directory(run_dir or default_run(loaded))
    from seq2seq.storage.locks import HOLDER

    if recipe.resolve() == (run / "recipe.yaml").resolve() and not (run / HOLDER).exists():
        raise UserError(f"{recipe} is in the run directory {run}, where the training stores a recipe.yaml of its own. "
                        f"Name another directory, such as --run-dir {run / 'run'}.")
    from seq2seq.training.run import train as train_run

    scores = train_run(loaded, run, restart)
    if console.is_silent():                                                     # only the main rank prints the scores
        return
    print_table(scores_as_text(scores), nl=bool(scores))
    name = shlex.quote(str(run))
    use = (f"translate with: seq2seq translate {name} FILE" if loaded.task.has_source else
           f"generate text with: seq2seq generate {name} --samples 5")
    console.print_message(f"the model is in {run}; {use}")
