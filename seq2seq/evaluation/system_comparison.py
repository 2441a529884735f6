"""Comparison of systems, each a model or a file of translations, on files or on the test sets of a recipe."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seq2seq.evaluation.recipe_tests import TestSet, read_translations
from seq2seq.evaluation.scores import METRICS, TITLES, announce, warn_if_without_spaces
from seq2seq.evaluation.significance import Comparisons, compare
from seq2seq.recipe import Recipe, differences
from seq2seq.storage.checkpoints import resolve_model_path, stored_recipe
from seq2seq.translation.translator import Translator


def compare_systems(systems: Sequence[Path], tests: Sequence[TestSet], load: Callable[[Path], Translator], **test: Any,
                    ) -> dict[str, dict[str, Comparisons]]:
    """Return, by test set, the comparisons of the first system with each of the others, by their paths.

    Args:
        systems: at least two, each a model or a file of translations. No two of those after the first are the same.
        load: function that loads a model.
        test: the arguments `metrics`, `test` and `samples` of `compare`.
    """
    # Check all files before translating.
    files = {path: read_translations(path, tests) for path in systems if not path.is_dir()}
    translations: list[dict[str, list[str]]] = []                               # of each system, by test set
    precisions: list[str | None] = []
    for path in systems:
        if path in files:
            translations.append({tests[0].name: files[path]})
            precisions.append(None)
            continue
        translator = load(path)
        directed = {one.name: translator.into(one.languages[1]) for one in tests}
        translations.append({})
        for one in tests:
            sources = one.sources_for(translator.context)
            announce(translator, len(sources), one.source_name or one.name)
            translations[-1][one.name] = [best.text for best, *_ in directed[one.name].translate(sources)]
        precisions.append(translator.precision)
    compared: dict[str, dict[str, Comparisons]] = {}
    for one in tests:
        if "bleu" in test.get("metrics", METRICS):
            warn_if_without_spaces(one.name, one.references, one.languages[1])
        compared[one.name] = {
            str(path): compare(translations[0][one.name], other[one.name], one.streams, one.languages[1],
                               names=[str(systems[0]), str(path), *[one.name] * len(one.streams)],
                               precisions=[precisions[0], precision], **test)
            for path, other, precision in zip(systems[1:], translations[1:], precisions[1:], strict=True)}
    return compared


def scores_of_seeds(systems: Sequence[Path], comparisons: Mapping[str, Comparisons]) -> list[dict[str, Any]]:
    """Return the mean and standard deviation (with n - 1 in the denominator) of the scores of models whose recipes
    differ only in the seed, as JSON values: an item for each metric and each group of such models.

    comparisons: result of `compare_systems` for a test set.
    """
    groups: list[tuple[Recipe, dict[int, int]]] = []                            # with the index of each seed's system
    for index, path in enumerate(systems):
        if not path.is_dir():
            continue
        recipe = stored_recipe(resolve_model_path(path))
        for first, members in groups:
            if {difference.key for difference in differences(first, recipe)} <= {"seed"}:
                members.setdefault(recipe.seed, index)
                break
        else:
            groups.append((recipe, {recipe.seed: index}))
    found = []
    for metric, one in next(iter(comparisons.values())).items():
        values = [one.system.value, *(comparison[metric].baseline.value for comparison in comparisons.values())]
        for _, members in groups:
            of_group = [values[index] for index in members.values()]
            if len(of_group) > 1:
                found.append({"metric": metric, "systems": [str(systems[index]) for index in members.values()],
                              "values": of_group, "mean": statistics.mean(of_group),
                              "deviation": statistics.stdev(of_group)})
    return found


def format_seeds(seeds: Sequence[Mapping[str, Any]]) -> str:
    """Return a line for each item of `scores_of_seeds`."""
    return "\n".join(f"{TITLES[one['metric']]}  {one['mean']:.2f} ± {one['deviation']:.2f}  (mean and deviation of "
                     f"{len(one['values'])} seeds: {', '.join(one['systems'])})" for one in seeds)
