"""Comparison of two systems, each a model or a file of translations, on files or on the test sets of a recipe."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from seq2seq.data.corpus import read_pairs, read_texts
from seq2seq.data.parallel_text import require_as_many_lines
from seq2seq.errors import CorpusError, UserError
from seq2seq.evaluation.scores import METRICS, warn_if_without_spaces
from seq2seq.evaluation.significance import Comparison, compare
from seq2seq.recipe import Corpus, Recipe, load_recipe
from seq2seq.recipe.directions import language_token
from seq2seq.storage.checkpoints import recipe_path, resolve_model_path
from seq2seq.tokenizers.source import Source
from seq2seq.translation.translator import Translator


def compare_systems(system: Path, baseline: Path, source: Path | None, references: Sequence[Path], language: str | None,
                    load: Callable[[Path], Translator], **test: Any) -> dict[str, dict[str, Comparison]]:
    """Return the comparison of two systems by test set and metric. If there are `references`, the only test set is "".

    Args:
        system, baseline: each a model or a file of translations.
        source: text to translate; None if both systems are files of translations, or if `references` is empty.
        references: files of reference translations. Empty: both systems translate the test sets in the recipe of
            `system`.
        language: code of the target language; None: the target language of the model, or "en" without a model.
        load: function that loads a model. test: the arguments `metrics`, `test` and `samples` of `compare`.
    Raises:
        UserError: a file that the systems need is not given, or two files have different numbers of lines.
    """
    streams = [read_texts(path) for path in references]
    names = [str(system), str(baseline), *map(str, references)]
    tests: dict[str, tuple[Sequence[str | Source], list[list[str]]]] = {
        "": (read_texts(source) if source else [], streams)}
    languages = {"": language} if language else {}                              # target languages by test set
    if not references:
        recipe = recipe_with_tests(resolve_model_path(system))
        tests, languages = {}, {name: recipe.languages_of(spec).target for name, spec in recipe.data.test.items()}
        for name, spec in recipe.data.test.items():
            pairs = list(read_pairs(recipe, without_language_token(spec, recipe), context=0))
            tests[name] = ([text for _, text, _ in pairs], [[text for _, _, text in pairs]])
        names.append("the references")
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
                              *map(len, (tests[""][0], *streams, *files.values())))
    translations: list[dict[str, list[str]]] = []                               # of each system, by test set
    precisions: list[str | None] = []
    for path in (system, baseline):
        if path.is_dir():
            translator = load(path)
            model_recipe = load_recipe(recipe_path(resolve_model_path(path)), check_files=False)
            languages = {name: languages.get(name, translator.languages.target) for name in tests}
            directed = {name: towards(translator, model_recipe, target) for name, target in languages.items()}
            precisions.append(translator.precision)
            texts_of = {name: texts for name, (texts, _) in tests.items()}
            if not references and translator.context:
                texts_of = {name: [text for _, text, _ in read_pairs(recipe, without_language_token(spec, recipe),
                                                                     context=translator.context)]
                            for name, spec in recipe.data.test.items()}
            translations.append({name: [n_best[0].text for n_best in directed[name].translate(texts)]
                                 for name, texts in texts_of.items()})
        else:
            translations.append({"": files[path]})
            precisions.append(None)
    if references and "bleu" in test.get("metrics", METRICS):
        warn_if_without_spaces(references, streams, languages.get("", "en"))
    return {name: compare(translations[0][name], translations[1][name], streams, languages.get(name, "en"), names=names,
                          precisions=precisions, **test)
            for name, (_, streams) in tests.items()}


def without_language_token(spec: Corpus, recipe: Recipe) -> Corpus:
    """Return a corpus of the recipe without the language token in its tag, which other models may not know. Translators
    of `towards` add the token."""
    if not recipe.language_tokens:
        return spec
    tag = (spec.tag or "").removeprefix(language_token(recipe.languages_of(spec).target)).strip()
    return spec.model_copy(update={"tag": tag or None})


def towards(translator: Translator, recipe: Recipe, target: str) -> Translator:
    """Return a translator into a target language. A model with a single target language is returned unchanged. recipe:
    recipe of the model.

    Raises:
        OptionError: the model has several target languages, and this language is none of them.
    """
    return translator.towards(recipe.into(target).languages) if recipe.language_tokens else translator


def recipe_with_tests(bundle: Path) -> Recipe:
    """Return the recipe of a bundle, after checking that it has test sets and that their files exist.

    Raises:
        UserError: the recipe has no test sets, or their files do not exist on this machine.
    """
    bundle = bundle.absolute()
    recipe = load_recipe(recipe_path(bundle), check_files=False)
    files = "files with --source and --reference" if recipe.task.has_source else "a file with --text"
    if not recipe.data.test:
        raise UserError(f"the recipe of {bundle} has no test sets. Name {files}.")
    paths = [path for corpus in recipe.resolve().data.test.values() for path in corpus.paths]
    missing = [str(path) for path in paths if not path.is_file()]
    if missing:
        raise CorpusError(f"the test sets in the recipe of {bundle} are missing: there is no file "
                          f"{', '.join(missing)}. Name {files}.")
    return recipe
