"""Test sets of recipes and of files, and translators in the directions of test sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seq2seq.data.corpus import read_pairs
from seq2seq.errors import CheckpointError, CorpusError, UserError
from seq2seq.languages import same_code
from seq2seq.recipe import Corpus, Recipe
from seq2seq.storage.checkpoints import recipe_with_text, resolve_model_path, stored_recipe
from seq2seq.tokenizers.context import parse_context
from seq2seq.tokenizers.line_reader import split_tag
from seq2seq.tokenizers.source import Source
from seq2seq.tokenizers.vocabulary import as_line


@dataclass(frozen=True)
class TestSet:
    """Test set. sources: source sentences; None if they are not known. Only those of files can contain contexts and
    language tokens.
    languages: codes of the source and target language. corpus: recipe and corpus of the test set; None for files. tags:
    tags with which a source may begin."""

    __test__ = False                                                            # pytest must not collect this class

    name: str
    sources: list[str] | None
    references: list[str]
    languages: tuple[str, str]
    corpus: tuple[Recipe, Corpus] | None = None
    tags: tuple[str, ...] = ()

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
                      options: str = "a recipe with --recipe, or ") -> Recipe:
    """Return the recipe with the test sets of a model, after checking that it has some, and that their files exist.

    Args:
        model: a run or a bundle. recipe: recipe that the user has named; None: that of the run.
        use: `valid` checks the validation sets instead. options: options of the command, in error messages.
    """
    sets = {"test": "test sets", "valid": "validation sets"}[use]
    stored = stored_recipe(resolve_model_path(model))
    files = "files with --source and --reference" if stored.task.has_source else "a file with --reference"
    named = recipe is not None
    try:
        recipe = recipe or recipe_with_text(model)
    except CheckpointError as error:
        raise UserError(f"{error} Name its run, {options}{files}.") from None
    corpora = [corpus for key, corpus in recipe.data.corpora_with_keys() if key[0] == use]
    if not corpora:
        raise UserError(f"the recipe of {model} has no {sets}. Name {options}{files}.")
    for corpus in corpora if named else ():
        _require_same_task(recipe, corpus, stored, model)
    paths = [path for corpus in corpora for path in corpus.resolve(recipe.data_directory).paths]
    if missing := [str(path) for path in paths if not path.is_file()]:
        raise CorpusError(f"the {sets} in the recipe of {model} are missing: there is no file {', '.join(missing)}. "
                          f"Name {options}{files}.")
    return recipe


def _require_same_task(recipe: Recipe, corpus: Corpus, stored: Recipe, model: Path) -> None:
    """Raise UserError if a corpus of a recipe is not for a model. stored: recipe of the model."""
    pair = recipe.languages_of(corpus).codes
    if recipe.task is stored.task and any(all(map(same_code, pair, each.codes)) for each in stored.directions):
        return
    known = ", ".join(" to ".join(filter(None, each.codes)) for each in stored.directions)
    needed = " to ".join(filter(None, pair))
    raise UserError(f"{corpus.label} is text for a model of type {recipe.model.type}, {needed}; {model} is of type "
                    f"{stored.model.type}, {known}. Name another recipe.")
