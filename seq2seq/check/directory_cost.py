"""Cost of the numbered recipes of a directory, which `seq2seq train` trains one after the other."""

from __future__ import annotations

import os
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path

from seq2seq.check import check_recipe
from seq2seq.check.results import RecipeCost, Report
from seq2seq.recipe import Corpus, Recipe
from seq2seq.storage.checkpoints import best_bundle
from seq2seq.training.planned_runs import PlannedRun
from seq2seq.training.synthetic_text import existing_text


def costs_of(planned: Sequence[PlannedRun], measured: bool) -> list[RecipeCost]:
    """Check each recipe. measured: True to measure some steps and translations."""
    recipes = {Path(os.path.abspath(one.run)): one.recipe for one in planned}
    costs = []
    for one in planned:
        measurable = without_planned_models(one.recipe, recipes, one.run)
        report = check_recipe(measurable, one.run, measured, translates=True)
        generated = {before.label for before, after in zip(one.recipe.data.train, measurable.data.train, strict=True)
                     if before.translated_by != after.translated_by}
        if generated:
            report.warnings.clear()                                 # a text is no real translation of itself
        sentences = _translated(one.recipe, report, generated)
        costs.append(RecipeCost(
            one.group, sum(corpus.lines if corpus.label in generated else corpus.pairs
                           for corpus in report.corpora if corpus.role == "train"),
            one.recipe.training.max_steps, report.measured.get("hours"), sentences,
            sentences * report.measured["seconds_a_sentence"] / 3600 if report.measured else None,
            report.measured.get("peak_bytes"), report))
    return costs


def without_planned_models(recipe: Recipe, planned: Mapping[Path, Recipe], run: Path) -> Recipe:
    """Return a recipe with the cost of another one whose models do not exist yet: it starts with new weights, and each
    text that will be translated is its own translation.

    planned: recipes of the runs that will exist, by their absolute directories. run: directory of the recipe's run.
    """
    start, tokenizer = recipe.training.start_from, recipe.tokenizer
    if start is not None and (path := _planned(recipe, start)) in planned and not _has_model(path):
        start, tokenizer = None, planned[path].tokenizer
    translators = {path for spec in recipe.data.train for model in spec.translated_by or ()
                   if (path := _planned(recipe, model)) in planned}
    untranslated = existing_text(recipe, run)[1] if translators and all(map(_has_model, translators)) else None

    def with_text(spec: Corpus) -> Corpus:
        of_planned = any(_planned(recipe, model) in planned for model in spec.translated_by or ())
        if not of_planned or untranslated is not None and spec.label not in untranslated:
            return spec
        text = spec.source or spec.target
        return spec.model_copy(update={"source": text, "target": text, "translated_by": None, "sampling": None,
                                       "tag": None})

    return recipe.model_copy(update={
        "training": recipe.training.model_copy(update={"start_from": start}), "tokenizer": tokenizer,
        "data": recipe.data.with_corpora(with_text)}).with_directory(recipe.directory)


def _planned(recipe: Recipe, model: str) -> Path:
    """Return the directory of a run that a recipe names, as a key of `planned`."""
    return Path(os.path.abspath(recipe.directory / model))


def _has_model(run: Path) -> bool:
    """Return True if a run, which may have been stopped, has a model already."""
    return run.is_dir() and best_bundle(run) is not None


def _translated(recipe: Recipe, report: Report, generated: Collection[str]) -> int:
    """Return the number of sentences that are translated for a training: those of validations and tests, and of the
    training corpora that are translated first. generated: labels of these corpora."""
    section, sentences = recipe.training, 0
    for corpus in report.corpora:
        if corpus.role.startswith("valid"):
            sentences += section.max_steps // section.validate_every * min(corpus.pairs,
                                                                           section.valid_sentences or corpus.pairs)
        elif corpus.role != "train" or corpus.label in generated:
            sentences += corpus.lines if corpus.label in generated else corpus.pairs
    return sentences
