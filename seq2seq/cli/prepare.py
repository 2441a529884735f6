"""`seq2seq prepare`."""

from __future__ import annotations

import shlex
from pathlib import Path
from typing import Annotated

import typer

import seq2seq.cli.options as options
from seq2seq import console
from seq2seq.cli.common import default_run, load_recipe, require_run_directory

EXAMPLES = ("seq2seq prepare recipe.yaml",
            "seq2seq prepare recipe.yaml --run-dir /shared/runs/base --threads 32",
            "Run the same command again to resume a preparation that was stopped.")


def prepare(
    recipe: options.RecipeFile,
    settings: options.Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Directory of the run, the same as of the training.",
        show_default="runs/NAME; of a numbered recipe, runs/ beside it")] = None,
    threads: Annotated[int | None, typer.Option(
        "--threads", metavar="N", min=1, max=1024, help="Number of processes. Short for --set training.threads=N.",
        show_default="the recipe's, else one per core", rich_help_panel=options.MACHINE)] = None,
) -> None:
    """Prepare the text of a training on a machine without a GPU.

    This does what seq2seq train does before its first step: cleaning, tokenizer, encoding, word alignments and the
    first epoch of subword sampling. The training then starts at once, from the same directory. An interrupted
    preparation is resumed by the same command.
    """
    loaded = load_recipe(recipe, settings, threads=threads)
    run = require_run_directory(run_dir or default_run(loaded, recipe))
    from seq2seq.training.prepare_run import prepare_run

    prepared = prepare_run(loaded, run)
    console.print_message(f"{len(prepared.corpus):,} pairs are prepared in {run}; train with: seq2seq train "
                          f"{shlex.quote(str(recipe))} --run-dir {shlex.quote(str(run))}")
