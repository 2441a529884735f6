"""`seq2seq check`."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

import seq2seq.cli.options as options
from seq2seq.cli.common import (
    default_run,
    load_recipe,
    print_json,
    refuse_without_effect,
    require_run_directory,
)
from seq2seq.errors import UserError

if TYPE_CHECKING:
    from seq2seq.recipe import Recipe

EXAMPLES = ("seq2seq check recipe.yaml",
            "seq2seq check recipe.yaml --no-measure",
            "seq2seq check mine   # a directory: time and memory of its recipes 1_….yaml, 2_….yaml, …",
            "seq2seq check recipe.yaml --set data.cleaning.max_length_ratio=3 --format json")


def check(
    recipe: options.RecipesToTrain,
    settings: options.Overrides = None,
    run_dir: Annotated[Path | None, typer.Option(
        metavar="DIR", help="Directory of the run. If it already has a tokenizer, that tokenizer is used.",
        show_default="runs/NAME; of a numbered recipe, runs/ beside it")] = None,
    measure: Annotated[bool, typer.Option(
        "--measure/--no-measure", help="Train a few steps in a temporary run to measure time and memory.")] = True,
    format: options.ReportFormat = options.TextOrJson.text,
    device: options.TrainingDevice = None,
    precision: options.TrainingPrecisionOption = None,
    threads: options.TrainingThreads = None,
) -> None:
    """Report problems in a recipe and its data, and estimate the time and memory of training.

    Of the numbered recipes of a directory, the first is reported, and the time and memory of all of them. The command
    leaves no files behind.
    """
    load = partial(load_recipe, settings=settings, device=device, precision=precision, threads=threads)
    if recipe.is_dir():
        refuse_without_effect("the runs of a directory's recipes are in the directory.", run_dir=run_dir)
        _check_directory(recipe, load, measure, format)
        return
    loaded = load(recipe)
    from seq2seq.check import check_recipe, show_report

    report = check_recipe(loaded, require_run_directory(run_dir or default_run(loaded, recipe)), measure)
    if format is options.TextOrJson.json:
        print_json(report.to_dict())
    else:
        show_report(report)
    if report.errors:
        raise UserError("\n".join(report.errors))


def _check_directory(directory: Path, load: Callable[..., Recipe], measure: bool, format: options.TextOrJson) -> None:
    """Print the cost of the numbered recipes of a directory. load: function of a recipe's path that loads it."""
    from seq2seq.check.directory_cost import costs_of
    from seq2seq.check.print_report import show_costs
    from seq2seq.training.planned_runs import plan_directory

    costs = costs_of(plan_directory(directory, lambda path, runs: load(path, planned=runs)), measure)
    if format is options.TextOrJson.json:
        print_json([cost.to_dict() for cost in costs])
    else:
        show_costs(costs)
    if errors := [f"{cost.name}: {error}" for cost in costs for error in cost.report.errors]:
        raise UserError("\n".join(errors))
