"""Comparison of two systems, each a model or a file of translations, on files or on the test sets of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seq2seq.data.corpus import read_texts
from seq2seq.data.parallel_text import require_as_many_lines
from seq2seq.errors import UserError
from seq2seq.evaluation.recipe_tests import TestSet, recipe_with_tests, tests_of
from seq2seq.evaluation.scores import METRICS, announce, warn_if_without_spaces
from seq2seq.evaluation.significance import Comparison, compare
from seq2seq.recipe import Recipe
from seq2seq.storage.checkpoints import bundle_metadata, resolve_model_path, stored_tags
from seq2seq.translation.translator import Translator


def compare_systems(system: Path, baseline: Path, source: Path | None, references: Sequence[Path], language: str | None,
                    load: Callable[[Path], Translator], recipe: Recipe | None = None, **test: Any,
                    ) -> dict[str, dict[str, Comparison]]:
    """Return the comparison of two systems by test set and metric. If there are `references`, the only test set is "".

    Args:
        system, baseline: each a model or a file of translations.
        source: text to translate; None if both systems are files of translations, or if `references` is empty.
        references: files of reference translations. Empty: both systems translate the test sets in the recipe of
            `system`.
        language: code of the target language; None: the target language of the model, or "en" without a model.
        load: function that loads a model. recipe: see `recipe_with_tests`.
        test: the arguments `metrics`, `test` and `samples` of `compare`.
    """
    streams = [read_texts(path) for path in references]
    if references:
        names = [str(system), str(baseline), *map(str, references)]
        tests = [TestSet("", read_texts(source) if source else None, [], ("", language or ""))]
    else:
        names = [str(system), str(baseline), "the references"]
        tests = tests_of(recipe_with_tests(system, recipe), stored_tags(bundle_metadata(resolve_model_path(system))))
    # Check all files before translating.
    files: dict[Path, list[str]] = {}
    for path in (system, baseline):
        if path.is_dir() and source is None and references:
            raise UserError(f"{path} is a model; name the text to translate with --source.")
        if not path.is_dir():
            if not references:
                raise UserError(f"{path} is a file of translations; name the reference translations with --reference.")
            files[path] = read_texts(path)
    if source is not None:
        require_as_many_lines([str(path) for path in (source, *references, *files)],
                              *map(len, (tests[0].sources or [], *streams, *files.values())))
    languages = {test_set.name: test_set.languages[1] for test_set in tests}   # "" until a model is loaded
    translations: list[dict[str, list[str]]] = []                               # of each system, by test set
    precisions: list[str | None] = []
    for path in (system, baseline):
        if path not in files:
            translator = load(path)
            languages = {name: target or translator.languages.target for name, target in languages.items()}
            directed = {name: translator.into(target) for name, target in languages.items()}
            translations.append({})
            for test_set in tests:
                sources = test_set.sources_for(translator.context)
                announce(translator, len(sources), test_set.name or str(source))
                translations[-1][test_set.name] = [best.text for best, *_ in directed[test_set.name].translate(sources)]
            precisions.append(translator.precision)
        else:
            translations.append({"": files[path]})
            precisions.append(None)
    if references and "bleu" in test.get("metrics", METRICS):
        warn_if_without_spaces(references, streams, languages[""] or "en")
    return {test_set.name: compare(translations[0][test_set.name], translations[1][test_set.name],
                                   streams or [test_set.references], languages[test_set.name] or "en", names=names,
                                   precisions=precisions, **test)
            for test_set in tests}
