"""Runs that one command trains: those of a comparison of recipes, and those of the numbered recipes of a directory."""

from __future__ import annotations

import itertools
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean

from seq2seq import console
from seq2seq.errors import OptionError, RecipeError, UserError
from seq2seq.recipe import Recipe, load_recipe
from seq2seq.recipe.numbered import numbered_recipes, run_beside
from seq2seq.recipe.recipe_differences import changes_model
from seq2seq.recipe.yaml_document import listed_values
from seq2seq.storage.checkpoints import list_checkpoints
from seq2seq.storage.run_directory import compare_with_stored_recipe
from seq2seq.training.run import train
from seq2seq.training.synthetic_text import require_monolingual_text

OTHER_DIRECTORY = "Undo the change, or name another directory of the runs with --run-dir."


@dataclass(frozen=True)
class PlannedRun:
    """Run of a comparison, or of a numbered recipe.

    file: file of the recipe. group: in a comparison, name of the recipe and its values; only the seeds of the runs of a
    group differ. Of a numbered recipe, the name of its file without the ending. run: directory.
    """

    file: Path
    group: str
    recipe: Recipe
    run: Path


def plan_runs(recipes: Sequence[Path], settings: Sequence[str], seeds: int, directory: Path | None
              ) -> list[PlannedRun]:
    """Return the runs of all recipes, values and seeds, in the order in which they are trained: all groups with the
    first seed, then with the next. All recipes are read, and the runs that exist are compared with them, so that an
    error comes before the first training.

    Args:
        settings: keys and values, such as model.score=dot,additive. A key with one value is set in all runs.
        seeds: number of seeds: the recipe's, and those that follow it.
        directory: directory of the runs; None: runs/compare_NAME.
    """
    values = listed_values(settings, "model.score=dot,additive")
    combinations = list(itertools.product(*values.values()))
    varied = [key for key, listed in values.items() if len(listed) > 1]
    planned: list[PlannedRun] = []
    for number, path in itertools.product(range(seeds), recipes):
        for combination in combinations:
            chosen = dict(zip(values, combination, strict=True))
            overrides = [f"{key}={json.dumps(value, ensure_ascii=False)}" for key, value in chosen.items()]
            first = load_recipe(path, overrides)
            recipe = load_recipe(path, [*overrides, f"seed={first.seed + number}"]) if number else first
            _require_comparable(recipe, path)
            names = [recipe.name] if len(recipes) > 1 or not varied else []
            group = ", ".join([*names, *(f"{key}={_written(chosen[key])}" for key in varied)])
            directory = directory or Path("runs") / f"compare_{recipe.name}"
            run = directory / (re.sub(r"[^\w.=-]+", "_", group) + f"_seed_{recipe.seed}")
            if run in [other.run for other in planned]:
                raise OptionError(f"two of the runs would be in {run}. Give each recipe its own `name`, and each value "
                                  "once.")
            planned.append(PlannedRun(path, group, recipe, run))
    for one in planned:
        _require_same_training(one)
    return planned


def _require_same_training(planned: PlannedRun) -> None:
    """Check that a run of a comparison that exists was trained with its recipe from the beginning.

    A training may be prolonged, but the prolonged one is no training of the new recipe: its learning rate has followed
    the schedule of the old one, and its best checkpoint may be of that time.
    """
    changes = compare_with_stored_recipe(planned.recipe, planned.run, OTHER_DIRECTORY) or []
    changed = [str(change) for change in changes if changes_model(change.key)]
    if changed and list_checkpoints(planned.run):
        raise RecipeError("\n".join([f"{planned.run} was trained with another recipe:",
                                     *(f"  {change}" for change in changed), OTHER_DIRECTORY]))


def plan_directory(directory: Path, load: Callable[[Path, Mapping[Path, Recipe]], Recipe]) -> list[PlannedRun]:
    """Return the runs of the numbered recipes of a directory, in order: that of 1_baseline.yaml is runs/1_baseline in
    this directory, where later recipes find it. All recipes are read, so that an error comes before the first training.

    load: function of a recipe's path and of the runs before it (see `load_recipe`).
    """
    runs: dict[Path, Recipe] = {}
    planned = []
    for path in numbered_recipes(directory):
        run = run_beside(path)
        assert run is not None
        runs[run] = load(path, dict(runs))
        require_monolingual_text(runs[run])
        planned.append(PlannedRun(path, path.stem, runs[run], run))
    return planned


def _written(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)


def _require_comparable(recipe: Recipe, path: Path) -> None:
    if not (recipe.task.has_source and recipe.task.target_is_text):
        raise UserError(f"compare trains and compares models that translate; {path} is a recipe of type "
                        f"{recipe.model.type}.")


def train_planned(planned: Sequence[PlannedRun]) -> None:
    """Train the runs, and resume those that were stopped. A run that has finished is only evaluated."""
    seconds: dict[str, float] = {}                                              # of the last new run of each group
    for number, one in enumerate(planned):
        left = [seconds.get(other.group, mean(seconds.values())) for other in planned[number:]] if seconds else []
        console.print_message(f"run {number + 1} of {len(planned)}: {one.group}, seed {one.recipe.seed}, in {one.run}"
                              + (f"; some {console.format_duration(sum(left))} left for all" if left else ""))
        is_new, began = not one.run.exists(), time.monotonic()
        is_first = one.group not in {other.group for other in planned[:number]}
        train(one.recipe, one.run, advise=False, compares_text=is_first)
        if is_new:
            seconds[one.group] = time.monotonic() - began
