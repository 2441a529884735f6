"""Numbered recipes, such as 1_baseline.yaml: those of a directory are trained in the order of their numbers. Each run
is beside its recipe, so that later recipes can name it."""

from __future__ import annotations

import os
import re
from pathlib import Path

from seq2seq.errors import UserError

NUMBER = re.compile(r"([0-9]+)[_-].*\.ya?ml")


def run_beside(recipe: Path) -> Path | None:
    """Return the directory of the run of a numbered recipe; None if the recipe has no number."""
    if NUMBER.fullmatch(recipe.name) is None:
        return None
    return Path(os.path.normpath(recipe.parent / "runs" / recipe.stem))


def numbered_recipes(directory: Path) -> list[Path]:
    """Return the numbered recipes of a directory in the order of their numbers."""
    found = [(int(match[1]), path) for path in sorted(directory.iterdir()) if (match := NUMBER.fullmatch(path.name))]
    if not found:
        raise UserError(f"{directory} has no numbered recipes, such as 1_baseline.yaml, which are trained one after "
                        "the other. Name a recipe; seq2seq init --monolingual writes numbered ones.")
    return [path for _, path in sorted(found)]
