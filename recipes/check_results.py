"""Check docs/results.md against the pages of the recipes, and against runs.

    python recipes/check_results.py                       # the scores of docs/results.md are those of the pages
    python recipes/check_results.py runs/multi30k_de_en   # and a run of a recipe has the score that the page promises

A run is in step if its recipe is that of the repository, and its test scores are in the range that `expected` names.
Prints a line for each check; the exit code is 1 if one fails.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path

from seq2seq.errors import UserError
from seq2seq.recipe import Recipe, load_recipe
from seq2seq.recipe.recipe_differences import differences
from seq2seq.storage.checkpoints import resolve_model_path, stored_recipe
from seq2seq.storage.directories import read_metadata

RECIPES = Path(__file__).parent
RESULTS = RECIPES.parent / "docs" / "results.md"
LINK = re.compile(r"\[[^]]*\]\(\.\./recipes/(\w+)/RESULTS\.md\)")
NUMBER = re.compile(r"\d+\.\d+")


def rows() -> Iterator[tuple[str, list[str], list[str]]]:
    """Yield (directory of the recipe, scores, minutes) for each row of the table of docs/results.md. A row without a
    link belongs to the recipe above it."""
    task = ""
    for line in RESULTS.read_text(encoding="utf-8").splitlines():
        cells = [cell.strip() for cell in line.split(" | ")]
        if len(cells) != 4 or not line.startswith("| "):
            continue
        link = LINK.search(cells[0])
        task = link[1] if link else task if cells[0] in ("|", "") else ""
        if task:
            yield task, NUMBER.findall(cells[2]), NUMBER.findall(cells[3])


def missing_numbers() -> Iterator[str]:
    """Yield a line for each number in docs/results.md that is not on the page of its recipe."""
    for task, scores, minutes in rows():
        found = set(map(float, NUMBER.findall((RECIPES / task / "RESULTS.md").read_text(encoding="utf-8"))))
        for number in (number for number in [*scores, *minutes] if float(number) not in found):
            yield f"docs/results.md: {number} of {task} is not in recipes/{task}/RESULTS.md"


def faults_of_run(run: Path) -> Iterator[str]:
    """Yield what separates a run from the recipe of the same name in the repository."""
    try:
        bundle = resolve_model_path(run)
        stored = stored_recipe(bundle)
    except UserError as error:
        yield f"{run}: {error}"
        return
    recipe = next((one for one in all_recipes() if one.name == stored.name), None)
    if recipe is None:
        yield f"{run}: no recipe in {RECIPES} has the name {stored.name}"
        return
    without_text = [one for one in differences(stored, recipe, of_one_run=False)
                    if not one.key.startswith(("data.", "expected", "training.device", "training.threads"))]
    yield from (f"{run}: {one}" for one in without_text)
    tests = read_metadata(bundle, "bundle", required=()).get("test", {})
    for test, ranges in recipe.expected.items():
        for metric, (low, high) in ranges.items():
            value = tests.get(test, {}).get(metric, {}).get("value")
            if value is None:
                yield f"{run}: {test} has no {metric}"
            elif not low <= value <= high:
                yield f"{run}: {metric} of {test} is {value:.2f}; the recipe expects {low:g} to {high:g}"


def all_recipes() -> Iterator[Recipe]:
    for path in sorted(RECIPES.glob("*/*.yaml")):
        yield load_recipe(path, check_files=False)


def main(runs: list[str]) -> int:
    checks = {"docs/results.md": list(missing_numbers()), **{run: list(faults_of_run(Path(run))) for run in runs}}
    for name, faults in checks.items():
        print("\n".join(faults) or f"{name}: in step")
    return int(any(checks.values()))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
