"""Comparison of systems, each a model or a file of translations, on files or on the test sets of a recipe."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

from seq2seq.data.corpus import read_texts
from seq2seq.data.parallel_text import require_as_many_lines
from seq2seq.errors import UserError
from seq2seq.evaluation.recipe_tests import TestSet, recipe_with_tests, tests_of
from seq2seq.evaluation.scores import METRICS, TITLES, announce, warn_if_without_spaces
from seq2seq.evaluation.significance import Comparisons, compare
from seq2seq.recipe import Recipe, differences
from seq2seq.storage.checkpoints import bundle_metadata, resolve_model_path, stored_recipe, stored_tags
from seq2seq.translation.translator import Translator


def compare_systems(systems: Sequence[Path], source: Path | None, references: Sequence[Path], language: str | None,
                    load: Callable[[Path], Translator], recipe: Recipe | None = None, **test: Any,
                    ) -> dict[str, dict[str, Comparisons]]:
    """Return, by test set, the comparisons of the first system with each of the others, by their paths. If there are
    `references`, the only test set is "".

    Args:
        systems: at least two, each a model or a file of translations. No two of those after the first are the same.
        source: text to translate; None if all systems are files of translations, or if `references` is empty.
        references: files of reference translations. Empty: the systems translate the test sets in the recipe of the
            first system.
        language: code of the target language; None: the target language of the model, or "en" without a model.
        load: function that loads a model. recipe: see `recipe_with_tests`.
        test: the arguments `metrics`, `test` and `samples` of `compare`.
    """
    streams = [read_texts(path) for path in references]
    reference_names = list(map(str, references)) or ["the references"]
    # Check all files before translating.
    files: dict[Path, list[str]] = {}
    for path in systems:
        if path.is_dir() and source is None and references:
            raise UserError(f"{path} is a model; name the text to translate with --source.")
        if not path.is_dir():
            if not references:
                raise UserError(f"{path} is a file of translations; name the reference translations with --reference.")
            files[path] = read_texts(path)
    if references:
        tests = [TestSet("", read_texts(source) if source else None, [], ("", language or ""))]
    else:
        model = resolve_model_path(systems[0])
        tests = tests_of(recipe_with_tests(systems[0], recipe), stored_tags(bundle_metadata(model)))
    if source is not None:
        require_as_many_lines([str(path) for path in (source, *references, *files)],
                              *map(len, (tests[0].sources or [], *streams, *files.values())))
    languages = {test_set.name: test_set.languages[1] for test_set in tests}   # "" until a model is loaded
    translations: list[dict[str, list[str]]] = []                               # of each system, by test set
    precisions: list[str | None] = []
    for path in systems:
        if path in files:
            translations.append({"": files[path]})
            precisions.append(None)
            continue
        translator = load(path)
        languages = {name: target or translator.languages.target for name, target in languages.items()}
        directed = {name: translator.into(target) for name, target in languages.items()}
        translations.append({})
        for test_set in tests:
            sources = test_set.sources_for(translator.context)
            announce(translator, len(sources), test_set.name or str(source))
            translations[-1][test_set.name] = [best.text for best, *_ in directed[test_set.name].translate(sources)]
        precisions.append(translator.precision)
    if references and "bleu" in test.get("metrics", METRICS):
        warn_if_without_spaces(references, streams, languages[""] or "en")
    return {test_set.name: {
        str(path): compare(translations[0][test_set.name], other[test_set.name], streams or [test_set.references],
                           languages[test_set.name] or "en", names=[str(systems[0]), str(path), *reference_names],
                           precisions=[precisions[0], precision], **test)
        for path, other, precision in zip(systems[1:], translations[1:], precisions[1:], strict=True)}
        for test_set in tests}


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
