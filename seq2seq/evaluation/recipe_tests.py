"""Test sets of recipes and of files, and translators in the directions of test sets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Literal

from seq2seq.data.corpus import read_pairs, read_texts
from seq2seq.data.parallel_text import require_as_many_lines
from seq2seq.errors import CheckpointError, CorpusError, OptionError, UserError
from seq2seq.evaluation.scores import require_parallel, warn_about_lines
from seq2seq.files import STANDARD_INPUT
from seq2seq.recipe import Corpus, Recipe
from seq2seq.recipe.directions import direction_into, has_direction
from seq2seq.storage.checkpoints import (
    bundle_metadata,
    recipe_of_training,
    recipe_with_text,
    resolve_model_path,
    stored_recipe,
    stored_tags,
)
from seq2seq.tokenizers.context import parse_context
from seq2seq.tokenizers.line_reader import split_tag
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import as_line


@dataclass(frozen=True)
class TestSet:
    """Test set.

    sources: source sentences; None if they are not known. Only those of files can contain contexts and language tokens.
    languages: codes of the source and target language. corpus: recipe and corpus of the test set; None for files. tags:
    tags with which a source may begin. further_references: other references of all sources. source_name: file of the
    sources, for messages about them; "" if the test set has only one name.
    """

    __test__ = False                                                            # pytest must not collect this class

    name: str
    sources: list[str] | None
    references: list[str]
    languages: tuple[str, str]
    corpus: tuple[Recipe, Corpus] | None = None
    tags: tuple[str, ...] = ()
    further_references: tuple[list[str], ...] = ()
    source_name: str = ""

    @property
    def streams(self) -> list[list[str]]:
        """All references: lists with a line for each source."""
        return [self.references, *self.further_references]

    @property
    def texts(self) -> list[str] | None:
        """The sources without their contexts and tags."""
        if self.sources is None:
            return None
        return [split_tag(parse_context(source).text, self.tags)[1] for source in self.sources]

    def sources_for(self, context: int) -> Sequence[str | Source]:
        """Return the sources for a model that reads `context` preceding sentences. The model itself adds the contexts
        to text in files."""
        if self.corpus is None:
            return self.sources or []
        return [source for _, source, _ in read_pairs(*self.corpus, context=context)]


def read_tests(systems: Sequence[Path], source: Path | None, references: Sequence[Path], language: str | None,
               recipe: Recipe | None = None, planned: Mapping[Path, Recipe] | None = None,
               source_language: str | None = None) -> list[TestSet]:
    """Return the test set in files, or the test sets of a recipe. All models must have the directions of the test sets.

    Args:
        systems: models and files of translations.
        references: files with references of the same text. Empty: the test sets of `recipe`, or without one, those of
            the recipe of the first model.
        language: code of the target language of the files; None: that of the first model, or "en" without a model.
        planned: recipes of the runs among `systems` that may not exist yet.
        source_language: code of the source language of the files; None: that of the first model.
    """
    planned = planned or {}
    for path in systems:
        if path != STANDARD_INPUT and path not in planned and not path.exists():
            raise OptionError(f"{path} does not exist. Name a run, a bundle, or a file of translations.")
    models = {path: planned.get(path) or recipe_of_training(resolve_model_path(path)) for path in systems
              if path in planned or path.is_dir()}
    found = _read_tests(models, source, references, (source_language, language), recipe, planned)
    for path, test in product(models, found):
        pair = test.languages if models[path].task.has_source else ("", test.languages[1])
        direction_into(pair[1], models[path].directions, pair[0] or None, str(path))
    return found


def _read_tests(models: Mapping[Path, Recipe], source: Path | None, references: Sequence[Path],
                languages: tuple[str | None, str | None], recipe: Recipe | None, planned: Mapping[Path, Recipe]
                ) -> list[TestSet]:
    """See `read_tests`. models: recipes of the models."""
    model = next(iter(models), None)
    tags = () if model is None or model in planned else stored_tags(bundle_metadata(resolve_model_path(model)))
    if references:
        if recipe is not None:
            raise OptionError("--recipe has test sets, and --reference is another one. Leave one of the two out.")
        return [_test_in_files(model, models, source, references, languages, tags)]
    if source is not None or any(languages):
        raise OptionError("--source, --source-language and --target-language are for a test set in files. Name its "
                          "--reference, too.")
    if model is None:
        raise OptionError("name the reference translations of these files with --reference.")
    found = tests_of(recipe_with_tests(model, recipe, planned=planned.get(model)), tags)
    for test in found:
        require_parallel(test.sources or [], [test.references], [f"the test set {test.name}"] * 2)
    return found


def _test_in_files(model: Path | None, models: Mapping[Path, Recipe], source: Path | None, references: Sequence[Path],
                   languages: tuple[str | None, str | None], tags: Sequence[str]) -> TestSet:
    recipe, (source_language, language) = None, languages
    if model is not None:
        recipe = models[model].into(language, source_language)
        if recipe.task.has_source and source is None:
            raise OptionError(f"{model} has to translate. Name the text with --source.")
    streams = [read_texts(path) for path in references]
    texts = None if source is None else read_texts(source)
    require_parallel(streams[0] if texts is None else texts, streams,
                     [str(path) for path in (source or references[0], *references)])
    for path, lines in zip(references, streams, strict=True):
        warn_about_lines(str(path), lines, streams if texts is None else [texts, *streams])
    return TestSet(references[0].name, texts, streams[0],
                   ("", language or "en") if recipe is None else recipe.languages.codes,
                   tags=(*(recipe.tags if recipe else ()), *tags), further_references=tuple(streams[1:]),
                   source_name=str(source or ""))


def read_translations(path: Path, tests: Sequence[TestSet]) -> list[str]:
    """Return the lines of a file with translations of the only test set."""
    if len(tests) > 1:
        raise OptionError(f"{path} is a file, and there are {len(tests)} test sets. Name one with --source and "
                          "--reference.")
    lines = read_texts(path)
    require_as_many_lines([str(path), tests[0].name], len(lines), len(tests[0].references))
    warn_about_lines(str(path), lines, [lines, *tests[0].streams])
    return lines


def tests_of(recipe: Recipe, tags: Sequence[str]) -> list[TestSet]:
    """Return the test sets of a recipe. tags: further tags that the model knows (see `stored_tags`)."""
    found = []
    known = tuple(dict.fromkeys((*recipe.tags, *tags)))
    for name, spec in recipe.data.test.items():
        pairs = [(source, target) for _, source, target in read_pairs(recipe, spec, context=0)]
        found.append(TestSet(name, [as_line(source) for source, _ in pairs], [target for _, target in pairs],
                             recipe.languages_of(spec).codes, (recipe, spec), known))
    return found


def recipe_with_tests(model: Path, recipe: Recipe | None = None, use: Literal["test", "valid"] = "test",
                      planned: Recipe | None = None) -> Recipe:
    """Return the recipe with the test sets of a model, after checking that it has some, and that their files exist.

    Args:
        model: a run or a bundle. recipe: recipe that the user has named; None: that of the run.
        use: `valid` checks the validation sets instead. planned: recipe of a run that may not exist yet.
    """
    sets = {"test": "test sets", "valid": "validation sets"}[use]
    stored = planned or stored_recipe(resolve_model_path(model))
    others = ("a recipe with --recipe, or "
              f"{'files with --source and --reference' if stored.task.has_source else 'a file with --reference'}")
    named = recipe is not None
    try:
        recipe = recipe or planned or recipe_with_text(model)
    except CheckpointError as error:
        raise UserError(f"{error} Name its run, {others}.") from None
    corpora = [corpus for key, corpus in recipe.data.corpora_with_keys() if key[0] == use]
    if not corpora:
        raise UserError(f"the recipe of {model} has no {sets}. Name {others}.")
    for corpus in corpora if named else ():
        _require_same_task(recipe, corpus, stored, model)
    paths = [path for corpus in corpora for path in corpus.resolve(recipe.data_directory).paths]
    if missing := [str(path) for path in paths if not path.is_file()]:
        raise CorpusError(f"the {sets} in the recipe of {model} are missing: there is no file {', '.join(missing)}. "
                          f"Name {others}.")
    return recipe


def _require_same_task(recipe: Recipe, corpus: Corpus, stored: Recipe, model: Path) -> None:
    """Raise UserError if a corpus of a recipe is not for a model. stored: recipe of the model."""
    pair = recipe.languages_of(corpus).codes
    if recipe.task is stored.task and has_direction(stored.directions, *pair):
        return
    known = ", ".join(" to ".join(filter(None, each.codes)) for each in stored.directions)
    needed = " to ".join(filter(None, pair))
    raise UserError(f"{corpus.label} is text for a model of type {recipe.model.type}, {needed}; {model} is of type "
                    f"{stored.model.type}, {known}. Name another recipe.")
