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
    steps: Annotated[int, typer.Option(metavar="N", min=2, help="Length of each of both trainings.")] = 24,
    kills: Annotated[int, typer.Option(metavar="N", min=1, help="How often the second one is killed.")] = 3,
    directory: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Where both are kept; deleted when they agree.",
        show_default="runs/NAME.verify-resume")] = None,
) -> None:
    """Prove on this machine that a training which is killed ends as one that is not.

    Trains the recipe twice for a few steps, once in peace and once killed again and again (SIGKILL, at last SIGTERM),
    and compares what they leave: weights, all other state, the best model and the log.
    """
    loaded = load_recipe(recipe, settings)
    run = default_run(loaded)
    place = directory or run.with_name(f"{run.name}.verify-resume")
    if place.exists():
        raise UserError(f"{place} exists. Look whether it is needed, then delete it, or choose another --directory.")
    from seq2seq.training import verify_resume as proof

    with console.progress("training twice", 2 * steps, unit="steps") as show:
        shown = 0

        def advance(done: int) -> None:
            nonlocal shown
            if done > shown:
                show(done - shown)
                shown = done

        try:
            found = proof.verify_resume(loaded, place, steps, kills, advance)
        except UserError:
            shutil.rmtree(place, ignore_errors=True)
            raise
    for kill in found.kills:
        typer.echo(f"{kill.signal} after step {kill.step}, gone on after step {kill.checkpoint}")
    if found.differences:
        typer.echo(f"NOT the same: {', '.join(found.differences)}\n"
                   f"Both trainings are in {place}. Other numbers of threads and other devices give other sums; where "
                   "they have not changed, this is a defect of seq2seq.")
        raise typer.Exit(1)
    shutil.rmtree(place)
    typer.echo(f"identical to the bit after {found.steps} steps: weights (sha256 {found.weights[:16]}…), optimizer and "
               "all other state, best model, log")
