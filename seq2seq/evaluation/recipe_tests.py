"""Test sets of recipes and of files, and translators in the directions of test sets."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from seq2seq.data.corpus import read_pairs, require_readable
from seq2seq.errors import CorpusError, UserError
from seq2seq.recipe import Corpus, Recipe
from seq2seq.storage.checkpoints import recipes_with_corpora
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


def recipe_with_tests(bundle: Path, use: Literal["test", "valid"] = "test") -> Recipe:
    """Return the recipe of a bundle, after checking that it has test sets, and that they can and may be read.

    use: `valid` checks the validation sets instead.
    """
    sets = {"test": "test sets", "valid": "validation sets"}[use]

    def corpora(recipe: Recipe) -> list[Corpus]:
        return [corpus for key, corpus in recipe.data.corpora_with_keys() if key[0] == use]

    bundle = bundle.absolute()
    recipe, *others = recipes_with_corpora(bundle)
    files = "files with --source and --reference" if recipe.task.has_source else "a file with --text"
    if not corpora(recipe):
        raise UserError(f"the recipe of {bundle} has no {sets}. Name {files}.")

    def missing(recipe: Recipe) -> str:
        paths = [path for corpus in corpora(recipe) for path in corpus.resolve(recipe.data_directory).paths]
        return ", ".join(str(path) for path in paths if not path.is_file())

    if missing(recipe):
        listed = dict.fromkeys([missing(each) for each in (recipe, *others)])
        raise CorpusError(f"the {sets} in the recipe of {bundle} are missing: there is no file "
                          f"{', nor '.join(listed)}. Name {files}.")
    try:
        for spec in corpora(recipe):
            require_readable(recipe, spec)
    except CorpusError as error:
        raise CorpusError(f"{error} Name {files}.") from error
    return recipe
