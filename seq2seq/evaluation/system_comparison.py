"""Comparison of systems, each a model or a file of translations, on files or on the test sets of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from seq2seq.errors import CheckpointError
from seq2seq.evaluation.recipe_tests import TestSet, read_translations
from seq2seq.evaluation.scores import METRICS, announce, warn_if_without_spaces
from seq2seq.evaluation.significance import Comparisons, compare
from seq2seq.recipe import Recipe
from seq2seq.recipe.recipe_differences import are_of_one_recipe
from seq2seq.storage.checkpoints import bundle_metadata, recipe_of_training, resolve_model_path
from seq2seq.translation.translator import Translator


@dataclass(frozen=True)
class Translated:
    """Translations of a system by test set. precision: number format of the model; None for a file."""

    path: Path
    precision: str | None
    by_test: Mapping[str, list[str]]


def translate_tests(systems: Sequence[Path], tests: Sequence[TestSet], load: Callable[[Path], Translator]
                    ) -> list[Translated]:
    """Return the translations of each system. load: function that loads a model."""
    # Check all files before translating.
    files = {path: read_translations(path, tests) for path in systems if not path.is_dir()}
    found = []
    for path in systems:
        if path in files:
            found.append(Translated(path, None, {tests[0].name: files[path]}))
            continue
        translator = load(path)
        # Errors come before any translation.
        directed = {one.name: translator.into(*reversed(one.languages)) for one in tests}
        by_test = {}
        for one in tests:
            sources = one.sources_for(translator.context)
            announce(translator, len(sources), one.source_name or one.name)
            by_test[one.name] = [best.text for best, *_ in directed[one.name].translate(sources)]
        found.append(Translated(path, translator.precision, by_test))
    return found


def compare_systems(systems: Sequence[Translated], tests: Sequence[TestSet], **test: Any
                    ) -> dict[str, dict[str, Comparisons]]:
    """Return, by test set, the comparisons of each of the others with the first system, the baseline, by their paths.

    Args:
        systems: at least two. No two of those after the first are the same.
        test: the arguments `metrics`, `test` and `samples` of `compare`.
    """
    first, *others = systems
    compared: dict[str, dict[str, Comparisons]] = {}
    for one in tests:
        if "bleu" in test.get("metrics", METRICS):
            warn_if_without_spaces(one.name, one.references, one.languages[1])
        compared[one.name] = {
            str(other.path): compare(other.by_test[one.name], first.by_test[one.name], one.streams, one.languages[1],
                                     names=[str(other.path), str(first.path), *[one.name] * len(one.streams)],
                                     precisions=[other.precision, first.precision], **test)
            for other in others}
    return compared


def groups_by_recipe(systems: Sequence[Path]) -> list[dict[int, Path]]:
    """Return the systems in groups: models of one recipe (`are_of_one_recipe`), whose corpora have as many lines, by
    seed. A file is alone, and so is a further model with the same recipe and the same seed."""
    groups: list[tuple[Recipe | None, list[int], dict[int, Path]]] = []
    for path in systems:
        bundle = resolve_model_path(path) if path.is_dir() else None
        recipe, lines = (None, []) if bundle is None else (recipe_of_training(bundle), text_lines(bundle))
        for first, lines_of_first, members in groups:
            if first and recipe and recipe.seed not in members and lines == lines_of_first and (
                    are_of_one_recipe(first, recipe)):
                members[recipe.seed] = path
                break
        else:
            groups.append((recipe, lines, {recipe.seed if recipe else 1: path}))
    return [members for *_, members in groups]


def text_lines(bundle: Path) -> list[int]:
    """Return the number of lines of each corpus with which a bundle was trained. An imported model has none."""
    try:
        return [int(count["lines"]) for count in bundle_metadata(bundle).get("corpora", {}).values()]
    except (AttributeError, KeyError, TypeError, ValueError) as error:          # another person's metadata
        raise CheckpointError(f"{bundle}: the counts of the corpora in its metadata.json have an unexpected form "
                              f"({type(error).__name__}: {error}).") from error
