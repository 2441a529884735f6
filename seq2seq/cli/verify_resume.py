"""`seq2seq verify-resume`."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Annotated

import typer

from seq2seq import console
from seq2seq.cli.common import default_run, load_recipe
from seq2seq.cli.options import Overrides, RecipeFile, examples
from seq2seq.errors import UserError

EXAMPLES = examples("seq2seq verify-resume recipe.yaml",
                    "seq2seq verify-resume recipe.yaml --steps 60 --kills 5 --set training.batch_tokens=1024")


def verify_resume(
    recipe: RecipeFile,
    settings: Overrides = None,
    steps: Annotated[int, typer.Option(metavar="N", min=2, help="Number of steps of each of the two trainings.")] = 24,
    kills: Annotated[int, typer.Option(
        metavar="N", min=1, help="Number of times that the second training is killed and resumed.")] = 3,
    directory: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Directory for both trainings. If their results are identical, it is deleted.",
        show_default="runs/NAME.verify-resume")] = None,
) -> None:
    """Check on this machine that training gives bit-identical results if it is killed and resumed.

    The command trains the recipe twice for a few steps. The first training is not interrupted. The second is killed
    several times and resumed after each kill. The last kill is by SIGTERM, all others by SIGKILL. Then the command
    compares both trainings: the weights, the rest of the train state, the best model and the log.
    """
    loaded = load_recipe(recipe, settings)
    run = default_run(loaded)
    directory = directory or run.with_name(f"{run.name}.verify-resume")
    if directory.exists():
        raise UserError(f"{directory} exists. Delete it if you no longer need it, or choose another --directory.")
    from seq2seq.check import verify_resume as verification

    with console.progress("training twice", 2 * steps, unit="steps") as show:
        shown = 0

        def advance(done: int) -> None:
            nonlocal shown
            if done > shown:
                show(done - shown)
                shown = done

        try:
            result = verification.verify_resume(loaded, directory, steps, kills, advance)
        except UserError as error:
            if not isinstance(error.__cause__, FileExistsError):                # another process made the directory
                shutil.rmtree(directory, ignore_errors=True)
            raise
    for kill in result.kills:
        typer.echo(f"{kill.signal} after step {kill.step}, resumed from step {kill.checkpoint}")
    if result.differences:
        typer.echo(f"NOT identical: {', '.join(result.differences)}\n"
                   f"Both trainings are in {directory}. Results may differ if the device or the number of threads "
                   "changed; otherwise this is a bug in seq2seq.")
        raise typer.Exit(1)
    shutil.rmtree(directory)
    typer.echo(f"bit-identical after {result.steps} steps: weights (sha256 {result.weights[:16]}…), optimizer and all "
               "other state, best model, log")
