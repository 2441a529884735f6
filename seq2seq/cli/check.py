"""`seq2seq check`."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

import seq2seq.cli.options as options
from seq2seq.cli.common import default_run, load_recipe, print_json, require_run_directory
from seq2seq.errors import UserError

EXAMPLES = ("seq2seq check recipe.yaml",
            "seq2seq check recipe.yaml --no-measure",
            "seq2seq check recipe.yaml --set data.cleaning.max_length_ratio=3 --format json")


def check(
    recipe: options.RecipeFile,
    settings: options.Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Directory of the run. If it already has a tokenizer, that tokenizer is used.",
        show_default="runs/NAME")] = None,
    measure: Annotated[bool, typer.Option(
        "--measure/--no-measure", help="Train a few steps in a temporary run to measure time and memory.")] = True,
    format: options.ReportFormat = options.TextOrJson.text,
    device: options.TrainingDevice = None,
    precision: options.TrainingPrecisionOption = None,
    threads: options.TrainingThreads = None,
) -> None:
    """Report problems in a recipe and its data, and estimate the time and memory of training.

    The command leaves no files behind.
    """
    loaded = load_recipe(recipe, settings, device=device, precision=precision, threads=threads)
    from seq2seq.check import check_recipe, show_report

    report = check_recipe(loaded, require_run_directory(run_dir or default_run(loaded)), measure)
    if format is options.TextOrJson.json:
        print_json(report.to_dict())
    else:
        show_report(report)
    if report.errors:
        raise UserError("\n".join(report.errors))
